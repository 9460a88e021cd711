"""What becomes of slots that passed while a job was paused or its schedule was replaced: the ledger, or runs."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from rota.domain.job import Job
from rota.domain.misfire import COUNT_LIMIT, CatchUp, FireOnce, Misfire, Skipped, decide
from rota.domain.run import Gate
from rota.services.steps import admitted, new_run
from rota.store import jobs as store
from rota.store.database import Connection
from rota.store.jobs import StoredJob
from rota.wire.jobs import Missed

DEFAULT_CATCH_UP: Final = CatchUp(100)
"""The bound of a catch-up that a resume asks for, when the job's own policy has none."""
_NO_GRACE: Final = timedelta(microseconds=-1)
"""What a pause held back was missed, however short the pause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The slot to wait for next, and how many of the missed slots got a run; `opened` tells whether one is ready.

    `replaces`: what runs of the job was asked to end in favour of the new run.
    """

    next_slot: datetime | None
    runs: int = 0
    opened: bool = False
    replaces: bool = False


async def settle_missed(tx: Connection, stored: StoredJob, *, missed: Missed, upto: datetime, now: datetime) -> Settled:
    """Settle what a paused job missed up to an instant, under the lock of its row.

    "drop" enters the slots into the ledger. Else runs are made right here, as far as the job's overlap policy and start
    deadline let them: by the job's own misfire policy, "once" or "catch_up". The rest stands in the slot ledger. What a
    pause held back was missed, however short it was; a slot after `upto` was not, and is the scheduler's.
    """
    if stored.next_slot is None or stored.next_slot > upto:
        return Settled(next_slot=stored.next_slot)
    if missed == "drop" or stored.job is None or stored.job.schedule is None:
        return Settled(next_slot=await drop_missed(tx, stored, policy={"resume": missed}, upto=upto, now=now))
    job = stored.job
    decision = decide(stored.job.schedule, _policy(job, missed), slot=stored.next_slot, now=upto, grace=_NO_GRACE)
    run, skipped = admitted(
        decision,
        overlap=job.overlap,
        start_deadline=job.start_deadline,
        busy=job.overlap == "skip" and await store.has_live_run(tx, stored.job_uid, now=now),
        now=now,
    )
    uid = stored.job_uid
    await store.note_skipped(tx, uid, [_paused(part) for part in skipped], policy={"resume": missed}, now=now)
    runs = [new_run(uid, slot, jitter=job.jitter, start_deadline=job.start_deadline, now=now) for slot in run]
    made = await store.make_missed(tx, uid, job, runs, now=now) if runs else frozenset()
    opened = any(run.gate == Gate.OPEN for run in runs if run.scheduled_for in made)
    replaces = bool(made) and job.overlap == "replace"
    return Settled(next_slot=decision.next_slot, runs=len(made), opened=opened, replaces=replaces)


async def drop_missed(
    tx: Connection, stored: StoredJob, *, policy: dict[str, str], upto: datetime, now: datetime
) -> datetime | None:
    """Enter the slots that passed up to an instant into the ledger; return the first slot after it."""
    if stored.next_slot is None or stored.next_slot > upto:
        return stored.next_slot
    if stored.job is None:
        # Its rule cannot be read, so the range that it may have named is all that can be said.
        unread = Skipped(first=stored.next_slot, last=upto, slots=None, reason="misfire")
        await store.note_skipped(tx, stored.job_uid, [unread], policy=policy, now=now)
        return None
    if stored.job.schedule is None:
        return None
    schedule, first = stored.job.schedule, stored.next_slot
    last = max(schedule.latest_slots(upto, after=first, count=1), default=first)
    slots = 1 + schedule.count_slots(first, last, limit=COUNT_LIMIT)
    reason = "misfire" if stored.paused_at is None else "paused"
    skipped = Skipped(first=first, last=last, slots=slots if slots <= COUNT_LIMIT else None, reason=reason)
    await store.note_skipped(tx, stored.job_uid, [skipped], policy=policy, now=now)
    return schedule.next_slot(upto)


def _policy(job: Job, missed: Missed) -> Misfire:
    if missed == "policy":
        return job.misfire
    if missed == "once":
        return FireOnce()
    return job.misfire if isinstance(job.misfire, CatchUp) else DEFAULT_CATCH_UP


def _paused(skipped: Skipped) -> Skipped:
    """Return the entry with the pause as its reason, unless one of the job's own rules is."""
    return replace(skipped, reason="paused") if skipped.reason == "misfire" else skipped
