"""Live workers and the handlers that they know: the handler gate, and what people see of the fleet."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from rota.store.database import Database
from rota.store.statements import shards as shards_sql
from rota.store.statements import workers as sql


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveWorker:
    """A worker process as the table shows it."""

    instance: UUID
    worker_id: str
    pool: str
    handlers: tuple[str, ...]
    concurrency: int
    started_at: datetime
    expires_at: datetime
    version: str
    tzdata: str


async def announce(
    database: Database, *, instance: UUID, worker_id: str, pool: str, handlers: Sequence[str], concurrency: int,
    now: datetime, expires_at: datetime, version: str, tzdata: str,
) -> None:  # fmt: skip
    """Say that a worker lives until `expires_at`."""
    await database.fetch(
        sql.announce_worker, instance=instance, worker_id=worker_id, pool=pool, handlers=handlers,
        concurrency=concurrency, now=now, expires_at=expires_at, version=version, tzdata=tzdata,
    )  # fmt: skip


async def retire(database: Database, instance: UUID) -> bool:
    """Remove a worker that leaves; False when it was gone."""
    return bool(await database.fetch(sql.retire_worker, instance=instance))


async def live(database: Database, *, now: datetime) -> list[LiveWorker]:
    """Return every live worker."""
    rows = await database.fetch(sql.live_workers, now=now)
    return [LiveWorker(**{**dict(row), "handlers": tuple(row["handlers"])}) for row in rows]


async def park_unknown(database: Database, *, now: datetime, limit: int) -> list[str]:
    """Put runs that no live worker of their pool can run behind the handler gate; returns the handler of each."""
    return [row["handler"] for row in await database.fetch(sql.park_unknown_handlers, now=now, limit=limit)]


async def unpark_known(database: Database, *, now: datetime, limit: int) -> list[str]:
    """Open the handler gate where a live worker knows the handler; returns the pool of each run."""
    return [row["pool"] for row in await database.fetch(sql.unpark_known_handlers, now=now, limit=limit)]


async def forget_lapsed(database: Database, *, before: datetime) -> int:
    """Remove workers and schedulers that lapsed before an instant; returns how many."""
    workers = await database.fetch(sql.forget_lapsed_workers, before=before)
    schedulers = await database.fetch(shards_sql.forget_lapsed_schedulers, before=before)
    return len(workers) + len(schedulers)
