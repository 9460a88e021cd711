"""How runs flow: what waits behind which gate, and how full the limits are. Numbers for graphs, each bounded."""

from dataclasses import dataclass
from datetime import datetime

from rota.store.database import Database
from rota.store.statements import flow as sql


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassDepth:
    """Runs of one priority that wait in a pool behind one gate, and since when the first could have started."""

    pool: str
    priority: int
    gate: str
    runs: int
    oldest: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitUse:
    """All limits of one name; "job" and "key" are those of jobs' own.

    `permits` and `tokens` are None for what each tenant or job has one of, and `tokens` are those of the emptiest.
    """

    name: str
    parked: int
    in_use: int
    permits: int | None
    tokens: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """The depths and the fullest limits of a cluster."""

    depths: tuple[ClassDepth, ...]
    limits: tuple[LimitUse, ...]


async def look(database: Database, *, now: datetime, most: int, shown: int) -> Flow:
    """Look at all tenants' flow: at most `most` rows of each table, and `shown` limits, the fullest first."""
    depths = await database.fetch(sql.flow_depths, most=most)
    limits = await database.fetch(sql.flow_use, now=now, most=most, shown=shown)
    return Flow(
        depths=tuple(ClassDepth(**dict(row)) for row in depths), limits=tuple(LimitUse(**dict(row)) for row in limits)
    )
