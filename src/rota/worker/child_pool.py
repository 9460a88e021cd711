"""Child processes for handlers with isolation="process": started when needed, reused, and killed when they must be."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from rota.domain.attempt import Outcome
from rota.worker import frames
from rota.worker.child import CANCELLED
from rota.worker.ending import Ending, failed
from rota.worker.handlers import Handler
from rota.worker.heart import ProcessGroups
from rota.worker.live import LiveAttempt, Stop

STOP_GRACE: Final = 1.0
"""Seconds between SIGTERM and SIGKILL, for a handler that cleans up."""

LAST_WORDS_TIME: Final = 0.5
"""Seconds to read what a child wrote before it ended."""

START_TRIES: Final = 3
"""Children tried for one run: a child may end by itself between two runs."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Child:
    """One child. `exited` is done when the process has ended, with its return code."""

    process: asyncio.subprocess.Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    exited: asyncio.Task[int]

    @property
    def is_usable(self) -> bool:
        return not self.exited.done() and not self.reader.at_eof()

    async def hear(self) -> frames.Message | None:
        """Return the next message; None if the child ended without one."""
        message = asyncio.ensure_future(frames.read(self.reader))
        try:
            # Not the connection's end alone: a process that the handler forked may hold it open.
            await asyncio.wait({message, self.exited}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({message}, timeout=LAST_WORDS_TIME)
            return message.result() if message.done() else None
        finally:
            message.cancel()

    async def kill(self) -> int:
        """End the child and what its handler started; returns the code with which it ended."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        return await asyncio.shield(self.exited)


class ChildPool:
    """Runs attempts in children, one at a time in each. The worker's slots bound how many there are.

    `target` tells the children where the app is ("jobs:app", "/srv/jobs.py"); without it a handler's function is found
    by its module and name.
    """

    def __init__(self, *, target: str | None, groups: ProcessGroups) -> None:
        self._target = target
        self._groups = groups
        self._idle: list[_Child] = []
        self._all: set[_Child] = set()

    @property
    def pids(self) -> list[int]:
        """The process ids of the children that live."""
        return [child.process.pid for child in self._all]

    async def run(self, live: LiveAttempt) -> Ending:
        """Run the attempt in a child. Cancelled, it ends the child first: at once if the attempt is out of time."""
        order = self._order(live)
        if isinstance(order, Ending):
            return order
        for _ in range(START_TRIES):
            child = self._take() or await self._start()
            try:
                child.writer.write(frames.pack(order))
                begun = await child.hear()
                answer = await _answer_of(child, live) if begun is not None else None
            except asyncio.CancelledError:
                await self._end(child, reason=live.stop)
                raise
            if answer is not None:
                self._give_back(child)
                return _ending_of(answer)
            # Its connection ends a moment before the child does.
            await asyncio.wait({child.exited}, timeout=LAST_WORDS_TIME)
            has_died = child.exited.done()
            # What its handler started ends too, and so does a child that has lost its voice.
            code = await child.kill()
            if begun is not None:
                return failed(_death(code) if has_died else _SILENT)
        return failed("no child process could be started for the handler")

    async def close(self, *, within: float = STOP_GRACE) -> None:
        """End every child: the idle ones by closing their connection, the busy ones by force."""
        idle, self._idle = self._idle, []
        for child in idle:
            child.writer.close()
        if idle:
            await asyncio.wait({child.exited for child in idle}, timeout=min(within, STOP_GRACE))
        await self.kill_all()

    async def kill_all(self) -> None:
        """Kill every child now."""
        self._idle = []
        if self._all:
            await asyncio.gather(*(child.kill() for child in self._all))

    def _order(self, live: LiveAttempt) -> frames.Message | Ending:
        place = {} if self._target is not None else _place_of(live.handler)
        if isinstance(place, Ending):
            return place
        return {"handler": live.handler.name, "run": live.context.to_wire(), **place}

    def _take(self) -> _Child | None:
        while self._idle:
            # The one that was used last: the others may be swapped out, or end.
            child = self._idle.pop()
            if child.is_usable:
                return child
        return None

    def _give_back(self, child: _Child) -> None:
        if child.is_usable:
            self._idle.append(child)

    async def _start(self) -> _Child:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", "rota.worker.child", str(theirs.fileno()), str(os.getpid())),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                raise
        self._groups.guard(process.pid)
        try:
            reader, writer = await asyncio.open_unix_connection(sock=ours)
        except BaseException:
            ours.close()
            process.kill()
            raise
        writer.write(frames.pack({"target": self._target, "path": sys.path}))
        child = _Child(process=process, reader=reader, writer=writer, exited=asyncio.create_task(process.wait()))
        self._all.add(child)
        child.exited.add_done_callback(lambda _: self._forget(child))
        return child

    def _forget(self, child: _Child) -> None:
        self._all.discard(child)
        child.writer.close()
        self._groups.unguard(child.process.pid)

    async def _end(self, child: _Child, *, reason: Stop | None) -> None:
        """End a busy child, whatever else is cancelled meanwhile."""
        try:
            if reason is not Stop.TIMEOUT and not child.exited.done():
                child.writer.write(frames.pack({"stop": CANCELLED if reason is Stop.CANCELLED else ""}))
                with contextlib.suppress(ProcessLookupError):
                    child.process.terminate()
                await asyncio.wait({child.exited}, timeout=STOP_GRACE)
        finally:
            await child.kill()


_SILENT: Final = "the handler's process closed its connection to the worker and was killed"


def _place_of(handler: Handler) -> dict[str, Any] | Ending:
    """Say where a child finds the function, or end the attempt: a function inside another has no place."""
    function = handler.function
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", "<unnamed>")
    if module is None or "<" in name:
        return failed(f"a child process cannot find {name}: a process handler stands at a module's top level")
    file = getattr(sys.modules.get("__main__"), "__file__", None) if module == "__main__" else None
    if module == "__main__" and file is None:
        return failed(f"a child process cannot find {name}: put it in a file that can be imported")
    return {
        "module": module,
        "file": os.path.abspath(file) if file is not None else None,
        "name": name,
        "takes_run": handler.takes_run,
        "is_async": handler.is_async,
    }


async def _answer_of(child: _Child, live: LiveAttempt) -> frames.Message | None:
    """Return what the child says last, and pass on what it says of its progress until then."""
    while (said := await child.hear()) is not None and "progress" in said:
        live.context.progress(*said["progress"])
    return said


def _ending_of(answer: frames.Message) -> Ending:
    seconds = answer["retry_after"]
    return Ending(
        outcome=Outcome(answer["outcome"]),
        error=answer["error"],
        retry_after=timedelta(seconds=seconds) if seconds is not None else None,
        result=answer["result"],
        dropped=answer["dropped"],
    )


def _death(code: int) -> str:
    if code >= 0:
        return f"the handler's process exited with code {code} without a result"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "a signal"
    guess = ", perhaps out of memory" if -code == signal.SIGKILL else ""
    return f"the handler's process was killed by {name} (signal {-code}){guess}"
