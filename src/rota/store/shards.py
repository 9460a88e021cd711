"""Who owns which shard, and which schedulers live."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from rota.domain.shard import ShardLease
from rota.store.database import Database, Lane
from rota.store.statements import shards as sql


async def beat(
    database: Database, scheduler_id: str, *, now: datetime, expires_at: datetime, version: str, tzdata: str,
    last_tick_at: datetime | None = None,
) -> None:  # fmt: skip
    """Say that a scheduler lives until `expires_at`, and when its timer last succeeded (None: no news of that)."""
    await database.fetch(
        sql.beat_scheduler, lane=Lane.URGENT, scheduler_id=scheduler_id, now=now, expires_at=expires_at,
        version=version, tzdata=tzdata, last_tick_at=last_tick_at,
    )  # fmt: skip


async def live_schedulers(database: Database, *, now: datetime) -> list[str]:
    """Return the names of all live schedulers."""
    rows = await database.fetch(sql.live_schedulers, lane=Lane.URGENT, now=now)
    return [row["scheduler_id"] for row in rows]


async def all_shards(database: Database) -> list[ShardLease]:
    """Return every shard with its owner."""
    rows = await database.fetch(sql.all_shards, lane=Lane.URGENT)
    return [
        ShardLease(shard=row["shard"], owner=row["owner"], epoch=row["epoch"], expires_at=row["expires_at"])
        for row in rows
    ]


async def renew(database: Database, owner: str, epochs: Mapping[int, int], *, expires_at: datetime) -> dict[int, int]:
    """Extend the shards owned under these epochs; returns shard -> epoch of those that still are."""
    if not epochs:
        return {}
    rows = await database.fetch(
        sql.renew_shards, lane=Lane.URGENT, owner=owner, shards=list(epochs.keys()), epochs=list(epochs.values()),
        expires_at=expires_at,
    )  # fmt: skip
    return {row["shard"]: row["epoch"] for row in rows}


async def acquire(
    database: Database, owner: str, shards: Sequence[int], *, now: datetime, expires_at: datetime
) -> dict[int, int]:
    """Take those of these shards that are free; returns shard -> new epoch."""
    if not shards:
        return {}
    rows = await database.fetch(
        sql.acquire_shards, lane=Lane.URGENT, owner=owner, shards=shards, now=now, expires_at=expires_at
    )
    return {row["shard"]: row["epoch"] for row in rows}


async def adopt(database: Database, owner: str, *, expires_at: datetime) -> dict[int, int]:
    """Take over what an earlier process of this name left leased; returns shard -> new epoch."""
    rows = await database.fetch(sql.adopt_shards, lane=Lane.URGENT, owner=owner, expires_at=expires_at)
    return {row["shard"]: row["epoch"] for row in rows}


async def release(database: Database, owner: str, epochs: Mapping[int, int], *, now: datetime) -> list[int]:
    """Give up the shards owned under these epochs; returns those that were ours."""
    if not epochs:
        return []
    rows = await database.fetch(
        sql.release_shards, lane=Lane.URGENT, owner=owner, shards=list(epochs.keys()), epochs=list(epochs.values()),
        now=now,
    )  # fmt: skip
    return [row["shard"] for row in rows]


async def forget(database: Database, scheduler_id: str) -> None:
    """Remove a scheduler that leaves."""
    await database.fetch(sql.forget_scheduler, lane=Lane.URGENT, scheduler_id=scheduler_id)
