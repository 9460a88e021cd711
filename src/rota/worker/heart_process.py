"""The heart: a small process that keeps a worker's leases alive. `python -m rota.worker.heart_process`

It is told of leases on its standard input and renews them on a connection of its own, so nothing that a handler does to
its process can stop a renewal. It says its first word when it has imported all that it needs for that. When the worker
dies, it kills what the worker left running and reports the worker's runs as lost at once. A worker that is stopped
(SIGSTOP, a debugger) is not dead and does not work either: its leases are left to run out. One that says nothing
though an attempt is out of time is held by a handler that does not let go: the heart ends it.
"""

import asyncio
import contextlib
import importlib
import inspect
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Final
from uuid import UUID

from rota.clock import SystemClock
from rota.domain.attempt import LeaseKey, Report
from rota.errors import DatabaseUnavailable
from rota.worker import baton, frames, parting
from rota.worker.backoff import Backoff
from rota.worker.concealment import conceal
from rota.worker.desk import Desk
from rota.worker.lease_book import LONGEST_INTERVAL, LeaseBook
from rota.worker.line_writer import LineWriter, write_out

BATCH: Final = 1000
"""The most leases in one call."""

CALL_TIME: Final = 5.0
"""Seconds for one call to the desk; a connection that says nothing for longer is given up."""

OPEN_TIME: Final = 10.0
"""Seconds to open a desk."""

LAST_WORDS_TIME: Final = 0.2
"""Seconds to read what a worker wrote before it died."""

PROGRESS_INTERVAL: Final = 1.0
"""Seconds between two renewals that are made for the sake of progress alone."""

HASTE_INTERVAL: Final = 0.5
"""Seconds between two renewals that are brought forward."""

TRANSIENT: Final = (DatabaseUnavailable, OSError)
"""What passes by itself (a TimeoutError is an OSError): progress is worth telling again."""

STOPPED_CHECK: Final = 0.2
"""Seconds between looks at a worker that is stopped."""

SURRENDER_TIME: Final = 30.0
"""Seconds to give leases back after the worker's end. What remains then runs out by itself."""

SILENCE_CHECK: Final = 1.0
"""Seconds between looks whether the worker still speaks: it does so every second."""

LONGEST_SILENCE: Final = 5.0
"""Seconds for which a worker may say nothing while an attempt has been out of time for as long. Until then it may yet
end that attempt itself, and a busy host lets it speak late."""

DEATH_TIME: Final = 10.0
"""Seconds for a killed worker to be gone."""


_words: Final = LineWriter("rota heart: {dropped} lines were dropped\n")


