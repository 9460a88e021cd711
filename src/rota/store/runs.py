"""Runs as people read them: a wide read is bounded by its window and its limit."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from rota.domain.ids import shard_of
from rota.domain.json_value import stored_json
from rota.domain.run_filter import RunFilter
from rota.store.database import Database
from rota.store.requests import SlotKey as SlotKey
from rota.store.requests import filter_columns
from rota.store.requests import forget_keys as forget_keys
from rota.store.statements import runs as sql


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run in the textbook shape: the row of the view `job_run`.

    `error` is that of its last ended attempt. Of a run that has ended, `started_at`, `duration_seconds` and progress
    are that attempt's, too, and None if there was none. In lists that are not read whole, `payload` and `result` are
    None, and an error is cut.
    """

    run_id: UUID
    tenant_id: str | None
    job_id: str | None
    scheduled_for: datetime
    state: str
    gate: str | None
    origin: str
    attempt: int
    max_attempts: int | None
    handler: str | None
    pool: str | None
    priority: int | None
    created_at: datetime
    available_at: datetime | None
    started_at: datetime | None
    worker_id: str | None
    duration_seconds: float | None
    lease_expires_at: datetime | None
    cancel_requested_at: datetime | None
    progress: float | None
    progress_note: str | None
    finished_at: datetime | None
    died_at: datetime | None
    reason: str | None
    error: str | None
    payload: Any
    result: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptView:
    """An ended attempt; `error` is the only place where its text is kept.

    `job_version` is the version of its job that it ran with; None where 0.1.0 claimed it. `progress` and its note are
    what its run had last said; None where 0.1.0 recorded its end.
    """

    attempt: int
    outcome: str
    worker_id: str
    started_at: datetime
    ended_at: datetime
    error: str | None
    job_version: int | None
    progress: float | None
    progress_note: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A run that Rota stopped trying, with the error of its last attempt."""

    run_id: UUID
    job_id: str
    scheduled_for: datetime
    died_at: datetime
    job_uid: int
    attempt: int | None
    outcome: str | None
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedView:
    """A range of the slot ledger."""

    first_slot: datetime
    last_slot: datetime
    slots: int | None
    reason: str
    policy: Any
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a list of runs, newest slots first: the entries that follow lie before it."""

    scheduled_for: datetime
    job_uid: int


async def get(database: Database, key: SlotKey, *, tenant_id: str | None = None) -> RunView | None:
    """Return one run; with a tenant, one of that tenant only."""
    rows = await database.fetch(
        sql.get_run, shard=shard_of(key.job_uid), job_uid=key.job_uid, scheduled_for=key.scheduled_for,
        tenant_id=tenant_id,
    )  # fmt: skip
    return _view(rows[0]) if rows else None


async def attempts(database: Database, key: SlotKey, *, limit: int) -> list[AttemptView]:
    """Return a run's last ended attempts, oldest first."""
    rows = await database.fetch(
        sql.attempts_of, shard=shard_of(key.job_uid), job_uid=key.job_uid, scheduled_for=key.scheduled_for, limit=limit
    )
    return [AttemptView(**{**dict(row), "progress": _share(row["progress"])}) for row in rows[::-1]]


async def of_job(
    database: Database, uid: int, where: RunFilter, *, tenant_id: str, since: datetime, until: datetime,
    before: datetime, limit: int, whole: bool,
) -> list[RunView]:  # fmt: skip
    """Return a job's runs that were made within a window, newest slots first."""
    rows = await database.fetch(
        sql.runs_of_job, shard=shard_of(uid), job_uid=uid, tenant_id=tenant_id, state=where.state, since=since,
        until=until, before=before, limit=limit, whole=whole, **filter_columns(where),
    )  # fmt: skip
    return [_view(row) for row in rows]


