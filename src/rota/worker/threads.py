"""Threads for plain functions.

Not `concurrent.futures`: its threads are joined when the interpreter ends, so one handler that never returns would keep
a worker from leaving. These are daemons.
"""

import asyncio
import contextlib
import itertools
import os
import queue
import threading
from collections.abc import Callable

from rota.worker.ending import Ending, call, ending_of

_NUMBERS = itertools.count(1)


class ThreadSlots:
    """At most `limit` threads, started when they are needed and reused."""

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._pid = os.getpid()
        self._threads = 0
        self._busy = 0
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def start(self, function: Callable[..., object], *arguments: object) -> asyncio.Future[Ending]:
        """Call the function in a thread; the future is done when it has really returned, however long that takes."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Ending] = loop.create_future()

        def settle(ending: Ending) -> None:
            self._busy -= 1
            if not done.done():
                done.set_result(ending)

        def work() -> None:
            try:
                ending = call(function, *arguments)
            except BaseException as raised:
                # What it returned or raised could not even be looked at: the slot is free all the same.
                ending = ending_of(raised)
            if os.getpid() != self._pid:
                # The handler forked, and this is its copy of the worker's thread: it has nothing to say to anybody.
                os._exit(0)
            # The loop may be gone by the time a lingering function returns: then nobody wants to know.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, ending)

        self._busy += 1
        if self._threads < min(self._busy, self._limit):
            self._threads += 1
            threading.Thread(target=self._serve, name=f"rota-run-{next(_NUMBERS)}", daemon=True).start()
        self._calls.put(work)
        return done

    def close(self) -> None:
        """Let the threads end after what they are doing; waits for none of them."""
        for _ in range(self._threads):
            self._calls.put(None)

    def _serve(self) -> None:
        while (work := self._calls.get()) is not None:
            work()
