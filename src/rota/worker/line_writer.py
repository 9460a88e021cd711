"""Writing lines for people without ever waiting for them: a bounded queue, and a thread that writes.

A pipe that nobody reads is full at some time, and a terminal can be halted; a program that logs would stop with its
next line. Here lines are dropped instead, and how many is said as soon as there is room again.
"""

import contextlib
import os
import sys
import threading
from collections import deque
from typing import Final

LINES_LIMIT: Final = 10_000
BYTES_LIMIT: Final = 8 * 1024 * 1024
"""The most lines, and bytes of them, that wait to be written."""

FLUSH_TIME: Final = 0.5
"""Seconds that a process which ends gives its last lines."""


_writers: Final[list["LineWriter"]] = []


def write_out() -> None:
    """Give what waits in any writer a moment."""
    for writer in _writers:
        writer.drain()


class LineWriter:
    """Writes to standard error, as it is at the moment of writing: a live table puts itself in between.

    `dropped` says how many lines were not written; what is said of them is `notice` with their number.
    """

    def __init__(self, notice: str) -> None:
        self._notice = notice
        self._begin()
        _writers.append(self)

    def close(self) -> None:
        """Write no more."""
        self.drain()
        _writers.remove(self)

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lines: deque[str] = deque()
        self._size = 0
        self._missed = 0
        self.dropped = 0
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_writing = False

    def write(self, text: str) -> int:
        """Put a text in the queue, or drop it; returns its length."""
        if os.getpid() != self._pid:
            # A fork has neither the thread nor, for certain, the lock.
            self._begin()
        with self._change:
            if len(self._lines) >= LINES_LIMIT or self._size + len(text) > BYTES_LIMIT:
                self._missed += 1
                self.dropped += 1
                return len(text)
            self._lines.append(text)
            self._size += len(text)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="rota-log", daemon=True)
                self._thread.start()
            self._change.notify_all()
        return len(text)

    def flush(self) -> None:
        """Do nothing: nobody waits for lines."""

    def drain(self, *, within: float = FLUSH_TIME) -> bool:
        """Give the queue so many seconds to empty; tell whether it did."""
        if os.getpid() != self._pid:
            return True
        with self._change:
            return self._change.wait_for(lambda: not self._lines and not self._is_writing, timeout=within)

    def _serve(self) -> None:
        while True:
            with self._change:
                self._is_writing = False
                self._change.notify_all()
                self._change.wait_for(lambda: bool(self._lines))
                text = "".join(self._lines)
                self._lines.clear()
                self._size = 0
                self._is_writing = True
                missed, self._missed = self._missed, 0
            _put(text)
            if missed:
                _put(self._notice.format(dropped=missed))


def _put(text: str) -> None:
    """Write now. A reader that has gone misses nothing."""
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr is sys.__stderr__ and sys.stderr is not None:
            # Past the stream's lock: a thread that holds it in a write would keep the interpreter from ending.
            left = text.encode(errors="backslashreplace")
            while left:
                left = left[os.write(sys.stderr.fileno(), left) :]
        elif sys.stderr is not None:
            sys.stderr.write(text)
            sys.stderr.flush()
