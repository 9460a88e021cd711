"""Turns at what everybody shares: a tenant's wide reads take some of the connections, and never all of them."""

import asyncio
from typing import Final
from weakref import WeakValueDictionary

WIDE_READS: Final = 2
"""The most wide reads of a tenant at the same time, in one process; its others wait."""


class Turns:
    """Tells who may read now: `async with turns.of(tenant_id)`."""

    def __init__(self, *, at_once: int = WIDE_READS) -> None:
        self._at_once = at_once
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def of(self, tenant_id: str) -> asyncio.Semaphore:
        """Return the turns of a tenant."""
        return self._turns.setdefault(tenant_id, asyncio.Semaphore(self._at_once))
