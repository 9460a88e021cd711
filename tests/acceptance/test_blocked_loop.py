"""One handler that never gives the event loop back: the worker comes back, and only that run pays for it."""

import signal
from datetime import timedelta
from pathlib import Path

import pytest

from rota.domain.job import Job
from tests.acceptance.fleet import Fleet, fleet

pytestmark = pytest.mark.acceptance


async def outcomes(one: Fleet, job_id: str) -> list[str]:
    [run] = await one.rota.history.runs(tenant_id="default", job_id=job_id)
    return [attempt.outcome for attempt in (await one.rota.history.run(run.run_id))[1]]


async def test_a_fleet_of_one_survives_a_handler_that_holds_its_event_loop(tmp_path: Path) -> None:
    async with fleet(tmp_path) as one:
        payload = {"folder": str(tmp_path)}
        await one.rota.definitions.put(
            [
                Job(job_id="wait", handler="wait", payload=payload, lease_duration=timedelta(minutes=10)),
                Job(job_id="hold", handler="hold", payload=payload, timeout=timedelta(seconds=1), max_attempts=1),
                Job(job_id="note", handler="note", payload=payload),
            ]
        )
        await one.scheduler("scheduler")
        worker = await one.worker("only")
        await one.rota.on_demand.trigger("wait", tenant_id="default")
        await one.until_called("begin", 1, "the neighbour has begun")
        await one.rota.on_demand.trigger("hold", tenant_id="default")
        await one.until_called("hold", 1, "the event loop is held")
        await one.rota.on_demand.trigger("note", tenant_id="default")

        await one.until_called("call", 1, "another job runs after all")
        (tmp_path / "go").touch()

        async def ended() -> bool:
            return await one.count("SELECT count(*) FROM rota.run WHERE outcome IS NULL") == 0

        await one.until(ended, "every run has ended")
        assert await outcomes(one, "hold") == ["timed_out"]
        assert await outcomes(one, "wait") == ["released", "succeeded"]
        assert worker.returncode is None
        await one.conserved()


async def test_sigterm_ends_a_worker_whose_event_loop_is_held_and_its_runs_are_not_charged(tmp_path: Path) -> None:
    async with fleet(tmp_path) as one:
        payload = {"folder": str(tmp_path)}
        await one.rota.definitions.put(
            [
                Job(job_id="wait", handler="wait", payload=payload, lease_duration=timedelta(minutes=10)),
                Job(job_id="hold", handler="hold", payload=payload, lease_duration=timedelta(minutes=10)),
            ]
        )
        worker = await one.worker("only", "--drain", "2")
        await one.rota.on_demand.trigger("wait", tenant_id="default")
        await one.until_called("begin", 1, "the neighbour has begun")
        await one.rota.on_demand.trigger("hold", tenant_id="default")
        await one.until_called("hold", 1, "the event loop is held")
        worker.send_signal(signal.SIGTERM)
        assert await worker.wait() == 0

        async def given_back() -> bool:
            return await one.count("SELECT count(*) FROM rota.lease") == 0

        await one.until(given_back, "the heart has given the runs back")
        assert await outcomes(one, "hold") == ["released"]
        assert await outcomes(one, "wait") == ["released"]
        await one.conserved()
