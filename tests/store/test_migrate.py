"""Bringing a schema up to date: from nothing, again, by many at once, interrupted, and never past what it knows."""

import asyncio
import sys
from datetime import timedelta
from typing import Any, NamedTuple

import asyncpg
import pytest

from rota.clock import ManualClock
from rota.errors import DatabaseUnavailable, SchemaMismatch
from rota.store import migrate as module
from rota.store.migrate import Migration, check_schema, known_migrations, migrate, schema_version
from tests.store.stage import outsider, uncommitted

NOW = ManualClock().now()
SECOND = Migration(version=2, name="second", sql="CREATE TABLE rota.second (n int);")
BROKEN = Migration(version=2, name="second", sql="CREATE TABLE rota.second (n int); SELECT 1 / 0;")
LATEST = len(known_migrations())
FIRST = known_migrations()[0]


def know(monkeypatch: pytest.MonkeyPatch, *steps: Migration) -> None:
    """Let the program know these steps on top of the first one, and no others."""
    know_only(monkeypatch, [FIRST, *steps])


def know_only(monkeypatch: pytest.MonkeyPatch, steps: list[Migration]) -> None:
    """Let the program know these steps; its functions, which ask for the latest schema, stay away."""
    monkeypatch.setattr(module, "known_migrations", lambda: steps)
    monkeypatch.setattr(module, "known_functions", lambda: "")


async def test_from_nothing_to_the_latest_and_again(bare_dsn: str) -> None:
    assert await schema_version(bare_dsn) is None
    first = await migrate(bare_dsn, now=NOW)
    assert (first.before, first.after, len(first.applied)) == (0, LATEST, LATEST)
    assert first.applied[0] == "0001_house"
    again = await migrate(bare_dsn, now=NOW)
    assert (again.before, again.after, again.applied) == (LATEST, LATEST, ())
    assert await schema_version(bare_dsn) == LATEST
    await check_schema(bare_dsn)
    async with outsider(bare_dsn) as other:
        assert await other.fetchval("SELECT count(*) FROM rota.shard") == 64
        assert await other.fetchval("SELECT shard_count FROM rota.cluster") == 64
        row = await other.fetchrow("SELECT * FROM rota.migration WHERE version = 1")
        assert (row["name"], row["checksum"], row["applied_at"]) == ("house", known_migrations()[0].checksum, NOW)


async def test_eight_at_once_apply_each_step_once_and_all_succeed(
    bare_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    know(monkeypatch, SECOND)
    done = await asyncio.gather(*(migrate(bare_dsn, now=NOW) for _ in range(8)))
    assert {one.after for one in done} == {2}
    assert sorted(step for one in done for step in one.applied) == ["0001_house", "0002_second"]


async def test_processes_at_once_apply_each_step_once(bare_dsn: str) -> None:
    code = (
        "import asyncio, sys; from datetime import UTC, datetime; from rota.store.migrate import migrate\n"
        "print(len(asyncio.run(migrate(sys.argv[1], now=datetime(2026, 1, 1, tzinfo=UTC))).applied))"
    )
    processes = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", code, bare_dsn, stdout=asyncio.subprocess.PIPE)
        for _ in range(4)
    ]
    said = [(await process.communicate())[0].strip() for process in processes]
    assert sum(int(count) for count in said) == LATEST


async def test_a_lock_that_is_not_given_up_says_what_to_do(bare_dsn: str) -> None:
    async with uncommitted(bare_dsn, f"SELECT pg_advisory_xact_lock({module._LOCK_KEY})"):
        with pytest.raises(DatabaseUnavailable, match=r"another migration.* within 0\.2 s .run `rota migrate` again"):
            await migrate(bare_dsn, now=NOW, lock_timeout=0.2)
    assert (await migrate(bare_dsn, now=NOW)).after == LATEST


