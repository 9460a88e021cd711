"""The command line in the test's own process, each test with a fresh, migrated database."""

import asyncio
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import structlog

from rota.assembly import opened
from rota.domain.attempt import Outcome, Report
from rota.domain.job import Job
from rota.settings import Settings
from rota.testing import TestCluster
from tests.cli.running import Said, run


class Cli:
    """Runs commands as `rota WORD...` would."""

    def __call__(self, *words: str, typed: str | None = None) -> Said:
        said = run(words, typed=typed)
        assert "Traceback" not in said.err
        return said

    def json(self, *words: str, typed: str | None = None) -> Any:
        """Run a command with --json that must succeed; returns its document."""
        said = self(*words, "--json", typed=typed)
        assert (said.code, said.err) == (0, ""), said
        return said.document

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to reach the same database."""
        return {name: os.environ[name] for name in ("ROTA_DATABASE_URL",)}

    def declare(self, *jobs: Job) -> None:
        """Put jobs as the start of a worker does, which has them in its code."""
        asyncio.run(_declare(jobs))

    def bury(self, job_id: str, *, error: str) -> UUID:
        """Make a dead letter: a run of the job whose only attempt fails."""
        asyncio.run(_put_to_fail_once(job_id))
        return self.attempt(job_id, Outcome.FAILED, error=error)

    def attempt(self, handler: str, outcome: Outcome, *, error: str | None = None) -> UUID:
        """Claim a run of a handler as a worker does, and report how it ended; returns the run's id."""
        return asyncio.run(_attempt(handler, outcome, error))

    def claim(self, handler: str) -> UUID:
        """Claim a run of a handler as a worker does that goes on with it; returns the run's id."""
        return asyncio.run(_claim(handler))


async def _declare(jobs: Sequence[Job]) -> None:
    async with opened(Settings()) as rota:
        await rota.definitions.declare(jobs, source="app", tenant_id="default")


async def _put_to_fail_once(job_id: str) -> None:
    async with opened(Settings()) as rota:
        await rota.definitions.put([Job(job_id=job_id, handler=job_id, max_attempts=1)])
        await rota.on_demand.trigger(job_id, tenant_id="default")


async def _claim(handler: str) -> UUID:
    async with opened(Settings()) as rota:
        [claim] = await rota.dispatch.claim(worker_id="w", pool="default", handlers=frozenset({handler}), limit=1)
        return claim.run_id


async def _attempt(handler: str, outcome: Outcome, error: str | None) -> UUID:
    async with opened(Settings()) as rota:
        [claim] = await rota.dispatch.claim(worker_id="w", pool="default", handlers=frozenset({handler}), limit=1)
        assert await rota.completion.report([Report(key=claim.key, outcome=outcome, error=error)])
        return claim.run_id


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Cli]:
    """Commands on a machine without a database; the data folder must stay away."""
    folder = tmp_path / "data"
    monkeypatch.setenv("ROTA_DATA_DIR", str(folder))
    monkeypatch.delenv("ROTA_DATABASE_URL", raising=False)
    yield Cli()
    structlog.reset_defaults()
    assert not folder.exists()


@pytest.fixture
def rota(monkeypatch: pytest.MonkeyPatch, rota_cluster: TestCluster) -> Iterator[Cli]:
    """Commands on a fresh database."""
    with asyncio.Runner() as runner:
        database = rota_cluster.database()
        monkeypatch.setenv("ROTA_DATABASE_URL", runner.run(database.__aenter__()))
        yield Cli()
        structlog.reset_defaults()
        runner.run(database.__aexit__(None, None, None))
