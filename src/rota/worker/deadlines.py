"""Watches the deadlines of all attempts with one sleeper: a timer for each run would cost more than a short run."""

import asyncio
from collections.abc import Callable, Collection
from math import inf
from typing import Final

from rota.clock import Clock
from rota.worker.live import LiveAttempt

LONGEST_WATCH: Final = 3600.0


class DeadlineWatch:
    """Calls `overdue(attempt)` when an attempt's deadline has passed; the callee then sets a later one.

    `attempts` returns those that live now.
    """

    def __init__(
        self, clock: Clock, *, attempts: Callable[[], Collection[LiveAttempt]], overdue: Callable[[LiveAttempt], None]
    ) -> None:
        self._clock = clock
        self._attempts = attempts
        self._overdue = overdue
        self._next = inf
        self._sooner = asyncio.Event()

    def expect(self, deadline: float) -> None:
        """Take note of a new deadline."""
        if deadline < self._next:
            self._sooner.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            self._sooner.clear()
            now = self._clock.monotonic()
            for live in list(self._attempts()):
                if live.deadline <= now:
                    self._overdue(live)
                    assert live.deadline > now, "an overdue attempt gets a later deadline, or this loop would spin"
            self._next = min((live.deadline for live in self._attempts()), default=inf)
            await self._clock.wait(self._sooner, min(self._next - now, LONGEST_WATCH))
