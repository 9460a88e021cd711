"""Wake-up hints: they make starts prompt and are never needed for correctness, since everybody also polls.

In the process a hint sets an event at once. Between processes it is a NOTIFY of its own, coalesced to at most
HINTS_PER_SECOND and sent outside every state change; listening wants a direct connection and is optional.
"""

import asyncio
from typing import Final
from weakref import WeakSet

import structlog

from rota.clock import Clock
from rota.errors import DatabaseUnavailable
from rota.store.database import Database
from rota.store.statements import upkeep as sql

HINTS_PER_SECOND: Final = 50
CHANNEL: Final = "rota_hint"
SCHEDULES: Final = "schedules"
"""The topic of new and edited schedules."""
CANCELS: Final = "cancel"
"""The topic of runs that run and are to be cancelled: it brings the renewal forward that tells their workers."""
LIMITS: Final = "limits"
"""The topic of limits that were put or deleted, and of runs that may go on under them."""
PROBE_INTERVAL: Final = 10.0
"""Seconds between two signs of life that are asked of the connection that listens."""
_RECONNECT_WAIT: Final = 2.0

log = structlog.get_logger()


def pool_topic(pool: str) -> str:
    """Return the topic of runs that became ready in a pool."""
    return f"pool:{pool}"


class Hint(asyncio.Event):
    """An event for one topic; set when somebody has reason to look."""

    def __init__(self, topic: str) -> None:
        super().__init__()
        self.topic = topic


class Hints:
    """The process's switchboard of hints."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._listeners: WeakSet[Hint] = WeakSet()
        self._unsent: set[str] = set()
        self._anything = asyncio.Event()
        self._has_warned = False

    def subscribe(self, topic: str) -> Hint:
        """Return an event that is set at each hint on the topic, as long as somebody keeps it."""
        hint = Hint(topic)
        self._listeners.add(hint)
        return hint

    def publish(self, topic: str) -> None:
        """Wake this process's listeners now, and others' soon."""
        self._wake(topic)
        self._unsent.add(topic)
        self._anything.set()

    async def run(self, stop: asyncio.Event, *, listen: bool = True) -> None:
        """Send hints to other processes, and listen for theirs, until stopped."""
        listener = asyncio.ensure_future(self._listen(stop)) if listen else None
        try:
            while not stop.is_set():
                if await self._clock.wait(self._anything, 1.0):
                    await self._send()
                    await self._clock.wait(stop, 1.0 / HINTS_PER_SECOND)
        finally:
            if listener is not None:
                listener.cancel()
                await asyncio.gather(listener, return_exceptions=True)

    async def _send(self) -> None:
        self._anything.clear()
        topics, self._unsent = self._unsent, set()
        for topic in topics:
            try:
                await self._database.fetch(sql.send_hint, topic=topic)
            except Exception as error:
                # A lost hint costs a poll interval, so it is not tried again.
                self._note("hint.lost", error, topic=topic)

    async def _listen(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                async with self._database.listening(CHANNEL, self._wake) as line:
                    probed_at = self._clock.monotonic()
                    while not (stop.is_set() or line.is_set()):
                        await self._clock.wait(line, 1.0)
                        if self._clock.monotonic() - probed_at >= PROBE_INTERVAL:
                            await line.probe()
                            probed_at = self._clock.monotonic()
            except Exception as error:
                self._note("hints.not_listening", error)
                if self._database.way.is_pooled:
                    # Everybody polls: it costs promptness, and was said when the first session was opened.
                    return
            await self._clock.wait(stop, _RECONNECT_WAIT)

    def _note(self, event: str, error: Exception, **facts: str) -> None:
        """Log trouble that only costs promptness; what is not the database's absence is worth one warning."""
        if isinstance(error, DatabaseUnavailable) or self._has_warned:
            log.debug(event, error=repr(error), **facts)
        else:
            self._has_warned = True
            log.warning(event, error=repr(error), **facts, exc_info=True)

    def _wake(self, topic: str) -> None:
        for hint in self._listeners:
            if hint.topic == topic:
                hint.set()
