"""The define stage: jobs and their schedules, as rows."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import asyncpg
import orjson

from rota.domain.ids import SHARD_COUNT, job_uid, shard_of
from rota.domain.job import NAME_LIMIT, ONE_WAITS, Job, JobName
from rota.domain.json_value import stored_json
from rota.domain.misfire import Skipped, misfire_to_json
from rota.domain.ownership import Owner, Ownership
from rota.domain.retry import RetryPolicy
from rota.domain.schedule import schedule_to_json
from rota.errors import InvalidInput
from rota.store.database import Connection, Database
from rota.store.due import NEVER, NewRun, parse_misfire, parse_schedule, superseded_by
from rota.store.statements import due as due_sql
from rota.store.statements import jobs as sql

PROBLEM_LIMIT: Final = 1000
"""The most characters of what is said of a stored definition that is refused."""
FORMER_PAYLOADS: Final = 100
"""How many former payloads of a job are kept, besides the last one, for the runs that ran with them."""
_SHARDS: Final = range(SHARD_COUNT)
_PAST_ALL: Final = "\U0010ffff" * (NAME_LIMIT + 1)
"""Comes after every id; after a prefix, it comes after every id that begins with it and before all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredJob:
    """A job as it stands in the database. `job` is None for one whose stored definition is refused (see `problem`)."""

    job: Job | None
    problem: str | None
    shard: int
    job_uid: int
    tenant_id: str
    job_id: str
    generation: int
    version: int
    paused_at: datetime | None
    pause_reason: str | None
    resume_at: datetime | None
    resume_missed: str | None
    """What becomes of missed slots at `resume_at`; None: as the job's policy says."""
    quarantined: str | None
    deleted: bool
    created_at: datetime
    updated_at: datetime
    next_run_at: datetime | None
    next_slot: datetime | None
    since: datetime | None
    owner: Owner | None
    source: str | None
    declared: dict[str, Any] | None
    overrides: tuple[str, ...]
    orphaned_at: datetime | None

    @property
    def ownership(self) -> Ownership:
        """Whose it is."""
        return Ownership(
            owner=self.owner, source=self.source, declared=self.declared, overrides=self.overrides,
            orphaned_at=self.orphaned_at,
        )  # fmt: skip

    @property
    def name(self) -> JobName:
        return JobName(self.tenant_id, self.job_id)

    @property
    def state(self) -> str:
        """One word for people: active, paused, quarantined, finished or deleted."""
        if self.deleted:
            return "deleted"
        if self.quarantined:
            return "quarantined"
        if self.paused_at:
            return "paused"
        if self.job is not None and self.job.schedule is not None and self.next_slot is None:
            return "finished"
        return "active"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRow:
    """What the scheduler is to see of a job."""

    job_uid: int
    next_run_at: datetime | None
    next_slot: datetime | None
    version: int
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWrite:
    """A definition to be written, and of which job: its number, its generation, and the version that it gets."""

    job: Job
    job_uid: int
    generation: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LastGeneration:
    """The latest deleted job of an id."""

    generation: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reroute:
    """An edit's effect on the job's waiting runs."""

    job: Job
    job_uid: int
    priority: int | None
    """The new priority; None: each run keeps its own."""


async def lock(tx: Connection, uids: Sequence[int]) -> dict[int, StoredJob]:
    """Return these jobs by uid, deleted ones too, locked with their schedules until the transaction ends."""
    rows = await tx.fetch(sql.lock_jobs, shards=[shard_of(uid) for uid in uids], job_uids=list(uids))
    return {stored.job_uid: stored for stored in await _with_schedules(tx, rows)}


async def lock_free(tx: Connection, uid: int) -> StoredJob | None:
    """Return a job as `lock` does, unless somebody else's transaction holds it: that is not waited for."""
    rows = await tx.fetch(sql.lock_free_jobs, shards=[shard_of(uid)], job_uids=[uid])
    return next(iter(await _with_schedules(tx, rows)), None)


async def lock_live(tx: Connection, names: Sequence[JobName]) -> dict[JobName, StoredJob]:
    """Return the jobs that live under these names, locked with their schedules until the transaction ends."""
    rows = await tx.fetch(sql.lock_live_jobs, **_names(names))
    return {stored.name: stored for stored in await _with_schedules(tx, rows)}


async def last_generations(tx: Connection, names: Sequence[JobName]) -> dict[JobName, LastGeneration]:
    """Return of these names that a deleted job had the last one's generation; ask after `lock_live`."""
    rows = await tx.fetch(sql.last_generations, **_names(names))
    return {
        JobName(row["tenant_id"], row["job_id"]): LastGeneration(generation=row["generation"], version=row["version"])
        for row in rows
    }


