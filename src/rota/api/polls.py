"""Long polls: a caller waits for a hint of work, and no longer than he listens or this server lives."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from typing import Final
from weakref import WeakSet

from starlette.requests import Request

from rota.clock import Clock
from rota.errors import TooManyCalls
from rota.services.hints import Hints, pool_topic
from rota.services.turns import Turns

POLL_INTERVAL: Final = 1.0
"""Seconds after which a poll looks without a hint: hints make starts prompt and are never needed."""

POLLS_LIMIT: Final = 200
"""The most polls of one tenant that wait in this process."""
LOOKS_PER_INTERVAL: Final = 50
"""So many polls of a tenant look once in every interval; of more, each looks less often."""
LOOKS_AT_ONCE: Final = 2
"""The most looks of a tenant at the same time."""


class LongPolls:
    """The polls of this process. `end` lets all of them answer at once, and later ones not wait.

    A tenant has so many at once, and so many looks: many polls look less often, and two of them at a time.
    """

    def __init__(self, hints: Hints, clock: Clock) -> None:
        self._hints = hints
        self._clock = clock
        self._turns = Turns(at_once=LOOKS_AT_ONCE)
        self._waiting: Counter[str] = Counter()
        self._open: WeakSet[Poll] = WeakSet()
        self._has_ended = False

    @asynccontextmanager
    async def listening(
        self, request: Request, *, tenant_id: str | None, pool: str, wait: float
    ) -> AsyncIterator["Poll"]:
        """Yield a poll of at most `wait` seconds for a pool's work. The request's body must have been read.

        `tenant_id` None: for the work of all tenants, which has no share. Raises TooManyCalls.
        """
        if tenant_id is not None and wait > 0 and self._waiting[tenant_id] >= POLLS_LIMIT:
            raise TooManyCalls(
                f"tenant {tenant_id!r} has {POLLS_LIMIT} long polls here already",
                retry_after=POLL_INTERVAL,
                hint="let one worker process take several runs, or serve the API from more processes",
            )
        poll = Poll(self._hints, self._clock, pool=pool, wait=wait)
        self._open.add(poll)
        if self._has_ended:
            poll.end()
        # Only who waits can be left waiting in vain.
        watcher = asyncio.ensure_future(_note_leaving(request, poll)) if wait > 0 else None
        try:
            with self._counted(tenant_id if wait > 0 else None):
                yield poll
        finally:
            if watcher is not None:
                watcher.cancel()
                await asyncio.gather(watcher, return_exceptions=True)

    def waiting(self, tenant_id: str) -> int:
        """Return how many polls of a tenant wait."""
        return self._waiting[tenant_id]

    def turn(self, tenant_id: str | None) -> AbstractAsyncContextManager[None]:
        """Return the turn in which a tenant's poll looks: `async with polls.turn(tenant_id)`."""
        return nullcontext() if tenant_id is None else self._turns.of(tenant_id)

    def interval(self, tenant_id: str | None) -> float:
        """Return the seconds between two looks of one poll that hears no hint."""
        return POLL_INTERVAL * max(1.0, self._waiting[tenant_id or ""] / LOOKS_PER_INTERVAL)

    @contextmanager
    def _counted(self, tenant_id: str | None) -> Iterator[None]:
        if tenant_id is None:
            yield
            return
        self._waiting[tenant_id] += 1
        try:
            yield
        finally:
            self._waiting[tenant_id] -= 1
            if not self._waiting[tenant_id]:
                del self._waiting[tenant_id]

    def end(self) -> None:
        """Let every poll answer with what there is."""
        self._has_ended = True
        for poll in list(self._open):
            poll.end()


class Poll:
    """One caller's waiting. `caller_is_gone`: nobody would read the answer."""

    def __init__(self, hints: Hints, clock: Clock, *, pool: str, wait: float) -> None:
        self.caller_is_gone = False
        self._hints = hints
        self._hint = hints.subscribe(pool_topic(pool))
        self._holds = hints.holds
        self._pool = pool
        self._clock = clock
        self._deadline = clock.monotonic() + wait
        self._has_ended = False

    @property
    def seconds_left(self) -> float:
        """How long to wait still; 0.0 once there is no reason to."""
        return 0.0 if self._has_ended else max(0.0, self._deadline - self._clock.monotonic())

    def begin_look(self) -> None:
        """Forget the hints up to now: what they told of is looked for now."""
        self._hint.clear()
        self._holds = self._hints.holds

    async def sleep(self, *, at_most: float) -> bool:
        """Wait for a hint, for the end, or for so many seconds; False: nothing came."""
        if await self._hints.hold_bell(self._pool, since=self._holds):
            return True
        return await self._clock.wait(self._hint, min(at_most, self.seconds_left))

    def end(self) -> None:
        """Let it wait no longer."""
        self._has_ended = True
        self._hint.set()


async def until_gone(request: Request) -> None:
    """Wait until the client has left. The request's body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _note_leaving(request: Request, poll: Poll) -> None:
    await until_gone(request)
    poll.caller_is_gone = True
    poll.end()
