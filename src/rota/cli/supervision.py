"""`rota worker` is two processes: one that works, and this one, which starts it again when it was ended.

A handler can end its process, and one that holds the event loop for ever makes the heart end it. That costs the worker
and not the command. Signals come here: the first one lets the worker drain, a second one lets it leave at once, and
what has not left within its time is ended, whatever its event loop does; its heart then gives the runs back.
"""

import json
import os
import select
import signal
import sys
import threading
from dataclasses import dataclass
from typing import Final

from rota.clock import SystemClock
from rota.worker.backoff import Backoff
from rota.worker.concealment import conceal

MARGIN: Final = 1.0
"""Seconds after its drain time at which a worker is ended from outside."""

LEAVE_LIMIT: Final = 5.0
"""Seconds for a worker that is to leave at once."""

SOUND_LIFE: Final = 60.0
"""Seconds after which a worker's end says nothing about its next start."""

NOTHING: Final = 3600.0
"""Seconds between two looks while there is nothing to wait for."""

_STOP: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OTHER: Final = (signal.SIGCHLD, signal.SIGCONT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ties:
    """What a worker has of its supervisor: a byte from `parting` says "leave at once", one to `farewell` "I leave"."""

    supervisor: int
    parting: int
    farewell: int


@dataclass(slots=True)
class _State:
    is_allowed: bool = False
    ties: Ties | None = None


_STATE: Final = _State()


def allow() -> None:
    """Let `supervise` fork: this process is the command's own."""
    _STATE.is_allowed = True


def ties() -> Ties | None:
    """Return the ties of this process to its supervisor, if it has one."""
    return _STATE.ties


def say_farewell(code: int) -> None:
    """Tell the supervisor that this process ends by itself."""
    if _STATE.ties is not None:
        os.write(_STATE.ties.farewell, bytes([code & 255]))


def supervise(*, drain: float) -> int | None:
    """Fork. Returns None in the process that is to work; in this one its exit code, when it has left.

    Where that is not possible (another system, threads that a fork would not have) it returns None at once.
    """
    if not _STATE.is_allowed or sys.platform != "linux" or threading.active_count() > 1:
        return None
    conceal()  # the environment from which the worker is started again may hold a token
    # What `nohup` or a shell has turned off stays so.
    stops = {number for number in _STOP if signal.getsignal(number) is not signal.SIG_IGN}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*stops, *_OTHER})
    return _Supervisor(stops, mask, drain=drain).run()


class _Supervisor:
    """Waits for signals and for the worker's end, with all of them blocked: nothing interrupts it."""

    def __init__(self, stops: set[signal.Signals], mask: set[int], *, drain: float) -> None:
        self._stops = stops
        self._news = {*stops, *_OTHER}
        self._mask = mask
        self._drain = drain
        self._clock = SystemClock()
        self._asked = 0

    def run(self) -> int | None:
        backoff = Backoff(first=0.5)
        while True:
            born = self._clock.monotonic()
            parting, farewell = os.pipe(), os.pipe()
            child = os.fork()
            if child == 0:
                self._begin_work(parting, farewell)
                return None
            os.close(parting[0])
            os.close(farewell[1])
            status = self._attend(child, parting[1])
            code = _farewell(farewell[0])
            os.close(parting[1])
            os.close(farewell[0])
            if code is not None:
                return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else code
            if self._asked:
                # It was ended in its last steps; its heart gives back what it had.
                return 0
            if self._clock.monotonic() - born > SOUND_LIFE:
                backoff.reset()
            delay = backoff.next()
            _say("worker.restarted", ended_by=_cause(status), seconds=round(delay, 2))
            if signal.sigtimedwait(self._stops, delay) is not None:
                return 0

    def _begin_work(self, parting: tuple[int, int], farewell: tuple[int, int]) -> None:
        # Not every command needs what this imports.
        from rota.worker.child import die_with_parent

        supervisor = os.getppid()
        die_with_parent()
        if os.getppid() != supervisor:
            os._exit(0)
        os.close(parting[1])
        os.close(farewell[0])
        os.set_blocking(parting[0], False)
        _STATE.ties = Ties(supervisor=supervisor, parting=parting[0], farewell=farewell[1])
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _attend(self, child: int, parting: int) -> int:
        """Pass on what comes; returns how the worker ended."""
        ends_at: float | None = None
        while True:
            left = NOTHING if ends_at is None else max(0.0, ends_at - self._clock.monotonic())
            came = signal.sigtimedwait(self._news, left)
            if came is None:
                if ends_at is not None:
                    # First the word, then the end: the heart asks how it was meant.
                    os.write(parting, b"!")
                    os.kill(child, signal.SIGKILL)
                    _say("worker.ended", pid=child, why="it has not left in its time")
                    ends_at = None
            elif came.si_signo == signal.SIGCONT:
                # Whoever stopped this process has stopped the worker with it: its heart sees to that.
                os.kill(child, signal.SIGCONT)
            elif came.si_signo == signal.SIGCHLD:
                gone, status = os.waitpid(child, os.WNOHANG)
                if gone:
                    return status
            else:
                self._asked += 1
                if self._asked == 1:
                    os.kill(child, came.si_signo)
                    ends_at = self._clock.monotonic() + self._drain + MARGIN
                elif ends_at is not None:
                    os.write(parting, b"!")
                    ends_at = min(ends_at, self._clock.monotonic() + LEAVE_LIMIT)


def _farewell(end: int) -> int | None:
    """Return the exit code that the worker has announced; None if it was ended before it could."""
    os.set_blocking(end, False)
    try:
        word = os.read(end, 1)
    except BlockingIOError:
        # What it has left behind holds the other end open.
        return None
    return word[0] if word else None


def _cause(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _say(event: str, **fields: object) -> None:
    """Log a line, unless nobody reads: the supervisor waits for no reader."""
    look = select.poll()
    look.register(2, select.POLLOUT)
    if look.poll(0):
        os.write(2, json.dumps({"event": event, **fields, "level": "warning"}).encode() + b"\n")