async def _with_schedules(tx: Connection, rows: Sequence[Any]) -> list[StoredJob]:
    keys: dict[str, Any] = {"shards": [row["shard"] for row in rows], "job_uids": [row["job_uid"] for row in rows]}
    schedules = {row["job_uid"]: row for row in await tx.fetch(sql.lock_schedules, **keys)}
    return [_stored(row, schedules.get(row["job_uid"], _NO_SCHEDULE)) for row in rows]


async def lock_if_free(tx: Connection, uid: int) -> StoredJob | None:
    """Return a job, a deleted one too, locked with its schedule; None where somebody else has it, or there is none."""
    rows = await tx.fetch(sql.lock_if_free, shard=shard_of(uid), job_uid=uid)
    return _stored(rows[0], rows[0]) if rows else None


_NO_SCHEDULE: Final[dict[str, Any]] = {"next_run_at": None, "next_slot": None, "since": None}


async def write(tx: Connection, writes: Sequence[JobWrite], *, now: datetime) -> frozenset[int] | None:
    """Insert or replace definitions; returns the uids written. One left out was changed by somebody else, or its number
    is that of another job.

    None is returned when somebody else's insert of one of them crossed ours: the transaction is over.
    """
    jobs = [write.job for write in writes]
    # ON CONFLICT settles a race on the key that it names. One that is met first on another unique key of the same row
    # is an error, which says the same.
    with suppress(asyncpg.UniqueViolationError):
        rows = await tx.fetch(
            sql.write_jobs, now=now,
            shards=[shard_of(write.job_uid) for write in writes],
            job_uids=[write.job_uid for write in writes], tenant_ids=[job.tenant_id for job in jobs],
            job_ids=[job.job_id for job in jobs], generations=[write.generation for write in writes],
            versions=[write.version for write in writes],
            handlers=[job.handler for job in jobs], schedules=[_schedule_text(job) for job in jobs],
            payloads=[_payload_text(job) for job in jobs], pools=[job.pool for job in jobs],
            priorities=[job.priority for job in jobs], max_attempts=[job.max_attempts for job in jobs],
            retries=[_json(job.retry.to_json()) for job in jobs],
            misfires=[_json(misfire_to_json(job.misfire)) for job in jobs],
            graces=[_ms(job.misfire_grace) for job in jobs], timeouts=[_ms(job.timeout) for job in jobs],
            leases=[_ms(job.lease_duration) for job in jobs], jitters=[_ms(job.jitter) for job in jobs],
            overlaps=[job.overlap for job in jobs], start_deadlines=[_ms(job.start_deadline) for job in jobs],
            max_concurrencies=[job.max_concurrency for job in jobs],
            concurrency_keys=[job.concurrency_key for job in jobs],
            key_concurrencies=[job.key_concurrency for job in jobs], limits=[_json(job.limits) for job in jobs],
            max_losses=[job.max_losses for job in jobs], pause_afters=[job.pause_after for job in jobs],
            labels=[_json(job.labels) for job in jobs], descriptions=[job.description for job in jobs],
        )  # fmt: skip
        return frozenset(row["job_uid"] for row in rows)
    return None


async def keep_payloads(tx: Connection, edits: Sequence[JobWrite]) -> None:
    """Keep the payloads that these edits are to replace; their jobs are locked. The oldest ones of many go."""
    uids = [edit.job_uid for edit in edits]
    await tx.fetch(
        sql.keep_payloads, shards=[shard_of(uid) for uid in uids], job_uids=uids,
        payloads=[_payload_text(edit.job) for edit in edits], most=FORMER_PAYLOADS,
    )  # fmt: skip


async def clash(tx: Connection, writes: Sequence[JobWrite]) -> JobName | None:
    """Return the first of these jobs whose number is another job's."""
    uids = [write.job_uid for write in writes]
    rows = await tx.fetch(sql.names_at, shards=[shard_of(uid) for uid in uids], job_uids=uids)
    owners = {row["job_uid"]: JobName(row["tenant_id"], row["job_id"]) for row in rows}
    names = [write.job.name for write in writes]
    return next((name for uid, name in zip(uids, names, strict=True) if owners.get(uid, name) != name), None)


async def write_schedules(tx: Connection, rows: Sequence[ScheduleRow]) -> int:
    """Set what schedulers see; returns how many rows were written."""
    written = await tx.fetch(
        sql.write_schedules, shards=[shard_of(row.job_uid) for row in rows], job_uids=[row.job_uid for row in rows],
        next_run_ats=[row.next_run_at for row in rows], next_slots=[row.next_slot for row in rows],
        versions=[row.version for row in rows], sinces=[row.since for row in rows],
    )  # fmt: skip
    return len(written)


