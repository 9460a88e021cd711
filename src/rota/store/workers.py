"""Live workers and the handlers that they know: the handler gate, and what people see of the fleet."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from rota.store.database import Connection, Database
from rota.store.statements import shards as shards_sql
from rota.store.statements import workers as sql


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveWorker:
    """A worker process as the table shows it."""

    instance: UUID
    worker_id: str
    tenant_id: str | None
    """The one tenant whose runs it takes; None: those of all."""
    pool: str
    handlers: tuple[str, ...]
    concurrency: int
    started_at: datetime
    expires_at: datetime
    last_claim_at: datetime | None
    draining_at: datetime | None
    version: str
    tzdata: str
    claim_rate: float | None
    """Runs a second that it claimed of late; None as long as it has not told twice how many there were."""


async def announce(
    database: Database, *, instance: UUID, worker_id: str, pool: str, handlers: Sequence[str], concurrency: int,
    now: datetime, expires_at: datetime, version: str, tzdata: str, tenant_id: str | None,
    last_claim_at: datetime | None, claimed: int | None,
) -> bool | None:  # fmt: skip
    """Say that a worker lives until `expires_at`; tells whether it is to drain. None: the instance is another's."""
    rows = await database.fetch(
        sql.announce_worker, instance=instance, worker_id=worker_id, pool=pool, handlers=handlers,
        concurrency=concurrency, now=now, expires_at=expires_at, version=version, tzdata=tzdata, tenant_id=tenant_id,
        last_claim_at=last_claim_at, claimed=claimed,
    )  # fmt: skip
    return rows[0]["draining"] if rows else None


async def retire(database: Database, instance: UUID, *, tenant_id: str | None) -> bool:
    """Remove a worker that leaves; False when it was gone, or is another tenant's."""
    return bool(await database.fetch(sql.retire_worker, instance=instance, tenant_id=tenant_id))


async def live(database: Database, *, now: datetime, tenant_id: str | None = None) -> list[LiveWorker]:
    """Return every live worker of a tenant, or all."""
    return [_worker(row) for row in await database.fetch(sql.live_workers, now=now, tenant_id=tenant_id)]


async def drain(tx: Connection, worker_id: str, *, tenant_id: str | None, now: datetime) -> list[LiveWorker]:
    """Let the live processes of a worker, a tenant's or anybody's, claim no more; returns them."""
    rows = await tx.fetch(sql.drain_worker, worker_id=worker_id, tenant_id=tenant_id, now=now)
    return [_worker(row) for row in rows]


FIRST_QUEUE: Final = ("", "")
"""Before the first pool and its first tenant."""


async def park_unknown(
    database: Database, *, now: datetime, limit: int, after: tuple[str, str] = FIRST_QUEUE
) -> tuple[list[str], tuple[str, str]]:
    """Put runs that no live worker of their pool can run behind the handler gate.

    Looks at tenants' queues, behind one (pool, tenant) on. Returns the handler of each run, and where the next look is
    to go on.
    """
    rows = await database.fetch(
        sql.park_unknown_handlers, now=now, limit=limit, after_pool=after[0], after_tenant=after[1]
    )
    ends = [(row["pool"], row["tenant_id"]) for row in rows if row["pool"] is not None]
    return [row["handler"] for row in rows if row["handler"] is not None], ends[0] if ends else FIRST_QUEUE


async def unpark_known(database: Database, *, now: datetime, limit: int) -> list[str]:
    """Open the handler gate where a live worker knows the handler; returns the pool of each run."""
    return [row["pool"] for row in await database.fetch(sql.unpark_known_handlers, now=now, limit=limit)]


async def forget_lapsed(database: Database, *, before: datetime, limit: int) -> int:
    """Remove workers and schedulers that lapsed before an instant, at most `limit` of both; returns how many."""
    workers = await database.fetch(sql.forget_lapsed_workers, before=before, limit=limit)
    schedulers = await database.fetch(shards_sql.forget_lapsed_schedulers, before=before, limit=limit - len(workers))
    return len(workers) + len(schedulers)


def _worker(row: Any) -> LiveWorker:
    return LiveWorker(**{**dict(row), "handlers": tuple(row["handlers"])})
