"""An app whose handlers do what handlers should not, for workers, hearts and children in processes of their own."""

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from rota.errors import GiveUp, RetryLater
from rota.worker.context import RunContext
from rota.worker.handlers import HandlerRegistry

TARGET = "tests.worker.floor_app:app"


class FloorApp:
    """All that the worker floor knows of an app."""

    def __init__(self) -> None:
        self.handlers = HandlerRegistry()


app = FloorApp()


def mark(run: RunContext, word: str = "mark") -> None:
    """Tell the test that the handler has come this far, and in which process."""
    path = Path(run.payload[word])
    fresh = path.with_suffix(".new")
    fresh.write_text(str(os.getpid()))
    fresh.rename(path)


def hold_the_gil(seconds: float) -> None:
    """Do what a long regular expression does: run C code that lets no other Python thread in."""
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))


async def wait_async(run: RunContext) -> None:
    mark(run)
    await asyncio.Event().wait()


async def finish_when_told(run: RunContext) -> None:
    mark(run)
    go = Path(run.payload["go"])
    while not go.exists():
        await asyncio.wait({asyncio.create_task(asyncio.Event().wait())}, timeout=0.02)


async def die_or_finish(run: RunContext) -> None:
    """Wait for the file; then end this very process, or finish."""
    if run.payload.get("dies"):
        while not Path(run.payload["go"]).exists():
            await asyncio.wait({asyncio.create_task(asyncio.Event().wait())}, timeout=0.02)
        os.kill(os.getpid(), signal.SIGKILL)
    await finish_when_told(run)


async def hold_the_loop(run: RunContext) -> None:
    """Never give the event loop back, nor, with `gil`, the interpreter."""
    mark(run)
    hold_the_gil(60) if run.payload.get("gil") else threading.Event().wait(60)


async def hold_the_loop_in_a_task(run: RunContext) -> None:
    await asyncio.create_task(hold_the_loop(run))


async def fork_in_loop(run: RunContext) -> None:
    """Leave a copy of the worker behind, in a step of the handler or in a task of its own."""

    async def fork() -> None:
        if os.fork() == 0:
            mark(run, "fork")
            await asyncio.wait({asyncio.create_task(asyncio.Event().wait())}, timeout=0.01)

    await (asyncio.create_task(fork()) if run.payload["task"] else fork())
    mark(run)


def fork_in_thread(run: RunContext) -> None:
    if os.fork() == 0:
        mark(run, "fork")
        return
    mark(run)


def hold_in_thread(run: RunContext) -> None:
    mark(run)
    hold_the_gil(run.payload["seconds"])


def wait_in_thread(run: RunContext) -> None:
    mark(run)
    run.lease_lost.wait(30)


def segfault() -> None:
    ctypes.string_at(0)


def exit_with_3() -> None:
    os._exit(3)


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def loop_with_gil(run: RunContext) -> None:
    mark(run)
    hold_the_gil(60)


def wait_in_process(run: RunContext) -> None:
    mark(run)
    try:
        threading.Event().wait(60)
    finally:
        # What a handler does when it is told to stop: SIGTERM ends the wait.
        if "cleaned" in run.payload:
            mark(run, "cleaned")


def tell_why_it_stops(run: RunContext) -> None:
    mark(run)
    try:
        threading.Event().wait(60)
    finally:
        if run.cancelled and run.lease_lost:
            mark(run, "cancelled")
        elif run.lease_lost:
            mark(run, "lost")


def say_how_far(run: RunContext) -> None:
    """Say it far more often than it is sent, the latest being the last."""
    for step in range(1001):
        run.progress(step / 2000, f"step {step}")
    mark(run)
    go = Path(run.payload["go"])
    while not go.exists():
        threading.Event().wait(0.02)


def return_what_was_asked(run: RunContext) -> object:
    return eval(run.payload["text"])


async def return_what_was_asked_async(run: RunContext) -> object:
    return eval(run.payload["text"])


def start_a_command(run: RunContext) -> None:
    with subprocess.Popen(["sleep", "60"]) as command:
        Path(run.payload["command"]).write_text(str(command.pid))
        mark(run)


def fork_and_return(run: RunContext) -> None:
    """A fork that forgets to exit would answer for its parent."""
    if os.fork() == 0:
        raise RuntimeError("said by the fork")


async def tell_pid(run: RunContext) -> None:
    mark(run)


def tell_pid_in_process(run: RunContext) -> None:
    mark(run)


def fail_with(run: RunContext) -> None:
    raise ValueError(eval(run.payload["text"]))


def give_up() -> None:
    raise GiveUp("no such customer")


def snooze() -> None:
    raise RetryLater(0.05, "not now")


def leave() -> None:
    sys.exit(4)


async def leave_async() -> None:
    raise SystemExit(4)


def print_much() -> None:
    # Standard output is the handler's own: what it prints must not reach the worker's pipe.
    print("not a frame", flush=True)
    with contextlib.suppress(OSError):
        os.write(1, b"\x00\x00\x00\x01x")


IN_WORKER: tuple[Callable[..., object], ...] = (
    *(wait_async, finish_when_told, hold_in_thread, wait_in_thread, tell_pid, leave_async, die_or_finish),
    *(hold_the_loop, hold_the_loop_in_a_task, fork_in_loop, fork_in_thread),
)
IN_CHILDREN: tuple[Callable[..., object], ...] = (
    *(segfault, exit_with_3, kill_self, loop_with_gil, wait_in_process, start_a_command, fork_and_return),
    *(tell_pid_in_process, fail_with, give_up, snooze, leave, print_much, tell_why_it_stops, say_how_far),
    *(return_what_was_asked, return_what_was_asked_async),
)
for function in IN_WORKER:
    app.handlers.register(function.__name__, function)
for function in IN_CHILDREN:
    app.handlers.register(function.__name__, function, isolation="process")
