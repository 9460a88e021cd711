"""Behind PgBouncer: what it refuses, swallows or mixes up costs round trips, and no promise."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rota.clock import ManualClock
from rota.domain.job import Job
from rota.errors import CommitUnknown, DatabaseUnavailable, Locked
from rota.services.doctor import Doctor
from rota.settings import Settings
from rota.store.admin import copy_database, drop_database, with_database
from rota.store.database import Database, Lane
from rota.store.migrate import check_schema, migrate
from rota.store.statements import upkeep
from rota.testing import RotaKit, TestCluster
from tests.services.stories import START, fetch
from tests.store.pooler import PGBOUNCER, pooled
from tests.store.stage import outsider, uncommitted, until, until_waiting_for

pytestmark = pytest.mark.skipif(PGBOUNCER is None, reason="there is no pgbouncer on this machine")

WAYS: dict[str, dict[str, str]] = {
    "refuses settings": {},
    "swallows settings": {
        "ignore_startup_parameters": "statement_timeout,lock_timeout,idle_in_transaction_session_timeout,"
        "client_connection_check_interval,tcp_keepalives_idle,tcp_keepalives_interval,tcp_keepalives_count"
    },
    "keeps sessions": {"pool_mode": "session", "default_pool_size": "20"},
}


@pytest_asyncio.fixture(params=WAYS)
async def behind(rota_kit: RotaKit, tmp_path: Path, request: Any) -> AsyncIterator[RotaKit]:
    """The kit's cluster once more, behind a pooler."""
    async with pooled(rota_kit.dsn, tmp_path, **WAYS[request.param]) as dsn, await Database.connect(dsn) as database:
        yield RotaKit(dsn=dsn, database=database, clock=rota_kit.clock, settings=Settings())


async def test_rota_works_behind_a_pooler_that_hands_sessions_around(behind: RotaKit) -> None:
    """More callers than sessions: each statement meets whichever is free."""
    await behind.put(Job(job_id="tick", handler="h"))
    await asyncio.gather(*(behind.on_demand.trigger("tick", tenant_id="default") for _ in range(40)))
    workers = [behind.worker(f"w-{number}", handlers=["h"]) for number in range(8)]
    claimed = await asyncio.gather(*(worker.claim(limit=5) for worker in workers))
    held = [work for works in claimed for work in works]
    await asyncio.gather(*(work.renew() for work in held))
    await asyncio.gather(*(work.succeed() for work in held))
    while more := await workers[0].claim(limit=40):
        for work in more:
            await work.succeed()
    assert [run.state for run in await behind.runs("tick")] == ["succeeded"] * 40
    assert behind.database.way.is_pooled
    await behind.tick()
    await behind.check()


async def test_a_stranger_s_lock_is_waited_for_no_longer_than_without_a_pooler(behind: RotaKit) -> None:
    async with uncommitted(behind.dsn, "LOCK TABLE rota.pending") as other:
        with pytest.raises(Locked) as refused:
            await behind.worker("w-1", handlers=["h"]).claim()
        assert not isinstance(refused.value, CommitUnknown)
        assert not await other.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted")


async def test_what_a_caller_gave_up_ends_behind_a_pooler_too(rota_kit: RotaKit, behind: RotaKit) -> None:
    async with uncommitted(rota_kit.dsn, "LOCK TABLE rota.pending") as other:
        claiming = asyncio.create_task(behind.worker("w-1", handlers=["h"]).claim())
        await until_waiting_for(other)
        claiming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claiming

        async def look() -> bool:
            return not await other.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted")

        await until(look)


async def test_hints_do_not_arrive_through_a_pooler_and_that_is_said(behind: RotaKit) -> None:
    with pytest.raises(DatabaseUnavailable, match="hints do not arrive through a pooler"):
        await behind.database.listening("rota_hint", print).__aenter__()


async def test_a_schema_is_made_and_known_behind_a_pooler(rota_cluster: TestCluster, tmp_path: Path) -> None:
    await copy_database(rota_cluster.server.dsn, source="template1", name="rota_pooled")
    try:
        async with pooled(with_database(rota_cluster.server.dsn, "rota_pooled"), tmp_path) as dsn:
            done = await asyncio.gather(*(migrate(dsn, now=START) for _ in range(3)))
            assert {migrated.after for migrated in done} == {done[0].after}
            await check_schema(dsn)
    finally:
        await drop_database(rota_cluster.server.dsn, name="rota_pooled")


async def test_the_doctor_names_the_settings_that_a_pooler_lacks(rota_kit: RotaKit, tmp_path: Path) -> None:
    async with pooled(rota_kit.dsn, tmp_path) as dsn, await Database.connect(dsn) as database:
        [check] = [c for c in await Doctor(database, ManualClock(START)).examine() if c.name == "connection"]
        assert check.facts["pooled"] is True
        assert any("statement_timeout" in finding and "ALTER ROLE" in finding for finding in check.findings)
        if not database.way.keeps_statements:
            assert any("max_prepared_statements" in finding for finding in check.findings)
    [direct] = [c for c in await rota_kit.rota.doctor.examine() if c.name == "connection"]
    assert direct.ok
    assert direct.facts["pooled"] is False


async def test_a_role_that_has_the_bounds_is_seen(rota_kit: RotaKit, tmp_path: Path) -> None:
    async with outsider(rota_kit.dsn) as other:
        name = await other.fetchval("SELECT current_database()")
        for setting, value in (("statement_timeout", "25s"), ("lock_timeout", "2s")):
            await other.execute(f"ALTER ROLE rota IN DATABASE {name} SET {setting} = '{value}'")
    async with pooled(rota_kit.dsn, tmp_path) as dsn, await Database.connect(dsn) as database:
        await database.fetch(upkeep.backend)
        assert (database.way.statement, database.way.lock) == (25.0, 2.0)
        assert database.needs_transactions is not database.way.keeps_statements
        await database.fetch(upkeep.backend, lane=Lane.READS)
    assert await fetch(rota_kit, "SELECT 1")
