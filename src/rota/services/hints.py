"""Wake-up hints: they make starts prompt and are never needed for correctness, since everybody also polls.

In the process a hint sets an event at once. Between processes it is a NOTIFY of its own, coalesced to at most
HINTS_PER_SECOND and sent outside every state change; listening wants a direct connection and is optional.

What is made in SQL is told of by `rota.ring`, in the caller's own transaction, and only where somebody waits: whoever
has nothing to do holds the pool's bell, a lock that all who wait share.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf
from typing import Final
from weakref import WeakSet

import structlog

from rota.clock import Clock
from rota.errors import DatabaseUnavailable
from rota.store.database import Database, Line
from rota.store.statements import upkeep

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
QUIET: Final = 0.02
"""Seconds: a bell that has not rung for so long is held on for as long, so that an idle process need not take it anew
for each run; one that rings more often is put down at once, since each ring costs those who ring."""

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
        self._line: Line | None = None
        self._bells: dict[str, int] = {}
        self._bell_turn = asyncio.Lock()
        self._echoes: Counter[str] = Counter()
        self._rang_at: dict[str, float] = {}
        self._dropping: dict[str, asyncio.Task[None]] = {}
        """Bells that rang and are still held: each is put down by its task, unless somebody waits again before."""
        self._dropped: set[asyncio.Task[None]] = set()
        self.holds = 0
        """How many bells this process has taken so far: whoever looks for work remembers it for `hold_bell`."""

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

    @asynccontextmanager
    async def telling(self) -> AsyncIterator[None]:
        """Send hints meanwhile, and those of the block's last moment at its end: for whoever does not stay."""
        stop = asyncio.Event()
        sending = asyncio.create_task(self.run(stop, listen=False))
        try:
            yield
        finally:
            stop.set()
            self._anything.set()
            await sending
            await self._send()

    async def _send(self) -> None:
        self._anything.clear()
        topics, self._unsent = self._unsent, set()
        for topic in topics:
            # It comes back over our own line, and has woken everybody here already.
            is_heard = self._line is not None
            self._echoes[topic] += is_heard
            try:
                await self._database.fetch(upkeep.send_hint, topic=topic)
            except Exception as error:
                self._echoes[topic] -= is_heard
                # A lost hint costs a poll interval, so it is not tried again.
                self._note("hint.lost", error, topic=topic)

    async def _listen(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                async with self._database.listening(CHANNEL, self._ring) as line:
                    self._line, self._bells = line, {}
                    for pool in list(self._dropping):
                        self._hold_on(pool)
                    self._echoes.clear()
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
            finally:
                self._line = None
            await self._clock.wait(stop, _RECONNECT_WAIT)

    def _note(self, event: str, error: Exception, **facts: str) -> None:
        """Log trouble that only costs promptness; what is not the database's absence is worth one warning."""
        if isinstance(error, DatabaseUnavailable) or self._has_warned:
            log.debug(event, error=repr(error), **facts)
        else:
            self._has_warned = True
            log.warning(event, error=repr(error), **facts, exc_info=True)

    async def hold_bell(self, pool: str, *, since: int) -> bool:
        """Be told of runs of a pool that are made in SQL, up to the next hint of it.

        True: a run that was made since the caller's last look, at which `holds` was `since`, may not have rung: look
        again. False without a line of our own: everybody polls.
        """
        async with self._bell_turn:
            line = self._line
            if line is None or line.is_set():
                return False
            # If it is held on since it rang last, whatever was made meanwhile has rung too.
            self._hold_on(pool)
            if pool not in self._bells:
                try:
                    [row] = await line.ask(upkeep.hold_bell, pool=pool)
                except Exception as error:
                    self._note("bell.not_held", error, pool=pool)
                    return False
                if not row["is_held"]:
                    return False
                self.holds += 1
                self._bells[pool] = self.holds
            return self._bells[pool] > since

    def _ring(self, topic: str) -> None:
        """Wake who waits; nobody need ring again until they wait again."""
        if self._echoes[topic] > 0:
            self._echoes[topic] -= 1
            return
        self._wake(topic)
        kind, _, pool = topic.partition(":")
        if kind == "pool" and self._line is not None and pool in self._bells:
            now = self._clock.monotonic()
            is_quiet = now - self._rang_at.get(pool, -inf) >= QUIET
            self._rang_at[pool] = now
            self._hold_on(pool)
            dropping = self._drop_bell(self._line, pool, after=QUIET if is_quiet else 0.0)
            self._dropping[pool] = asyncio.get_running_loop().create_task(dropping)

    def _hold_on(self, pool: str) -> None:
        if (dropping := self._dropping.pop(pool, None)) is not None:
            dropping.cancel()

    async def _drop_bell(self, line: Line, pool: str, *, after: float) -> None:
        if after:
            await self._clock.sleep(after)
        # From here on nobody ends this task, and whoever waits again takes the bell anew.
        task = self._dropping.pop(pool)
        self._dropped.add(task)
        try:
            if line is self._line:
                del self._bells[pool]
                await line.ask(upkeep.drop_bell, pool=pool)
        except Exception as error:
            self._note("bell.not_dropped", error, pool=pool)
        finally:
            self._dropped.discard(task)

    def _wake(self, topic: str) -> None:
        for hint in self._listeners:
            if hint.topic == topic:
                hint.set()
