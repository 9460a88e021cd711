"""What tells why a run waits, read from the rows that the claim itself goes by. Every count has a bound."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from rota.domain.ids import run_id, shard_of
from rota.domain.why import Held, Holder, LimitLook, PoolWorkers, QueueLook, Waiting
from rota.store.database import Database
from rota.store.requests import SlotKey
from rota.store.statements import why as sql


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Who runs a run."""

    worker_id: str
    claimed_at: datetime
    expires_at: datetime
    cancel_requested_at: datetime | None
    set_apart: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLook:
    """Where a run stands. `waiting` has the facts of one that waits, `lease` those of one that runs."""

    run_id: UUID
    outcome: str | None
    finished_at: datetime | None
    reason: str | None
    lease: Lease | None
    waiting: Waiting | None
    rank: int | None
    schedulers: int
    """How many are live."""


async def run(database: Database, key: SlotKey, *, tenant_id: str, now: datetime) -> RunLook | None:
    """Return where a tenant's run stands; None: it has no such run."""
    rows = await database.fetch(
        sql.why_run, shard=shard_of(key.job_uid), job_uid=key.job_uid, scheduled_for=key.scheduled_for,
        tenant_id=tenant_id, now=now,
    )  # fmt: skip
    if not rows:
        return None
    [row] = rows
    lease = waiting = None
    if row["worker_id"] is not None:
        lease = Lease(**{name: row[name] for name in Lease.__slots__})
    if row["gate"] is not None:
        same = ("available_at", "deadline_at", "gate", "limit_key", "pool", "handler", "attempt", "losses",
                "max_attempts", "max_losses", "last_outcome")  # fmt: skip
        waiting = Waiting(
            run_id=run_id(key.job_uid, key.scheduled_for), scheduled_for=key.scheduled_for,
            jitter=timedelta(milliseconds=row["jitter_ms"]), **{name: row[name] for name in same},
        )  # fmt: skip
    return RunLook(
        run_id=run_id(key.job_uid, key.scheduled_for), outcome=row["outcome"], finished_at=row["finished_at"],
        reason=row["reason"], lease=lease, waiting=waiting, rank=row["rank"], schedulers=row["schedulers"],
    )  # fmt: skip


async def limits(database: Database, key: SlotKey, *, most: int, now: datetime) -> list[LimitLook]:
    """Return the limits that a waiting run is under."""
    rows = await database.fetch(
        sql.why_limits, shard=shard_of(key.job_uid), job_uid=key.job_uid, scheduled_for=key.scheduled_for, most=most,
        now=now,
    )  # fmt: skip
    return [LimitLook(**dict(row)) for row in rows]


async def holders(database: Database, limit_key: str, *, tenant_id: str, shown: int, most: int) -> Held:
    """Return who holds permits of a limit, as a tenant may know it."""
    [row] = await database.fetch(sql.why_holders, limit_key=limit_key, tenant_id=tenant_id, shown=shown, most=most)
    told = zip(row["run_ids"] or (), row["sinces"] or (), row["worker_ids"] or (), strict=True)
    own = tuple(Holder(run_id=run, since=since, worker_id=worker) for run, since, worker in told)
    return Held(own=own, own_count=row["own_count"], others=row["others"])


async def workers(database: Database, handler: str, *, tenant_id: str, now: datetime) -> list[PoolWorkers]:
    """Return the live workers of all pools that would take a tenant's runs."""
    rows = await database.fetch(sql.why_workers, handler=handler, tenant_id=tenant_id, now=now)
    return [PoolWorkers(**dict(row)) for row in rows]


async def queue(
    database: Database, *, pool: str, tenant_id: str, rank: int, most: int, most_tenants: int, now: datetime
) -> QueueLook:
    """Return what goes before a run of this rank."""
    [row] = await database.fetch(
        sql.why_queue, pool=pool, tenant_id=tenant_id, rank=rank, most=most, most_tenants=most_tenants, now=now
    )
    return QueueLook(**dict(row), most=most)


async def oldest_waiting(database: Database, uid: int, *, now: datetime) -> tuple[datetime | None, int]:
    """Return the slot of a job's oldest waiting run, and how many schedulers are live."""
    [row] = await database.fetch(sql.oldest_waiting, shard=shard_of(uid), job_uid=uid, now=now)
    return row["scheduled_for"], row["schedulers"]
