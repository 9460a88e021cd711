"""Pools as rows: settings that differ from the installation's own, ranks that follow them, and how deep a pool is."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from rota.store.database import Connection, Database
from rota.store.statements import pools as sql

TENANTS_SEEN: Final = 10_000
"""The most tenants of a pool whose waiting runs are counted."""
_MILLISECOND: Final = timedelta(milliseconds=1)
_FIRST: Final = (-1, 0, datetime(1970, 1, 1, tzinfo=UTC))

Place = tuple[int, int, datetime]
"""A place in the order of the queue's keys: shard, job_uid, slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """A pool's settings. `ageing` is what a point of priority is worth; `shed_above` None: any number may wait."""

    pool: str
    ageing: timedelta
    shed_above: int | None
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """How many runs of a tenant wait in a pool, up to the bound that was asked for."""

    tenant_id: str
    weight: int
    runs: int


async def lock(tx: Connection, pool: str) -> PoolView | None:
    """Return a pool's settings, locked until the transaction ends; None when it has none of its own."""
    rows = await tx.fetch(sql.lock_pool, pool=pool)
    return _view(rows[0]) if rows else None


async def add(tx: Connection, pool: PoolView) -> bool:
    """Give a pool settings of its own; False when it has some."""
    return bool(await tx.fetch(sql.add_pool, **_columns(pool)))


async def change(tx: Connection, pool: PoolView) -> None:
    """Give a pool whose row is locked other settings."""
    changed = await tx.fetch(sql.change_pool, **_columns(pool))
    assert changed, "a pool's row is never deleted"


async def pools(database: Database, *, limit: int) -> list[PoolView]:
    """Return the pools with settings of their own, by name."""
    return [_view(row) for row in await database.fetch(sql.list_pools, limit=limit)]


async def get(database: Database, pool: str) -> PoolView | None:
    """Return a pool's settings; None when it has none of its own."""
    rows = await database.fetch(sql.get_pool, pool=pool)
    return _view(rows[0]) if rows else None


async def rerank(database: Database, pool: str, *, after: Place = _FIRST, limit: int) -> tuple[Place | None, int]:
    """Give the pool's waiting runs among the next `limit` their present ranks; returns where to go on, and how many.

    None for the place: the end was reached.
    """
    shard, job_uid, scheduled_for = after
    rows = await database.fetch(
        sql.rerank_pending, pool=pool, shard=shard, job_uid=job_uid, scheduled_for=scheduled_for, limit=limit
    )
    if not rows:
        return None, 0
    row = rows[0]
    place = (row["shard"], row["job_uid"], row["scheduled_for"])
    return place if row["looked"] == limit else None, row["changed"]


async def depths(database: Database, pool: str, *, most: int) -> list[Depth]:
    """Return how many runs of each tenant wait in a pool, at most `most` of each behind a gate and as many open."""
    rows = await database.fetch(sql.waiting_by_tenant, pool=pool, most=most, tenants=TENANTS_SEEN)
    return [Depth(**dict(row)) for row in rows]


def _view(row: Any) -> PoolView:
    return PoolView(
        pool=row["pool"], ageing=row["ageing_ms"] * _MILLISECOND, shed_above=row["shed_above"],
        updated_at=row["updated_at"],
    )  # fmt: skip


def _columns(pool: PoolView) -> dict[str, Any]:
    return {
        "pool": pool.pool,
        "ageing_ms": pool.ageing // _MILLISECOND,
        "shed_above": pool.shed_above,
        "now": pool.updated_at,
    }
