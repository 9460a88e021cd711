"""A fresh durable database per benchmark, synthetic jobs in bulk, and one way to say a figure."""

import json
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rota.assembly import Rota, assemble
from rota.clock import Clock, DatabaseClock, ManualClock, SystemClock
from rota.settings import Settings
from rota.store.database import Database, Lane
from rota.store.embedded import EmbeddedServer
from rota.store.migrate import migrate

Benchmark = Callable[["Bench"], Awaitable[None]]
Tell = Callable[[str, float, str], None]
"""Takes a figure: name, value, unit."""

START = datetime(2026, 1, 1, tzinfo=UTC)
STOPWATCH = SystemClock()
SHARED_BUFFERS = "1GB"
"""Enough for the jobs of a million definitions, as an operator would set it; the embedded default is 256 MB."""
EVERY_5_MINUTES = '{"kind": "interval", "every": "5m"}'


def print_figure(name: str, value: float, unit: str) -> None:
    """Print one figure as a JSON line."""
    print(json.dumps({"name": name, "value": round(value, 4), "unit": unit}), flush=True)


@dataclass(frozen=True)
class Bench:
    """What a benchmark works with."""

    rota: Rota
    clock: Clock
    name: str
    server: EmbeddedServer
    tell: Tell = print_figure

    def say(self, measure: str, value: float, unit: str) -> None:
        """Tell one figure."""
        self.tell(f"{self.name}.{measure}", value, unit)

    async def execute(self, sql: str, *values: Any) -> Any:
        """Run setup SQL."""
        async with self.rota.database.transaction() as tx:
            return await tx._raw.fetch(sql, *values)

    async def flush_statistics(self) -> None:
        """Let the connections that renew and report hand in their statistics now."""
        async with self.rota.database.transaction(lane=Lane.URGENT) as tx:
            await tx._raw.fetch("SELECT pg_stat_force_next_flush()")

    async def settle(self) -> None:
        """Vacuum, analyze and checkpoint, so that one benchmark's setup is not another's noise."""
        async with self.rota.database._lend(Lane.WORK) as connection:
            await connection.execute("vacuum", "VACUUM ANALYZE")
            await connection.execute("checkpoint", "CHECKPOINT")


@asynccontextmanager
async def bench(name: str, *, manual: bool) -> AsyncIterator[Bench]:
    """Yield a benchmark's database: fresh, migrated, durable."""
    folder = Path(tempfile.mkdtemp(prefix="rota-bench-"))
    try:
        async with (
            EmbeddedServer(folder, settings={"shared_buffers": SHARED_BUFFERS}) as server,
            bench_at(server, server.dsn, name, manual=manual) as b,
        ):
            yield b
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def bench_at(
    server: EmbeddedServer, dsn: str, name: str, *, manual: bool, tell: Tell = print_figure
) -> AsyncIterator[Bench]:
    """Yield a benchmark on an empty database of a server that runs already."""
    await migrate(dsn, now=START if manual else STOPWATCH.now())
    async with await Database.connect(dsn) as database:
        clock: Clock
        if manual:
            clock = ManualClock(START)
        else:
            clock = DatabaseClock()
            await database.measure(clock)
        rota = assemble(Settings(), dsn=dsn, database=database, clock=clock)
        yield Bench(rota=rota, clock=clock, name=name, server=server, tell=tell)


async def make_jobs(
    b: Bench, count: int, *, next_run_at: str, schedule: str = EVERY_5_MINUTES, offset: int = 0
) -> None:
    """Insert `count` jobs; `next_run_at` is an SQL expression over the job's number i."""
    await b.execute(
        """
        INSERT INTO rota.job (shard, job_uid, tenant_id, job_id, version, handler, schedule, payload, pool, priority,
          max_attempts, retry, misfire, misfire_grace_ms, timeout_ms, lease_ms, jitter_ms, overlap, labels, description,
          created_at, updated_at)
        SELECT i % 64, uid, 'default', 'job-' || i, 1, 'noop', $2::jsonb, '{"customer": "acme"}', 'default', 5, 3,
          '{"initial": 10, "factor": 2, "cap": 3600, "jitter": 0.2}', '{"policy": "fire_once"}', 30000, 3600000, 60000,
          0, 'allow', '{}', '', $1, $1
          FROM generate_series($3::bigint, $3::bigint + $4::bigint - 1) i,
               LATERAL (SELECT ((i * 2654435761) % 2147483648) * 64 * 1048576 / 64 * 64 + i % 64 AS uid) u
        """,
        b.clock.now(), schedule, offset, count,
    )  # fmt: skip
    await b.execute(
        f"""
        INSERT INTO rota.schedule (shard, job_uid, next_run_at, next_slot, version, since)
        SELECT shard, job_uid, at, at, 1, $1
          FROM (SELECT *, substr(job_id, 5)::bigint AS i FROM rota.job) j, LATERAL (SELECT {next_run_at} AS at) t
         WHERE i >= $2::bigint
        """,  # noqa: S608 - the expression is a benchmark's own constant
        b.clock.now(), offset,
    )  # fmt: skip


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which that share of the values lies (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def note(text: str) -> None:
    """Say something to people, beside the figures."""
    print(text, file=sys.stderr, flush=True)