async def write_owners(tx: Connection, owners: Mapping[int, Ownership]) -> int:
    """Set whose these jobs are; returns how many rows were written."""
    uids = list(owners)
    rows = await tx.fetch(
        sql.write_owners, shards=[shard_of(uid) for uid in uids], job_uids=uids,
        owners=[owners[uid].owner for uid in uids], sources=[owners[uid].source for uid in uids],
        declareds=[_json_or_none(owners[uid].declared) for uid in uids],
        overrides=[orjson.dumps(owners[uid].overrides).decode() for uid in uids],
        orphaned_ats=[owners[uid].orphaned_at for uid in uids],
    )  # fmt: skip
    return len(rows)


async def mark_orphans(
    tx: Connection, *, tenant_id: str, source: str, declared: Sequence[str], now: datetime, limit: int
) -> list[str]:
    """Mark jobs that a source declared before and does not declare now, at most `limit`; returns their ids.

    Jobs that somebody is editing at this moment are passed over.
    """
    rows = await tx.fetch(
        sql.mark_orphans, tenant_id=tenant_id, source=source, declared=list(declared), now=now, limit=limit
    )  # fmt: skip
    return [row["job_id"] for row in rows]


async def reroute_pending(tx: Connection, edits: Sequence[Reroute]) -> int:
    """Let waiting runs follow their jobs' new pool, handler and priority; returns how many runs moved."""
    rows = await tx.fetch(
        sql.reroute_pending, shards=[shard_of(edit.job_uid) for edit in edits],
        job_uids=[edit.job_uid for edit in edits], pools=[edit.job.pool for edit in edits],
        handlers=[edit.job.handler for edit in edits], priorities=[edit.priority for edit in edits],
    )  # fmt: skip
    return len(rows)


async def get(database: Database, uid: int) -> StoredJob | None:
    """Return one job, unless it is unknown or deleted."""
    rows = await database.fetch(sql.get_job, shard=shard_of(uid), job_uid=uid)
    return _stored(rows[0], rows[0]) if rows else None


async def find(database: Database, name: JobName) -> StoredJob | None:
    """Return the job that lives under a name."""
    if (shard := shard_of_name(name)) is None:
        return None
    rows = await database.fetch(sql.find_job, shard=shard, tenant_id=name.tenant_id, job_id=name.job_id)
    return _stored(rows[0], rows[0]) if rows else None


async def find_all(database: Database, names: Sequence[JobName]) -> dict[JobName, StoredJob]:
    """Return the jobs that live under these names, as they stand at this moment."""
    rows = await database.fetch(sql.find_jobs, **_names(names))
    return {stored.name: stored for stored in (_stored(row, row) for row in rows)}


async def generations(database: Database, name: JobName, *, limit: int) -> list[int]:
    """Return the numbers of the last jobs that had a name, the latest first, deleted ones too."""
    if (shard := shard_of_name(name)) is None:
        return []
    rows = await database.fetch(
        sql.generations_of, shard=shard, tenant_id=name.tenant_id, job_id=name.job_id, limit=limit
    )
    return [row["job_uid"] for row in rows]


def shard_of_name(name: JobName) -> int | None:
    """Return where the jobs of a name are; None for a name that no job can have."""
    if "\0" in "".join(name):
        return None
    try:
        return shard_of(job_uid(*name))
    except UnicodeEncodeError:
        return None


