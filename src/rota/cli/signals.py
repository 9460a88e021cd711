"""SIGINT, SIGTERM and SIGHUP for processes that go on until they are told to stop."""

import asyncio
import os
import signal
import stat
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

import typer

STOP: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """Inside the block the signals are ours: they cancel the block's task, or do what `then` has put in its place.

    A block that was cancelled by a signal ends the command with exit code 129, 130 or 143, after its own tidying up.
    A SIGHUP that `nohup` has turned off stays so.
    """

    def __init__(self) -> None:
        self._action: Callable[[], None] | None = None
        self._task: asyncio.Task[object] | None = None
        self._received: signal.Signals | None = None
        self._numbers = list(STOP)

    def then(self, action: Callable[[], None]) -> None:
        """From here on, do this at each signal."""
        self._action = action

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
            self._numbers.remove(signal.SIGHUP)
        for number in self._numbers:
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in self._numbers:
            asyncio.get_running_loop().remove_signal_handler(number)
        if self._received is not None and isinstance(error, asyncio.CancelledError):
            raise typer.Exit(128 + self._received) from None

    def _on_signal(self, number: signal.Signals) -> None:
        self._received = number
        if number == signal.SIGHUP:
            _let_go_of_the_terminal()
        if self._action is not None:
            self._action()
        elif self._task is not None:
            self._task.cancel()


def _let_go_of_the_terminal() -> None:
    """Write to nowhere from here on if the terminal is gone, since every write to it would fail."""
    for stream in (1, 2):
        if stat.S_ISCHR(os.fstat(stream).st_mode) and not os.isatty(stream):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream)
            os.close(nowhere)
