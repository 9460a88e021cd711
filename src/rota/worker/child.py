"""A child process that carries out runs, one at a time: `python -m rota.worker.child FD PARENT`.

The parent speaks over the socket FD; standard output and error are the handler's own. The main thread runs handlers,
so that they find the process as they would find any other; a second thread listens, and ends the process when the
parent is gone. A handler that never lets that thread in is ended by the kernel, on Linux. Without a parent there is
nobody to complain to: the process ends, and says nothing.
"""

import ctypes
import importlib
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn

from rota.errors import RotaError, SetupFailed
from rota.worker import frames
from rota.worker.child_voice import Voice
from rota.worker.context import RunContext, StopFlag
from rota.worker.ending import Ending, call, call_async, failed, failure_text
from rota.worker.handlers import HandlerRegistry
from rota.worker.loading import load_app, load_file

CANCELLED: Final = "cancelled"
"""The reason to stop that a handler can ask for."""

REASON_TIME: Final = 0.1
"""Seconds to hear why SIGTERM has come."""

_PR_SET_PDEATHSIG: Final = 1


class _Stopped(SystemExit):
    """Raised in the handler by SIGTERM: it may clean up, and has a short grace for it."""


class Child:
    """The process's work. `target` names the app; without one, each order says where its function is."""

    def __init__(self, connection: socket.socket) -> None:
        self._voice = Voice(connection)
        self._stream: BinaryIO = connection.makefile("rb")
        self._orders: queue.SimpleQueue[frames.Message | None] = queue.SimpleQueue()
        self._target: str | None = None
        self._registry: HandlerRegistry | None = None
        self._flag = StopFlag()
        self._cancelled = StopFlag()
        self._told_to_stop = threading.Event()
        self._is_busy = False
        self._pid = os.getpid()

    def serve(self) -> None:
        """Carry out orders until the parent closes the connection."""
        hello = frames.read_blocking(self._stream)
        if hello is None:
            return
        sys.path[:] = hello["path"]
        self._target = hello["target"]
        signal.signal(signal.SIGTERM, self._on_term)
        threading.Thread(target=self._listen, name="rota-child", daemon=True).start()
        while (order := self._orders.get()) is not None:
            self._say({"begun": True})
            ending = self._carry_out(order)
            self._is_busy = False
            if os.getpid() != self._pid:
                # The handler forked, and this is its copy of us: it has nothing to say to the parent.
                os._exit(0)
            if self._flag.is_set():
                return
            self._say(_wire_of(ending))

    def _say(self, message: frames.Message) -> None:
        try:
            self._voice.say(message)
        except OSError:
            _end_group()

    def _carry_out(self, order: frames.Message) -> Ending:
        try:
            function, takes_run, is_async = self._find(order)
        except RotaError as error:
            return failed(str(error))
        except Exception as error:
            return failed(failure_text(error))
        arguments: tuple[object, ...] = ()
        if takes_run:
            run = RunContext.from_wire(
                order["run"], lease_lost=self._flag, cancelled=self._cancelled, tell_progress=self._voice.begin()
            )
            arguments = (run,)
        return call_async(function, *arguments) if is_async else call(function, *arguments)

    def _find(self, order: frames.Message) -> tuple[Callable[..., Any], bool, bool]:
        if self._target is not None:
            if self._registry is None:
                self._registry = load_app(self._target).handlers
            handler = self._registry.resolve(order["handler"])
            return handler.function, handler.takes_run, handler.is_async
        return _function_at(order["module"], order["file"], order["name"]), order["takes_run"], order["is_async"]

    def _listen(self) -> None:
        while (message := frames.read_blocking(self._stream)) is not None:
            if "stop" in message:
                if message["stop"] == CANCELLED:
                    self._cancelled.set()
                self._told_to_stop.set()
                continue
            self._is_busy = True
            self._orders.put(message)
        if self._is_busy:
            _end_group()
        self._orders.put(None)

    def _on_term(self, _number: int, _frame: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # The reason was sent before the signal; a signal from elsewhere has none.
        self._told_to_stop.wait(REASON_TIME)
        self._flag.set()
        raise _Stopped(0)


def die_with_parent() -> None:
    """Ask the kernel to end this process with its parent, so that a kill -9 of the worker leaves nothing behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _function_at(module: str, file: str | None, name: str) -> Callable[..., Any]:
    """Return a function by its place. A worker's `__main__` is another module here: it is found by its file."""
    found: Any = load_file(file) if file is not None else importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        place = Path(file).name if file is not None else module
        raise SetupFailed(f"{place} has no function {name!r}", hint="a process handler stands at a module's top level")
    function: Callable[..., Any] = found
    return function


def _wire_of(ending: Ending) -> frames.Message:
    seconds = ending.retry_after.total_seconds() if ending.retry_after is not None else None
    return {
        "outcome": ending.outcome,
        "error": ending.error,
        "retry_after": seconds,
        "result": ending.result,
        "dropped": ending.dropped,
    }


def _end_group() -> None:
    """End this process and what its handler started."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def main() -> None:
    die_with_parent()
    # A worker that was started before an upgrade does not say who it is.
    if len(sys.argv) > 2 and os.getppid() != int(sys.argv[2]):
        # It was gone before the kernel knew of us.
        os._exit(0)
    connection = socket.socket(fileno=int(sys.argv[1]))
    # A process that the handler starts must not hold our connection open.
    connection.set_inheritable(False)
    Child(connection).serve()


if __name__ == "__main__":
    main()
