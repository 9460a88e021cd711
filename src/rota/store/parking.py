"""Runs that wait for limits: the rows of limits that are met for the first time, and the way back into the queue."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any, Final

from rota.domain.letting_in import Parked, Room, Saving
from rota.store.claims import Refusal
from rota.store.database import Database
from rota.store.statements import parking as sql

TURNS: Final = 100
"""How many tenants of one pool one look at a limit meets."""
POOLS: Final = 1000
"""In how many pools one look at a limit looks."""

NOBODY: Final[Mapping[str, int]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitLook:
    """A limit for which runs wait: what there is, and those who may be let in, in turn.

    `cut_off` are the tenants and pools of which more wait. `cut_at` is the first tenant behind whom nobody was looked
    at; None: all were.
    """

    limit_key: str
    room: Room
    waiting: tuple[Parked, ...]
    saving: Saving | None
    saved_since: datetime | None
    """Since when the limit saves for somebody, whether or not he still waits; None: it does not."""
    cut_off: frozenset[tuple[str, str]]
    cut_at: str | None


async def open_limits(database: Database, met: Sequence[Refusal], *, now: datetime) -> int:
    """Make the rows of limits that have none, or too few: full buckets, free permits. Returns how many permits."""
    # In the order of their keys: two that make the same rows at once wait for each other, but never crosswise.
    ordered = sorted(met, key=lambda limit: limit.limit_key)
    rows = await database.fetch(
        sql.open_limits, keys=[limit.limit_key for limit in ordered], permits=[limit.permits for limit in ordered],
        bursts=[limit.burst for limit in ordered], now=now,
    )  # fmt: skip
    return len(rows)


async def look(
    database: Database, keys: Mapping[str, str], *, now: datetime, limit: int, idle: Mapping[str, int] = NOBODY
) -> list[LimitLook]:
    """Look at what there is at these limits for at most `limit` of the runs that wait for each.

    `keys` tells with each limit the tenant behind whom the turns begin. `idle` tells how much of it those take that are
    let in already and whom nobody claims: others need not wait for them.
    """
    ordered = sorted(keys)
    rows = await database.fetch(
        sql.look_at_parked, keys=ordered, afters=[keys[key] for key in ordered],
        idles=[idle.get(key, 0) for key in ordered], now=now, limit=limit, turns=TURNS, pools=POOLS,
    )  # fmt: skip
    return [_look(key, list(of_one)) for key, of_one in groupby(rows, key=lambda row: str(row["limit_key"]))]


async def open_parked(database: Database, runs: Sequence[tuple[str, Parked]]) -> dict[str, tuple[int, frozenset[str]]]:
    """Let runs in that wait for limits; returns for each limit how many it were, and their pools."""
    rows = await database.fetch(
        sql.open_parked, shards=[run.shard for _, run in runs], job_uids=[run.job_uid for _, run in runs],
        slots=[run.scheduled_for for _, run in runs], keys=[key for key, _ in runs],
    )  # fmt: skip
    return {row["limit_key"]: (row["runs"], frozenset(row["pools"])) for row in rows}


async def save(database: Database, savings: Mapping[str, tuple[Saving, datetime | None]], *, now: datetime) -> int:
    """Write down for whom limits save from now on, with since when they saved for anybody before (None: they did not).

    Returns how many; the others were decided anew by somebody else.
    """
    keys = sorted(savings)
    of_all = [savings[key][0] for key in keys]
    parked = [saving.parked for saving in of_all]
    rows = await database.fetch(
        sql.save_for, keys=keys, shards=[run.shard for run in parked], job_uids=[run.job_uid for run in parked],
        slots=[run.scheduled_for for run in parked], tenant_ids=[run.tenant_id for run in parked],
        pools=[run.pool for run in parked], costs=[run.cost for run in parked], saves=[each.saves for each in of_all],
        untils=[each.until for each in of_all], befores=[savings[key][1] for key in keys], now=now,
    )  # fmt: skip
    return len(rows)


async def save_no_more(database: Database, sinces: Mapping[str, datetime]) -> int:
    """Forget for whom limits saved since these instants; returns how many."""
    rows = await database.fetch(sql.save_no_more, keys=list(sinces), sinces=list(sinces.values()))
    return len(rows)


async def parked_keys(database: Database, *, after: str, limit: int) -> list[str]:
    """Return the limits for which runs wait, in the order of their keys, from behind one on."""
    return [row["limit_key"] for row in await database.fetch(sql.parked_keys, after=after, limit=limit)]


async def release(database: Database, limit_key: str, *, tenant_id: str, limit: int) -> list[str]:
    """Let a tenant's runs go that wait for a limit, at most `limit`, whatever its room; returns their pools."""
    rows = await database.fetch(sql.release_parked, limit_key=limit_key, tenant_id=tenant_id, limit=limit)
    return [row["pool"] for row in rows]


def _look(limit_key: str, rows: Sequence[Any]) -> LimitLook:
    first = rows[0]
    waiting = [(row, _parked(row)) for row in rows if row["job_uid"] is not None]
    saving = None
    if first["saved_gate"] is not None:
        parked = Parked(**{name: first[f"saved_{name}"] for name in Parked.__dataclass_fields__})
        saving = Saving(
            parked=parked, saves=first["saves"], since=first["since"], until=first["until"],
            is_parked=first["saved_gate"] == "limit",
        )  # fmt: skip
    return LimitLook(
        limit_key=limit_key,
        room=Room(**{name: first[name] for name in Room.__dataclass_fields__}),
        waiting=tuple(run for _, run in waiting),
        saving=saving,
        saved_since=first["since"],
        cut_off=frozenset(run.queue for row, run in waiting if row["number"] >= row["share"]),
        cut_at=first["cut_at"],
    )


def _parked(row: Any) -> Parked:
    return Parked(**{name: row[name] for name in Parked.__dataclass_fields__})
