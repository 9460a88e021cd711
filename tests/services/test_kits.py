"""Databases that one test after the other uses: each test finds what it would find in a fresh one."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from rota.app import App
from rota.domain.schedule import every
from rota.store.admin import with_database
from rota.testing import Kits, RotaKit, TestCluster

TABLES = """
    SELECT oid::regclass::text AS name FROM pg_class
     WHERE relnamespace = 'rota'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
"""


@pytest.fixture
async def kits(rota_cluster: TestCluster) -> AsyncIterator[Kits]:
    async with Kits(rota_cluster) as kits:
        yield kits


async def _ask(dsn: str, question: str, *values: object) -> list[Any]:
    connection = await asyncpg.connect(dsn)
    try:
        return list(await connection.fetch(question, *values))
    finally:
        await connection.close()


async def _rows(dsn: str) -> dict[str, list[str]]:
    """All that stands in Rota's tables."""
    names = [row["name"] for row in await _ask(dsn, TABLES)]
    return {name: sorted(str(tuple(row)) for row in await _ask(dsn, f"TABLE {name}")) for name in names}


async def _work(kit: RotaKit) -> None:
    app = App()
    app.job("tick", schedule=every("10s"))(lambda: None)
    await kit.put(app)
    await kit.advance(60)
    assert len(await kit.run_due(app)) == 6


async def test_the_next_one_finds_the_rows_of_a_fresh_database(kits: Kits, rota_cluster: TestCluster) -> None:
    async with kits.kit() as kit:
        first = kit.dsn
        await _work(kit)
        await _ask(kit.dsn, "TRUNCATE rota.pool")
        await _ask(kit.dsn, "UPDATE rota.cluster SET shard_count = 7")
    async with kits.kit() as kit, rota_cluster.database() as fresh:
        assert kit.dsn == first
        rows = await _rows(fresh)
        assert await _rows(kit.dsn) == rows
        assert len(rows["shard"]) == 64
        await _work(kit)


@pytest.mark.parametrize(
    "command",
    [
        "ALTER TABLE rota.lease SET (fillfactor = 90)",
        "CREATE TABLE public.bill (id int)",
        "DROP VIEW rota.job_run",
        "COMMENT ON SCHEMA rota IS 'mine'",
        "GRANT SELECT ON rota.run TO pg_monitor",
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET work_mem = ''1MB''', current_database()); END $$",
        "INSERT INTO rota.audit SELECT (jsonb_populate_record(NULL::rota.audit, '{}')).* FROM generate_series(1, 0)",
    ],
)
async def test_a_database_whose_schema_was_changed_is_not_used_again(kits: Kits, command: str) -> None:
    async with kits.kit() as kit:
        first = kit.dsn
        await _ask(kit.dsn, command)
    async with kits.kit() as kit:
        assert (kit.dsn == first) == command.startswith("INSERT")


async def test_what_a_test_left_running_reaches_no_other_test(kits: Kits) -> None:
    async with kits.kit() as kit:
        first = kit.dsn
        stranger = await asyncpg.connect(kit.dsn)
        transaction = stranger.transaction()
        await transaction.start()
        await stranger.execute("UPDATE rota.cluster SET shard_count = 7")
    async with kits.kit() as kit:
        assert kit.dsn == first
        with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.InterfaceError, ConnectionError)):
            await stranger.execute("COMMIT")
        assert [row["shard_count"] for row in await _ask(kit.dsn, "TABLE rota.cluster")] != [7]
    stranger.terminate()

    async with kits.kit() as kit:
        task = asyncio.create_task(asyncio.Event().wait())
    async with kits.kit() as kit:
        assert kit.dsn != first
    task.cancel()


async def test_sessions_that_ended_meanwhile_are_opened_again(kits: Kits, rota_cluster: TestCluster) -> None:
    async with kits.kit() as kit:
        first = kit.dsn
        await kit.tick()
    everybody = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = $1"
    assert await _ask(with_database(rota_cluster.server.dsn, "rota"), everybody, first.split("/")[3].split("?")[0])
    async with kits.kit() as kit:
        await _work(kit)


async def test_two_at_once_have_a_database_each(kits: Kits) -> None:
    async with kits.kit() as one, kits.kit() as other:
        assert one.dsn != other.dsn


async def test_after_a_test_that_failed_the_database_is_not_used_again(kits: Kits) -> None:
    used: list[str] = []

    async def fails() -> None:
        async with kits.kit() as kit:
            used.append(kit.dsn)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fails()
    async with kits.kit() as kit:
        assert kit.dsn not in used
