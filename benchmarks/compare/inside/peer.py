"""What the scripts share: where the database and the log are, time, and the choice of the action."""

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from typing import Any, Final

DSN: Final = os.environ["BENCH_DSN"]
BULK: Final = 1000
Action = Callable[..., Coroutine[Any, Any, None]]
_LOG: Final = os.open(os.environ["BENCH_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def stopwatch() -> float:
    """Return seconds that mean the same in every process of this machine."""
    return time.monotonic()


async def pause(seconds: float) -> None:
    """Return after that many seconds."""
    await asyncio.sleep(seconds)


async def for_ever() -> None:
    """Never return."""
    await asyncio.Event().wait()


def log_line(text: str) -> None:
    """Append a line to the log by one write, which keeps lines of several processes apart."""
    os.write(_LOG, f"{text}\n".encode())


def log_waited(sent_at: float) -> None:
    """Note how long a run waited for its handler."""
    log_line(f"waited {stopwatch() - sent_at:.6f}")


def log_fired(name: str, slot: float | None = None) -> None:
    """Note that a recurring job's handler starts now, and for which slot if the peer says so."""
    log_line(f"fired {name} {time.time():.6f} {'-' if slot is None else f'{slot:.6f}'}")


async def timed(count: int, steps: Iterator[Awaitable[object]]) -> None:
    """Do the steps one after the other, and answer how long that took."""
    started = stopwatch()
    for step in steps:
        await step
    print(json.dumps({"runs": count, "seconds": stopwatch() - started}), flush=True)


def batches(count: int) -> Iterator[int]:
    """Yield the sizes of batches that make up a count."""
    for start in range(0, count, BULK):
        yield min(BULK, count - start)


def main(actions: Mapping[str, Action], run: Callable[[Coroutine[Any, Any, None]], object] = asyncio.run) -> None:
    """Do what the command line asks for."""
    action, *values = sys.argv[1:]
    run(actions[action](*values))
