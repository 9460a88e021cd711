"""Jobs come, change, pause and go. An edit takes effect at the next tick and never fires slots of the past."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Final, Literal

import structlog

from rota.clock import Clock
from rota.domain.admission import AGEING
from rota.domain.ids import job_uid
from rota.domain.job import Job, check_text
from rota.domain.misfire import COUNT_LIMIT, Skipped
from rota.errors import InvalidInput, NotFound, VersionConflict
from rota.services.hints import SCHEDULES, Hints
from rota.services.next_slots import recompute_shard
from rota.store import jobs as store
from rota.store.database import Connection, Database, repeat
from rota.store.jobs import Reroute, ScheduleRow, StoredJob

PUT_BATCH: Final = 1000
PAGE: Final = 1000
REASON_LIMIT: Final = 1000
RACES: Final = 3
"""How often a put begins again because somebody else created one of its jobs at the same moment."""
NOBODY: Final[Mapping[str, str]] = {}

Missed = Literal["policy", "drop"]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class PutResult:
    """What an upsert did. `changed` is False when the very same definition stood there; `created` means it is new."""

    job_id: str
    version: int
    changed: bool
    created: bool
    next_slot: datetime | None
    warnings: tuple[str, ...]


class Definitions:
    """The jobs of all tenants; every change is one transaction under the jobs' row locks."""

    def __init__(self, database: Database, clock: Clock, hints: Hints) -> None:
        self._database = database
        self._clock = clock
        self._hints = hints

    async def put(
        self, jobs: Sequence[Job], *, if_version: int | None = None, pause_new: Mapping[str, str] = NOBODY
    ) -> list[PutResult]:
        """Insert or replace jobs, in transactions of PUT_BATCH; the same definition again changes nothing.

        Those named in `pause_new` (job id -> reason) are paused from the start, if they are new.

        A new job's first slot, and the first one after a changed schedule, lies after this instant; a pause outlives
        an edit. Raises InvalidInput when a job stands twice among `jobs`, and VersionConflict when `if_version` is
        given and is not the version that stands there.
        """
        seen: set[int] = set()
        for job in jobs:
            if job.job_uid in seen:
                raise InvalidInput("job_id", f"{job.job_id!r} stands twice in one request")
            seen.add(job.job_uid)
        results: list[PutResult] = []
        remaining = iter(jobs)
        while batch := list(islice(remaining, PUT_BATCH)):
            results += await self._put_whole(batch, if_version=if_version, pause_new=pause_new)
        if any(result.changed for result in results):
            self._hints.publish(SCHEDULES)
        return results

    async def get(self, job_id: str, *, tenant_id: str) -> StoredJob:
        """Return one job. Raises NotFound."""
        stored = await store.get(self._database, job_uid(tenant_id, job_id))
        if stored is None:
            raise _unknown(job_id)
        return stored

    async def page(self, *, tenant_id: str, prefix: str = "", after: str = "", limit: int = 100) -> list[StoredJob]:
        """Return a tenant's jobs in the order of their ids, after an id, at most PAGE."""
        return await store.page(self._database, tenant_id=tenant_id, prefix=prefix, after=after, limit=min(limit, PAGE))

    async def pause(self, job_id: str, *, tenant_id: str, reason: str) -> StoredJob:
        """Make no more runs of a job until it is resumed; runs that wait or run go on. Raises NotFound."""
        check_text("reason", reason, limit=REASON_LIMIT)
        uid, now = job_uid(tenant_id, job_id), self._clock.now()
        async with self._database.transaction() as tx:
            stored = await _locked(tx, uid, job_id)
            if stored.paused_at is None:
                version = await store.set_pause(tx, uid, paused_at=now, reason=reason, now=now)
                await _reschedule(tx, stored, version=version, next_run_at=None, next_slot=stored.next_slot, now=now)
        return await self.get(job_id, tenant_id=tenant_id)

    async def resume(self, job_id: str, *, tenant_id: str, missed: Missed = "policy") -> StoredJob:
        """Let a paused job run again. Raises NotFound.

        What was missed is left to the job's misfire policy, or with "drop" entered into the slot ledger.
        """
        uid, now = job_uid(tenant_id, job_id), self._clock.now()
        async with self._database.transaction() as tx:
            stored = await _locked(tx, uid, job_id)
            if stored.paused_at is not None:
                version = await store.set_pause(tx, uid, paused_at=None, reason=None, now=now)
                next_slot = stored.next_slot
                if missed == "drop":
                    next_slot = await self._drop_missed(tx, stored, policy={"resume": "drop"}, now=now)
                await _reschedule(tx, stored, version=version, next_run_at=next_slot, next_slot=next_slot, now=now)
        self._hints.publish(SCHEDULES)
        return await self.get(job_id, tenant_id=tenant_id)

    async def delete(self, job_id: str, *, tenant_id: str) -> int:
        """Delete a job and cancel its waiting runs; what runs ends by itself. Returns the number of runs cancelled."""
        uid, now = job_uid(tenant_id, job_id), self._clock.now()
        async with self._database.transaction() as tx:
            await store.lock(tx, [uid])
            cancelled = await store.delete(tx, uid, now=now, reason="job deleted")
        if cancelled is None:
            raise _unknown(job_id)
        log.info("job.deleted", job_id=job_id, tenant_id=tenant_id, cancelled=cancelled)
        return cancelled

    async def recompute(self, shards: Sequence[int]) -> int:
        """Compute all future next slots of these shards anew, after new tz data; returns how many moved."""
        now = self._clock.now()
        moved = sum([await recompute_shard(self._database, shard, now=now) for shard in shards])
        if moved:
            self._hints.publish(SCHEDULES)
        return moved

    async def _put_whole(
        self, jobs: Sequence[Job], *, if_version: int | None, pause_new: Mapping[str, str]
    ) -> list[PutResult]:
        """Put a batch in one transaction. It can be repeated, unless it depends on a version that it changes itself."""

        async def once() -> list[PutResult]:
            async with self._database.transaction() as tx:
                return await self._put_batch(tx, jobs, if_version=if_version, pause_new=pause_new)

        if if_version is not None:
            return await once()
        for _ in range(RACES):
            try:
                return await repeat(once, clock=self._clock)
            except _CreatedMeanwhile:
                continue  # the next look at the rows sees what somebody else has just created
        return await once()

    async def _put_batch(
        self, tx: Connection, jobs: Sequence[Job], *, if_version: int | None, pause_new: Mapping[str, str]
    ) -> list[PutResult]:
        now = self._clock.now()
        ordered = sorted(jobs, key=lambda job: job.job_uid)
        standing = await store.lock(tx, [job.job_uid for job in ordered])
        writes: list[tuple[Job, int]] = []
        schedules: list[ScheduleRow] = []
        reroutes: list[Reroute] = []
        results: dict[int, PutResult] = {}
        for job in ordered:
            before = standing.get(job.job_uid)
            _check_version(job, before, if_version)
            if before is not None and before.job == job and not before.deleted and before.quarantined is None:
                results[job.job_uid] = _result(job, before.version, before.next_slot, changed=False)
                continue
            version = before.version + 1 if before else 1
            row = _schedule_row(job, before, version=version, now=now)
            if before is not None and not before.deleted and row.since != before.since:
                # The old schedule's slots that nobody has looked at yet never run, and leave their trace.
                await self._drop_missed(tx, before, policy={"edit": "schedule"}, now=now)
            writes.append((job, version))
            schedules.append(row)
            if before is not None and (reroute := _reroute(job, before)):
                reroutes.append(reroute)
            results[job.job_uid] = _result(job, version, row.next_slot, changed=True, created=_is_new(job, standing))
        if writes:
            if len(await store.write(tx, writes, now=now)) < len(writes):
                raise _CreatedMeanwhile("a job was created by somebody else at this moment", hint="put it again")
            new = {job.job_uid: job for job, version in writes if job.job_id in pause_new and _is_new(job, standing)}
            for uid, job in new.items():
                await store.set_pause(tx, uid, paused_at=now, reason=pause_new[job.job_id], now=now)
            await store.write_schedules(tx, [_paused(row) if row.job_uid in new else row for row in schedules])
        if reroutes:
            await store.reroute_pending(tx, reroutes)
        return [results[job.job_uid] for job in jobs]

    async def _drop_missed(
        self, tx: Connection, stored: StoredJob, *, policy: dict[str, str], now: datetime
    ) -> datetime | None:
        """Enter the slots that passed into the ledger; return the first slot after now."""
        if stored.next_slot is None or stored.next_slot > now:
            return stored.next_slot
        if stored.job is None:
            # Its rule cannot be read, so the range that it may have named is all that can be said.
            unread = Skipped(first=stored.next_slot, last=now, slots=None, reason="misfire")
            await store.note_skipped(tx, stored.job_uid, unread, policy=policy, now=now)
            return None
        if stored.job.schedule is None:
            return None
        schedule, first = stored.job.schedule, stored.next_slot
        last = max(schedule.latest_slots(now, after=first, count=1), default=first)
        slots = 1 + schedule.count_slots(first, last, limit=COUNT_LIMIT)
        reason = "misfire" if stored.paused_at is None else "paused"
        skipped = Skipped(first=first, last=last, slots=slots if slots <= COUNT_LIMIT else None, reason=reason)
        await store.note_skipped(tx, stored.job_uid, skipped, policy=policy, now=now)
        return schedule.next_slot(now)


