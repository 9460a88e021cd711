"""The worker's side of the heart: starts the heart process, tells it of leases, and replaces it if it dies or hangs.

What is told in one turn of the event loop goes in one message. A heart that is late is not killed: a second one is
started beside it, and the first one ends when the second one can renew. While no heart can, the worker renews itself.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import inf
from typing import Any, Final, Protocol
from uuid import UUID

import structlog

from rota.clock import Clock, SystemClock
from rota.domain.attempt import Claim, LeaseKey
from rota.domain.progress import Progress
from rota.worker import frames
from rota.worker.backoff import Backoff
from rota.worker.baton import Baton
from rota.worker.heart_link import HeartLink
from rota.worker.lease_book import interval_of, line_of
from rota.worker.stand_in import Renew, StandIn

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

START_TIME: Final = 30.0
"""Seconds from a heart's start to its first word, which comes when it could renew. Beside many others it starts slowly,
and one that is ended for that makes place for another that does."""

LONGEST_DOUBT: Final = 16
"""How far patience grows: twofold with each heart that was late, since its host may be busy."""

CALM_TIME: Final = 600.0
"""Seconds without a late heart after which patience is again what it was."""

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

    @property
    def able(self) -> asyncio.Event:
        """Set while the heart can renew: what is claimed meanwhile is safe from the first moment on."""
        ...

    async def start(
        self, listener: Callable[[HeartNews], None], *, renew: Renew | None = None, baton: Baton | None = None
    ) -> None:
        """Start; news goes to the listener, in the caller's event loop.

        `renew` stands in for a heart that cannot. The `baton` says whose handler has the loop.
        """
        ...

    def hold(self, claims: Sequence[Claim], *, apart: Collection[UUID] = ()) -> None:
        """Renew the leases of these claims until they are dropped, or their time and REPORT_GRACE are over.

        Those whose token is in `apart` run outside the worker's process.
        """
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

    async def stop(self, *, release: bool, within: float = GOODBYE_TIME) -> None:
        """End, and wait for that so many seconds.

        With `release` the leases that are still held are given back, without a charge for the attempt.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervisor:
    """The process that supervises a worker. To stop it is to stop the worker.

    A byte that can be read from the descriptor `parting`, when the worker has been ended, says that this was its leave:
    its runs are given back.
    """

    pid: int
    parting: int


