"""What the worker's tests share: workers in this process and in others, and a heart that only takes notes."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from rota.domain.attempt import Claim, LeaseKey, Outcome, Report
from rota.domain.progress import Progress
from rota.worker.baton import Baton
from rota.worker.desk import WorkerInfo
from rota.worker.handlers import HandlerRegistry
from rota.worker.heart import GOODBYE_TIME, HeartNews
from rota.worker.stand_in import Renew
from rota.worker.worker import Worker
from tests.worker.fake_desk import FakeDesk

ROOT = Path(__file__).parents[2]


class NotingHeart:
    """A heart that renews nothing: it notes what it is told, and passes on what the test lets it learn."""

    def __init__(self, desk: FakeDesk) -> None:
        self.held: dict[UUID, LeaseKey] = {}
        self.groups: set[int] = set()
        self.progress: dict[UUID, Progress] = {}
        self.hastened = 0
        self.able = asyncio.Event()
        self.able.set()
        self.apart: set[UUID] = set()
        self._desk = desk
        self._listener: Callable[[HeartNews], None] | None = None

    async def start(
        self, listener: Callable[[HeartNews], None], *, renew: Renew | None = None, baton: Baton | None = None
    ) -> None:
        self._listener = listener

    def hold(self, claims: Sequence[Claim], *, apart: Collection[UUID] = ()) -> None:
        self.apart.update(apart)
        self.held.update({claim.key.token: claim.key for claim in claims})

    def drop(self, tokens: Iterable[UUID]) -> None:
        for token in tokens:
            self.held.pop(token, None)

    def note(self, progress: Mapping[UUID, Progress]) -> None:
        for token, said in progress.items():
            self.progress[token] = said.after(self.progress.get(token))

    def hasten(self) -> None:
        self.hastened += 1

    def guard(self, group: int) -> None:
        self.groups.add(group)

    def unguard(self, group: int) -> None:
        self.groups.discard(group)

    async def stop(self, *, release: bool, within: float = GOODBYE_TIME) -> None:
        if release and self.held:
            with contextlib.suppress(Exception):
                await self._desk.report([Report(key=key, outcome=Outcome.RELEASED) for key in self.held.values()])

    def learn(self, **words: Iterable[UUID]) -> None:
        assert self._listener is not None
        self._listener(HeartNews(**{word: frozenset(tokens) for word, tokens in words.items()}))


def info_of(registry: HandlerRegistry, *, concurrency: int = 4, worker_id: str = "w-1") -> WorkerInfo:
    return WorkerInfo(
        worker_id=worker_id, instance=uuid4(), pool="default", handlers=registry.names, concurrency=concurrency
    )


@contextlib.asynccontextmanager
async def at_work(
    desk: FakeDesk, registry: HandlerRegistry, *, concurrency: int = 4, tenant_id: str | None = None, **options: Any
) -> AsyncIterator[tuple[Worker, NotingHeart]]:
    """A worker at work in this process; it leaves at once when the test is done with it."""
    heart = NotingHeart(desk)
    info = replace(info_of(registry, concurrency=concurrency), tenant_id=tenant_id)
    worker = Worker(desk, registry, info, desk.clock, heart, **options)
    working = asyncio.create_task(worker.run())
    try:
        yield worker, heart
    finally:
        worker.request_stop()
        worker.request_stop()
        async with asyncio.timeout(30):
            await working


@contextlib.asynccontextmanager
async def worker_process(
    desk: FakeDesk, url: str, *, concurrency: int = 4, drain: float = 10, log: Path | None = None
) -> AsyncIterator[subprocess.Popen[bytes]]:
    """A worker in a process of its own, in a session of its own. Its heart ends with it."""
    command = [sys.executable, "-m", "tests.worker.worker_main", url, str(concurrency), str(drain)]
    stderr = None if log is None else log.open("wb")
    process = subprocess.Popen(  # noqa: ASYNC220 - a fork takes a millisecond
        command, cwd=ROOT, start_new_session=True, stderr=stderr
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
        left = children_of(process.pid)
        process.kill()
        process.wait()
        if stderr is not None:
            stderr.close()
        await desk.until(lambda: not any(map(lives, left)))


def lives(pid: int) -> bool:
    """Tell whether a process runs: one that has ended and was not reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def children_of(pid: int) -> list[int]:
    """Return the ids of the live processes that this one started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == pid and fields[0] not in "ZX":
                    found.append(int(entry.name))
    return found


def heart_of(pid: int) -> int:
    """Return the process id of a worker's heart."""
    for child in children_of(pid):
        if b"heart_process" in Path(f"/proc/{child}/cmdline").read_bytes():
            return child
    raise AssertionError("the worker has no heart")


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
