"""What the stories of the services share: jobs, a clock that tells when somebody waits, damage and outages by SQL."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal
from urllib.parse import urlsplit

import asyncpg

import rota
from rota.clock import ManualClock
from rota.domain.ids import job_uid, shard_of
from rota.domain.job import Job
from rota.errors import CommitUnknown, DatabaseUnavailable
from rota.store.admin import with_database
from rota.store.database import Database
from rota.store.jobs import StoredJob
from rota.testing import RotaKit

START = datetime(2026, 1, 1, tzinfo=UTC)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
TEN_SECONDS = 10 * SECOND


def every(length: str, job_id: str = "tick", **changes: Any) -> Job:
    """Return a job on the grid of 1970, whose handler is "h"."""
    return Job(**{"job_id": job_id, "handler": "h", "schedule": rota.every(length), **changes})


async def execute(kit: RotaKit, text: str, *values: object) -> None:
    """Run a statement that no service would: damage, or an administrator's hand."""
    async with kit.database.transaction() as tx:
        await tx._raw.execute(text, *values)


async def fetch(kit: RotaKit, text: str, *values: object) -> list[Any]:
    """Look at the tables themselves."""
    async with kit.database.transaction() as tx:
        rows: list[Any] = await tx._raw.fetch(text, *values)
        return rows


async def let_wait(
    kit: RotaKit, runs: int, *, tenant_id: str, gates: Sequence[str] = ("open",), limit_key: str | None = None
) -> None:
    """Let so many runs of the tenant's job "job" wait, behind these gates in turn."""
    await kit.put(every("1h", "job", tenant_id=tenant_id))
    uid = job_uid(tenant_id, "job")
    # More come after those that are there, on slots that no schedule of whole hours names.
    [row] = await fetch(kit, "SELECT count(*) AS made FROM rota.run WHERE job_uid = $1", uid)
    values = shard_of(uid), uid, START + timedelta(days=20), row["made"], runs
    await execute(
        kit,
        "INSERT INTO rota.run (shard, job_uid, scheduled_for, created_at, origin)"
        " SELECT $1, $2, $3::timestamptz + n * interval '1 s', $3, 'manual'"
        " FROM generate_series($4::integer + 1, $4 + $5::integer) n",
        *values,
    )
    await execute(
        kit,
        "INSERT INTO rota.pending (shard, job_uid, scheduled_for, rank, available_at, attempt, gate, pool, handler,"
        " tenant_id, priority, limit_key)"
        " SELECT $1, $2, $3::timestamptz + n * interval '1 s', rota.rank_of($9, 5, 'default'), $9, 0,"
        " ($6::text[])[n % cardinality($6::text[]) + 1], 'default', 'h', $7, 5, $8"
        " FROM generate_series($4::integer + 1, $4 + $5::integer) n",
        *values, gates, tenant_id, limit_key, START,
    )  # fmt: skip


async def slots(kit: RotaKit, job_id: str = "tick") -> list[datetime]:
    """Return the slots of a job's runs, in order."""
    return [run.scheduled_for for run in await kit.runs(job_id)]


async def states(kit: RotaKit, job_id: str = "tick") -> list[str]:
    """Return the states of a job's runs, in the order of their slots."""
    return [run.state for run in await kit.runs(job_id)]


async def stored(kit: RotaKit, job_id: str = "tick") -> StoredJob:
    """Return a job as it stands."""
    return await kit.definitions.get(job_id, tenant_id="default")


async def ledger(kit: RotaKit, job_id: str = "tick") -> list[tuple[str, datetime, datetime, int | None]]:
    """Return a job's slot ledger, oldest first: reason, first and last slot, how many."""
    found = await kit.history.skipped(job_id, tenant_id="default")
    return [(entry.reason, entry.first_slot, entry.last_slot, entry.slots) for entry in found[::-1]]


async def tick_all(kit: RotaKit, *processes: Any) -> None:
    """Let every scheduler do all that is to do at this instant."""
    for process in processes:
        await kit.tick(process)


@asynccontextmanager
async def administrator(kit: RotaKit) -> AsyncIterator[Any]:
    """Yield a connection to another database of the same server, which an outage of the kit's leaves alone."""
    raw: Any = await asyncpg.connect(with_database(kit.dsn, "postgres"))
    try:
        yield raw
    finally:
        await raw.close()


async def kill_backends(admin: Any, dsn: str) -> int:
    """End every connection to the database, as a restart or a failover does; returns how many there were."""
    ended: int = await admin.fetchval(
        "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity WHERE datname = $1", name_of(dsn)
    )
    return ended


@asynccontextmanager
async def outage(kit: RotaKit) -> AsyncIterator[None]:
    """Let the primary refuse everybody while the block lasts: it is read-only, like the one that lost a failover."""
    async with administrator(kit) as admin:
        await admin.execute(f'ALTER DATABASE "{name_of(kit.dsn)}" SET default_transaction_read_only = on')
        await kill_backends(admin, kit.dsn)
        try:
            yield
        finally:
            await admin.execute(f'ALTER DATABASE "{name_of(kit.dsn)}" RESET default_transaction_read_only')
            await kill_backends(admin, kit.dsn)


def name_of(dsn: str) -> str:
    """Return the name of the database in a DSN."""
    return urlsplit(dsn).path[1:]


class Faulty(Database):
    """A database with trouble, by the name of a statement: refused, done with the answer lost, or done late.

    `asked` counts the statements; `late` are those still on their way, each to be awaited when it shall commit.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.trouble: dict[str, Literal["refused", "lost", "late"]] = {}
        self.asked: Counter[str] = Counter()
        self.late: list[Callable[[], Awaitable[object]]] = []

    async def fetch(self, statement: Any, /, **options: Any) -> list[Any]:
        self.asked[statement.name] += 1
        send = partial(super().fetch, statement, **options)
        trouble = self.trouble.get(statement.name)
        if trouble == "refused":
            raise DatabaseUnavailable(f"{statement.name}: refused")
        if trouble == "late":
            self.late.append(send)
        rows = await send() if trouble != "late" else []
        if trouble:
            raise CommitUnknown(f"{statement.name}: the connection ended")
        return rows


class WatchedClock(ManualClock):
    """A manual clock that tells a test when somebody begins to wait on it, and how many wait."""

    def __init__(self, start: datetime = START) -> None:
        super().__init__(start)
        self.begun = 0
        self._changed = asyncio.Condition()

    @property
    def asleep(self) -> int:
        """How many wait for the clock to move."""
        return sum(not sleeper.done() for *_, sleeper in self._sleepers)

    async def until_begun(self, waits: int) -> None:
        """Return once that many waits have begun since the beginning."""
        async with asyncio.timeout(20), self._changed:
            await self._changed.wait_for(lambda: self.begun >= waits)

    async def until_asleep(self, waiters: int) -> None:
        """Return once that many wait at the same time."""
        async with asyncio.timeout(20), self._changed:
            await self._changed.wait_for(lambda: self.asleep >= waiters)

    async def _until(self, elapsed: timedelta) -> None:
        async with self._changed:
            self.begun += 1
            self._changed.notify_all()
        # From here to the sleeper's place among the others nobody else has a turn.
        await super()._until(elapsed)