@dataclass(frozen=True, slots=True)
class _Lease:
    """A lease as the heart is told of it; `deadline` and `until` are on this process's stopwatch."""

    key: LeaseKey
    line: list[Any]
    deadline: float
    until: float
    is_apart: bool


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
        supervisor: Supervisor | None = None,
    ) -> None:
        self._url = url
        options = {"token": token, "tenant": tenant, "insecure": insecure}
        self._options = {name: value for name, value in options.items() if value}
        self._opener = opener
        self._clock = clock or SystemClock()
        self._supervisor = supervisor
        self._leases: dict[UUID, _Lease] = {}
        self._groups: set[int] = set()
        self._new: dict[UUID, _Lease] = {}
        self._gone: list[str] = []
        self._progress: dict[str, Progress] = {}
        self._is_flush_due = False
        self._links: list[HeartLink] = []
        self._hearing: set[asyncio.Task[None]] = set()
        self._without = asyncio.Event()
        self._able = asyncio.Event()
        self._doubt = 1
        self._doubted_at = -inf
        self._started_at = -inf
        self._listener: Callable[[HeartNews], None] = lambda _: None
        self._stand_in: StandIn | None = None
        self._baton: Baton | None = None
        self._keepers: list[asyncio.Task[None]] = []
        self._is_stopping = False

    @property
    def pid(self) -> int | None:
        """The process id of the heart that works, or else of the one that starts; None while there is none."""
        ready = [link.pid for link in self._links if link.is_ready]
        return next(iter([*ready, *(link.pid for link in self._links)]), None)

    @property
    def able(self) -> asyncio.Event:
        return self._able

    async def start(
        self, listener: Callable[[HeartNews], None], *, renew: Renew | None = None, baton: Baton | None = None
    ) -> None:
        assert not self._keepers, "a heart starts once"
        self._listener, self._baton = listener, baton
        if renew is not None:
            self._stand_in = StandIn(self._clock, renew, tell=self._tell)
        await self._spawn()
        self._keepers = [
            asyncio.create_task(self._keep(), name="rota-heart"),
            asyncio.create_task(self._watch(), name="rota-heart-watch"),
        ]

    def hold(self, claims: Sequence[Claim], *, apart: Collection[UUID] = ()) -> None:
        now = self._clock.monotonic()
        for claim in claims:
            token = claim.key.token
            line = line_of(claim.key, duration=claim.lease_duration.total_seconds())
            deadline = now + claim.timeout.total_seconds()
            lease = _Lease(claim.key, line, deadline, deadline + REPORT_GRACE.total_seconds(), token in apart)
            self._leases[token] = self._new[token] = lease
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

    async def stop(self, *, release: bool, within: float = GOODBYE_TIME) -> None:
        if not self._keepers or self._is_stopping:
            return
        self._is_stopping = True
        for keeper in self._keepers:
            keeper.cancel()
        if self._stand_in is not None:
            self._stand_in.stop()
        if any(link.is_ready for link in self._links):
            for link in self._links:
                if not link.is_ready:
                    link.kill()
        self._flush()
        self._write({"bye": "release" if release else "done"})
        for link in self._links:
            link.close_pipe()
        if self._hearing:
            await asyncio.wait(self._hearing, timeout=within)
        for link in self._links:
            # It has leases to give back and no database to do it: it goes on by itself, and is reaped when it ends.
            link.leave_alone()
        for hearing in self._hearing:
            hearing.cancel()

    async def _keep(self) -> None:
        """Start a heart whenever there is none."""
        backoff = Backoff(first=0.1)
        while True:
            await self._without.wait()
            # The first death is answered at once, a heart that cannot live is given time.
            is_sound = self._clock.monotonic() - self._started_at > SOUND_LIFE
            await self._clock.sleep(0.0 if is_sound else backoff.next())
            try:
                await self._spawn()
            except OSError as error:
                _log.error("heart.not_started", error=str(error))
            else:
                _log.warning("heart.restarted", pid=self.pid, leases=len(self._leases))

    async def _hear(self, link: HeartLink) -> None:
        """Pass on what a heart says for as long as it lives."""
        while (message := await frames.read(link.reader)) is not None:
            link.silence = 0.0
            if not link.is_ready:
                link.is_ready = True
                for other in self._links:
                    if other is not link:
                        other.kill()
            self._able.set()
            if "pong" not in message:
                self._listener(_news(message))
        self._links.remove(link)
        self._look_whether_able()
        if not self._links:
            self._without.set()
        await link.bury(self._clock)

    async def _watch(self) -> None:
        """Look after the hearts.

        Each pause adds its planned length to the silence, not the time that has passed: a loop that was blocked, or a
        worker that was stopped, reads what its heart said meanwhile before the silence can have grown long.
        """
        while True:
            patience = self._patience()
            pause = min(PING_INTERVAL, patience / 4)
            self._write({"ping": True})
            await self._clock.sleep(pause)
            for link in self._links:
                link.silence += pause
            self._look_whether_able()
            await self._replace_the_late(patience)
            if not self._able.is_set():
                self._renew_here()

    async def _replace_the_late(self, patience: float) -> None:
        """Start a heart beside one that is late; end one that does not get through its start."""
        newest = self._links[-1] if self._links else None
        now = self._clock.monotonic()
        if self._doubt > 1 and now - self._doubted_at > CALM_TIME:
            self._doubt = 1
        if newest is None or newest.silence <= self._doubt * (patience if newest.is_ready else START_TIME):
            return
        _log.warning("heart.hangs", pid=newest.pid, silent_for=newest.silence, is_started=newest.is_ready)
        self._doubt, self._doubted_at = min(LONGEST_DOUBT, self._doubt * 2), now
        if not newest.is_ready:
            newest.kill()
            return
        try:
            await self._spawn()
        except OSError as error:
            _log.error("heart.not_started", error=str(error))

    def _patience(self) -> float:
        """Return the seconds for which the heart may be silent. While it holds nothing, it may hang."""
        shortest: float = min((lease.line[4] for lease in self._leases.values()), default=inf)
        return max(SHORTEST_PATIENCE, shortest * PATIENCE_PER_LEASE)

    def _look_whether_able(self) -> None:
        patience = self._patience()
        if not any(link.is_ready and link.silence <= patience for link in self._links):
            self._able.clear()

    def _renew_here(self) -> None:
        """Renew what no heart renews just now, as often as one would."""
        interval = interval_of(lease.line[4] for lease in self._leases.values())
        if self._stand_in is not None and self._leases and self._stand_in.is_due(interval=interval):
            now = self._clock.monotonic()
            self._stand_in.begin([lease.key for lease in self._leases.values() if lease.until > now])

    def _tell(self, lost: frozenset[UUID], cancelled: frozenset[UUID]) -> None:
        """Pass on what the stand-in has learnt, of what is still held."""
        lost = frozenset(token for token in lost if token in self._leases)
        if lost or cancelled:
            self._listener(HeartNews(lost=lost, cancelled=cancelled))

    async def _spawn(self) -> None:
        """Start a heart process and hand over every lease. Raises OSError."""
        self._started_at = self._clock.monotonic()
        baton = None if self._baton is None else self._baton.fd
        supervisor = self._supervisor
        inherited = [fd for fd in (supervisor and supervisor.parting, baton) if isinstance(fd, int)]
        link = await HeartLink.start(inherited=inherited)
        # What was said until now is for those before it: a lease that it gets here is dropped by name later.
        self._flush()
        self._links.append(link)
        self._without.clear()
        desk = {"url": self._url, "options": self._options, "opener": self._opener}
        shared = {"supervisor": supervisor and [supervisor.pid, supervisor.parting], "baton": baton}
        link.write({**desk, **shared, "worker_pid": os.getpid(), "path": sys.path})
        link.write({"guard": list(self._groups)})
        link.write({"hold": self._lines(self._leases.values()), "drop": []})
        hearing = asyncio.create_task(self._hear(link), name="rota-heart-voice")
        self._hearing.add(hearing)
        hearing.add_done_callback(self._hearing.discard)

    def _flush_soon(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        if not self._links:
            # The next heart is told of all that is held; progress waits for it.
            self._new, self._gone = {}, []
        if not (self._new or self._gone or (self._progress and self._links)):
            return
        message: frames.Message = {"hold": self._lines(self._new.values()), "drop": self._gone}
        if self._progress:
            message["progress"] = self._progress
        self._write(message)
        self._new, self._gone, self._progress = {}, [], {}

    def _lines(self, leases: Iterable[_Lease]) -> list[list[Any]]:
        now = self._clock.monotonic()
        return [
            [*lease.line, round(lease.until - now, 3), round(lease.deadline - now, 3), lease.is_apart]
            for lease in leases
        ]

    def _write(self, message: frames.Message) -> None:
        # A heart that is being started gets everything from `_spawn`.
        for link in self._links:
            link.write(message)


def _news(message: frames.Message) -> HeartNews:
    tokens = {word: frozenset(map(UUID, message.get(word, ()))) for word in ("lost", "cancelled", "ended")}
    return HeartNews(**tokens)
