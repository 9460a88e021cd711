"""Questions about the health of a cluster: all reads, each bounded by a limit."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rota.store.database import Database
from rota.store.statements import Statement
from rota.store.statements import doctor as sql


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedSchedule:
    """A schedule with the window in which each of its slots must be accounted for."""

    shard: int
    job_uid: int
    tenant_id: str
    job_id: str
    schedule: str
    since: datetime
    next_slot: datetime | None
    next_run_at: datetime | None


@dataclass(frozen=True, slots=True)
class AuditedSlot:
    """A slot that must be a run or stand in the slot ledger."""

    shard: int
    job_uid: int
    slot: datetime


async def misplaced(database: Database, *, limit: int) -> list[str]:
    """Return breaches of the law that a run has exactly one place, each as a sentence."""
    found = [
        f"run {row['run_id']} is unfinished and has {row['places']} places in the queue and the leases"
        for row in await database.fetch(sql.unplaced_runs, limit=limit)
    ]
    found += [
        f"run {row['run_id']} has a row in {row['place']} that its outcome contradicts"
        for row in await database.fetch(sql.misplaced_rows, limit=limit)
    ]
    found += [
        f"run {row['run_id']} is dead and has no dead letter"
        for row in await database.fetch(sql.dead_without_letter, limit=limit)
    ]
    return found


async def stray_permits(database: Database, *, limit: int) -> list[str]:
    """Return breaches of the law that a permit in use is that of one lease, each as a sentence."""
    return [
        f"permit {row['slot']} of the limit {row['limit_key']} {row['trouble']}"
        for row in await database.fetch(sql.stray_permits, limit=limit)
    ]


async def schedules_to_audit(database: Database, *, after: tuple[int, int], limit: int) -> list[AuditedSchedule]:
    """Return one page of schedules, in the order of (shard, uid), after a given one."""
    rows = await database.fetch(sql.schedules_to_audit, after_shard=after[0], after_uid=after[1], limit=limit)
    return [AuditedSchedule(**dict(row)) for row in rows]


async def unaccounted(database: Database, slots: Sequence[AuditedSlot]) -> list[AuditedSlot]:
    """Return those of the slots that are neither a run nor in the slot ledger."""
    if not slots:
        return []
    rows = await database.fetch(
        sql.unaccounted_slots,
        shards=[slot.shard for slot in slots],
        job_uids=[slot.job_uid for slot in slots],
        slots=[slot.slot for slot in slots],
    )
    return [AuditedSlot(row["shard"], row["job_uid"], row["slot"]) for row in rows]


async def overdue(database: Database, *, now: datetime) -> dict[str, Any]:
    """Return {"due": count, "oldest": instant or None} of schedules that wait for a scheduler."""
    return await _one(database, sql.overdue, now=now)


async def set_apart(database: Database, *, limit: int) -> list[dict[str, Any]]:
    """Return runs whose end could not be decided or written: dead letters, and leases that are held."""
    return await _many(database, sql.set_apart_runs, limit=limit)


async def quarantined(database: Database, *, limit: int) -> list[dict[str, Any]]:
    """Return jobs whose schedule cannot be computed."""
    return await _many(database, sql.quarantined_jobs, limit=limit)


async def damaged(database: Database, *, limit: int) -> list[dict[str, Any]]:
    """Return jobs with fields that no program would have written, and which."""
    return await _many(database, sql.damaged_jobs, limit=limit)


async def waiting(database: Database, *, limit: int) -> list[dict[str, Any]]:
    """Return waiting runs counted by pool, gate and handler."""
    return await _many(database, sql.waiting_by_gate, limit=limit)


async def unserved_pools(database: Database, *, now: datetime, limit: int) -> list[dict[str, Any]]:
    """Return the pools in which runs wait and no worker is live, with how many runs."""
    return await _many(database, sql.unserved_pools, now=now, limit=limit)


async def fleet(database: Database, *, now: datetime) -> dict[str, Any]:
    """Return counts of shards, leases, schedulers and workers, and the versions of tz data in use."""
    return await _one(database, sql.fleet, now=now)


async def server(database: Database) -> dict[str, Any]:
    """Return the server's version, and whether it is a standby, read-only, replicated."""
    return await _one(database, sql.server)


async def table_health(database: Database) -> list[dict[str, Any]]:
    """Return live and dead rows of the hot tables."""
    return await _many(database, sql.table_health)


async def _one(database: Database, statement: Statement, **values: Any) -> dict[str, Any]:
    [row] = await database.fetch(statement, **values)
    return dict(row)


async def _many(database: Database, statement: Statement, **values: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in await database.fetch(statement, **values)]
