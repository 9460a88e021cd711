"""What people ask of runs: make one, send dead letters back, cancel. Each is one statement with its audit entry."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import Any, Literal
from uuid import UUID

from rota.domain.ids import shard_of
from rota.domain.run import Gate
from rota.domain.run_filter import RunFilter
from rota.store.database import Connection, Database
from rota.store.statements import runs as sql


@dataclass(frozen=True, slots=True)
class SlotKey:
    """A run's place."""

    job_uid: int
    scheduled_for: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedRequest:
    """A request that can be repeated: its key, and what another one with this key must equal. `payload` is JSON."""

    tenant_id: str
    key: str
    job_id: str
    scheduled_for: datetime | None
    payload: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedRun:
    """The run that a key stands for. `is_same` tells whether it stands for the very request that was asked about."""

    run_id: UUID
    created_at: datetime
    is_same: bool


RunOutcome = Literal["created", "repeated", "reused", "taken"]
"""What one of many requests came to: a new run; the run of an earlier request with this key; none, since the key stands
for another request, or since the slot has a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWanted:
    """One of many runs that are asked for, of a job that is there. `payload` is JSON; `slot` None is now."""

    job_uid: int
    slot: datetime | None
    payload: str | None
    key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMade:
    """What it came to, and the run that it is about: of a refused one, the run that stands in its way."""

    run_id: UUID
    scheduled_for: datetime
    outcome: RunOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A dead letter to be sent back, and when it may start."""

    key: SlotKey
    available_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedRun:
    """A run that waits again."""

    key: SlotKey
    available_at: datetime
    pool: str
    gate: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelLook:
    """What a cancel found and did; neither of both with `outcome` None means: ask again."""

    outcome: str | None
    is_cancelled: bool
    is_asked: bool


async def trigger(
    connection: Database | Connection,
    key: SlotKey,
    *,
    payload: str | None,
    available_at: datetime,
    gate: str,
    actor: str,
    facts: str,
    now: datetime,
) -> str | None:
    """Make one run on request and return its pool; None when the slot is taken or the job is deleted.

    `facts` is the JSON that the audit log keeps of the request.
    """
    rows = await connection.fetch(
        sql.trigger_run, shard=shard_of(key.job_uid), job_uid=key.job_uid, scheduled_for=key.scheduled_for,
        payload=payload, available_at=available_at, gate=gate, actor=actor, facts=facts,
        audit_id=uuid.uuid4(), now=now,
    )  # fmt: skip
    return rows[0]["pool"] if rows else None


async def hold_key(tx: Connection, request: KeyedRequest, *, run_id: UUID, now: datetime) -> bool:
    """Let a key stand for a request while its run is made; False: it stands for one already.

    Waits for a transaction that is about to make a run under the same key.
    """
    return bool(await tx.fetch(sql.hold_key, run_id=run_id, now=now, **_columns(request)))


async def point_key(tx: Connection, request: KeyedRequest, *, run_id: UUID) -> None:
    """Let the key that this transaction holds stand for another run."""
    pointed = await tx.fetch(sql.point_key, tenant_id=request.tenant_id, key=request.key, run_id=run_id)
    assert pointed, "the key was written by this very transaction"


async def find_key(database: Database, request: KeyedRequest) -> KeyedRun | None:
    """Return the run that a request's key stands for."""
    rows = await database.fetch(sql.find_key, **_columns(request))
    return KeyedRun(**dict(rows[0])) if rows else None


async def find_keys(database: Database, asked: Sequence[KeyedRequest]) -> dict[int, KeyedRun]:
    """Return the runs that the keys of one tenant's requests stand for, by their places among the requests."""
    rows = await database.fetch(
        sql.find_keys, tenant_id=asked[0].tenant_id, keys=[one.key for one in asked],
        job_ids=[one.job_id for one in asked], slots=[one.scheduled_for for one in asked],
        payloads=[one.payload for one in asked],
    )  # fmt: skip
    return {
        row["item"]: KeyedRun(run_id=row["run_id"], created_at=row["created_at"], is_same=row["is_same"])
        for row in rows
    }


