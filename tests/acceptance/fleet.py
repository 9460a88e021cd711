"""A fleet of real processes over a real, durable PostgreSQL; and waiting for named conditions, never for a time."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from rota.assembly import Rota, assemble
from rota.clock import DatabaseClock, SystemClock
from rota.errors import DatabaseUnavailable
from rota.settings import Settings
from rota.store.database import Database
from rota.store.embedded import EmbeddedServer
from rota.store.migrate import migrate

STOPWATCH = SystemClock()
PATIENCE = 180.0
"""Seconds after which a condition that does not come true is a failure; the machine may be busy."""

APP = str(Path(__file__).with_name("fleet_app.py"))


class Fleet:
    """The processes of one test, and a look at their cluster from outside."""

    def __init__(self, server: EmbeddedServer, rota: Rota, folder: Path) -> None:
        self.server = server
        self.rota = rota
        self.folder = folder
        self._started: list[asyncio.subprocess.Process] = []

    async def scheduler(self, name: str) -> asyncio.subprocess.Process:
        """Start a scheduler process."""
        return await self._start("scheduler", "--name", name)

    async def worker(self, name: str, *options: str) -> asyncio.subprocess.Process:
        """Start a worker process that runs fleet_app.py, and return once it has announced itself."""
        process = await self._start("worker", APP, "--name", name, *options)

        async def announced() -> bool:
            return any(worker.worker_id == name for worker in await self.rota.history.workers())

        await self.until(announced, f"worker {name} has announced itself")
        return process

    async def until(self, condition: Callable[[], Awaitable[bool]], what: str) -> float:
        """Return, once the condition holds, how many seconds that took; a database that is away counts as not yet."""
        started = STOPWATCH.monotonic()
        while STOPWATCH.monotonic() - started < PATIENCE:
            try:
                if await condition():
                    return STOPWATCH.monotonic() - started
            except DatabaseUnavailable:
                pass
            for process in self._started:
                assert process.returncode is None or process.returncode <= 0, f"a process ended while waiting: {what}"
            await STOPWATCH.sleep(0.02)
        raise AssertionError(f"not within {PATIENCE:g} s: {what}")

    async def count(self, sql: str) -> int:
        """Return the one number that a query gives."""
        async with self.rota.database.transaction() as tx:
            number: int = await tx._raw.fetchval(sql)
            return number

    def calls(self, word: str = "call") -> list[list[str]]:
        """Return what handlers noted: [word, job_id, slot, attempt, pid]."""
        file = self.folder / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        return [parts for parts in map(str.split, lines) if parts[0] == word]

    async def until_called(self, word: str, times: int, what: str) -> None:
        """Return once handlers have noted a word that many times."""

        async def enough() -> bool:
            return len(self.calls(word)) >= times

        await self.until(enough, what)

    async def conserved(self) -> None:
        """Hold the cluster against the conservation law."""
        checks = [await self.rota.doctor.conservation(), await self.rota.doctor.slots(limit=None)]
        assert [finding for check in checks for finding in check.findings] == []

    async def _start(self, *command: str) -> asyncio.subprocess.Process:
        environment = {**os.environ, "ROTA_DATABASE_URL": self.rota.dsn, "ROTA_LOG_LEVEL": "info"}
        with (self.folder / f"log-{len(self._started)}-{command[0]}").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                str(Path(sys.executable).with_name("rota")), *command, env=environment, stdout=log, stderr=log
            )
        self._started.append(process)
        return process

    async def end(self) -> None:
        """End what still runs."""
        for process in self._started:
            if process.returncode is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                await process.wait()


@asynccontextmanager
async def fleet(folder: Path) -> AsyncIterator[Fleet]:
    """Yield a fleet without processes over a fresh durable server."""
    async with EmbeddedServer(folder / "data") as server:
        await migrate(server.dsn, now=STOPWATCH.now())
        async with await Database.connect(server.dsn) as database:
            clock = DatabaseClock()
            await database.measure(clock)
            one = Fleet(server, assemble(Settings(), dsn=server.dsn, database=database, clock=clock), folder)
            try:
                yield one
            finally:
                await one.end()


def ids(prefix: str, count: int) -> Sequence[str]:
    """Return job ids."""
    return [f"{prefix}-{number}" for number in range(count)]
