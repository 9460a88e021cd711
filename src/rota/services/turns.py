"""Turns at what everybody shares: a tenant's wide reads take some of the connections for reads, and never all of them.

Those connections are a lane of their own (`store.database.Lane.READS`): all tenants' reads together leave claims,
renewals and changes theirs.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from weakref import WeakValueDictionary

from rota.errors import TooManyCalls

WIDE_READS: Final = 2
"""The most wide reads of a tenant at the same time, in one process; its others wait."""
TURN_WAIT: Final = 5.0
"""Seconds that a read waits for its turn."""


class Turns:
    """Tells who may read now: `async with turns.of(tenant_id)`."""

    def __init__(self, *, at_once: int = WIDE_READS, patience: float | None = None) -> None:
        """`patience`: seconds that a caller waits for its turn; None, as long as it takes."""
        self._at_once = at_once
        self._patience = patience
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def of(self, tenant_id: str) -> AsyncIterator[None]:
        """Wait for a turn of the tenant's, and have it while the block lasts. Raises TooManyCalls."""
        turns = self._turns.setdefault(tenant_id, asyncio.Semaphore(self._at_once))
        try:
            async with asyncio.timeout(self._patience):
                await turns.acquire()
        except TimeoutError:
            raise TooManyCalls(
                f"{self._at_once} wide reads of tenant {tenant_id!r} are under way", retry_after=1.0,
                hint="ask one after the other, or for less: name a job, `since` or `until`",
            ) from None  # fmt: skip
        try:
            yield
        finally:
            turns.release()
