"""Upkeep beside a stranger's open transaction: what cannot be done now is put off, and the rest goes on."""

from datetime import UTC, datetime, timedelta

import pytest

from rota.domain.job import Job
from rota.services import upkeep as module
from rota.testing import RotaKit
from tests.services.stories import START, Faulty, fetch
from tests.store.stage import uncommitted


async def gates(kit: RotaKit) -> list[str]:
    return [row["gate"] for row in await fetch(kit, "SELECT gate FROM rota.pending")]


async def test_a_month_made_in_an_open_transaction_holds_up_no_other_upkeep(rota_kit: RotaKit) -> None:
    await rota_kit.tick()
    await rota_kit.put(Job(job_id="job", handler="h"))
    await rota_kit.on_demand.trigger("job", tenant_id="default")
    await rota_kit.worker("w-1", handlers=["other"]).announce()
    rota_kit.clock.set(datetime(2026, 2, 1, tzinfo=UTC))
    await rota_kit.worker("w-1", handlers=["other"]).announce()
    database = Faulty(rota_kit.database._pools, rota_kit.database._sessions)
    upkeep = module.Upkeep(database, rota_kit.clock, rota_kit.rota.hints)
    async with uncommitted(rota_kit.dsn, "SELECT rota.ensure_month('2050-01-01')") as maker:
        await upkeep.tick()
        assert await gates(rota_kit) == ["handler"]
        assert database.asked["ensure_month"] == 4, "the last one ahead is not there"
        assert database.asked["forget_lapsed_workers"] == 1
        await rota_kit.worker("w-2", handlers=["h"]).announce()
        for _ in range(3):
            rota_kit.clock.advance(1)
            await upkeep.tick()
        assert await gates(rota_kit) == ["open"]
        assert database.asked["ensure_month"] == 4, "a failure counts, and is not repeated each second"
        await maker.execute("COMMIT")
    rota_kit.clock.advance(module.RETRY_FIRST)
    await upkeep.tick()
    assert await fetch(rota_kit, "SELECT to_regclass('rota.run_2026_05') AS made") != [{"made": None}]


async def test_slots_of_months_to_come_keep_nobody_from_making_those_that_are_due(rota_kit: RotaKit) -> None:
    """A caller's open transaction makes no table, so it holds nothing that upkeep or another caller needs."""
    await rota_kit.tick()
    await rota_kit.put(Job(job_id="job", handler="h"))
    rota_kit.clock.set(datetime(2026, 2, 1, tzinfo=UTC))
    async with uncommitted(rota_kit.dsn, "SELECT rota.trigger('job', scheduled_for => '2026-02-01T12:00:00Z')"):
        await rota_kit.process.upkeep.tick()
        assert await fetch(rota_kit, "SELECT to_regclass('rota.run_2026_05') AS made") != [{"made": None}]
    commands = [f"SELECT rota.trigger('job', scheduled_for => '20{year}-03-01Z')" for year in range(27, 47)]
    async with uncommitted(rota_kit.dsn, *commands), uncommitted(rota_kit.dsn, commands[0].replace("-03-", "-04-")):
        run = await rota_kit.on_demand.trigger("job", tenant_id="default", scheduled_for=START + timedelta(days=500))
        assert [made.run_id for made in await rota_kit.runs("job")] == [run]


async def test_a_failed_task_waits_twice_as_long_each_time_and_no_other_does(rota_kit: RotaKit) -> None:
    database = Faulty(rota_kit.database._pools, rota_kit.database._sessions)
    database.trouble["forget_claims"] = "refused"
    upkeep = module.Upkeep(database, rota_kit.clock, rota_kit.rota.hints)
    asked = []
    for _ in range(40):
        await upkeep.tick()
        asked.append(database.asked["forget_claims"])
        rota_kit.clock.advance(1)
    assert [second for second in range(1, 40) if asked[second] > asked[second - 1]] == [5, 15, 35]
    assert database.asked["forget_keys"] == 4
    assert database.asked["park_unknown_handlers"] == 40


async def test_processes_that_have_gone_are_forgotten_in_batches(
    rota_kit: RotaKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FORGET_BATCH", 4)
    for number in range(5):
        await rota_kit.worker(f"w-{number}", handlers=["h"]).announce()
        await rota_kit.scheduler(f"s-{number}").keeper.tick()
    rota_kit.clock.advance(timedelta(hours=2))
    assert await rota_kit.process.upkeep.tick()
    [row] = await fetch(
        rota_kit, "SELECT (SELECT count(*) FROM rota.worker) AS w, (SELECT count(*) FROM rota.scheduler) AS s"
    )
    assert (row["w"], row["s"]) == (1, 5)
    while await rota_kit.process.upkeep.tick():
        pass
    assert await fetch(rota_kit, "SELECT FROM rota.worker UNION ALL SELECT FROM rota.scheduler") == []
