"""Freezes, and the schedules whose slots came due in one."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rota.store.database import Connection, Database
from rota.store.due import NEVER, DueSchedule
from rota.store.statements import freeze as sql


@dataclass(frozen=True, slots=True, kw_only=True)
class FreezeView:
    """A freeze that holds; `tenant_id` is * for everything."""

    tenant_id: str
    reason: str
    actor: str
    frozen_at: datetime


async def put(tx: Connection, tenant_id: str, *, reason: str, actor: str, now: datetime) -> FreezeView:
    """Freeze a tenant, or with * everything."""
    [row] = await tx.fetch(sql.freeze, tenant_id=tenant_id, reason=reason, actor=actor, now=now)
    return _view(row)


async def lift(tx: Connection, tenant_id: str, *, now: datetime) -> FreezeView | None:
    """End a freeze; None where there is none."""
    rows = await tx.fetch(sql.lift, tenant_id=tenant_id, now=now)
    return _view(rows[0]) if rows else None


async def holding(database: Database | Connection, tenant_id: str | None, *, limit: int) -> list[FreezeView]:
    """Return the freezes that hold a tenant; None: all."""
    return [_view(row) for row in await database.fetch(sql.freezes_of, tenant_id=tenant_id, limit=limit)]


async def lifted(database: Database, *, limit: int) -> list[str]:
    """Return freezes that are over and may have deferred slots that are not back yet."""
    return [row["tenant_id"] for row in await database.fetch(sql.lifted, limit=limit)]


async def defer(database: Database, due: Sequence[DueSchedule]) -> frozenset[int]:
    """Put due schedules that are frozen out of the schedulers' sight; returns their uids, less those that are held."""
    rows = await database.fetch(
        sql.defer_slots, shards=[job.shard for job in due], job_uids=[job.job_uid for job in due],
        due_ats=[job.due_at for job in due], versions=[job.version for job in due],
        tenant_ids=[job.tenant_id for job in due], never=NEVER,
    )  # fmt: skip
    return frozenset(row["job_uid"] for row in rows)


async def bring_back(database: Database, tenant_id: str, *, limit: int) -> int:
    """Let schedules that a freeze deferred be due again, at most `limit`; returns how many."""
    return len(await database.fetch(sql.bring_back, tenant_id=tenant_id, never=NEVER, limit=limit))


async def forget(database: Database, tenant_id: str) -> bool:
    """Forget a freeze that is over; False while something is left of it."""
    return bool(await database.fetch(sql.forget_freeze, tenant_id=tenant_id))


def _view(row: Any) -> FreezeView:
    return FreezeView(**dict(row))