def _names(names: Sequence[JobName]) -> dict[str, Any]:
    return {
        "shards": [shard_of(job_uid(*name)) for name in names],
        "tenant_ids": [name.tenant_id for name in names],
        "job_ids": [name.job_id for name in names],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which of a tenant's jobs a page shows; what is empty or None leaves all.

    `label_value` None asks only for the label's name. `enabled` tells jobs that are neither paused nor quarantined from
    the others. `orphaned` tells jobs that their source declares no longer.
    """

    prefix: str = ""
    handler: str = ""
    label: str = ""
    label_value: str | None = None
    enabled: bool | None = None
    owner: str = ""
    source: str = ""
    orphaned: bool | None = None


async def page(database: Database, *, tenant_id: str, where: JobFilter, after: str, limit: int) -> list[StoredJob]:
    """Return a tenant's jobs in the order of their ids, which is that of their characters; without their payloads."""
    rows = await database.fetch(
        sql.list_jobs, shards=_SHARDS, tenant_id=tenant_id, after=after, low=where.prefix,
        upto=where.prefix + _PAST_ALL, limit=limit, handler=where.handler, label=where.label,
        label_value=where.label_value, enabled=where.enabled, owner=where.owner, source=where.source,
        orphaned=where.orphaned,
    )  # fmt: skip
    return [_stored(row, row) for row in rows]


async def count(tx: Connection, tenant_id: str, *, bound: int) -> int:
    """Return how many jobs a tenant has, at most `bound`."""
    [row] = await tx.fetch(sql.count_jobs, shards=_SHARDS, tenant_id=tenant_id, bound=bound)
    return int(row["jobs"])


async def set_pause(
    tx: Connection, uid: int, *, paused_at: datetime | None, reason: str | None, resume_at: datetime | None = None,
    missed: str | None = None, now: datetime,
) -> int | None:  # fmt: skip
    """Pause or, with None, resume; returns the new version, None when there is no such job."""
    rows = await tx.fetch(
        sql.set_pause, shard=shard_of(uid), job_uid=uid, paused_at=paused_at, reason=reason, resume_at=resume_at,
        missed=missed, now=now,
    )  # fmt: skip
    return rows[0]["version"] if rows else None


async def amend_pause(
    tx: Connection, uid: int, *, reason: str, resume_at: datetime | None, missed: str | None, now: datetime
) -> bool:
    """Give a pause another reason and end; False when the job is not paused."""
    return bool(
        await tx.fetch(
            sql.amend_pause, shard=shard_of(uid), job_uid=uid, reason=reason, resume_at=resume_at, missed=missed,
            now=now,
        )
    )  # fmt: skip


async def due_resumes(
    database: Database, *, now: datetime, limit: int, aside: Sequence[int]
) -> list[tuple[str, str, int]]:  # fmt: skip
    """Return (tenant, job id, uid) of paused jobs whose time to run again has come, at most `limit`.

    Jobs in `aside` are left out.
    """
    rows = await database.fetch(sql.due_resumes, now=now, limit=limit, aside=aside)
    return [(row["tenant_id"], row["job_id"], row["job_uid"]) for row in rows]


async def has_live_run(tx: Connection, uid: int, *, now: datetime) -> bool:
    """Whether a run of the job lives: it runs, or waits and its slot has come."""
    return bool(await tx.fetch(due_sql.live_among, shards=[shard_of(uid)], job_uids=[uid], now=now))


async def make_missed(
    tx: Connection, uid: int, job: Job, runs: Sequence[NewRun], *, now: datetime
) -> frozenset[datetime]:
    """Make runs of slots that a pause held back, at least one; returns the slots whose run is new.

    Where the job lets only the newest slot wait, older ones are superseded. Raises MissingPartition.
    """
    rows = await tx.fetch(
        sql.make_missed, shard=shard_of(uid), job_uid=uid, now=now, pool=job.pool, handler=job.handler,
        tenant_id=job.tenant_id, slots=[run.scheduled_for for run in runs],
        available_ats=[run.available_at for run in runs], deadlines=[run.deadline_at for run in runs],
        gates=[run.gate for run in runs], priority=job.priority, supersedes=job.overlap in ONE_WAITS,
        replaces=job.overlap == "replace", reason=superseded_by(max(run.scheduled_for for run in runs)),
    )  # fmt: skip
    return frozenset(row["scheduled_for"] for row in rows)


async def delete(tx: Connection, uid: int, *, now: datetime, reason: str) -> int | None:
    """Delete a job and cancel its waiting runs; returns how many, None when there is no such job."""
    if not await tx.fetch(sql.mark_deleted, shard=shard_of(uid), job_uid=uid, now=now):
        return None
    await tx.fetch(sql.drop_schedule, shard=shard_of(uid), job_uid=uid)
    return len(await tx.fetch(sql.cancel_waiting, shard=shard_of(uid), job_uid=uid, now=now, reason=reason))


async def note_skipped(
    tx: Connection, uid: int, skipped: Sequence[Skipped], *, policy: dict[str, Any], now: datetime
) -> None:
    """Enter ranges of a job's slots into the slot ledger."""
    await tx.fetch(
        sql.note_skipped, shard=shard_of(uid), job_uid=uid, firsts=[part.first for part in skipped],
        lasts=[part.last for part in skipped], counts=[part.slots for part in skipped],
        reasons=[part.reason for part in skipped], policy=_json(policy), now=now,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSlot:
    """A computed next slot, with the rule that it came from."""

    job_uid: int
    job_id: str
    schedule: str | None
    next_slot: datetime
    version: int


async def stored_slots(database: Database, shard: int, *, after: int, now: datetime, limit: int) -> list[StoredSlot]:
    """Return one page of a shard's future next slots, in the order of uids."""
    rows = await database.fetch(sql.stored_schedules, shard=shard, after=after, now=now, limit=limit)
    return [
        StoredSlot(job_uid=row["job_uid"], job_id=row["job_id"], schedule=row["schedule"], next_slot=row["next_slot"],
                   version=row["version"])
        for row in rows
    ]  # fmt: skip


async def move_next_slot(database: Database, stored: StoredSlot, *, next_slot: datetime | None, now: datetime) -> bool:
    """Correct a next slot; False when the schedule moved on, was edited meanwhile, or is held by somebody else."""
    return bool(
        await database.fetch(
            sql.move_next_slot, shard=shard_of(stored.job_uid), job_uid=stored.job_uid, version=stored.version,
            was=stored.next_slot, next_slot=next_slot, now=now,
        )
    )  # fmt: skip


def _stored(row: Any, schedule: Any) -> StoredJob:
    try:
        job, problem = _job(row), None
    except (InvalidInput, OverflowError, ValueError, TypeError) as error:
        # One that somebody's SQL has damaged must not hide the others of a list.
        job, problem = None, str(error)[:PROBLEM_LIMIT]
    declared = None if row["declared"] is None else stored_json(row["declared"])
    overrides = [] if row["overrides"] is None else stored_json(row["overrides"])
    return StoredJob(
        job=job, problem=problem, shard=row["shard"], job_uid=row["job_uid"], tenant_id=row["tenant_id"],
        job_id=row["job_id"], generation=row["generation"], version=row["version"], paused_at=row["paused_at"],
        pause_reason=row["pause_reason"], resume_at=row["resume_at"], resume_missed=row["resume_missed"],
        quarantined=row["quarantined"],
        deleted=row["deleted_at"] is not None,
        created_at=row["created_at"], updated_at=row["updated_at"], next_run_at=_finite(schedule["next_run_at"]),
        next_slot=schedule["next_slot"], since=schedule["since"], owner=row["owner"], source=row["source"],
        declared=declared if isinstance(declared, dict) else None,
        overrides=tuple(name for name in overrides if isinstance(name, str)) if isinstance(overrides, list) else (),
        orphaned_at=row["orphaned_at"],
    )  # fmt: skip


def _finite(instant: datetime | None) -> datetime | None:
    # What a freeze has put off is due at no instant that people would want to see.
    return None if instant is None or instant >= NEVER else instant


def _job(row: Any) -> Job:
    return Job(
        job_id=row["job_id"], tenant_id=row["tenant_id"], handler=row["handler"],
        schedule=None if row["schedule"] is None else parse_schedule(row["schedule"]),
        payload=stored_json(row["payload"]), pool=row["pool"], priority=row["priority"],
        max_attempts=row["max_attempts"], retry=RetryPolicy.from_json(stored_json(row["retry"])),
        misfire=parse_misfire(row["misfire"]), misfire_grace=timedelta(milliseconds=row["misfire_grace_ms"]),
        timeout=timedelta(milliseconds=row["timeout_ms"]), lease_duration=timedelta(milliseconds=row["lease_ms"]),
        jitter=timedelta(milliseconds=row["jitter_ms"]), overlap=row["overlap"],
        start_deadline=None if row["start_deadline_ms"] is None else timedelta(milliseconds=row["start_deadline_ms"]),
        max_concurrency=row["max_concurrency"], concurrency_key=row["concurrency_key"],
        key_concurrency=row["key_concurrency"], limits=stored_json(row["limits"]), max_losses=row["max_losses"],
        pause_after=row["pause_after"], labels=stored_json(row["labels"]), description=row["description"],
    )  # fmt: skip


def _schedule_text(job: Job) -> str | None:
    return None if job.schedule is None else _json(schedule_to_json(job.schedule))


def _payload_text(job: Job) -> str:
    # The standard library's encoder keeps whole numbers of any size; the faster one stops at 64 bits.
    return json.dumps(dict(job.payload), ensure_ascii=False, allow_nan=False)


def _json_or_none(value: Mapping[str, Any] | None) -> str | None:
    # As for payloads, which are a part of it.
    return None if value is None else json.dumps(dict(value), ensure_ascii=False, allow_nan=False)


def _json(value: Any) -> str:
    return orjson.dumps(dict(value)).decode()


def _ms(duration: timedelta | None) -> int | None:
    return None if duration is None else duration // timedelta(milliseconds=1)
