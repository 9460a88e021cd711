"""A job that is put under the id of a deleted one is another job: nothing of the deleted one touches it."""

import asyncio

import pytest

import rota
from rota.domain.job import Job
from rota.domain.limit import Limit
from rota.domain.run_filter import RunFilter
from rota.errors import NotFound, SlotTaken, VersionConflict
from rota.store.audit import SYSTEM
from rota.testing import RotaKit
from rota.testing.kit import KitWork
from tests.services.stories import MINUTE, SECOND, START, TEN_SECONDS, every, fetch, slots, states


async def claimed(kit: RotaKit, limit: int = 1) -> list[KitWork]:
    return await kit.worker("w-1", handlers=["h"]).claim(limit=limit)


async def put_anew(kit: RotaKit, job: Job) -> None:
    """Delete a job and put another one under its id."""
    await kit.definitions.delete(job.job_id, tenant_id=job.tenant_id)
    [created] = await kit.put(job)
    assert created.created


async def test_what_the_deleted_job_had_running_ends_and_is_not_tried_again_with_the_new_definition(
    rota_kit: RotaKit,
) -> None:
    await rota_kit.put(every("1h", payload={"of": "the first"}))
    run = await rota_kit.on_demand.trigger("tick", tenant_id="default")
    [work] = await claimed(rota_kit)
    await put_anew(rota_kit, every("1h", payload={"of": "the second"}))
    await work.fail("of the first")
    await rota_kit.advance(MINUTE)
    assert await claimed(rota_kit) == []
    view, attempts = await rota_kit.history.run(run)
    assert (view.state, view.reason, view.payload) == ("cancelled", "job deleted", {"of": "the first"})
    assert [attempt.outcome for attempt in attempts] == ["failed"]


async def test_a_lost_or_released_run_of_the_deleted_job_does_not_come_back(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("1h", lease_duration=TEN_SECONDS))
    for _ in range(2):
        await rota_kit.on_demand.trigger("tick", tenant_id="default")
    released, _ = await claimed(rota_kit, 2)
    await put_anew(rota_kit, every("1h"))
    await released.release()
    await rota_kit.advance(MINUTE)
    assert await claimed(rota_kit) == []
    assert await states(rota_kit) == ["cancelled", "cancelled"]


