"""The worker's side of the heart: starts the heart process, tells it of leases, and replaces it if it dies or hangs.

What is told in one turn of the event loop goes in one message.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import inf
from typing import Any, Final, Protocol
from uuid import UUID

import structlog

from rota.clock import Clock, SystemClock
from rota.domain.attempt import Claim
from rota.domain.progress import Progress
from rota.worker import frames
from rota.worker.backoff import Backoff
from rota.worker.lease_book import line_of

DESK_OPENER: Final = "rota.worker.desks:open_desk"
"""Where the heart finds the function that makes a desk from a URL."""

REPORT_GRACE: Final = timedelta(seconds=30)
"""How long after an attempt's timeout its lease is still renewed, so that its report arrives in time."""

GOODBYE_TIME: Final = 2.0
"""Seconds that a leaving worker waits for its heart; the heart goes on alone if it needs longer."""

SOUND_LIFE: Final = 2.0
"""Seconds after which a heart that dies is no sign of a heart that cannot live."""

PING_INTERVAL: Final = 1.0
"""Seconds between questions whether the heart works; short leases make them more frequent."""

PATIENCE_PER_LEASE: Final = 1 / 4
"""The part of the shortest lease for which a heart may be silent. With the third that may have passed since the last
renewal, this leaves the lease time for a new heart's start."""

SHORTEST_PATIENCE: Final = 0.5
"""Seconds, however short the leases are: a busy host makes everybody wait that long."""

START_TIME: Final = 10.0
"""Seconds of silence that a new heart has on top, until its first word."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartNews:
    """What the heart learnt: leases that are gone, runs to cancel, and leases that it renews no longer."""

    lost: frozenset[UUID] = frozenset()
    cancelled: frozenset[UUID] = frozenset()
    ended: frozenset[UUID] = frozenset()


class ProcessGroups(Protocol):
    """Keeps the process groups that must not outlive the worker."""

    def guard(self, group: int) -> None:
        """Kill this group if the worker dies."""
        ...

    def unguard(self, group: int) -> None:
        """The group has ended."""
        ...


class Heart(ProcessGroups, Protocol):
    """Keeps leases alive, whatever the worker's handlers do."""

    async def start(self, listener: Callable[[HeartNews], None]) -> None:
        """Start; news goes to the listener, in the caller's event loop."""
        ...

    def hold(self, claims: Sequence[Claim]) -> None:
        """Renew the leases of these claims until they are dropped, or their time and REPORT_GRACE are over."""
        ...

    def drop(self, tokens: Iterable[UUID]) -> None:
        """Renew these no longer."""
        ...

    def note(self, progress: Mapping[UUID, Progress]) -> None:
        """Let renewals say how far these runs are, by token; soon, and not one by one."""
        ...

    def hasten(self) -> None:
        """Renew everything now, as often as that is sensible: there may be news, such as a cancellation."""
        ...

    async def stop(self, *, release: bool) -> None:
        """End. With `release` the leases that are still held are given back, without a charge for the attempt."""
        ...


@dataclass(frozen=True, slots=True)
class _Lease:
    """A lease as the heart is told of it; `until` is on this process's stopwatch."""

    line: list[Any]
    until: float


