"""The connections of one lane, lent in turn.

asyncpg's own pool starts two tasks for each loan, which cost as much as three small statements; see decision 0049.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

import asyncpg

IDLE_LIFETIME: Final = 300.0
"""Seconds after which a connection that nobody needed is closed."""


class LanePool:
    """At most `size` connections of asyncpg, each opened when it is first needed; the one used last is lent first.

    What comes back closed, or inside a transaction, is dropped.
    """

    def __init__(self, open_connection: Callable[[], Awaitable[Any]], *, size: int) -> None:
        self.size = size
        self.is_closing = False
        self._open_connection = open_connection
        self._places = asyncio.Semaphore(size)
        self._lent: set[Any] = set()
        self._idle: deque[tuple[float, Any]] = deque()
        """Each with the loop's time since when it has been idle, oldest first."""
        self._sweep: asyncio.TimerHandle | None = None

    @property
    def open_count(self) -> int:
        """How many connections are open."""
        return len(self._lent) + sum(not raw.is_closed() for _, raw in self._idle)

    @property
    def is_at_rest(self) -> bool:
        """Whether the pool is open and nobody uses any of it."""
        return not self.is_closing and not self._lent and not self._places.locked()

    async def acquire(self, *, within: float) -> Any:
        """Lend a connection; give it back with `release`.

        Raises TimeoutError after `within` seconds, asyncpg.InterfaceError when the pool closes, and what opening does.
        """
        self._check_open()
        is_ready = bool(self._idle) and not self._places.locked()
        async with asyncio.timeout(None if is_ready else within):
            await self._places.acquire()
            try:
                self._check_open()
                raw = self._idle_one() or await self._open_connection()
            except BaseException:
                self._places.release()
                raise
        self._lent.add(raw)
        return raw

    def release(self, raw: Any) -> None:
        """Take a connection back."""
        self._lent.remove(raw)
        if not raw.is_closed():
            if self.is_closing or raw.is_in_transaction():
                raw.terminate()
            else:
                self._keep(raw)
        self._places.release()

    def end_idle(self, *, since: float = float("inf")) -> None:
        """End the connections that have been idle since this time of the loop, or before."""
        while self._idle and self._idle[0][0] <= since:
            self._idle.popleft()[1].terminate()

    async def close(self) -> None:
        """End the idle connections, lend no more, and wait for what is lent."""
        self.is_closing = True
        self._stop_sweeping()
        while self._idle:
            await self._idle.pop()[1].close()
        for _ in range(self.size):
            await self._places.acquire()

    def terminate(self) -> None:
        """End all connections, also those that are lent."""
        self.is_closing = True
        self._stop_sweeping()
        self.end_idle()
        for raw in self._lent:
            raw.terminate()

    def _check_open(self) -> None:
        if self.is_closing:
            raise asyncpg.InterfaceError("the pool is closed")

    def _keep(self, raw: Any) -> None:
        loop = asyncio.get_running_loop()
        self._idle.append((loop.time(), raw))
        if self._sweep is None:
            self._sweep = loop.call_later(IDLE_LIFETIME, self._end_unneeded)

    def _idle_one(self) -> Any | None:
        while self._idle:
            raw = self._idle.pop()[1]
            if not raw.is_closed():
                return raw
        return None

    def _end_unneeded(self) -> None:
        loop = asyncio.get_running_loop()
        self.end_idle(since=loop.time() - IDLE_LIFETIME)
        self._sweep = loop.call_later(IDLE_LIFETIME, self._end_unneeded) if self._idle else None

    def _stop_sweeping(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
