"""Two schedulers, an operator or an editor at the same due slots at once: one run per slot, and no slot is lost."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal, cast

import pytest

import rota
from rota.domain.job import Job
from rota.errors import SlotTaken
from rota.store import due, shards
from rota.store.database import Database
from rota.store.due import Advance, DueSchedule, Materialised, NewRun
from rota.testing import RotaKit
from tests.store.stage import Within, rows_of, until_waiting_for

TEN_SECONDS = timedelta(seconds=10)


async def test_two_looks_at_the_same_due_slots_make_each_run_once(rota_kit: RotaKit) -> None:
    advances = await due_advances(rota_kit, 20)
    epochs = rota_kit.process.owned.epochs(now=rota_kit.clock.now())
    async with rota_kit.database.transaction() as tx:
        first = await materialise(cast(Database, Within(tx)), rota_kit, advances, "scheduler-1", epochs)
        second = asyncio.create_task(materialise(rota_kit.database, rota_kit, advances, "scheduler-1", epochs))
        await until_waiting_for(tx._raw)
    assert first == Materialised(advanced=20, made=20)
    assert await second == Materialised(advanced=0, made=0)
    assert (await rows_of(rota_kit))["run"] == 20


async def test_the_next_owner_of_a_shard_cannot_make_what_the_last_one_is_still_making(rota_kit: RotaKit) -> None:
    advances = await due_advances(rota_kit, 20)
    now = rota_kit.clock.now()
    epochs = rota_kit.process.owned.epochs(now=now)
    async with rota_kit.database.transaction() as tx:
        await materialise(cast(Database, Within(tx)), rota_kit, advances, "scheduler-1", epochs)
        await shards.release(rota_kit.database, "scheduler-1", epochs, now=now)
        taken = await shards.acquire(rota_kit.database, "scheduler-2", list(epochs), now=now, expires_at=now)
        assert taken.keys() == epochs.keys()
        second = asyncio.create_task(materialise(rota_kit.database, rota_kit, advances, "scheduler-2", taken))
        await until_waiting_for(tx._raw)
    assert await second == Materialised(advanced=0, made=0)
    assert (await rows_of(rota_kit))["run"] == 20


@pytest.mark.parametrize(("owner", "age"), [("scheduler-1", 1), ("scheduler-1", -1), ("scheduler-2", 0)])
async def test_a_stale_epoch_or_another_owner_makes_nothing(rota_kit: RotaKit, owner: str, age: int) -> None:
    advances = await due_advances(rota_kit, 5)
    now = rota_kit.clock.now()
    epochs = {shard: epoch - age for shard, epoch in rota_kit.process.owned.epochs(now=now).items()}
    assert await materialise(rota_kit.database, rota_kit, advances, owner, epochs) == Materialised(advanced=0, made=0)
    assert (await rows_of(rota_kit))["run"] == 0
    await rota_kit.tick()
    assert (await rows_of(rota_kit))["run"] == 5


async def test_an_edit_between_scan_and_write_makes_nothing_and_loses_nothing(rota_kit: RotaKit) -> None:
    advances = await due_advances(rota_kit, 3)
    await rota_kit.put(Job(job_id="job-1", handler="h2", schedule=rota.every("10s")))
    epochs = rota_kit.process.owned.epochs(now=rota_kit.clock.now())
    made = await materialise(rota_kit.database, rota_kit, advances, "scheduler-1", epochs)
    assert made == Materialised(advanced=2, made=2)
    assert await rota_kit.runs("job-1") == []
    await rota_kit.tick()
    [run] = await rota_kit.runs("job-1")
    assert (run.handler, run.scheduled_for) == ("h2", advances[0].due.slot)


async def test_an_edit_that_waits_for_the_scheduler_finds_its_runs_made(rota_kit: RotaKit) -> None:
    advances = await due_advances(rota_kit, 1)
    epochs = rota_kit.process.owned.epochs(now=rota_kit.clock.now())
    async with rota_kit.database.transaction() as tx:
        await materialise(cast(Database, Within(tx)), rota_kit, advances, "scheduler-1", epochs)
        edit = Job(job_id="job-0", handler="h2", schedule=rota.every("20s"))
        editing = asyncio.create_task(rota_kit.put(edit))
        await until_waiting_for(tx._raw)
    await editing
    await rota_kit.advance(TEN_SECONDS)
    assert [run.scheduled_for for run in await rota_kit.runs("job-0")] == [
        advances[0].due.slot,
        advances[0].due.slot + TEN_SECONDS,
    ]


async def test_a_run_triggered_at_a_slot_while_the_scheduler_makes_it_is_that_slot(rota_kit: RotaKit) -> None:
    advances = await due_advances(rota_kit, 1)
    epochs = rota_kit.process.owned.epochs(now=rota_kit.clock.now())
    async with rota_kit.database.transaction() as tx:
        await materialise(cast(Database, Within(tx)), rota_kit, advances, "scheduler-1", epochs)
        trigger = rota_kit.on_demand.trigger("job-0", tenant_id="default", scheduled_for=advances[0].due.slot)
        triggering = asyncio.create_task(trigger)
        await until_waiting_for(tx._raw)
    with pytest.raises(SlotTaken):
        await triggering
    assert (await rows_of(rota_kit))["pending"] == 1


@pytest.mark.parametrize("policy", ["queue_one", "replace"])
async def test_many_that_claim_while_newer_slots_supersede_leave_every_run_in_one_place(
    rota_kit: RotaKit, policy: Literal["queue_one", "replace"]
) -> None:
    jobs = [
        Job(job_id=f"job-{n}", handler="h", schedule=rota.every("10s"), overlap=policy, start_deadline=TEN_SECONDS * 2)
        for n in range(10)
    ]
    await rota_kit.put(*jobs)
    worker = rota_kit.worker("w", handlers=["h"])
    for _ in range(4):
        await rota_kit.advance(9)
        rota_kit.clock.advance(1)
        ticking = asyncio.create_task(rota_kit.process.scheduler.tick())
        for claimed in await asyncio.gather(*(worker.claim(limit=3) for _ in range(3))):
            for work in claimed:
                await work.succeed()
        await ticking
    for job in jobs:
        states = [run.state for run in await rota_kit.runs(job.job_id)]
        assert len(states) == 4
        assert states.count("running") == 0
        assert states.count("pending") <= 2, "the newest, and one that was being claimed when that one was made"


async def due_advances(kit: RotaKit, jobs: int) -> list[Advance]:
    """Have jobs whose slot is due; return what a scheduler that has just looked is about to write."""
    await kit.put(*(Job(job_id=f"job-{n}", handler="h", schedule=rota.every("10s")) for n in range(jobs)))
    now = kit.clock.advance(TEN_SECONDS)
    await kit.process.keeper.tick()
    found = await due.due_schedules(kit.database, list(range(64)), now=now, per_shard=100)
    assert len(found) == jobs
    return [step(each, now) for each in sorted(found, key=lambda each: (each.shard, each.job_uid))]


def step(found: DueSchedule, now: datetime) -> Advance:
    run = NewRun(scheduled_for=found.slot, available_at=now, deadline_at=None, gate="open")
    return Advance(due=found, runs=(run,), skipped=(), next_slot=found.slot + TEN_SECONDS)


async def materialise(
    database: Database, kit: RotaKit, advances: Sequence[Advance], owner: str, epochs: dict[int, int]
) -> Materialised:
    return await due.materialise(database, advances, owner=owner, epochs=epochs, now=kit.clock.now())
