"""Long polls: a caller waits for a hint of work, and no longer than he listens or this server lives."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from weakref import WeakSet

from starlette.requests import Request

from rota.clock import Clock
from rota.services.hints import Hint, Hints, pool_topic

POLL_INTERVAL: Final = 1.0
"""Seconds after which a poll looks without a hint: hints make starts prompt and are never needed."""


class LongPolls:
    """The polls of this process. `end` lets all of them answer at once, and later ones not wait."""

    def __init__(self, hints: Hints, clock: Clock) -> None:
        self._hints = hints
        self._clock = clock
        self._open: WeakSet[Poll] = WeakSet()
        self._has_ended = False

    @asynccontextmanager
    async def listening(self, request: Request, *, pool: str, wait: float) -> AsyncIterator["Poll"]:
        """Yield a poll of at most `wait` seconds for a pool's work. The request's body must have been read."""
        poll = Poll(self._hints.subscribe(pool_topic(pool)), self._clock, wait=wait)
        self._open.add(poll)
        if self._has_ended:
            poll.end()
        # Only who waits can be left waiting in vain.
        watcher = asyncio.ensure_future(_until_gone(request, poll)) if wait > 0 else None
        try:
            yield poll
        finally:
            if watcher is not None:
                watcher.cancel()
                await asyncio.gather(watcher, return_exceptions=True)

    def end(self) -> None:
        """Let every poll answer with what there is."""
        self._has_ended = True
        for poll in list(self._open):
            poll.end()


class Poll:
    """One caller's waiting. `caller_is_gone`: nobody would read the answer."""

    def __init__(self, hint: Hint, clock: Clock, *, wait: float) -> None:
        self.caller_is_gone = False
        self._hint = hint
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

    async def sleep(self, *, at_most: float) -> bool:
        """Wait for a hint, for the end, or for so many seconds; False: nothing came."""
        return await self._clock.wait(self._hint, min(at_most, self.seconds_left))

    def end(self) -> None:
        """Let it wait no longer."""
        self._has_ended = True
        self._hint.set()


async def _until_gone(request: Request, poll: Poll) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    poll.caller_is_gone = True
    poll.end()