async def recent(
    database: Database, where: RunFilter, *, tenant_id: str, since: datetime, until: datetime, before: Place,
    limit: int, whole: bool,
) -> list[RunView]:  # fmt: skip
    """Return a tenant's runs that were made within a window, newest slots first."""
    rows = await database.fetch(
        sql.recent_runs, tenant_id=tenant_id, state=where.state, since=since, until=until,
        before=before.scheduled_for, before_uid=before.job_uid, limit=limit, whole=whole, **filter_columns(where),
    )  # fmt: skip
    return [_view(row) for row in rows]


async def dead(
    database: Database, where: RunFilter, *, tenant_id: str, since: datetime, until: datetime, before: Place,
    limit: int, whole: bool,
) -> list[RunView]:  # fmt: skip
    """Return a tenant's runs that died within a window, newest slots first, each with its last error."""
    rows = await database.fetch(
        sql.dead_runs, tenant_id=tenant_id, job_id=where.job_id, since=since, until=until,
        before=before.scheduled_for, before_uid=before.job_uid, limit=limit, whole=whole, **filter_columns(where),
    )  # fmt: skip
    return [_view(row) for row in rows]


async def dead_letters(database: Database, *, tenant_id: str, job_id: str, limit: int) -> list[DeadLetter]:
    """Return a tenant's dead letters, latest first; `job_id` empty means those of all jobs."""
    rows = await database.fetch(sql.list_dead, tenant_id=tenant_id, job_id=job_id, limit=limit)
    return [DeadLetter(**{name: row[name] for name in DeadLetter.__slots__}) for row in rows]


async def skipped(database: Database, uid: int, *, limit: int) -> list[SkippedView]:
    """Return a job's part of the slot ledger, latest first."""
    rows = await database.fetch(sql.list_skipped, shard=shard_of(uid), job_uid=uid, limit=limit)
    return [
        SkippedView(**{**dict(row), "policy": None if row["policy"] is None else orjson.loads(row["policy"])})
        for row in rows
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedOfJob(SkippedView):
    """A range of the slot ledger, and whose it is."""

    job_uid: int
    job_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedCount:
    """How many slots of how many jobs made no run for a reason."""

    reason: str
    slots: int
    jobs: int


async def skipped_of_all(
    database: Database, *, tenant_id: str, reason: str, since: datetime, until: datetime,
    before: tuple[datetime, int, datetime], limit: int,
) -> list[SkippedOfJob]:  # fmt: skip
    """Return a tenant's part of the slot ledger, latest first, before a place (recorded_at, uid, first slot)."""
    rows = await database.fetch(
        sql.skipped_of_all, tenant_id=tenant_id, reason=reason, since=since, until=until, before_at=before[0],
        before_uid=before[1], before_slot=before[2], limit=limit,
    )  # fmt: skip
    return [
        SkippedOfJob(**{**dict(row), "policy": None if row["policy"] is None else orjson.loads(row["policy"])})
        for row in rows
    ]


async def skipped_counts(database: Database, *, since: datetime, until: datetime) -> list[SkippedCount]:
    """Return by reason how much was entered into the slot ledger within a window."""
    return [SkippedCount(**dict(row)) for row in await database.fetch(sql.skipped_counts, since=since, until=until)]


def _view(row: Any) -> RunView:
    values = {name: row[name] for name in RunView.__slots__ if name != "duration_seconds"}
    values["duration_seconds"] = None
    if values["finished_at"] is not None:
        values["progress"], values["progress_note"] = row["last_progress"], row["last_progress_note"]
        if row["last_started_at"] is not None:
            values["started_at"] = row["last_started_at"]
            values["duration_seconds"] = (row["last_ended_at"] - row["last_started_at"]).total_seconds()
    for name in ("payload", "result"):
        values[name] = None if row[name] is None else stored_json(row[name])
    values["progress"] = _share(values["progress"])
    return RunView(**values)


def _share(progress: float | None) -> float | None:
    return None if progress is None else round(progress, 6)  # a real: 0.7 comes back as 0.699999988
