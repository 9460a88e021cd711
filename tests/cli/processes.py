"""Rota's commands as processes of their own; a test waits for their lines, never for a time."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

PATIENCE = 180.0
"""Seconds after which a process that does not say what is waited for is killed, which fails the test."""

STUBBORN = """
import asyncio, sys, threading
from concurrent.futures import ThreadPoolExecutor
import rota

app = rota.App()
own = ThreadPoolExecutor()


def begun():
    print('{"event": "begun"}', file=sys.stderr, flush=True)


def stick():
    begun()
    threading.Event().wait()


@app.job("deaf")
async def deaf():
    begun()
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass


@app.job("default-thread")
async def default_thread():
    await asyncio.to_thread(stick)


@app.job("own-thread")
async def own_thread():
    await asyncio.get_running_loop().run_in_executor(own, stick)
"""
"""Handlers of which something stays when they are told to stop."""


class Process:
    """A running command. `lines` are read from one of its streams, as JSON."""

    def __init__(self, popen: "subprocess.Popen[str]", stream: IO[str]) -> None:
        self.popen = popen
        self._stream = stream

    def until(self, condition: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        """Read lines until one fulfils the condition; returns all that were read, that one last."""
        read = []
        for text in self._stream:
            read.append(json.loads(text))
            if condition(read[-1]):
                return read
        raise AssertionError(f"the process ended with {self.popen.wait()}, having said {read}")

    def until_event(self, event: str) -> list[dict[str, Any]]:
        return self.until(lambda line: line["event"] == event)

    def rest(self) -> str:
        """Wait for the process to end by itself; returns all that it still says."""
        return "".join(self._stream)

    def end(self, number: signal.Signals) -> int:
        """Send a signal and return the exit code."""
        self.popen.send_signal(number)
        for _ in self._stream:
            pass  # a full pipe would keep it from ending
        return self.popen.wait()


@contextmanager
def process(*words: str, folder: Path, lines_on: str, **environment: str) -> Iterator[Process]:
    """Start `rota WORD...` in a folder, and kill it if it outlives the block or PATIENCE."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ROTA_")}
    streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, lines_on: subprocess.PIPE}
    popen = subprocess.Popen(
        [sys.executable, "-m", "rota.cli", *words], cwd=folder, env=inherited | environment, text=True, **streams
    )
    stream: IO[str] = getattr(popen, lines_on)
    watchdog = threading.Timer(PATIENCE, popen.kill)
    watchdog.start()
    try:
        yield Process(popen, stream)
    finally:
        watchdog.cancel()
        popen.kill()
        popen.wait()
        stream.close()
