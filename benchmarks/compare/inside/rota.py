"""Rota: set up by its commands, runs made by its functions in SQL. What works is `rota scheduler` and `rota worker`."""

import asyncio
import sys
from pathlib import Path
from typing import Final

import asyncpg
import uvloop

from benchmarks.compare.inside.peer import DSN, batches, main, pause, stopwatch, timed

APP: Final = "benchmarks.compare.inside.rota_app:app"
PROGRAM: Final = str(Path(sys.executable).parent / "rota")
REGISTER_LIMIT: Final = 60.0


async def setup() -> None:
    """Migrate, and let a worker register the app's jobs."""
    migrate = await asyncio.create_subprocess_exec(PROGRAM, "migrate")
    if await migrate.wait() != 0:
        raise SystemExit("rota migrate failed")
    connection = await asyncpg.connect(DSN)
    worker = await asyncio.create_subprocess_exec(PROGRAM, "worker", APP)
    try:
        started = stopwatch()
        while await connection.fetchval("SELECT count(*) FROM rota.job") < 2:
            if stopwatch() - started > REGISTER_LIMIT:
                raise SystemExit("rota worker did not register its jobs")
            await pause(0.05)
    finally:
        worker.terminate()
        await worker.wait()


async def one(count: str) -> None:
    """By `rota.trigger`."""
    connection = await asyncpg.connect(DSN)
    await timed(int(count), (connection.fetchval("SELECT rota.trigger('noop')") for _ in range(int(count))))


async def many(count: str) -> None:
    """By `rota.trigger_many`."""
    connection = await asyncpg.connect(DSN)
    statement = "SELECT count(*) FROM rota.trigger_many('noop', array_fill(NULL::jsonb, ARRAY[$1::integer]))"
    await timed(int(count), (connection.fetchval(statement, size) for size in batches(int(count))))


async def send(count: str, gap: str) -> None:
    """By `rota.trigger` with the instant in its payload."""
    connection = await asyncpg.connect(DSN)
    for _ in range(int(count)):
        await connection.fetchval(
            "SELECT rota.trigger('waited', jsonb_build_object('sent_at', $1::float8))", stopwatch()
        )
        await pause(float(gap))


if __name__ == "__main__":
    main({"setup": setup, "one": one, "many": many, "send": send}, uvloop.run)
