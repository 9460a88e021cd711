"""Runs that wait for a limit come back when there is room: when a lease ends, or a scheduler looks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from rota.clock import Clock
from rota.domain.letting_in import LetIn, whom_to_let_in
from rota.services.hints import Hints, pool_topic
from rota.store import parking
from rota.store.database import Database
from rota.store.parking import NOBODY, LimitLook

BATCH: Final = 500
"""The most runs of one limit, and the most limits, that one look lets in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """How many runs that waited for a limit are in the queue again, and in which pools.

    `after` is the tenant behind whom the next turns begin, None: as before. `next_token_at` is when the limit's rate
    has room for another run, None without a rate. `has_room`: nobody has taken all that there is as yet; `there` is
    what those take that are in the queue. `has_more`: there may be room for others at once.
    """

    limit_key: str
    runs: int
    pools: frozenset[str]
    after: str | None
    next_token_at: datetime | None
    there: int
    has_room: bool
    has_more: bool


async def let_in(database: Database, clock: Clock, hints: Hints, keys: Mapping[str, str]) -> int:
    """Let runs that wait for these limits into the queue, as far as there is room; returns how many.

    `keys` tells with each limit the tenant behind whom the turns begin.
    """
    return sum(limit.runs for limit in await let_in_returned(database, clock, hints, keys))


async def let_in_returned(
    database: Database, clock: Clock, hints: Hints, keys: Mapping[str, str], *, idle: Mapping[str, int] = NOBODY
) -> list[Returned]:
    """Let runs in likewise and tell their pools; returns what became of each limit. `idle` as in `parking.look`."""
    returned = await let_in_parked(database, keys, now=clock.now(), idle=idle)
    for pool in {pool for limit in returned for pool in limit.pools}:
        hints.publish(pool_topic(pool))
    return returned


async def let_in_parked(
    database: Database, keys: Mapping[str, str], *, now: datetime, idle: Mapping[str, int] = NOBODY
) -> list[Returned]:
    """Look at these limits, decide whom each lets in and whom it saves for, and write that down.

    Many may do so at once: a run is let in once, and whoever decides last on a saving sees what was decided before.
    """
    if not keys:
        return []
    looks = await parking.look(database, keys, now=now, limit=BATCH, idle=idle)
    decided = [
        (look, whom_to_let_in(look.room, look.waiting, look.saving, now=now, cut_off=look.cut_off)) for look in looks
    ]  # fmt: skip
    await _save(database, decided, now=now)
    going = [(look.limit_key, run) for look, one in decided for run in one.runs]
    opened = await parking.open_parked(database, going) if going else {}
    return [_returned(look, one, *opened.get(look.limit_key, (0, frozenset())), now=now) for look, one in decided]


async def _save(database: Database, decided: Sequence[tuple[LimitLook, LetIn]], *, now: datetime) -> None:
    begun = {
        look.limit_key: (one.saving, look.saved_since)
        for look, one in decided
        if one.saving is not None and one.saving.since == now and one.saving != look.saving
    }
    ended = {
        look.limit_key: look.saved_since
        for look, one in decided
        if one.saving is None and look.saved_since is not None
    }  # fmt: skip
    if begun:
        await parking.save(database, begun, now=now)
    if ended:
        await parking.save_no_more(database, ended)


def _returned(look: LimitLook, one: LetIn, runs: int, pools: frozenset[str], *, now: datetime) -> Returned:
    taken = look.room.there + sum(run.cost for run in one.runs)
    is_cut = look.cut_at is not None and (one.has_more or not one.runs)
    return Returned(
        limit_key=look.limit_key, runs=runs, pools=pools,
        after=look.cut_at if is_cut else one.runs[-1].tenant_id if one.runs else None,
        next_token_at=_next_token_at(look, taken=taken, wanted=one.waits or 1, now=now),
        there=taken, has_room=look.room.has_room, has_more=one.has_more or (is_cut and look.room.free > 0),
    )  # fmt: skip


def _next_token_at(look: LimitLook, *, taken: int, wanted: int, now: datetime) -> datetime | None:
    """Return when there are tokens for one more; never where it is something else that those who wait lack."""
    room = look.room
    if room.rate is None or room.tokens is None or room.tokens >= taken + wanted:
        return None
    return now + timedelta(seconds=min((taken + wanted - room.tokens) / room.rate, timedelta(days=365).total_seconds()))
