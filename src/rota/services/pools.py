"""Pools' own settings: what a point of priority is worth there, and how many runs may wait."""

from datetime import timedelta
from typing import Any, Final

import structlog

from rota.clock import Clock
from rota.domain.admission import AGEING
from rota.domain.duration import duration_words
from rota.domain.job import check_name, check_whole
from rota.errors import InvalidInput
from rota.services.patience import Patience
from rota.store import audit
from rota.store import pools as store
from rota.store.audit import Change
from rota.store.database import Database, Lane
from rota.store.pools import PoolView
from rota.wire.access import OPERATOR

__all__ = ["PoolView", "Pools"]

LONGEST_AGEING: Final = timedelta(days=1)
DEEPEST: Final = 100_000_000
RERANK_BATCH: Final = 2000
"""Waiting runs that are looked at in one statement."""
RERANK_ROUNDS: Final = 5
"""How often all are looked at, for those that were made or held by others meanwhile."""
POOLS_SHOWN: Final = 10_000
_MILLISECOND: Final = timedelta(milliseconds=1)

log = structlog.get_logger()


class Pools:
    """Put and read pools' settings; every change is in the operator's audit log."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database.on(Lane.CALLS)
        self._patience = Patience()
        self._clock = clock

    async def put(self, pool: str, *, ageing: timedelta | None, shed_above: int | None, actor: str) -> PoolView:
        """Set what a pool has of its own: `ageing` None is the installation's 60 s, `shed_above` None any depth.

        What waits gets the ranks of the new ageing before this returns: the longer, the more waits; asking again goes
        on where that was cut off. Raises InvalidInput.
        """
        check_name("pool", pool)
        if shed_above is not None:
            check_whole("shed_above", shed_above, 0, DEEPEST)
        wanted = PoolView(
            pool=pool, ageing=_ageing(AGEING if ageing is None else ageing), shed_above=shed_above,
            updated_at=self._clock.now(),
        )  # fmt: skip
        after = await self._patience.ask(
            lambda: self._write(wanted, actor=actor), what=f"pool {pool!r}", turn=pool
        )  # fmt: skip
        changed = await self._rerank(pool)
        log.info("pool.put", pool=pool, reranked=changed, actor=actor)
        return after

    async def _write(self, after: PoolView, *, actor: str) -> PoolView:
        pool = after.pool
        async with self._database.transaction() as tx:
            created = await store.add(tx, after)
            before = None if created else await store.lock(tx, pool)
            if before is not None and _facts(before) == _facts(after):
                after = before
            else:
                if before is not None:
                    await store.change(tx, after)
                change = Change(
                    tenant_id=OPERATOR, action="pool.put", subject=pool,
                    before=None if before is None else _facts(before), after=_facts(after),
                )  # fmt: skip
                await audit.note(tx, [change], actor=actor, now=after.updated_at)
        return after

    async def list(self) -> list[PoolView]:
        """Return the pools with settings of their own, by name."""
        return await store.pools(self._database, limit=POOLS_SHOWN)

    async def _rerank(self, pool: str) -> int:
        """Give what waits its present ranks, batch by batch; returns how many changed."""
        total = 0
        for _ in range(RERANK_ROUNDS):
            place, of_round = await store.rerank(self._database, pool, limit=RERANK_BATCH)
            while place is not None:
                place, changed = await store.rerank(self._database, pool, after=place, limit=RERANK_BATCH)
                of_round += changed
            total += of_round
            if not of_round:
                break
        return total


def _ageing(ageing: object) -> timedelta:
    if not isinstance(ageing, timedelta):
        raise InvalidInput("ageing", f"must be a timedelta, not {ageing!r}")
    if not timedelta(0) <= ageing <= LONGEST_AGEING:
        raise InvalidInput(
            "ageing", f"must be from 0s to {duration_words(LONGEST_AGEING)}, not {duration_words(ageing)}"
        )
    if ageing % _MILLISECOND:
        raise InvalidInput("ageing", "has a part finer than a millisecond", hint="durations are whole milliseconds")
    return ageing


def _facts(view: PoolView) -> dict[str, Any]:
    return {"ageing": view.ageing.total_seconds(), "shed_above": view.shed_above}