class HeartProcess:
    """The process's work, between its first message and its worker's end."""

    def __init__(self, hello: frames.Message, writer: asyncio.WriteTransport) -> None:
        self._url: str = hello["url"]
        self._options: dict[str, Any] = hello["options"]
        self._opener: str = hello["opener"]
        self._worker_pid: int = hello["worker_pid"]
        self._baton: int | None = hello.get("baton")
        supervisor: list[int] | None = hello.get("supervisor")
        self._supervisor = supervisor[0] if supervisor else None
        self._parting = supervisor[1] if supervisor else None
        self._writer = writer
        self._clock = SystemClock()
        self._book = LeaseBook()
        self._groups: set[int] = set()
        self._desk: Desk | None = None
        self._backoff = Backoff(first=0.1)
        self._changed = asyncio.Event()
        # The first round finds no lease, and opens the desk before it is needed.
        self._next_round = self._clock.monotonic()
        self._next_news = inf
        self._rounded_at = self._noted_at = -inf
        self._silence = 0.0

    async def run(self, reader: asyncio.StreamReader) -> None:
        """Renew until the worker ends, then settle what it leaves."""
        listening = asyncio.create_task(self._listen(reader))
        renewing = asyncio.create_task(self._renew())
        gone = asyncio.create_task(_death_of(self._worker_pid))
        silent = asyncio.create_task(self._wait_for_silence())
        tasks: set[asyncio.Task[Any]] = {listening, renewing, gone, silent}
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if renewing.done():
            # A heart that cannot renew is none: its successor gets every lease.
            renewing.result()
        # A worker may say goodbye and be gone before the goodbye is read.
        await asyncio.wait({listening}, timeout=LAST_WORDS_TIME)
        word = listening.result() if listening.done() else None
        is_held = silent.done() and not listening.done() and not gone.done()
        holder = await self._end_worker(gone) if is_held else None
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=CALL_TIME)
        await self._part(word, is_held=is_held, holder=holder)

    async def _listen(self, reader: asyncio.StreamReader) -> str | None:
        """Take messages; returns the worker's last word, None if it ended without one."""
        while (message := await frames.read(reader)) is not None:
            self._silence = 0.0
            if "bye" in message:
                word: str = message["bye"]
                return word
            if "ping" in message:
                # Whatever becomes of the renewals: in an outage the heart works too.
                self._writer.write(frames.pack({"pong": True}))
            now = self._clock.monotonic()
            self._groups.update(message.get("guard", ()))
            self._groups.difference_update(message.get("unguard", ()))
            due = now + self._book.take(message, now=now)
            if "beat" in message:
                due = min(due, max(now, self._rounded_at + HASTE_INTERVAL))
            if due < self._next_round:
                self._next_round = due
                self._changed.set()
            if "progress" in message and self._next_news == inf:
                self._next_news = max(now, self._noted_at + PROGRESS_INTERVAL)
                self._changed.set()
        return None

    async def _renew(self) -> None:
        while True:
            now = self._clock.monotonic()
            due = min(self._next_round, self._next_news)
            if now < due:
                self._changed.clear()
                await self._clock.wait(self._changed, due - now)
            elif self._is_stopped():
                await self._clock.sleep(STOPPED_CHECK)
            elif now < self._next_round:
                await self._tell_news()
            else:
                await self._round()

    async def _round(self) -> None:
        """Renew everything once, and set the next round's time."""
        started = self._clock.monotonic()
        self._rounded_at = self._noted_at = started
        self._next_round, self._next_news = started + LONGEST_INTERVAL, inf
        self._tell("ended", self._book.end_overdue(now=started))
        # Without a lease the desk is opened all the same, before it is needed.
        delays = [await self._renew_batch(batch) for batch in _batches(self._book.keys()) or [[]]]
        if not any(delays):
            self._backoff.reset()
        # A batch that fails is tried again soon, and makes the others wait for no longer than their leases allow.
        due = inf if all(delays) else started + self._book.interval()
        retry = self._clock.monotonic() + max(delays) if any(delays) else inf
        self._next_round = min(self._next_round, due, retry)

    async def _tell_news(self) -> None:
        """Renew what has made progress, and nothing else: the others' renewals are not due."""
        self._noted_at = self._clock.monotonic()
        self._next_news = inf
        delays = [await self._renew_batch(batch) for batch in _batches(self._book.keys_with_progress())]
        if any(delays):
            self._next_news = self._clock.monotonic() + max(PROGRESS_INTERVAL, *delays)

    async def _renew_batch(self, batch: Sequence[LeaseKey]) -> float:
        """Renew one batch, whatever became of those before it. Returns the seconds to wait after a failure, else 0."""
        progress = self._book.progress_of(batch)
        try:
            desk = await self._open()
            if batch:
                async with asyncio.timeout(CALL_TIME):
                    renewal = await desk.renew(batch, progress=progress)
                self._book.forget_progress(progress)
                self._tell("lost", self._book.lose(renewal.lost))
                self._tell("cancelled", self._book.cancel(renewal.cancelled))
        except Exception as error:
            if not isinstance(error, TRANSIENT):
                # Should it be the progress that a desk cannot take: it must not cost the leases.
                self._book.forget_progress(progress)
            return await self._after(error)
        return 0.0

    async def _wait_for_silence(self) -> None:
        """Return when the worker has said nothing for too long and an attempt of it is out of time.

        What is counted is the planned pauses, as the worker does: on a busy host both are late.
        """
        while True:
            await self._clock.sleep(SILENCE_CHECK)
            self._stop_with_supervisor()
            self._silence = 0.0 if self._is_stopped() else self._silence + SILENCE_CHECK
            overdue_since = self._clock.monotonic() - LONGEST_SILENCE
            if self._silence >= LONGEST_SILENCE and self._book.has_late(by=overdue_since):
                return

    def _stop_with_supervisor(self) -> None:
        """Stop the worker when its supervisor is stopped, which lets it go on when it goes on itself."""
        if self._supervisor is None or not _is_stopped(self._supervisor) or _is_stopped(self._worker_pid):
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._worker_pid, signal.SIGSTOP)
            if not _is_stopped(self._supervisor):
                os.kill(self._worker_pid, signal.SIGCONT)

    def _is_stopped(self) -> bool:
        return _is_stopped(self._worker_pid) or (self._supervisor is not None and _is_stopped(self._supervisor))

    async def _end_worker(self, gone: asyncio.Task[None]) -> UUID | None:
        """End a worker whose event loop somebody holds; returns whose handler that is, if it is known."""
        holder = None if self._baton is None else baton.holder(self._baton)
        _say(f"worker {self._worker_pid}: a handler holds its event loop past an attempt's timeout; it is ended")
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._worker_pid, signal.SIGKILL)
        await asyncio.wait({gone}, timeout=DEATH_TIME)
        return holder

    async def _part(self, word: str | None, *, is_held: bool = False, holder: UUID | None = None) -> None:
        """End what the worker left running, then give its leases back."""
        held = self._book.all_held()
        if word is None:
            # First the processes, then the leases: nobody starts a run again while its old command still works.
            for group in self._groups:
                with contextlib.suppress(OSError):
                    os.killpg(group, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SURRENDER_TIME):
                if word == "release" or (word is None and _can_be_read(self._parting)):
                    await self._surrender(parting.given_back(held))
                elif is_held:
                    await self._surrender(parting.after_silence(held, holder=holder, now=self._clock.monotonic()))
                elif word is None:
                    await self._surrender(parting.after_death(held))
                if self._desk is not None:
                    await self._desk.close()

    async def _surrender(self, reports: Sequence[Report]) -> None:
        """Give every lease back. A batch that fails is tried again after the others, which need not wait for it."""
        waiting = [reports[start : start + BATCH] for start in range(0, len(reports), BATCH)]
        while waiting:
            failed, delay = [], 0.0
            for batch in waiting:
                try:
                    desk = await self._open()
                    async with asyncio.timeout(CALL_TIME):
                        await desk.report(batch)
                except Exception as problem:
                    failed.append(batch)
                    delay = await self._after(problem)
            waiting = failed
            await self._clock.sleep(delay)

    async def _open(self) -> Desk:
        if self._desk is None:
            opened = _opener(self._opener)(self._url, **self._options)
            async with asyncio.timeout(OPEN_TIME):
                desk: Desk = await opened if inspect.isawaitable(opened) else opened
            self._desk = desk
        return self._desk

    async def _after(self, error: Exception) -> float:
        """Say what went wrong, give up a desk that fails again and again; returns the seconds to wait."""
        if self._backoff.failures in (0, 5) or self._backoff.failures % 50 == 49:
            _say(f"{type(error).__name__}: {error}; trying again")
        if self._desk is not None and self._backoff.failures % 3 == 2:
            desk, self._desk = self._desk, None
            with contextlib.suppress(Exception):
                async with asyncio.timeout(CALL_TIME):
                    await desk.close()
        return self._backoff.next()

    def _tell(self, word: str, tokens: Sequence[str]) -> None:
        if tokens:
            self._writer.write(frames.pack({word: tokens}))


