"""Runs that wait for limits: the rows of limits that are met for the first time, and the way back into the queue."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from rota.store.claims import Refusal
from rota.store.database import Database
from rota.store.statements import parking as sql

TURNS: Final = 64
"""Among how many tenants and pools what one limit lets in is divided at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """How many runs that waited for a limit are in the queue again, and in which pools.

    `last_tenant_id` had the last turn. `next_token_at` is when the limit's rate has room for another run, None without
    a rate.
    """

    limit_key: str
    runs: int
    pools: tuple[str, ...]
    last_tenant_id: str | None
    next_token_at: datetime | None


async def open_limits(database: Database, met: Sequence[Refusal], *, now: datetime) -> int:
    """Make the rows of limits that have none, or too few: full buckets, free permits. Returns how many permits."""
    rows = await database.fetch(
        sql.open_limits, keys=[limit.limit_key for limit in met], permits=[limit.permits for limit in met],
        bursts=[limit.burst for limit in met], now=now,
    )  # fmt: skip
    return len(rows)


async def return_parked(database: Database, keys: Mapping[str, str], *, now: datetime, limit: int) -> list[Returned]:
    """Let as many runs into the queue again as these limits have room for, at most `limit` of each.

    `keys` tells with each limit the tenant behind whom the turns begin. A limit for which nobody waits has no answer.
    """
    ordered = sorted(keys)
    rows = await database.fetch(
        sql.return_parked, keys=ordered, afters=[keys[key] for key in ordered], now=now, limit=limit, turns=TURNS
    )
    return [
        Returned(
            limit_key=row["limit_key"], runs=row["runs"], pools=tuple(row["pools"] or ()),
            last_tenant_id=row["last_tenant_id"], next_token_at=row["next_token_at"],
        )
        for row in rows
    ]  # fmt: skip


async def parked_keys(database: Database, *, after: str, limit: int) -> list[str]:
    """Return the limits for which runs wait, in the order of their keys, from behind one on."""
    return [row["limit_key"] for row in await database.fetch(sql.parked_keys, after=after, limit=limit)]
