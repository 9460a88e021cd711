"""Workers that know an address and a token and no database: killed, drained, and left alone by their API."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from rota.domain.job import Job
from rota.wire.access import Scope
from tests.acceptance.fleet import APP, Fleet, fleet

pytestmark = pytest.mark.acceptance

SCOPES: Sequence[Scope] = ("worker", "jobs:write")


class RestFleet:
    """A fleet with an API, and workers that reach nothing else."""

    def __init__(self, one: Fleet, token: str) -> None:
        self.one = one
        self.url = ""
        self.api: asyncio.subprocess.Process
        self._token = token

    async def start_api(self) -> None:
        """Start the API; a second time, where it was."""
        logs = self.one.folder / f"log-{len(self.one._started)}-api"
        self.api = await self.one._start("api", "--port", str(urlsplit(self.url).port or 0))

        async def started() -> bool:
            lines = [json.loads(line) for line in logs.read_text().splitlines() if line.endswith("}")]
            self.url = next((line["url"] for line in lines if line["event"] == "api.started"), self.url)
            return any(line["event"] == "api.started" for line in lines)

        await self.one.until(started, "the API has started")

    async def worker(self, name: str, *options: str) -> asyncio.subprocess.Process:
        """Start a worker of fleet_app.py; returns once it is known."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ROTA_")}
        environment |= {"ROTA_TOKEN": self._token, "ROTA_LOG_LEVEL": "info"}
        with (self.one.folder / f"log-{name}").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                str(Path(sys.executable).with_name("rota")),
                *("worker", APP, "--url", self.url, "--name", name, *options),
                env=environment,
                stdout=log,
                stderr=log,
            )
        self.one._started.append(process)

        async def known() -> bool:
            return any(worker.worker_id == name for worker in await self.one.rota.fleet.workers(tenant_id="default"))

        await self.one.until(known, f"worker {name} is known")
        return process


@asynccontextmanager
async def rest_fleet(folder: Path) -> AsyncIterator[RestFleet]:
    async with fleet(folder) as one:
        _, token = await one.rota.access.create_token(
            tenant_id="default", scopes=SCOPES, name="workers", expires_at=None, actor="test"
        )
        far = RestFleet(one, token)
        await far.start_api()
        await one.scheduler("scheduler")
        yield far


async def state_is(one: Fleet, job_id: str, state: str) -> bool:
    return [run.state for run in await one.rota.history.runs(tenant_id="default", job_id=job_id)] == [state]


def waiting_job(folder: Path, *, lease: timedelta = timedelta(seconds=60)) -> Job:
    return Job(job_id="long", handler="wait", payload={"folder": str(folder)}, lease_duration=lease)


async def test_a_killed_rest_workers_run_is_taken_up_at_once_and_not_after_its_lease(tmp_path: Path) -> None:
    """The lease is ten minutes, so only the worker's heart can have given the run back, over HTTP."""
    async with rest_fleet(tmp_path) as far:
        one = far.one
        await one.rota.definitions.put([waiting_job(tmp_path, lease=timedelta(minutes=10))])
        victim = await far.worker("victim")
        run_id = await one.rota.on_demand.trigger("long", tenant_id="default")
        await one.until_called("begin", 1, "the victim has begun the run")
        await far.worker("second")
        victim.kill()
        await victim.wait()

        await one.until_called("begin", 2, "the second worker has begun the run")
        (tmp_path / "go").touch()
        await one.until(lambda: state_is(one, "long", "succeeded"), "the run has succeeded")
        _, attempts = await one.rota.history.run(run_id)
        assert [(attempt.attempt, attempt.outcome, attempt.worker_id) for attempt in attempts] == [
            (1, "lost", "victim"),
            (2, "succeeded", "second"),
        ]
        assert "worker lost" in (attempts[0].error or "")
        await one.conserved()


async def test_a_drained_rest_worker_brings_in_its_run_and_leaves(tmp_path: Path) -> None:
    async with rest_fleet(tmp_path) as far:
        one = far.one
        await one.rota.definitions.put([waiting_job(tmp_path)])
        worker = await far.worker("leaver")
        await one.rota.on_demand.trigger("long", tenant_id="default")
        await one.until_called("begin", 1, "the worker has begun the run")
        worker.send_signal(signal.SIGTERM)

        async def drains() -> bool:
            return b"worker.drains" in (tmp_path / "log-leaver").read_bytes()

        await one.until(drains, "the worker drains")
        (tmp_path / "go").touch()
        assert await asyncio.wait_for(worker.wait(), 60) == 0
        assert await state_is(one, "long", "succeeded")
        assert await one.rota.fleet.workers(tenant_id="default") == []
        await one.conserved()


async def test_a_rest_worker_outlives_its_api(tmp_path: Path) -> None:
    """The lease is short: a run goes on through the outage and is reported after it."""
    async with rest_fleet(tmp_path) as far:
        one = far.one
        await one.rota.definitions.put([waiting_job(tmp_path, lease=timedelta(seconds=30))])
        await far.worker("patient")
        run_id = await one.rota.on_demand.trigger("long", tenant_id="default")
        await one.until_called("begin", 1, "the worker has begun the run")
        far.api.kill()
        await far.api.wait()
        (tmp_path / "go").touch()
        await one.until_called("end", 1, "the run has ended while the API was away")
        await far.start_api()
        await one.until(lambda: state_is(one, "long", "succeeded"), "the report has come in")
        _, attempts = await one.rota.history.run(run_id)
        assert [attempt.outcome for attempt in attempts] == ["succeeded"]
        await one.rota.definitions.put([waiting_job(tmp_path).edited(job_id="next")])
        await one.rota.on_demand.trigger("next", tenant_id="default")
        await one.until(lambda: state_is(one, "next", "succeeded"), "the next run has succeeded")
        await one.conserved()
