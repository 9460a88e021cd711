"""Runs that people ask for: a job run now or at a given slot, and dead letters sent back."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import structlog

from rota.clock import Clock
from rota.domain.admission import AGEING, rank
from rota.domain.ids import job_uid, run_id, slot_of, to_milliseconds
from rota.domain.job import Job, check_payload
from rota.domain.run import Gate
from rota.errors import CommitUnknown, NotFound, SlotTaken
from rota.services.hints import SCHEDULES, Hints, pool_topic
from rota.store import jobs, runs
from rota.store.database import Database, repeat
from rota.store.partitions import with_partitions
from rota.store.runs import SlotKey

REPLAY_BATCH: Final = 1000

NOW_SLOTS: Final = 50
"""How many milliseconds a run that is wanted now may give way to others of its job."""

log = structlog.get_logger()


class OnDemand:
    """Trigger and replay."""

    def __init__(self, database: Database, clock: Clock, hints: Hints) -> None:
        self._database = database
        self._clock = clock
        self._hints = hints

    async def trigger(
        self,
        job_id: str,
        *,
        tenant_id: str,
        scheduled_for: datetime | None = None,
        payload: Mapping[str, Any] | None = None,
    ) -> UUID:
        """Make one run of a job, now or at a slot of the caller's; returns its id. A paused job can be triggered.

        A run at an instant that the schedule names *is* that slot: the scheduler finds it taken and goes on.
        Raises NotFound, InvalidInput, and SlotTaken when the job has a run at this instant already.
        """
        now = self._clock.now()
        stored = await jobs.get(self._database, job_uid(tenant_id, job_id))
        if stored is None:
            raise _unknown(job_id)
        if stored.job is None:
            raise NotFound(f"job {job_id!r} cannot be read: {stored.problem}", hint="put it again")
        if payload is not None:
            check_payload(payload)
        if scheduled_for is not None:
            to_milliseconds(scheduled_for)
            # Months of partitions are those of UTC.
            slots = [scheduled_for.astimezone(UTC)]
        else:
            # "Now" is any slot that is still free at this instant: two callers in one millisecond get two runs.
            whole = now.replace(microsecond=now.microsecond // 1000 * 1000)
            slots = [whole + timedelta(milliseconds=later) for later in range(NOW_SLOTS)]
        for slot in slots:
            if await self._make(stored.job, slot, now=now, payload=payload, waits=scheduled_for is not None):
                return run_id(stored.job_uid, slot)
        if await jobs.get(self._database, stored.job_uid) is None:
            raise _unknown(job_id)
        taken = run_id(stored.job_uid, slots[0])
        raise SlotTaken(f"job {job_id!r} has a run at {slots[0].isoformat()} already: {taken}")

    async def _make(
        self, job: Job, slot: datetime, *, now: datetime, payload: Mapping[str, Any] | None, waits: bool
    ) -> bool:
        """Make the run of a slot; False when it is taken, or the job is deleted meanwhile."""
        available_at = max(slot, now) if waits else now
        key = SlotKey(job.job_uid, slot)

        async def write() -> str | None:
            return await runs.trigger(
                self._database,
                key,
                payload=None if payload is None else json.dumps(payload),
                rank=rank(available_at, priority=job.priority),
                available_at=available_at,
                gate=Gate.TIME if available_at > now else Gate.OPEN,
                now=now,
            )

        try:
            pool = await with_partitions(self._database, [slot], write)
        except CommitUnknown:
            # The key tells: if the run stands there and was made at this very instant, it is ours.
            view = await repeat(lambda: runs.get(self._database, key), clock=self._clock)
            if view is None or view.created_at != now:
                raise
            pool = job.pool
        if pool is not None:
            self._hints.publish(SCHEDULES if available_at > now else pool_topic(pool))
        return pool is not None

    async def replay(self, run_ids: Sequence[UUID]) -> frozenset[UUID]:
        """Send dead letters back to the queue; returns those that were dead until now. Nothing is replayed twice.

        The attempts that a run has had stay counted, so a replay is one more attempt: a run that fails again is buried
        again. Raises InvalidInput for an id that is not a run's.
        """
        keys = [SlotKey(*slot_of(run)) for run in run_ids]
        replayed: set[SlotKey] = set()
        for start in range(0, len(keys), REPLAY_BATCH):
            batch = keys[start : start + REPLAY_BATCH]
            replayed |= await self._replay(batch)
        log.info("dead.replayed", asked=len(keys), replayed=len(replayed))
        return frozenset(run_id(key.job_uid, key.scheduled_for) for key in replayed)

    async def _replay(self, batch: Sequence[SlotKey]) -> frozenset[SlotKey]:
        now = self._clock.now()
        return await runs.replay(
            self._database, batch, now=now, rank_at=rank(now, priority=0), ageing_ms=AGEING // timedelta(milliseconds=1)
        )


def _unknown(job_id: str) -> NotFound:
    return NotFound(f"there is no job {job_id!r}", hint="`rota job list` shows the jobs of this tenant")
