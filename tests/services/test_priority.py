"""The priority of a run that waits can be changed: it takes another place, and what it has waited counts."""

import asyncio
import json
from typing import Any
from uuid import UUID

import pytest

from rota.domain.admission import AGEING, rank
from rota.domain.ids import run_id
from rota.domain.job import Job
from rota.errors import Conflict, InvalidInput, NotFound, RunFinished
from rota.services.on_demand import OnDemand
from rota.testing import RotaKit, TestCluster
from tests.services.stories import START, TEN_SECONDS, Faulty, WatchedClock, execute, fetch


async def waiting(kit: RotaKit, job_id: str = "job", **changes: Any) -> UUID:
    await kit.put(Job(job_id=job_id, handler="h"))
    return await kit.on_demand.trigger(job_id, tenant_id="default", **changes)


async def audited(kit: RotaKit) -> list[tuple[str, Any, Any, str]]:
    rows = await fetch(kit, "SELECT * FROM rota.audit WHERE action = 'run.reprioritised' ORDER BY at")
    return [(row["actor"], json.loads(row["before"]), json.loads(row["after"]), row["subject"]) for row in rows]


@pytest.mark.parametrize("later", [False, True])
async def test_a_run_that_waits_takes_the_place_of_its_new_priority(rota_kit: RotaKit, later: bool) -> None:
    slot = START + TEN_SECONDS if later else None
    run = await waiting(rota_kit, scheduled_for=slot)
    rota_kit.clock.advance(1)
    assert await rota_kit.on_demand.reprioritise(run, 9, tenant_id="default", actor="token:abc")
    assert not await rota_kit.on_demand.reprioritise(run, 9, tenant_id="default")
    view, _ = await rota_kit.history.run(run)
    assert (view.priority, view.gate) == (9, "time" if later else "open")
    [row] = await fetch(rota_kit, "SELECT rank, available_at FROM rota.pending")
    assert row["rank"] == rank(row["available_at"], priority=9)
    assert await audited(rota_kit) == [
        ("token:abc", {"priority": 5}, {"job_id": "job", "priority": 9}, str(run)),
    ]


async def test_it_overtakes_within_the_ageing_of_its_pool(rota_kit: RotaKit) -> None:
    await execute(rota_kit, "INSERT INTO rota.pool VALUES ('default', 1000, NULL, 'epoch')")
    first = await waiting(rota_kit, "first")
    rota_kit.clock.advance(AGEING)
    second = await waiting(rota_kit, "second")
    await rota_kit.on_demand.reprioritise(second, 9)  # four points above, a second each: too few
    worker = rota_kit.worker("w", handlers=["h"])
    assert [work.claim.run_id for work in await worker.claim(limit=2)] == [first, second]


async def test_a_run_that_was_behind_goes_first(rota_kit: RotaKit) -> None:
    first, second = await waiting(rota_kit, "first"), await waiting(rota_kit, "second")
    await rota_kit.on_demand.reprioritise(first, 0)
    worker = rota_kit.worker("w", handlers=["h"])
    assert [work.claim.run_id for work in await worker.claim(limit=2)] == [second, first]


async def test_a_run_keeps_its_priority_through_its_attempts(rota_kit: RotaKit) -> None:
    run = await waiting(rota_kit)
    await rota_kit.on_demand.reprioritise(run, 8)
    work = await rota_kit.worker("w", handlers=["h"]).claim_one()
    assert (await rota_kit.history.run(run))[0].priority == 8
    await work.fail()
    assert (await rota_kit.history.run(run))[0].priority == 8


async def test_what_runs_or_has_ended_is_refused(rota_kit: RotaKit) -> None:
    run = await waiting(rota_kit)
    work = await rota_kit.worker("w", handlers=["h"]).claim_one()
    with pytest.raises(Conflict, match="runs already"):
        await rota_kit.on_demand.reprioritise(run, 9)
    await work.succeed()
    with pytest.raises(RunFinished, match="is succeeded already"):
        await rota_kit.on_demand.reprioritise(run, 9)
    assert await audited(rota_kit) == []


async def test_what_is_not_there_or_no_priority_is_refused(rota_kit: RotaKit) -> None:
    run = await waiting(rota_kit)
    for unknown, tenant_id in ((run, "other"), (run_id(1, START), None)):
        with pytest.raises(NotFound):
            await rota_kit.on_demand.reprioritise(unknown, 9, tenant_id=tenant_id)
    wrongs: tuple[Any, ...] = (10, -1, True, 1.5)
    for wrong in wrongs:
        with pytest.raises(InvalidInput, match=r"^priority: "):
            await rota_kit.on_demand.reprioritise(run, wrong)
    assert (await rota_kit.history.run(run))[0].priority == 5


async def test_a_lost_answer_is_asked_for_again_and_noted_once(rota_cluster: TestCluster) -> None:
    """The first answer is lost after the commit; the second look finds the priority as wanted."""
    async with rota_cluster.kit() as kit, await Faulty.connect(kit.dsn) as database:
        clock = WatchedClock(START)
        run = await waiting(kit)
        database.trouble["reprioritise_run"] = "lost"
        asking = asyncio.create_task(OnDemand(database, clock, kit.rota.hints).reprioritise(run, 9))
        await clock.until_asleep(1)
        database.trouble.clear()
        clock.advance(1)
        assert not await asking
        assert (await kit.history.run(run))[0].priority == 9
        assert len(await audited(kit)) == 1