class ProcessHeart:
    """The heart as a process of its own. `url` names the desk; it travels by the pipe, where no `ps` shows it.

    `token`, `tenant` and `insecure` are for the address of an API, as `rota.Client` takes them. `opener` is the
    "module:function" that opens a desk from the URL and those of them that are given.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        tenant: str | None = None,
        insecure: bool = False,
        opener: str = DESK_OPENER,
        clock: Clock | None = None,
    ) -> None:
        self._url = url
        options = {"token": token, "tenant": tenant, "insecure": insecure}
        self._options = {name: value for name, value in options.items() if value}
        self._opener = opener
        self._clock = clock or SystemClock()
        self._leases: dict[UUID, _Lease] = {}
        self._groups: set[int] = set()
        self._new: dict[UUID, _Lease] = {}
        self._gone: list[str] = []
        self._progress: dict[str, Progress] = {}
        self._is_flush_due = False
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: asyncio.WriteTransport | None = None
        self._voice: asyncio.ReadTransport | None = None
        self._silence = 0.0
        self._keeper: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._is_stopping = False

    @property
    def pid(self) -> int | None:
        """The heart's process id; None before its start and while it is started again."""
        return self._process.pid if self._process is not None else None

    async def start(self, listener: Callable[[HeartNews], None]) -> None:
        assert self._keeper is None, "a heart starts once"
        reader = await self._spawn()
        self._keeper = asyncio.create_task(self._keep(reader, listener), name="rota-heart")
        self._watcher = asyncio.create_task(self._watch(), name="rota-heart-watch")

    def hold(self, claims: Sequence[Claim]) -> None:
        now = self._clock.monotonic()
        for claim in claims:
            line = line_of(claim.key, duration=claim.lease_duration.total_seconds())
            lease = _Lease(line, now + (claim.timeout + REPORT_GRACE).total_seconds())
            self._leases[claim.key.token] = self._new[claim.key.token] = lease
        self._flush_soon()

    def drop(self, tokens: Iterable[UUID]) -> None:
        for token in tokens:
            lease = self._leases.pop(token, None)
            if lease is not None and self._new.pop(token, None) is None:
                self._gone.append(lease.line[0])
        if self._gone:
            self._flush_soon()

    def note(self, progress: Mapping[UUID, Progress]) -> None:
        for token, said in progress.items():
            if token in self._leases:
                self._progress[str(token)] = said.after(self._progress.get(str(token)))
        if self._progress:
            self._flush_soon()

    def hasten(self) -> None:
        if self._leases:
            self._write({"beat": True})

    def guard(self, group: int) -> None:
        self._groups.add(group)
        # At once: a worker that dies before the end of this turn would leave the group behind.
        self._write({"guard": [group]})

    def unguard(self, group: int) -> None:
        self._groups.discard(group)
        self._write({"unguard": [group]})

    async def stop(self, *, release: bool) -> None:
        if self._keeper is None or self._is_stopping:
            return
        self._is_stopping = True
        if self._watcher is not None:
            self._watcher.cancel()
        self._flush()
        self._write({"bye": "release" if release else "done"})
        if self._pipe is not None:
            self._pipe.close()
        await asyncio.wait({self._keeper}, timeout=GOODBYE_TIME)
        if self._process is not None:
            # It has leases to give back and no database to do it: it goes on by itself, and is reaped when it ends.
            threading.Thread(target=self._process.wait, name="rota-heart-end", daemon=True).start()
        self._keeper.cancel()
        if self._voice is not None:
            self._voice.close()

    async def _keep(self, reader: asyncio.StreamReader, listener: Callable[[HeartNews], None]) -> None:
        """Pass on what the heart says for as long as the worker lives, over as many heart processes as that takes."""
        backoff = Backoff(first=0.1)
        while True:
            started = self._clock.monotonic()
            while (message := await frames.read(reader)) is not None:
                self._silence = 0.0
                if "pong" not in message:
                    listener(_news(message))
            self._bury()
            if self._is_stopping:
                return
            # The first death is answered at once, a heart that cannot live is given time.
            delay = 0.0 if self._clock.monotonic() - started > SOUND_LIFE else backoff.next()
            await self._clock.sleep(delay)
            try:
                reader = await self._spawn()
            except OSError as error:
                _log.error("heart.not_started", error=str(error))
            else:
                _log.warning("heart.restarted", pid=self.pid, leases=len(self._leases))

    async def _watch(self) -> None:
        """Kill a heart that lives and does not work; `_keep` replaces it.

        Each pause adds its planned length to the silence, not the time that has passed: a loop that was blocked, or a
        worker that was stopped, reads what its heart said meanwhile before the silence can have grown long.
        """
        while True:
            patience = self._patience()
            pause = min(PING_INTERVAL, patience / 4)
            self._write({"ping": True})
            await self._clock.sleep(pause)
            self._silence += pause
            if self._silence > patience and self._process is not None:
                _log.warning("heart.hangs", pid=self.pid, silent_for=self._silence)
                self._process.kill()

    def _patience(self) -> float:
        """Return the seconds for which the heart may be silent. While it holds nothing, it may hang."""
        shortest: float = min((lease.line[4] for lease in self._leases.values()), default=inf)
        return max(SHORTEST_PATIENCE, shortest * PATIENCE_PER_LEASE)

    async def _spawn(self) -> asyncio.StreamReader:
        """Start a heart process and hand over every lease; returns the stream of what it says."""
        loop = asyncio.get_running_loop()
        # Its own session: neither Ctrl-C nor a signal to the worker's process group may reach it.
        process = subprocess.Popen(  # noqa: ASYNC220 - a fork takes a millisecond; its pipes are the loop's
            [sys.executable, "-P", "-m", "rota.worker.heart_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self._pipe, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, process.stdin)
        reader = asyncio.StreamReader()
        self._voice, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)
        self._process = process
        self._silence = -START_TIME
        self._new = dict(self._leases)
        self._gone = []
        desk = {"url": self._url, "options": self._options, "opener": self._opener}
        self._write({**desk, "worker_pid": os.getpid(), "path": sys.path})
        self._write({"guard": list(self._groups)})
        self._flush()
        return reader

    def _bury(self) -> None:
        """Take note of a heart that has closed its pipe: it is dead, or dies in this moment."""
        process, self._process = self._process, None
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if process is not None:
            try:
                process.wait(timeout=1)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _flush_soon(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        if self._pipe is None or not (self._new or self._gone or self._progress):
            return
        now = self._clock.monotonic()
        lines = [[*lease.line, round(lease.until - now, 3)] for lease in self._new.values()]
        message: frames.Message = {"hold": lines, "drop": self._gone}
        if self._progress:
            message["progress"] = self._progress
        self._write(message)
        self._new, self._gone, self._progress = {}, [], {}

    def _write(self, message: frames.Message) -> None:
        # A heart that is being started again gets everything from `_spawn`.
        if self._pipe is not None and not self._pipe.is_closing():
            with contextlib.suppress(OSError):
                self._pipe.write(frames.pack(message))


def _news(message: frames.Message) -> HeartNews:
    tokens = {word: frozenset(map(UUID, message.get(word, ()))) for word in ("lost", "cancelled", "ended")}
    return HeartNews(**tokens)
