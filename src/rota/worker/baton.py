"""Who has the event loop: a page that worker and heart share, and that says which attempt's handler it lets run.

A handler that does not give the loop back cannot be asked, and while C code holds the interpreter's lock nobody in its
process can say a word. So each attempt signs the page before every step of its coroutine and wipes it afterwards; the
heart reads the signature from outside.
"""

import mmap
import os
import tempfile
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Final
from uuid import UUID

NOBODY: Final = bytes(16)


class Baton:
    """The page. `fd` is what a heart inherits; it reads with `holder`."""

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            self.fd = os.memfd_create("rota-baton")
        else:
            self.fd, path = tempfile.mkstemp()
            os.unlink(path)
        os.ftruncate(self.fd, mmap.PAGESIZE)
        self._page = mmap.mmap(self.fd, mmap.PAGESIZE)

    def signed(self, token: UUID, steps: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]:
        """Return the coroutine, its steps signed with this token."""
        return _Signed(self._page, token.bytes, steps)

    def close(self) -> None:
        """Give the page back. What is signed from here on is nobody's business."""
        os.close(self.fd)


def holder(fd: int) -> UUID | None:
    """Return the attempt whose handler has the loop at this moment; None if none has."""
    signature = os.pread(fd, 16, 0)
    return None if signature in (b"", NOBODY) else UUID(bytes=signature)


class _Signed(Coroutine[Any, Any, None]):
    """A coroutine as its task drives it, step by step."""

    __slots__ = ("_page", "_pid", "_signature", "_steps")

    def __init__(self, page: mmap.mmap, signature: bytes, steps: Coroutine[Any, Any, None]) -> None:
        self._page = page
        self._signature = signature
        self._steps = steps
        self._pid = os.getpid()

    def send(self, value: Any) -> Any:
        return self._step(self._steps.send, value)

    def throw(self, kind: Any, value: Any = None, trace: TracebackType | None = None) -> Any:
        return self._step(self._steps.throw, kind if value is None else value)

    def close(self) -> None:
        self._steps.close()

    def __await__(self) -> Any:
        return self._steps.__await__()

    def __getattr__(self, name: str) -> Any:
        # Libraries ask a task's coroutine for its state: `cr_frame`, `cr_running`.
        return getattr(self._steps, name)

    def _step(self, go: Callable[[Any], Any], value: Any) -> Any:
        page = self._page
        page[:16] = self._signature
        try:
            return go(value)
        finally:
            page[:16] = NOBODY
            if os.getpid() != self._pid:
                # The handler forked, and this is its copy of the worker: whatever it did next would be done twice.
                os._exit(0)
