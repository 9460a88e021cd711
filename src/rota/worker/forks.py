"""A handler that forks makes a copy of its whole worker: whatever that did next would be done twice."""

import asyncio
import os
import threading
import weakref
from collections import deque
from typing import Final

_loops: Final["weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, int]"] = weakref.WeakKeyDictionary()
"""The event loops of workers, and their threads."""

_is_known: Final = threading.Event()


def leave_in_forks(loop: asyncio.AbstractEventLoop) -> None:
    """End every fork of this process quietly as soon as it comes back to the event loop.

    One that does what it was made for and exits, as `multiprocessing` makes them, never comes back.
    """
    _loops[loop] = threading.get_ident()
    if not _is_known.is_set():
        _is_known.set()
        os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    for loop, thread in list(_loops.items()):
        if thread == threading.get_ident() and loop.is_running():
            # What is ready already must not run before: it would use, and upset, what the two loops share.
            ready = getattr(loop, "_ready", None)
            if isinstance(ready, deque):
                ready.clear()
            loop.call_soon(os._exit, 0)
