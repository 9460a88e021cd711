"""How much there is, and whether it moves: counts for people and probes, each bounded."""

from dataclasses import dataclass
from datetime import datetime

from rota.store.database import Database
from rota.store.statements import fleet as sql


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """Runs that wait in a pool behind one gate, and since when the first of them could have started."""

    pool: str
    gate: str
    runs: int
    oldest: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """How much of a tenant's, or of all: jobs, runs that wait, run and are dead, live workers."""

    jobs: int
    waiting: tuple[Depth, ...]
    running: int
    dead: int
    workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The last success of a live scheduler's timer and of a live worker's claim; None where there was none.

    `workers` counts the live ones that take runs, so not those that drain.
    """

    tick_at: datetime | None
    claim_at: datetime | None
    workers: int


async def stats(database: Database, *, tenant_id: str | None, now: datetime, most: int) -> Stats:
    """Count a tenant's rows, or all; no count goes beyond `most`."""
    if tenant_id is None:
        [counts] = await database.fetch(sql.fleet_counts, now=now, most=most)
    else:
        [counts] = await database.fetch(sql.tenant_counts, tenant_id=tenant_id, now=now, most=most)
    depths = await database.fetch(sql.depths, tenant_id=tenant_id, most=most)
    return Stats(**dict(counts), waiting=tuple(Depth(**dict(row)) for row in depths))


async def health(database: Database, *, now: datetime) -> Health:
    """Return the last successes over all live processes."""
    [row] = await database.fetch(sql.fleet_health, now=now)
    return Health(**dict(row))