async def test_a_run_of_the_deleted_job_is_none_of_the_new_ones_overlaps(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s", overlap="skip"))
    await rota_kit.advance(10)
    [old] = await claimed(rota_kit)
    await put_anew(rota_kit, every("10s", overlap="skip"))
    await rota_kit.advance(10)
    [new] = await claimed(rota_kit)
    assert new.claim.run_id != old.claim.run_id
    assert await rota_kit.history.skipped("tick", tenant_id="default") == []
    await new.succeed()
    await old.succeed()


async def test_permits_of_the_deleted_job_are_its_own(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h", max_concurrency=1))
    await rota_kit.on_demand.trigger("tick", tenant_id="default")
    [old] = await claimed(rota_kit)
    await put_anew(rota_kit, Job(job_id="tick", handler="h", max_concurrency=1))
    await rota_kit.on_demand.trigger("tick", tenant_id="default")
    [new] = await claimed(rota_kit)
    await old.succeed()
    await new.succeed()


async def test_a_limit_that_is_shared_still_counts_what_the_deleted_job_has_running(rota_kit: RotaKit) -> None:
    await rota_kit.rota.limits.put(Limit(name="crm", permits=1), actor=SYSTEM)
    job = Job(job_id="tick", handler="h", limits={"crm": 1})
    await rota_kit.put(job)
    await rota_kit.on_demand.trigger("tick", tenant_id="default")
    [old] = await claimed(rota_kit)
    await put_anew(rota_kit, job)
    await rota_kit.on_demand.trigger("tick", tenant_id="default")
    assert await claimed(rota_kit) == []
    await old.succeed()
    await rota_kit.tick()
    [new] = await claimed(rota_kit)
    await new.succeed()


async def test_a_slot_that_a_cancelled_run_of_the_deleted_job_has_is_the_new_jobs_too(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("1m"))
    coming = START + MINUTE
    taken = await rota_kit.on_demand.trigger("tick", tenant_id="default", scheduled_for=coming)
    await put_anew(rota_kit, every("1m"))
    await rota_kit.advance(MINUTE)
    assert await slots(rota_kit) == [coming, coming]
    [work] = await claimed(rota_kit)
    assert (work.claim.key.scheduled_for, work.claim.run_id != taken) == (coming, True)
    await work.succeed()
    with pytest.raises(SlotTaken):
        await rota_kit.on_demand.trigger("tick", tenant_id="default", scheduled_for=coming)


async def test_dead_letters_of_the_deleted_job_neither_count_nor_come_back(rota_kit: RotaKit) -> None:
    dying = Job(job_id="tick", handler="h", max_attempts=1, pause_after=2)
    await rota_kit.put(dying)
    letter = await rota_kit.on_demand.trigger("tick", tenant_id="default")
    await (await claimed(rota_kit))[0].fail()
    await put_anew(rota_kit, dying)
    rota_kit.clock.advance(SECOND)
    await rota_kit.on_demand.trigger("tick", tenant_id="default")
    await (await claimed(rota_kit))[0].fail()
    assert (await rota_kit.definitions.get("tick", tenant_id="default")).state == "active"
    assert await rota_kit.on_demand.replay([letter]) == frozenset()
    back = await rota_kit.on_demand.replay_matching(RunFilter(job_id="tick"), tenant_id="default")
    assert back.replayed == 1
    [again] = await claimed(rota_kit)
    assert again.claim.run_id != letter
    await again.succeed()


async def test_versions_of_an_id_go_on(rota_kit: RotaKit) -> None:
    """Whoever read a version of the deleted job cannot take it for the new job's."""
    await rota_kit.put(every("1h"))
    await put_anew(rota_kit, every("2h"))
    assert (await rota_kit.definitions.get("tick", tenant_id="default")).version == 3
    with pytest.raises(VersionConflict):
        await rota_kit.definitions.put([every("3h")], if_version=1)
    [edited] = await rota_kit.definitions.put([every("3h")], if_version=3)
    assert (edited.version, edited.created) == (4, False)


async def test_every_question_by_the_id_is_about_the_job_that_lives(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("1h"))
    for length in ("2h", "3h"):
        await put_anew(rota_kit, every(length))
    calls = rota_kit.definitions
    assert (await calls.get("tick", tenant_id="default")).next_slot == START + 180 * MINUTE
    await calls.pause("tick", reason="a look", tenant_id="default")
    assert (await rota_kit.rota.why.job("tick", tenant_id="default")).gate == "paused"
    await calls.resume("tick", tenant_id="default")
    assert [job.job_id for job in await calls.page(tenant_id="default")] == ["tick"]
    run = await rota_kit.on_demand.trigger("tick", tenant_id="default")
    [work] = await claimed(rota_kit)
    assert work.claim.run_id == run
    await work.succeed()
    [by_sql] = await fetch(rota_kit, "SELECT rota.trigger('tick') AS run_id")
    [number] = await fetch(rota_kit, "SELECT (rota.slot_of($1)).job_uid AS job_uid", by_sql["run_id"])
    assert number["job_uid"] == work.claim.key.job_uid
    await calls.delete("tick", tenant_id="default")
    with pytest.raises(NotFound):
        await calls.get("tick", tenant_id="default")


async def test_the_history_of_all_jobs_of_an_id_is_listed_by_it_page_by_page(rota_kit: RotaKit) -> None:
    expected = []
    for number in range(3):
        await rota_kit.put(every("1h"))
        for later in range(2):
            slot = START + (10 * number + later) * MINUTE
            expected.append(await rota_kit.on_demand.trigger("tick", tenant_id="default", scheduled_for=slot))
        # Each of them has a run at this slot.
        expected.append(
            await rota_kit.on_demand.trigger("tick", tenant_id="default", scheduled_for=START + MINUTE * 59)
        )
        await rota_kit.definitions.delete("tick", tenant_id="default")
    newest_first = sorted(expected, reverse=True)
    where, found = RunFilter(job_id="tick"), []
    before = None
    while page := await rota_kit.history.find(where, tenant_id="default", before=before, limit=2):
        found += [run.run_id for run in page]
        before = (page[-1].scheduled_for, page[-1].run_id)
    assert found == newest_first
    assert {run.job_id for run in await rota_kit.runs("tick")} == {"tick"}


async def test_the_slot_ledger_of_all_jobs_of_an_id_is_listed_by_it(rota_kit: RotaKit) -> None:
    for _ in range(2):
        await rota_kit.put(every("10s", misfire=rota.skip()))
        rota_kit.clock.advance(MINUTE)
        await rota_kit.tick()
        await rota_kit.definitions.delete("tick", tenant_id="default")
    firsts = [entry.first_slot for entry in await rota_kit.history.skipped("tick", tenant_id="default")]
    assert firsts == [START + MINUTE + TEN_SECONDS, START + TEN_SECONDS]


async def test_of_many_who_put_a_deleted_id_at_once_one_job_comes(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("1h"))
    await rota_kit.definitions.delete("tick", tenant_id="default")
    results = await asyncio.gather(*(rota_kit.definitions.put([every("1h")]) for _ in range(5)))
    assert sorted(result.created for [result] in results) == [False] * 4 + [True]
    [rows] = await fetch(rota_kit, "SELECT count(*) AS jobs, max(generation) AS last FROM rota.job")
    assert (rows["jobs"], rows["last"]) == (2, 1)


async def test_all_jobs_of_an_id_are_in_one_shard(rota_kit: RotaKit) -> None:
    for _ in range(4):
        await rota_kit.put(every("1h"))
        await rota_kit.definitions.delete("tick", tenant_id="default")
    [row] = await fetch(
        rota_kit,
        "SELECT count(DISTINCT shard) AS shards, count(DISTINCT job_uid) AS numbers,"
        " bool_and(job_uid % 64 = shard) AS in_place FROM rota.job",
    )
    assert (row["shards"], row["numbers"], row["in_place"]) == (1, 4, True)
