"""Five innocent runs beside a handler that kills its process, on the defaults: they succeed, and it alone is buried."""

from datetime import timedelta
from pathlib import Path

import pytest

from rota.domain.job import Job
from rota.domain.retry import RetryPolicy
from tests.acceptance.fleet import Fleet, fleet, ids
from tests.acceptance.test_rest_worker import rest_fleet

pytestmark = pytest.mark.acceptance

SOON = RetryPolicy(initial=timedelta(seconds=0.2), factor=1.0)
"""Only how long it waits is not the default: a test has less patience."""


async def outcomes(one: Fleet, job_id: str) -> list[str]:
    [run] = await one.rota.history.runs(tenant_id="default", job_id=job_id)
    return [attempt.outcome for attempt in (await one.rota.history.run(run.run_id))[1]]


async def put_six(one: Fleet) -> None:
    payload = {"folder": str(one.folder)}
    jobs = [Job(job_id=name, handler="die-or-wait", payload=payload, retry=SOON) for name in ids("innocent", 5)]
    jobs.append(Job(job_id="poison", handler="die-or-wait", payload={**payload, "dies": True}, retry=SOON))
    await one.rota.definitions.put(jobs)
    for job in jobs:
        await one.rota.on_demand.trigger(job.job_id, tenant_id="default")


async def see_it_end(one: Fleet, *, told_by: str) -> None:
    await one.until_called("begin", 12, "all have begun, and again after the worker's death")
    (one.folder / "go").touch()

    async def ended() -> bool:
        return await one.count("SELECT count(*) FROM rota.run WHERE outcome IS NULL") == 0

    await one.until(ended, "every run has ended")
    for name in ids("innocent", 5):
        assert await outcomes(one, name) == ["lost", "succeeded"]
    assert await outcomes(one, "poison") == ["lost", "failed", "failed", "failed"]
    assert await one.count("SELECT count(*) FROM rota.dead") == 1
    log = (one.folder / told_by).read_text()
    assert log.count('"worker.restarted"') == 1, "one worker was lost, and the command went on"
    await one.conserved()


async def test_the_innocent_succeed_and_the_poison_is_buried(tmp_path: Path) -> None:
    async with fleet(tmp_path) as one:
        await put_six(one)
        await one.scheduler("scheduler")
        worker = await one.worker("only")
        await see_it_end(one, told_by="log-1-worker")
        assert worker.returncode is None


async def test_the_same_over_http(tmp_path: Path) -> None:
    async with rest_fleet(tmp_path) as rest:
        await put_six(rest.one)
        worker = await rest.worker("only")
        await see_it_end(rest.one, told_by="log-only")
        assert worker.returncode is None