async def make_many(
    database: Database, wanted: Sequence[RunWanted], *, actor: str, now: datetime
) -> list[RunMade] | None:
    """Make runs on request; returns what each came to, in order. None: a job is deleted, and nothing is made.

    Waits for a transaction that is about to make a run under one of the keys, or at one of the slots.
    """
    rows = await database.fetch(
        sql.make_runs, shards=[shard_of(one.job_uid) for one in wanted], job_uids=[one.job_uid for one in wanted],
        payloads=[one.payload for one in wanted], slots=[one.slot for one in wanted], keys=[one.key for one in wanted],
        actor=actor, now=now,
    )  # fmt: skip
    if not rows:
        return None
    assert len(rows) == len(wanted), "each item comes to something"
    return [
        RunMade(run_id=row["run_id"], scheduled_for=row["scheduled_for"], outcome=row["outcome"])
        for row in sorted(rows, key=itemgetter("item"))
    ]


async def forget_keys(database: Database, *, before: datetime, limit: int) -> int:
    """Forget keys made before an instant, at most `limit`; returns how many."""
    return len(await database.fetch(sql.forget_keys, before=before, limit=limit))


async def replay(
    database: Database, letters: Sequence[Replay], *, tenant_id: str | None, actor: str, now: datetime
) -> list[ReplayedRun]:
    """Send dead letters back to the queue; returns those that were dead until now, of this tenant if one is given."""
    rows = await database.fetch(
        sql.replay_dead, shards=[shard_of(letter.key.job_uid) for letter in letters],
        job_uids=[letter.key.job_uid for letter in letters], slots=[letter.key.scheduled_for for letter in letters],
        available_ats=[letter.available_at for letter in letters],
        gates=[Gate.TIME if letter.available_at > now else Gate.OPEN for letter in letters],
        audit_ids=[uuid.uuid4() for _ in letters], tenant_id=tenant_id, actor=actor, now=now,
    )  # fmt: skip
    return [
        ReplayedRun(
            key=SlotKey(row["job_uid"], row["scheduled_for"]), available_at=row["available_at"], pool=row["pool"],
            gate=row["gate"],
        )
        for row in rows
    ]  # fmt: skip


async def matching_dead(
    database: Database, where: RunFilter, *, tenant_id: str, since: datetime, until: datetime, limit: int
) -> list[SlotKey]:
    """Return a tenant's dead letters that a filter means and whose jobs still exist, the longest dead first."""
    rows = await database.fetch(
        sql.matching_dead, tenant_id=tenant_id, since=since, until=until, job_id=where.job_id, limit=limit,
        **filter_columns(where),
    )  # fmt: skip
    return [SlotKey(row["job_uid"], row["scheduled_for"]) for row in rows]


async def cancel(
    database: Database, key: SlotKey, *, tenant_id: str | None, actor: str, reason: str, now: datetime
) -> CancelLook | None:
    """End a run that waits, or ask for the end of one that runs. None: there is no such run, or not of this tenant."""
    rows = await database.fetch(
        sql.cancel_run, shard=shard_of(key.job_uid), job_uid=key.job_uid, scheduled_for=key.scheduled_for,
        tenant_id=tenant_id, actor=actor, reason=reason, audit_id=uuid.uuid4(), now=now,
    )  # fmt: skip
    return CancelLook(**dict(rows[0])) if rows else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityLook:
    """What a change of priority found and did. `was` is None for a run that does not wait."""

    outcome: str | None
    was: int | None
    is_moved: bool
    is_running: bool


async def reprioritise(
    database: Database, key: SlotKey, *, priority: int, tenant_id: str | None, actor: str, now: datetime
) -> PriorityLook | None:
    """Give a run that waits another priority. None: there is no such run, or not of this tenant."""
    rows = await database.fetch(
        sql.reprioritise_run, shard=shard_of(key.job_uid), job_uid=key.job_uid, scheduled_for=key.scheduled_for,
        priority=priority, tenant_id=tenant_id, actor=actor, audit_id=uuid.uuid4(), now=now,
    )  # fmt: skip
    return PriorityLook(**dict(rows[0])) if rows else None


def filter_columns(where: RunFilter) -> dict[str, Any]:
    """Return the parts of a filter that every statement takes alike."""
    return {
        "handler": where.handler,
        "label": where.label_name,
        "label_value": where.label_value,
        "error": where.error,
        "failed": where.failed,
    }


def _columns(request: KeyedRequest) -> dict[str, Any]:
    return {
        "tenant_id": request.tenant_id,
        "key": request.key,
        "job_id": request.job_id,
        "scheduled_for": request.scheduled_for,
        "payload": request.payload,
    }
