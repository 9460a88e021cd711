"""Renewals from the worker's own loop while no heart can: late when a handler has the loop, but better than none."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import Final
from uuid import UUID

import structlog

from rota.clock import Clock
from rota.domain.attempt import LeaseKey
from rota.worker.desk import Renewal

BATCH: Final = 1000
PATIENCE: Final = 5.0
"""The most leases in one call, and the seconds for it."""

_log = structlog.get_logger(__name__)

Renew = Callable[[Sequence[LeaseKey]], Awaitable[Renewal]]


class StandIn:
    """Renews by `renew`, one round at a time. `tell(lost, cancelled)` is called where there is news of leases."""

    def __init__(self, clock: Clock, renew: Renew, *, tell: Callable[[frozenset[UUID], frozenset[UUID]], None]) -> None:
        self._clock = clock
        self._renew = renew
        self._tell = tell
        self._round: asyncio.Task[None] | None = None
        self._began_at = -inf

    def is_due(self, *, interval: float) -> bool:
        """Tell whether the next round of renewals, so many seconds after the last one, may begin."""
        is_under_way = self._round is not None and not self._round.done()
        return not is_under_way and self._clock.monotonic() >= self._began_at + interval

    def begin(self, keys: Sequence[LeaseKey]) -> None:
        """Renew these, beside the caller."""
        self._began_at = self._clock.monotonic()
        self._round = asyncio.create_task(self._renew_all(keys), name="rota-heart-stand-in")

    def stop(self) -> None:
        """Break the round off."""
        if self._round is not None:
            self._round.cancel()

    async def _renew_all(self, keys: Sequence[LeaseKey]) -> None:
        for start in range(0, len(keys), BATCH):
            try:
                async with asyncio.timeout(PATIENCE):
                    renewal = await self._renew(keys[start : start + BATCH])
            except Exception as error:
                _log.warning("renewal.postponed", error=f"{type(error).__name__}: {error}")
                return
            if renewal.lost or renewal.cancelled:
                self._tell(renewal.lost, renewal.cancelled)
