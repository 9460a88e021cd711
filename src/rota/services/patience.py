"""What a stranger's transaction may hold is asked for with patience: briefly each time, and by one caller at a time.

An application's open transaction holds the job that it triggers, the key and the slot of the run that it makes, the
run and the lease that it completes. Whoever asks for the same meanwhile waits beside the database, not inside: a
connection is his for a moment, everything else goes on, and after PATIENCE seconds he is told what is held.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from rota.clock import Clock, SystemClock
from rota.errors import Locked

PATIENCE: Final = 1.5
"""Seconds that a caller waits for what is held."""
FIRST_WAIT: Final = 0.02
LONGEST_WAIT: Final = 0.2

T = TypeVar("T")


class Patience:
    """Asks on behalf of callers, in one process."""

    def __init__(self, clock: Clock | None = None) -> None:
        # A lock is held in true time, whatever time it is in Rota.
        self._clock = clock or SystemClock()
        self._turns: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()

    async def ask(self, action: Callable[[], Awaitable[T]], *, what: str, turn: Hashable | None = None) -> T:
        """Do what can be repeated as long as it changed nothing. Raises Locked, which names what is held.

        Callers with the same `turn` want the same row, of which each would wait for the others.
        """
        until = self._clock.monotonic() + PATIENCE
        if turn is None:
            return await self._ask(action, what, until)
        lock = self._turns.setdefault((asyncio.get_running_loop(), turn), asyncio.Lock())
        try:
            async with asyncio.timeout(PATIENCE):
                await lock.acquire()
        except TimeoutError:
            raise _held(what) from None
        try:
            return await self._ask(action, what, until)
        finally:
            lock.release()

    async def _ask(self, action: Callable[[], Awaitable[T]], what: str, until: float) -> T:
        wait = FIRST_WAIT
        while True:
            try:
                return await action()
            except Locked:
                if self._clock.monotonic() + wait >= until:
                    raise _held(what) from None
            await self._clock.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)


def _held(what: str) -> Locked:
    return Locked(f"{what} is held by a transaction that has not ended", hint="ask again once it has")
