"""Runs that wait for a limit come back when there is room: at once when a lease ends, and else within a second."""

from collections.abc import Mapping
from typing import Final

from rota.clock import Clock
from rota.services.hints import Hints, pool_topic
from rota.store import parking
from rota.store.database import Database

BATCH: Final = 500
"""The most runs of one limit, and the most limits, that one statement lets in."""


async def let_in(database: Database, clock: Clock, hints: Hints, keys: Mapping[str, str]) -> int:
    """Let runs that wait for these limits into the queue, as far as there is room; returns how many.

    `keys` tells with each limit the tenant behind whom the turns begin.
    """
    if not keys:
        return 0
    returned = await parking.return_parked(database, keys, now=clock.now(), limit=BATCH)
    for pool in {pool for limit in returned for pool in limit.pools}:
        hints.publish(pool_topic(pool))
    return sum(limit.runs for limit in returned)