class _CreatedMeanwhile(VersionConflict):
    """Two put a new job at once, and this one comes second."""


def _is_new(job: Job, standing: Mapping[int, StoredJob]) -> bool:
    before = standing.get(job.job_uid)
    return before is None or before.deleted


def _paused(row: ScheduleRow) -> ScheduleRow:
    """Return the row of a job that was paused right after it was written, which is one version more."""
    return replace(row, next_run_at=None, version=row.version + 1)


def _schedule_row(job: Job, before: StoredJob | None, *, version: int, now: datetime) -> ScheduleRow:
    """Return what schedulers are to see: an unchanged schedule goes on where it stood, a changed one starts now."""
    same = (
        before is not None
        and not before.deleted
        and before.quarantined is None
        and before.job is not None
        and before.job.schedule == job.schedule
        and before.since is not None
    )
    if same:
        assert before is not None
        assert before.since is not None
        next_slot, since = before.next_slot, before.since
    else:
        next_slot, since = (None if job.schedule is None else job.schedule.next_slot(now)), now
    paused = before is not None and before.paused_at is not None and not before.deleted
    return ScheduleRow(
        job_uid=job.job_uid,
        next_run_at=None if paused else next_slot,
        next_slot=next_slot,
        version=version,
        since=since,
    )


def _reroute(job: Job, before: StoredJob) -> Reroute | None:
    was = before.job
    if was is not None and (was.pool, was.handler, was.priority) == (job.pool, job.handler, job.priority):
        return None
    change = 0 if was is None else (was.priority - job.priority) * (AGEING // timedelta(milliseconds=1))
    return Reroute(job=job, rank_change=change)


def _result(job: Job, version: int, next_slot: datetime | None, *, changed: bool, created: bool = False) -> PutResult:
    warnings = list(job.schedule.warnings) if job.schedule is not None else []
    if job.schedule is not None and next_slot is None:
        warnings.append("the schedule has no slot after now: this job is finished")
    return PutResult(
        job_id=job.job_id,
        version=version,
        changed=changed,
        created=created,
        next_slot=next_slot,
        warnings=tuple(warnings),
    )


def _check_version(job: Job, before: StoredJob | None, if_version: int | None) -> None:
    standing = before.version if before is not None and not before.deleted else 0
    if if_version is not None and if_version != standing:
        raise VersionConflict(
            f"job {job.job_id!r} is at version {standing}, not {if_version}", hint="read it again, then edit"
        )


async def _locked(tx: Connection, uid: int, job_id: str) -> StoredJob:
    stored = (await store.lock(tx, [uid])).get(uid)
    if stored is None or stored.deleted:
        raise _unknown(job_id)
    return stored


async def _reschedule(
    tx: Connection, stored: StoredJob, *, version: int | None, next_run_at: datetime | None,
    next_slot: datetime | None, now: datetime,
) -> None:  # fmt: skip
    assert version is not None, "the job's row is locked, so it cannot have gone"
    row = ScheduleRow(
        job_uid=stored.job_uid, next_run_at=next_run_at, next_slot=next_slot, version=version, since=stored.since or now
    )
    await store.write_schedules(tx, [row])


def _unknown(job_id: str) -> NotFound:
    return NotFound(f"there is no job {job_id!r}", hint="`rota job list` shows the jobs of this tenant")