async def test_a_table_that_is_in_use_stops_a_step_and_not_the_users(
    bare_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    know(monkeypatch)
    await migrate(bare_dsn, now=NOW)
    know(monkeypatch, Migration(version=2, name="second", sql="ALTER TABLE rota.job ADD COLUMN more text;"))
    async with uncommitted(bare_dsn, "SELECT count(*) FROM rota.job"):
        with pytest.raises(DatabaseUnavailable, match="holds a table's lock"):
            await migrate(bare_dsn, now=NOW, lock_timeout=0.2)
    assert (await migrate(bare_dsn, now=NOW)).applied == ("0002_second",)


@pytest.mark.parametrize("know_two", [False, True])
async def test_a_newer_schema_is_refused(bare_dsn: str, monkeypatch: pytest.MonkeyPatch, know_two: bool) -> None:
    await migrate(bare_dsn, now=NOW)
    know(monkeypatch, *([SECOND] if know_two else []))
    async with outsider(bare_dsn) as other:
        await other.execute("INSERT INTO rota.migration VALUES (9999, 'far', '', 'epoch')")
    for attempt in (migrate(bare_dsn, now=NOW), check_schema(bare_dsn)):
        with pytest.raises(SchemaMismatch, match=r"at version 9999, newer than this program.*upgrade this program"):
            await attempt


async def test_the_version_before_starts_and_migrates_on_a_schema_that_serves_it(
    bare_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of it is restarted while an upgrade rolls, or the upgrade is rolled back."""
    await migrate(bare_dsn, now=NOW)
    older = known_migrations()[: module.WORKS_FROM]
    monkeypatch.setattr(module, "known_migrations", lambda: older)
    monkeypatch.setattr(module, "known_functions", lambda: "SELECT 1 / 0")
    await check_schema(bare_dsn)
    done = await migrate(bare_dsn, now=NOW)
    assert (done.before, done.after, done.applied) == (LATEST, LATEST, ())
    monkeypatch.setattr(module, "known_migrations", lambda: older[:-1])
    for attempt in (migrate(bare_dsn, now=NOW), check_schema(bare_dsn)):
        with pytest.raises(SchemaMismatch, match="newer than this program"):
            await attempt


async def test_a_step_that_was_changed_after_it_was_applied_is_refused(
    bare_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    know(monkeypatch)
    await migrate(bare_dsn, now=NOW)
    changed = Migration(version=1, name="house", sql="SELECT 1;")
    know_only(monkeypatch, [changed, SECOND])
    with pytest.raises(SchemaMismatch, match=r"0001_house was changed after it was applied .restore its file"):
        await migrate(bare_dsn, now=NOW)


async def test_an_interrupted_migration_stands_where_its_last_step_ended_and_goes_on(
    bare_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    know(monkeypatch, BROKEN)
    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrate(bare_dsn, now=NOW)
    assert await schema_version(bare_dsn) == 1
    async with outsider(bare_dsn) as other:
        assert await other.fetchval("SELECT to_regclass('rota.second')") is None, "a step is done whole or not at all"
    with pytest.raises(SchemaMismatch, match=r"at version 1, this program needs 2 .run `rota migrate`"):
        await check_schema(bare_dsn)
    know(monkeypatch, SECOND)
    done = await migrate(bare_dsn, now=NOW)
    assert (done.before, done.after, done.applied) == (1, 2, ("0002_second",))


async def test_another_text_of_the_functions_replaces_the_one_in_force(
    bare_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await migrate(bare_dsn, now=NOW)
    edited = module.known_functions() + (
        "CREATE OR REPLACE FUNCTION rota.handler_key(handler text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE"
        " RETURN 'edited';"
    )
    async with outsider(bare_dsn) as other:
        assert await other.fetchval("SELECT rota.handler_key('h')") == "h"
        with monkeypatch.context() as patch:
            patch.setattr(module, "known_functions", lambda: edited)
            for _ in range(2):
                await migrate(bare_dsn, now=NOW)
            assert await other.fetchval("SELECT rota.handler_key('h')") == "edited"
        await migrate(bare_dsn, now=NOW)
        assert await other.fetchval("SELECT rota.handler_key('h')") == "h"


async def test_a_schema_that_is_missing_is_no_schema(bare_dsn: str) -> None:
    with pytest.raises(SchemaMismatch, match=r"at version 0, this program needs \d+ .run `rota migrate`"):
        await check_schema(bare_dsn)


class Version(NamedTuple):
    major: int


class Server:
    """A connection's answer about its server."""

    def __init__(self, major: int) -> None:
        self._major = major

    def get_server_version(self) -> Version:
        return Version(self._major)


@pytest.mark.parametrize("major", [9, 14, 15])
def test_an_old_postgresql_is_refused(major: int) -> None:
    with pytest.raises(SchemaMismatch, match=f"PostgreSQL {major} is too old .Rota needs PostgreSQL 16 or newer"):
        module._check_server(Server(major))


@pytest.mark.parametrize("major", [16, 17, 18, 19])
def test_a_new_postgresql_is_taken(major: int) -> None:
    module._check_server(Server(major))


async def test_an_old_server_is_refused_before_anything_is_written(
    bare_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asyncpg.Connection, "get_server_version", lambda _: Version(15))
    with pytest.raises(SchemaMismatch, match="too old"):
        await migrate(bare_dsn, now=NOW)
    async with outsider(bare_dsn) as other:
        assert await other.fetchval("SELECT to_regnamespace('rota')") is None


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    nowhere = "postgresql://rota@127.0.0.1:1/rota"
    attempts: list[Any] = [migrate(nowhere, now=NOW), check_schema(nowhere), schema_version(nowhere)]
    for attempt in attempts:
        with pytest.raises(DatabaseUnavailable):
            await attempt


def test_steps_are_numbered_without_a_hole() -> None:
    assert [step.version for step in known_migrations()] == list(range(1, LATEST + 1))


async def test_what_waits_keeps_its_priority_and_gets_its_deadline_with_flow_control(
    bare_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that never began gets the rest of its time; one that has begun, or is a manual one of the past, goes on."""
    steps = known_migrations()
    know_only(monkeypatch, steps[:3])
    await migrate(bare_dsn, now=NOW)
    async with outsider(bare_dsn) as other:
        await other.execute(OLD_JOB, NOW)
        for n, (origin, slot, attempt) in enumerate(OLD_RUNS, start=1):
            at = NOW - slot
            await other.execute("SELECT rota.ensure_month($1::date)", at.date())
            await other.execute(OLD_RUN, n, at, NOW, origin, attempt)
        await other.execute(OLD_ATTEMPT, 3, NOW - OLD_RUNS[2][1], NOW)
        know_only(monkeypatch, steps)
        await migrate(bare_dsn, now=NOW)
        rows = await other.fetch("SELECT priority, deadline_at FROM rota.pending ORDER BY job_uid")
    assert [row["priority"] for row in rows] == [7] * 4
    assert [row["deadline_at"] for row in rows] == [
        NOW - timedelta(minutes=1) + timedelta(minutes=10),
        NOW + timedelta(minutes=10),
        None,
        None,
    ]


OLD_JOB = """
INSERT INTO rota.job (shard, job_uid, tenant_id, job_id, version, handler, payload, pool, priority, max_attempts, retry,
  misfire, misfire_grace_ms, timeout_ms, lease_ms, jitter_ms, overlap, start_deadline_ms, labels, description,
  created_at, updated_at)
SELECT 0, n, 'default', n::text, 1, 'h', '{}', 'default', 7, 3, '{}', '{}', 0, 1, 1, 0, 'allow', 600000, '{}', '', $1,
       $1
  FROM generate_series(1, 4) n"""
OLD_RUNS = (
    ("schedule", timedelta(minutes=1), 0),
    ("manual", timedelta(days=30), 0),
    ("schedule", timedelta(minutes=2), 0),  # it was snoozed
    ("schedule", timedelta(minutes=3), 1),
)
OLD_RUN = """
WITH made AS (
  INSERT INTO rota.run (shard, job_uid, scheduled_for, created_at, origin) VALUES (0, $1, $2, $3, $4))
INSERT INTO rota.pending (shard, job_uid, scheduled_for, rank, available_at, attempt, gate, pool, handler, tenant_id)
VALUES (0, $1, $2, 0, $2, $5, 'open', 'default', 'h', 'default')"""
OLD_ATTEMPT = """
INSERT INTO rota.attempt (shard, job_uid, scheduled_for, token, claimed_at, ended_at, attempt, outcome, worker_id)
VALUES (0, $1, $2, gen_random_uuid(), $3, $3, 1, 'snoozed', 'w')"""
