"""How a service goes on: tick, tick again while there is more, wait, and survive whatever a tick raises."""

import asyncio
import random
from collections.abc import Awaitable
from datetime import datetime
from typing import Final, Protocol

import structlog

from rota.clock import Clock
from rota.errors import DatabaseUnavailable

BACKOFF_FIRST: Final = 0.1
BACKOFF_LIMIT: Final = 2.0
"""The longest wait after a failed tick, in seconds: work resumes within it once the database is back."""

log = structlog.get_logger()


class Ticker(Protocol):
    """A service that a loop drives."""

    async def tick(self) -> bool:
        """Do one bounded piece of work. True means: there may be more, tick again."""
        ...

    async def pause(self) -> float:
        """Return how many seconds to wait, with nothing to do, until the next tick."""
        ...


class Loop:
    """Drives one service until it is stopped; knows when it last succeeded, which is what its health means."""

    def __init__(self, name: str, service: Ticker, clock: Clock, *, wake: asyncio.Event | None = None) -> None:
        self.name = name
        self.last_success: datetime | None = None
        self.failures = 0
        self._service = service
        self._clock = clock
        self._wake = wake

    async def run(self, stop: asyncio.Event) -> None:
        """Tick until `stop` is set. No error ends the loop: it backs off with jitter and goes on."""
        while not stop.is_set():
            wait = await self._once()
            if wait <= 0:
                continue
            # Stop and wake share one wait: whoever stops a loop sets its wake too, and polling bounds the rest.
            event = self._wake or stop
            await self._clock.wait(event, wait)
            if self._wake is not None:
                self._wake.clear()

    async def _once(self) -> float:
        """Tick once; return the seconds to wait."""
        try:
            more = await self._service.tick()
            wait = 0.0 if more else await self._service.pause()
        except Exception as error:
            self.failures += 1
            if not isinstance(error, DatabaseUnavailable) or self.failures == 1:
                log.warning("loop.failed", loop=self.name, failures=self.failures, error=repr(error),
                            exc_info=not isinstance(error, DatabaseUnavailable))  # fmt: skip
            return self._backoff()
        if self.failures:
            log.info("loop.resumed", loop=self.name, failures=self.failures)
        self.failures = 0
        self.last_success = self._clock.now()
        return wait

    def _backoff(self) -> float:
        full = min(BACKOFF_LIMIT, BACKOFF_FIRST * 2.0 ** min(self.failures - 1, 10))
        return full * random.uniform(0.5, 1.0)


async def run_together(*running: Awaitable[None]) -> None:
    """Run all until each has ended; the first that raises ends the others."""
    async with asyncio.TaskGroup() as group:
        for awaitable in running:
            group.create_task(_as_coroutine(awaitable))


async def _as_coroutine(awaitable: Awaitable[None]) -> None:
    await awaitable
