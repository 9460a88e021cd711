"""A peer on its own database: asked by its script, worked by its processes, heard by its handlers' log."""

import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.compare.environments import PROJECT, Environment
from benchmarks.compare.peers import ROTA
from benchmarks.compare.processes import PeerFailed, ask, running
from benchmarks.compare.server import Server
from benchmarks.harness import Tell

ROTA_PROGRAM: Final = str(Path(sys.executable).with_name("rota"))
ROTA_APP: Final = "benchmarks.compare.inside.rota_app:app"
ROTA_CONCURRENCY: Final = 200
_FOREIGN: Final = ("ROTA_", "PG")
_TAIL: Final = 600


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What a measure works with."""

    environment: Environment
    server: Server
    dsn: str
    log: Path
    tell: Tell

    def say(self, measure: str, value: float, unit: str) -> None:
        """Tell one figure of this peer."""
        self.tell(f"{self.environment.peer.name}.{measure}", value, unit)

    async def ask(self, action: str, *values: object) -> dict[str, Any]:
        """Have its script do something, and return what that answers."""
        return await ask(self.environment.command(action, *values), environment=self._variables(), folder=PROJECT)

    async def rate(self, action: str, count: int) -> float:
        """Have its script make runs, and return how many a second."""
        answer = await self.ask(action, count)
        rate: float = answer["runs"] / answer["seconds"]
        return rate

    @asynccontextmanager
    async def working(self, processes: int, *, jobs: int = 0) -> AsyncIterator[list[int]]:
        """Have so many workers run, and what else the peer needs; yields the process ids. `jobs` come every second."""
        variables = {**self._variables(), "BENCH_JOBS": str(jobs)}
        output = self.log.with_name("output")
        commands = self._work_commands(processes, jobs)
        async with running(commands, environment=variables, folder=PROJECT, output=output) as pids:
            try:
                yield pids
            except TimeoutError as late:
                said = output.read_text(errors="replace")[-_TAIL:].strip()
                raise PeerFailed(f"{late}; its workers said: {said or 'nothing'}") from None

    def logged(self, kind: str) -> list[list[str]]:
        """Return what its handlers have logged of a kind, as fields."""
        lines = self.log.read_text().splitlines()
        return [fields[1:] for fields in map(str.split, lines) if fields and fields[0] == kind]

    def _work_commands(self, processes: int, jobs: int) -> list[list[str]]:
        if self.environment.peer is ROTA:
            worker = [ROTA_PROGRAM, "worker", ROTA_APP, "--concurrency", str(ROTA_CONCURRENCY)]
            return [[ROTA_PROGRAM, "scheduler"], *([worker] * processes)]
        action: tuple[object, ...] = ("recur", jobs) if jobs else ("work",)
        return [self.environment.command(str(action[0]), *action[1:])] * processes

    def _variables(self) -> Mapping[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
        here = {"BENCH_DSN": self.dsn, "BENCH_LOG": str(self.log)}
        if self.environment.peer is ROTA:
            here |= {"ROTA_DATABASE_URL": self.dsn, "ROTA_LOG_LEVEL": "error"}
        return {**kept, **self.environment.variables, **here}


async def fresh(environment: Environment, server: Server, tell: Tell) -> Subject:
    """Return the peer on a new database that is set up, with an empty log."""
    log = server.folder / "log"
    log.write_text("")
    dsn = await server.fresh_database(environment.peer.name)
    made = Subject(environment=environment, server=server, dsn=dsn, log=log, tell=tell)
    await made.ask("setup")
    return made
