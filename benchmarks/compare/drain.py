"""How fast workers drain a queue, and what it costs."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from benchmarks.compare.environments import Environment
from benchmarks.compare.processes import cpu_below, cpu_of_machine
from benchmarks.compare.server import Server
from benchmarks.compare.subject import Subject, fresh
from benchmarks.harness import STOPWATCH, Tell

RUNS: Final = 40_000
WARM_UP: Final = RUNS // 10
"""Runs that are not counted: workers do not start in the same instant."""
LIMIT: Final = 120.0
LOOKS: Final = (0.01, 0.05)
"""Seconds between two looks at what remains: the shortest, near the end, and the longest."""

Count = Callable[[], Awaitable[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """What has been used up to an instant."""

    at: float
    left: int
    workers: float
    database: float
    machine: float
    wal: int


async def drain(environment: Environment, server: Server, tell: Tell) -> None:
    """Ready no-op runs a second that 1 and 2 worker processes drain, with CPU and WAL a run."""
    rates = [await _drain(await fresh(environment, server, tell), processes) for processes in (1, 2)]
    tell(f"{environment.peer.name}.drain_2.gain", rates[1] / rates[0], "x")


async def _drain(s: Subject, processes: int) -> float:
    """Drain, say what it took, and return the rate."""
    await s.ask("many", RUNS)
    async with _counter(s) as count, s.working(processes) as pids:
        await _until(count, RUNS - WARM_UP)
        before = await _taken(s, pids, count)
        await _until(count, 0)
        after = await _taken(s, pids, count)
    done, seconds = before.left - after.left, after.at - before.at
    workers, database = after.workers - before.workers, after.database - before.database
    others = after.machine - before.machine - workers - database
    name = f"drain_{processes}"
    s.say(f"{name}.rate", done / seconds, "runs/s")
    s.say(f"{name}.worker_cpu", workers / done * 1000, "ms/run")
    s.say(f"{name}.database_cpu", database / done * 1000, "ms/run")
    s.say(f"{name}.wal", (after.wal - before.wal) / done, "bytes/run")
    s.say(f"{name}.others", max(0.0, others) / seconds, "cores")
    return done / seconds


@asynccontextmanager
async def _counter(s: Subject) -> AsyncIterator[Count]:
    """Yield what counts the runs that have not ended: in the peer's tables, or by what its handler has written."""
    statement = s.environment.peer.remaining
    if statement is None:

        async def by_log() -> int:
            return RUNS - s.log.read_bytes().count(b"\n")

        yield by_log
        return
    connection: Any = await asyncpg.connect(s.dsn)

    async def by_tables() -> int:
        left: int = await connection.fetchval(statement)
        return left

    try:
        yield by_tables
    finally:
        await connection.close()


async def _taken(s: Subject, pids: list[int], count: Count) -> _Taken:
    return _Taken(
        left=await count(),
        at=STOPWATCH.monotonic(),
        workers=cpu_below(*pids),
        database=cpu_below(s.server.pid),
        machine=cpu_of_machine(),
        wal=await s.server.wal(),
    )


async def _until(count: Count, target: int) -> None:
    """Return as soon as no more than that many are left; TimeoutError if that takes too long."""
    started, first = STOPWATCH.monotonic(), await count()
    left = first
    while left > target:
        spent = STOPWATCH.monotonic() - started
        if spent > LIMIT:
            raise TimeoutError(f"{left} runs are left after {LIMIT:.0f} s")
        # Half of what the rest will take, so that the end is met closely.
        expected = (left - target) * spent / (first - left) / 2 if left < first else LOOKS[0]
        await STOPWATCH.sleep(min(max(expected, LOOKS[0]), LOOKS[1]))
        left = await count()
