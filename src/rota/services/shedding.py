"""Whose requests pools refuse at this moment, remembered for a second so that no request costs a count."""

import asyncio
from typing import Final

import structlog

from rota.clock import Clock
from rota.domain.shedding import refused_tenants
from rota.errors import Shed
from rota.store import pools as store
from rota.store.database import Database

REMEMBERED: Final = 1.0
"""Seconds for which a count counts: so long may a tenant go on past its share."""
RETRY_AFTER: Final = 5.0
"""Seconds that a refused caller is asked to wait."""
POOLS_REMEMBERED: Final = 10_000

log = structlog.get_logger()


class Shedding:
    """Tells whom a pool refuses. One per process is enough; they share nothing."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._counted: dict[str, tuple[float, frozenset[str]]] = {}
        self._counting = asyncio.Lock()

    async def refusal(self, pool: str, *, tenant_id: str) -> Shed | None:
        """Return why a tenant's request for a run in a pool is refused; None: it is not. Raises DatabaseUnavailable."""
        if tenant_id not in await self._refused(pool):
            return None
        return Shed(
            f"pool {pool!r} is too deep, and tenant {tenant_id!r} has more runs waiting there than its share",
            retry_after=RETRY_AFTER, hint="ask again when some of them have run",
        )  # fmt: skip

    async def _refused(self, pool: str) -> frozenset[str]:
        if (known := self._known(pool)) is not None:
            return known
        async with self._counting:
            # Of all who found the count too old, one counts anew.
            if (known := self._known(pool)) is not None:
                return known
            refused = await self._count(pool)
            if len(self._counted) >= POOLS_REMEMBERED:
                self._counted.clear()
            self._counted[pool] = (self._clock.monotonic(), refused)
            return refused

    def _known(self, pool: str) -> frozenset[str] | None:
        at, refused = self._counted.get(pool, (float("-inf"), frozenset()))
        return refused if self._clock.monotonic() - at < REMEMBERED else None

    async def _count(self, pool: str) -> frozenset[str]:
        settings = await store.get(self._database, pool)
        if settings is None or settings.shed_above is None:
            return frozenset()
        # Who has more than all places together is above any level, so nobody needs to be counted further.
        depths = await store.depths(self._database, pool, most=settings.shed_above + 1)
        refused = refused_tenants(
            {depth.tenant_id: depth.runs for depth in depths},
            {depth.tenant_id: depth.weight for depth in depths},
            shed_above=settings.shed_above,
        )
        if refused:
            log.info("pool.shedding", pool=pool, tenants=len(refused), shed_above=settings.shed_above)
        return refused
