"""SIGINT and SIGTERM for processes that go on until they are told to stop."""

import asyncio
import signal
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

import typer

STOP: Final = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Inside the block the signals are ours: they cancel the block's task, or do what `then` has put in its place.

    A block that was cancelled by a signal ends the command with exit code 130 or 143, after its own tidying up.
    """

    def __init__(self) -> None:
        self._action: Callable[[], None] | None = None
        self._task: asyncio.Task[object] | None = None
        self._received: signal.Signals | None = None

    def then(self, action: Callable[[], None]) -> None:
        """From here on, do this at each signal."""
        self._action = action

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        for number in STOP:
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in STOP:
            asyncio.get_running_loop().remove_signal_handler(number)
        if self._received is not None and isinstance(error, asyncio.CancelledError):
            raise typer.Exit(128 + self._received) from None

    def _on_signal(self, number: signal.Signals) -> None:
        self._received = number
        if self._action is not None:
            self._action()
        elif self._task is not None:
            self._task.cancel()
