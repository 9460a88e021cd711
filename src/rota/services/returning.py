"""Runs that wait for a limit come back when there is room: when a lease ends, or a scheduler looks."""

from collections.abc import Mapping
from typing import Final

from rota.clock import Clock
from rota.services.hints import Hints, pool_topic
from rota.store import parking
from rota.store.database import Database
from rota.store.parking import NOBODY, Returned

BATCH: Final = 500
"""The most runs of one limit, and the most limits, that one statement lets in."""


async def let_in(database: Database, clock: Clock, hints: Hints, keys: Mapping[str, str]) -> int:
    """Let runs that wait for these limits into the queue, as far as there is room; returns how many.

    `keys` tells with each limit the tenant behind whom the turns begin.
    """
    return sum(limit.runs for limit in await let_in_returned(database, clock, hints, keys))


async def let_in_returned(
    database: Database, clock: Clock, hints: Hints, keys: Mapping[str, str], *, idle: Mapping[str, int] = NOBODY
) -> list[Returned]:
    """Let runs in likewise; returns what became of each limit. `idle` as in `parking.return_parked`."""
    if not keys:
        return []
    returned = await parking.return_parked(database, keys, now=clock.now(), limit=BATCH, idle=idle)
    for pool in {pool for limit in returned for pool in limit.pools}:
        hints.publish(pool_topic(pool))
    return returned
