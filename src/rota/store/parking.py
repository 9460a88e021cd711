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

NOBODY: Final[Mapping[str, int]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """How many runs that waited for a limit are in the queue again, and in which pools.

    `last_tenant_id` had the last turn. `next_token_at` is when the limit's rate has room for another run, None without
    a rate. `has_room`: nobody has taken all that there is as yet; `there` are in the queue with them.
    """

    limit_key: str
    runs: int
    pools: tuple[str, ...]
    last_tenant_id: str | None
    next_token_at: datetime | None
    there: int
    has_room: bool


async def open_limits(database: Database, met: Sequence[Refusal], *, now: datetime) -> int:
    """Make the rows of limits that have none, or too few: full buckets, free permits. Returns how many permits."""
    # In the order of their keys: two that make the same rows at once wait for each other, but never crosswise.
    ordered = sorted(met, key=lambda limit: limit.limit_key)
    rows = await database.fetch(
        sql.open_limits, keys=[limit.limit_key for limit in ordered], permits=[limit.permits for limit in ordered],
        bursts=[limit.burst for limit in ordered], now=now,
    )  # fmt: skip
    return len(rows)


async def return_parked(
    database: Database, keys: Mapping[str, str], *, now: datetime, limit: int, idle: Mapping[str, int] = NOBODY
) -> list[Returned]:
    """Let as many runs into the queue again as these limits have room for, at most `limit` of each.

    `keys` tells with each limit the tenant behind whom the turns begin. A limit for which nobody waits has no answer.
    `idle` tells of how many that are in the queue nobody takes: others need not wait for them.
    """
    ordered = sorted(keys)
    rows = await database.fetch(
        sql.return_parked, keys=ordered, afters=[keys[key] for key in ordered],
        idles=[idle.get(key, 0) for key in ordered], now=now, limit=limit, turns=TURNS,
    )  # fmt: skip
    return [
        Returned(
            limit_key=row["limit_key"], runs=row["runs"], pools=tuple(row["pools"] or ()),
            last_tenant_id=row["last_tenant_id"], next_token_at=row["next_token_at"], there=row["there"],
            has_room=row["has_room"],
        )
        for row in rows
    ]  # fmt: skip


async def parked_keys(database: Database, *, after: str, limit: int) -> list[str]:
    """Return the limits for which runs wait, in the order of their keys, from behind one on."""
    return [row["limit_key"] for row in await database.fetch(sql.parked_keys, after=after, limit=limit)]


async def release(database: Database, limit_key: str, *, tenant_id: str, limit: int) -> list[str]:
    """Let a tenant's runs go that wait for a limit, at most `limit`, whatever its room; returns their pools."""
    rows = await database.fetch(sql.release_parked, limit_key=limit_key, tenant_id=tenant_id, limit=limit)
    return [row["pool"] for row in rows]
