"""How a process that ran handlers ends: in good order and, whatever they left behind, soon.

A coroutine that ignores its cancellation would keep the event loop from closing, and a thread that never returns the
interpreter from ending. By then everything of Rota is closed and every lease given back: nothing is lost.
"""

import asyncio
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, NoReturn, TypeVar

from rota.cli.supervision import say_farewell
from rota.worker.line_writer import write_out

LINGER_TIME: Final = 1.0
"""Seconds for the tasks, and then for the executor's threads, that a command has left behind."""

EXIT_TIME: Final = 5.0
"""Seconds for the interpreter's end: it joins other threads, and calls what was registered for its exit."""

FLUSH_TIME: Final = 1.0
"""Seconds for what is still to be written when the process is ended by force."""

T = TypeVar("T")

_unclosed: Final[list[asyncio.Runner]] = []
"""The loops that something keeps from closing."""


def run_and_leave(command: Coroutine[Any, Any, T], loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> T:
    """Run a command as `asyncio.run` does, except that what it leaves behind keeps nobody waiting: see `leave`."""
    runner = asyncio.Runner(loop_factory=loop_factory)
    _unclosed.append(runner)
    try:
        return runner.run(command)
    finally:
        if runner.run(_nothing_is_left()):
            runner.close()
            _unclosed.remove(runner)


def leave(code: int) -> NoReturn:
    """End the process: by itself if it can, otherwise by force."""
    say_farewell(code)
    write_out()
    if _unclosed:
        _end(code)
    watchdog = threading.Timer(EXIT_TIME, _end, (code,))
    watchdog.daemon = True
    watchdog.start()
    sys.exit(code)


async def _nothing_is_left() -> bool:
    """Cancel the loop's tasks and end its threads, within LINGER_TIME each; tell whether that was enough."""
    ours = {asyncio.current_task()}
    rest = asyncio.all_tasks() - ours
    for task in rest:
        task.cancel()
    if rest:
        await asyncio.wait(rest, timeout=LINGER_TIME)
    if asyncio.all_tasks() - ours:
        return False
    closing = asyncio.create_task(_close_generators_and_executor())
    await asyncio.wait({closing}, timeout=LINGER_TIME)
    return closing.done()


async def _close_generators_and_executor() -> None:
    loop = asyncio.get_running_loop()
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()


def _end(code: int) -> NoReturn:
    # In a thread: a stream that nobody reads would keep the process for ever.
    flushing = threading.Thread(target=_flush, name="rota-flush", daemon=True)
    flushing.start()
    flushing.join(FLUSH_TIME)
    os._exit(code)


def _flush() -> None:
    with contextlib.suppress(Exception):
        logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