def _say(text: str) -> None:
    # Whoever starts many hearts may not read what one says: it must not stop it.
    _words.write(f"rota heart: {text}\n")


def _opener(place: str) -> Callable[..., Any]:
    module, _, name = place.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def _load(hello: frames.Message) -> None:
    """Import all that renewing needs, before the first word."""
    opener = _opener(hello["opener"])
    load = getattr(sys.modules[opener.__module__], "load", None)
    if load is not None:
        load(hello["url"])


def _can_be_read(fd: int | None) -> bool:
    """Tell whether something waits to be read; the end of a pipe is nothing."""
    if fd is None:
        return False
    look = select.poll()
    look.register(fd, select.POLLIN)
    return any(events & select.POLLIN for _, events in look.poll(0))


def _batches(keys: list[LeaseKey]) -> list[list[LeaseKey]]:
    return [keys[start : start + BATCH] for start in range(0, len(keys), BATCH)]


def _is_stopped(pid: int) -> bool:
    """Tell whether a process is stopped or traced. Where the system does not say, it is not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The state follows the command's name, which may itself hold any character.
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except (OSError, IndexError):
        return False


async def _death_of(pid: int) -> None:
    """Return when a process has died. The pipe's end says it too, unless a fork of the worker holds the pipe open."""
    loop = asyncio.get_running_loop()
    died = asyncio.Event()
    if not hasattr(os, "pidfd_open"):
        await died.wait()
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError:
        await died.wait()
    loop.add_reader(handle, died.set)
    try:
        await died.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)


def _interrupt_nobody() -> None:
    """Let what a worker tells its heart not take the core from it: where both share one, a kernel's usual policy does.

    The heart waits for the end of the other's time slice instead, some milliseconds. Its share of a core is the same.
    """
    with contextlib.suppress(AttributeError, OSError):
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


async def _main() -> None:
    loop = asyncio.get_running_loop()
    # The worker reads what stands on standard output: a library that prints must not speak to it.
    voice = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    writer, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, voice)
    hello = None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(OPEN_TIME):
            hello = await frames.read(reader)
    if hello is not None:
        sys.path[:] = hello["path"]
        _load(hello)
        await HeartProcess(hello, writer).run(reader)


if __name__ == "__main__":
    # The worker decides when its heart stops: by a goodbye, or by its end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    conceal()  # it knows what proves the worker
    _interrupt_nobody()
    asyncio.run(_main())
    write_out()
