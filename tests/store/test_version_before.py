"""The version before on the present schema: each of its statements, each kind of its work, and an upgrade under load.

A rolling upgrade migrates first; until the last old process is gone, old and new ones work side by side. So a migration
only adds, and what it adds has a default, or may be missing.
"""

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import rota
from rota.assembly import assemble
from rota.clock import DatabaseClock, SystemClock
from rota.settings import Settings
from rota.store.admin import copy_database, drop_database, with_database
from rota.store.database import Database
from rota.store.migrate import migrate
from rota.store.statements import parse
from rota.testing import TestCluster
from tests.store.stage import generic_plan, outsider
from tests.store.version_before import APP, FOUND, STORY, Installation, installation, unpacked

COLUMNS = """
SELECT table_name || '.' || column_name AS name, data_type,
       is_nullable = 'YES' OR column_default IS NOT NULL AS may_lack
  FROM information_schema.columns WHERE table_schema = 'rota' AND table_name !~ '_[0-9]{4}_[0-9]{2}$'"""


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The released source of the version before."""
    return unpacked(tmp_path_factory.mktemp("before"))


@dataclass(frozen=True)
class Founded:
    """A cluster that the version before has founded, and a token for its API."""

    name: str
    token: str


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def founded(
    rota_cluster: TestCluster, before: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Founded]:
    """The cluster that tests get copies of."""
    server, name = rota_cluster.server.dsn, f"founded_{os.getpid()}"
    await copy_database(server, source="template1", name=name)
    try:
        dsn = with_database(server, name)
        async with installation(dsn, before=before, folder=tmp_path_factory.mktemp("founded")) as one:
            *_, token = (await one.run("before", str(FOUND), dsn)).split()
        yield Founded(name, token)
    finally:
        await drop_database(server, name=name)


@pytest_asyncio.fixture
async def old_dsn(rota_cluster: TestCluster, founded: Founded) -> AsyncIterator[str]:
    """A fresh database with the schema of the version before."""
    server, name = rota_cluster.server.dsn, f"{founded.name}_copy"
    await copy_database(server, source=founded.name, name=name)
    try:
        yield with_database(server, name)
    finally:
        await drop_database(server, name=name)


async def columns(dsn: str) -> dict[str, Any]:
    async with outsider(dsn) as other:
        return {row["name"]: row for row in await other.fetch(COLUMNS)}


async def test_migrations_since_the_last_release_only_add_what_old_programs_may_leave_out(
    old_dsn: str, dsn: str
) -> None:
    known, present = await columns(old_dsn), await columns(dsn)
    assert known.keys() - present.keys() == set(), "the version before reads and writes these"
    assert {name for name in known if known[name]["data_type"] != present[name]["data_type"]} == set()
    tables = {name.partition(".")[0] for name in known}
    added = {name for name in present.keys() - known.keys() if name.partition(".")[0] in tables}
    assert {name for name in added if not present[name]["may_lack"]} == set(), "the version before does not write these"


async def test_each_statement_of_the_version_before_is_planned_on_the_present_schema(dsn: str, before: Path) -> None:
    async with outsider(dsn) as other:
        for file in sorted((before / "rota/store/sql").glob("*.sql")):
            for statement in parse(file.read_text(encoding="utf-8")):
                assert await generic_plan(other, statement.text), statement.name


async def test_the_version_before_does_all_its_work_on_the_present_schema(
    dsn: str, before: Path, tmp_path: Path
) -> None:
    async with installation(dsn, before=before, folder=tmp_path) as one:
        await one.run("before", str(STORY), dsn)


async def test_an_upgrade_under_load_loses_no_slot_and_no_run(
    old_dsn: str, founded: Founded, before: Path, tmp_path: Path
) -> None:
    async with installation(old_dsn, before=before, folder=tmp_path) as one:
        await one.start("before", "scheduler")
        await one.start("before", "worker", str(APP), "--drain", "0")
        await one.start("before", "api", "--port", "0")
        await until_run_by(one, "tick", "before")
        old_api = await api_of(one, "before")
        await ask_for(old_api, "long", founded.token)
        await one.until(
            "SELECT EXISTS (SELECT FROM rota.job_run WHERE job_id = 'long' AND state = 'running')", "long runs"
        )

        await migrate(old_dsn, now=SystemClock().now())

        # Nothing but the version before works on the new schema now.
        await ask_for(old_api, "flaky", founded.token)
        await until_run_by(one, "flaky", "before")
        await until_run_by(one, "tick", "before")
        await one.start("present", "scheduler")
        await one.start("present", "worker", str(APP))
        await one.start("present", "api", "--port", "0")
        new_api = await api_of(one, "present")
        await until_run_by(one, "tick", "present")
        await until_run_by(one, "tick", "before")
        for api in (old_api, new_api):
            await ask_for(api, "flaky", founded.token)

        for name in ("before-worker", "before-scheduler", "before-api"):
            await one.stop(name)
        (tmp_path / "go").touch()
        await until_run_by(one, "long", "present")
        await one.until(
            "SELECT count(*) = 3 FROM rota.job_run WHERE job_id = 'flaky' AND state = 'succeeded'", "flaky ends"
        )
        await one.until("SELECT count(DISTINCT owner) = 1 FROM rota.shard", "the new scheduler has all shards")
        await until_run_by(one, "tick", "present")
        ended = await one.connection.fetch(
            "SELECT job_id, attempt, outcome FROM rota.run_attempt"
            " WHERE (job_id <> 'tick' OR outcome <> 'succeeded') ORDER BY job_id, outcome, attempt"
        )
        # What the old worker had just claimed when it was told to go it gave back: no attempt was spent on that.
        assert [tuple(row) for row in ended if row["job_id"] == "long" or row["outcome"] != "released"] == [
            *[("flaky", 1, "failed")] * 3, *[("flaky", 2, "succeeded")] * 3,
            ("long", 1, "released"), ("long", 1, "succeeded"),
        ]  # fmt: skip
        await conserved(old_dsn)


async def until_run_by(one: Installation, job_id: str, version: str) -> None:
    """Wait until a run of a job that was made from now on, or waits or runs by now, has succeeded under a version."""
    now = await one.connection.fetchval("SELECT clock_timestamp()")
    await one.until(
        "SELECT EXISTS (SELECT FROM rota.job_run"
        "                WHERE job_id = $1 AND result = to_jsonb($2::text) AND finished_at > $3)",
        f"{job_id} has run under {version}", job_id, version, now,
    )  # fmt: skip


async def api_of(one: Installation, version: str) -> str:
    """Wait for an API's address and return it."""

    async def started() -> bool:
        return bool(addresses())

    def addresses() -> list[str]:
        return [event["url"] for event in one.events(f"{version}-api") if event["event"] == "api.started"]

    await one.look(started, f"the API of {version} answers")
    return addresses()[0]


async def ask_for(api: str, job_id: str, token: str) -> None:
    """Trigger a job over HTTP."""
    async with rota.Client(api, token) as client:
        await client.trigger(job_id)


async def conserved(dsn: str) -> None:
    """Hold the database against the conservation law: no slot is missing, and no run."""
    async with await Database.connect(dsn, size=2, reserved=1) as database:
        clock = DatabaseClock()
        await database.measure(clock)
        doctor = assemble(Settings(), dsn=dsn, database=database, clock=clock).doctor
        checks = [await doctor.conservation(), await doctor.permits(), await doctor.slots(limit=None)]
        assert [finding for check in checks for finding in check.findings] == []
