"""What handlers say of their progress, on its way to the heart: the latest of each run, and not too often."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import Final
from uuid import UUID

from rota.clock import Clock
from rota.domain.progress import Progress

TELL_INTERVAL: Final = 0.25
"""Seconds between two messages to the heart, which itself tells the desk less often: a handler may say it in a loop."""


FRESH: Final = 10.0
"""Seconds within which the heart may not have passed on what a run said last."""


class ProgressNotes:
    """Takes notes in any thread, and hands them on in the event loop: `tell` gets the latest by token."""

    def __init__(self, clock: Clock, *, tell: Callable[[Mapping[UUID, Progress]], None]) -> None:
        self._clock = clock
        self._tell = tell
        self._lock = threading.Lock()
        self._latest: dict[UUID, Progress] = {}
        self._some = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def take(self, token: UUID, said: Progress) -> None:
        """Keep what a handler says, in whatever thread it is. Neither waits nor raises."""
        with self._lock:
            is_first = not self._latest
            self._latest[token] = said.after(self._latest.get(token))
        if is_first and self._loop is not None:
            # A thread may outlive the event loop: then nobody listens any more.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._some.set)

    def of(self, token: UUID) -> "Notes":
        """Return what takes one attempt's notes."""
        return Notes(self, self._clock, token)

    async def run(self) -> None:
        """Hand on until cancelled."""
        self._loop = asyncio.get_running_loop()
        if self._latest:
            self._some.set()
        while True:
            await self._some.wait()
            self._some.clear()
            with self._lock:
                latest, self._latest = self._latest, {}
            self._tell(latest)
            await self._clock.sleep(TELL_INTERVAL)


class Notes:
    """One attempt's notes: handed on as they come, and the last one kept for its report."""

    __slots__ = ("_at", "_clock", "_last", "_notes", "_token")

    def __init__(self, notes: ProgressNotes, clock: Clock, token: UUID) -> None:
        self._notes = notes
        self._clock = clock
        self._token = token
        self._last: Progress | None = None
        self._at = 0.0

    def take(self, said: Progress) -> None:
        """Keep what a handler says, in whatever thread it is. Neither waits nor raises."""
        self._last, self._at = said.after(self._last), self._clock.monotonic()
        self._notes.take(self._token, said)

    def fresh(self) -> Progress | None:
        """Return what is known of the progress, if the last of it may not have got to the desk."""
        return self._last if self._last is not None and self._clock.monotonic() - self._at < FRESH else None
