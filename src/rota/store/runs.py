"""Runs on request, and runs as people read them: a wide read is bounded by its window and its limit."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from rota.domain.ids import shard_of
from rota.store.database import Database
from rota.store.statements import runs as sql


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run in the textbook shape: the row of the view `job_run`."""

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
    lease_expires_at: datetime | None
    finished_at: datetime | None
    reason: str | None
    payload: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptView:
    """An ended attempt; `error` is the only place where its text is kept."""

    attempt: int
    outcome: str
    worker_id: str
    started_at: datetime
    ended_at: datetime
    error: str | None


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
class SlotKey:
    """A run's place."""

    job_uid: int
    scheduled_for: datetime


async def trigger(
    database: Database,
    key: SlotKey,
    *,
    payload: str | None,
    rank: int,
    available_at: datetime,
    gate: str,
    now: datetime,
) -> str | None:
    """Make one run on request and return its pool; None when the slot is taken or the job is deleted."""
    rows = await database.fetch(
        sql.trigger_run, shard=shard_of(key.job_uid), job_uid=key.job_uid, scheduled_for=key.scheduled_for,
        payload=payload, rank=rank, available_at=available_at, gate=gate, now=now,
    )  # fmt: skip
    return rows[0]["pool"] if rows else None


async def replay(
    database: Database, keys: Sequence[SlotKey], *, now: datetime, rank_at: int, ageing_ms: int
) -> frozenset[SlotKey]:
    """Send dead letters back to the queue; returns those that were dead until now."""
    rows = await database.fetch(
        sql.replay_dead, shards=[shard_of(key.job_uid) for key in keys], job_uids=[key.job_uid for key in keys],
        slots=[key.scheduled_for for key in keys], now=now, rank_at=rank_at, ageing_ms=ageing_ms,
    )  # fmt: skip
    return frozenset(SlotKey(row["job_uid"], row["scheduled_for"]) for row in rows)


async def get(database: Database, key: SlotKey) -> RunView | None:
    """Return one run."""
    rows = await database.fetch(
        sql.get_run, shard=shard_of(key.job_uid), job_uid=key.job_uid, scheduled_for=key.scheduled_for
    )
    return _view(rows[0]) if rows else None


async def attempts(database: Database, key: SlotKey, *, limit: int) -> list[AttemptView]:
    """Return a run's ended attempts, oldest first."""
    rows = await database.fetch(
        sql.attempts_of, shard=shard_of(key.job_uid), job_uid=key.job_uid, scheduled_for=key.scheduled_for, limit=limit
    )
    return [AttemptView(**dict(row)) for row in rows]


async def of_job(database: Database, uid: int, *, before: datetime, state: str, limit: int) -> list[RunView]:
    """Return a job's runs, newest slots first."""
    rows = await database.fetch(
        sql.runs_of_job, shard=shard_of(uid), job_uid=uid, before=before, state=state, limit=limit
    )
    return [_view(row) for row in rows]


async def recent(database: Database, *, tenant_id: str, since: datetime, state: str, limit: int) -> list[RunView]:
    """Return a tenant's runs made since an instant, newest slots first."""
    rows = await database.fetch(sql.recent_runs, tenant_id=tenant_id, since=since, state=state, limit=limit)
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


def _view(row: Any) -> RunView:
    values = {name: row[name] for name in RunView.__slots__}
    values["payload"] = None if row["payload"] is None else json.loads(row["payload"])
    return RunView(**values)
