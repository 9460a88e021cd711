"""What the store's tests stand on: outsiders with connections of their own, and waiting for what the server shows."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncpg

from rota.clock import ManualClock, SystemClock
from rota.domain.attempt import Claim
from rota.domain.job import Job
from rota.store.database import Database
from rota.testing import RotaKit

LOOKS = 4000
"""The most looks at a condition, 5 ms apart."""

T = TypeVar("T")


@asynccontextmanager
async def outsider(dsn: str, **settings: str) -> AsyncIterator[Any]:
    """A connection that is not Rota's: another process, an operator, a killed worker's last breath."""
    connection = await asyncpg.connect(dsn, server_settings=settings)
    try:
        yield connection
    finally:
        connection.terminate()


@asynccontextmanager
async def uncommitted(dsn: str, *commands: str) -> AsyncIterator[Any]:
    """An outsider who has done this much and has not committed yet; without `COMMIT` the block's end takes it back."""
    async with outsider(dsn) as other:
        await other.execute("BEGIN")
        for command in commands:
            await other.execute(command)
        yield other


async def until(look: Callable[[], Awaitable[T]]) -> T:
    """Look until there is something to see, and return it. Raises AssertionError when there never is."""
    for _ in range(LOOKS):
        if seen := await look():
            return seen
        await SystemClock().sleep(0.005)
    raise AssertionError("what the test waits for did not happen")


async def until_waiting_for(holder: Any, *, waiters: int = 1) -> list[int]:
    """Wait until so many others wait for a lock of this very connection; return their process ids."""

    async def look() -> list[int]:
        rows = await holder.fetch(
            "SELECT DISTINCT pid FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid))"
        )
        return [row["pid"] for row in rows] if len(rows) >= waiters else []

    return await until(look)


async def until_gone(other: Any, pid: int) -> None:
    """Wait until a backend has ended."""

    async def look() -> bool:
        return not await other.fetchval("SELECT count(*) FROM pg_stat_activity WHERE pid = $1", pid)

    await until(look)


class Watched(Database):
    """A database that notes how many rows each answer had."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.rows: list[int] = []

    async def fetch(self, statement: Any, /, **options: Any) -> list[Any]:
        rows = await super().fetch(statement, **options)
        self.rows.append(len(rows))
        return rows


class Impatient(ManualClock):
    """A clock on which every sleep is over at once."""

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)


async def leased(kit: RotaKit, job_id: str = "job") -> Claim:
    """Return a claim on a run of a new job."""
    await kit.put(Job(job_id=job_id, handler=job_id))
    await kit.on_demand.trigger(job_id, tenant_id="default")
    return (await kit.worker("w-1", handlers=[job_id]).claim_one()).claim


async def generic_plan(other: Any, text: str) -> dict[str, Any]:
    """Return the plan that a statement with $1.. gets when nothing is known of its parameters, as EXPLAIN's JSON."""
    # The protocol of prepared statements would ask for the parameters, so the question is put by a function.
    await other.execute(
        "CREATE OR REPLACE FUNCTION pg_temp.plan_of(statement text) RETURNS json LANGUAGE plpgsql AS $$"
        " DECLARE plan json;"
        " BEGIN EXECUTE 'EXPLAIN (GENERIC_PLAN, FORMAT JSON) ' || statement INTO plan; RETURN plan; END $$"
    )
    [entry] = json.loads(await other.fetchval("SELECT pg_temp.plan_of($1)", text))
    plan: dict[str, Any] = entry["Plan"]
    return plan


class Within:
    """A transaction in a database's place, so that one of the store's functions stays uncommitted."""

    def __init__(self, tx: Any) -> None:
        self._tx = tx

    async def fetch(self, statement: Any, /, *, lane: object = None, **values: Any) -> list[Any]:
        rows: list[Any] = await self._tx.fetch(statement, **values)
        return rows


async def rows_of(kit: RotaKit) -> dict[str, int]:
    async with outsider(kit.dsn) as other:
        counts = await other.fetchrow(
            "SELECT (SELECT count(*) FROM rota.run) AS run, (SELECT count(*) FROM rota.pending) AS pending,"
            " (SELECT count(*) FROM rota.lease) AS lease"
        )
    return dict(counts)
