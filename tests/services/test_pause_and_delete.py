"""Jobs pause, resume and go: what waits, what runs, and what is made up for afterwards."""

import pytest

import rota
from rota.errors import InvalidInput, LeaseLost, NotFound
from rota.testing import RotaKit
from tests.services.stories import MINUTE, SECOND, START, TEN_SECONDS, every, ledger, slots, states, stored

# pause, resume --------------------------------------------------------------------------------------------------------


async def test_a_paused_job_makes_no_runs_and_those_that_wait_go_on(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s"))
    await rota_kit.advance(10)
    paused = await rota_kit.definitions.pause("tick", tenant_id="default", reason="upstream is down")
    assert (paused.state, paused.pause_reason) == ("paused", "upstream is down")
    await rota_kit.advance(60)
    assert await slots(rota_kit) == [START + TEN_SECONDS]
    await (await rota_kit.worker("w-1", handlers=["h"]).claim_one()).succeed()
    again = await rota_kit.definitions.pause("tick", tenant_id="default", reason="another reason")
    assert again.version == paused.version, "a job that is paused is paused"


async def test_a_run_that_ends_does_not_resume_its_paused_job(rota_kit: RotaKit) -> None:
    """B38: still paused, whichever way it ended."""
    for outcome in ("succeed", "fail", "release"):
        await rota_kit.put(every("10s", outcome))
    await rota_kit.advance(10)
    for work in await rota_kit.worker("w-1", handlers=["h"]).claim(limit=3):
        await rota_kit.definitions.pause(work.claim.job_id, tenant_id="default", reason="while it runs")
        await getattr(work, work.claim.job_id)()
        assert (await stored(rota_kit, work.claim.job_id)).state == "paused"
    await rota_kit.advance(60)
    for outcome in ("succeed", "fail", "release"):
        assert len(await slots(rota_kit, outcome)) == 1


async def test_resumed_by_policy_a_job_catches_up_as_after_an_outage(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("1m", misfire=rota.catch_up(2)))
    await rota_kit.definitions.pause("tick", tenant_id="default", reason="a look")
    rota_kit.clock.advance(600)
    resumed = await rota_kit.definitions.resume("tick", tenant_id="default")
    assert resumed.state == "active"
    await rota_kit.tick()
    assert await slots(rota_kit) == [START + 9 * MINUTE, START + 10 * MINUTE]
    assert await ledger(rota_kit) == [("paused", START + MINUTE, START + 8 * MINUTE, 8)]


async def test_resumed_with_drop_a_job_enters_what_it_missed_into_the_ledger(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("1m", misfire=rota.catch_up(100)))
    await rota_kit.definitions.pause("tick", tenant_id="default", reason="a look")
    rota_kit.clock.advance(600)
    await rota_kit.definitions.resume("tick", tenant_id="default", missed="drop")
    await rota_kit.tick()
    assert await slots(rota_kit) == []
    assert await ledger(rota_kit) == [("paused", START + MINUTE, START + 10 * MINUTE, 10)]
    await rota_kit.advance(60)
    assert await slots(rota_kit) == [START + 11 * MINUTE]


async def test_a_resume_of_a_job_that_is_not_paused_changes_nothing(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("1m"))
    rota_kit.clock.advance(90)
    resumed = await rota_kit.definitions.resume("tick", tenant_id="default", missed="drop")
    assert resumed.version == 1
    await rota_kit.tick()
    assert await slots(rota_kit) == [START + MINUTE]


async def test_a_pause_outlives_an_edit(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s"))
    await rota_kit.definitions.pause("tick", tenant_id="default", reason="a look")
    await rota_kit.put(every("20s"))
    assert (await stored(rota_kit)).state == "paused"
    await rota_kit.advance(60)
    assert await slots(rota_kit) == []
    await rota_kit.definitions.resume("tick", tenant_id="default", missed="drop")
    await rota_kit.advance(20)
    assert await slots(rota_kit) == [START + 80 * SECOND]


async def test_a_paused_job_can_be_triggered(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("1h"))
    await rota_kit.definitions.pause("tick", tenant_id="default", reason="a look")
    await rota_kit.on_demand.trigger("tick", tenant_id="default")
    await (await rota_kit.worker("w-1", handlers=["h"]).claim_one()).succeed()
    assert await states(rota_kit) == ["succeeded"]


async def test_a_reason_that_no_store_can_keep_is_refused(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("1h"))
    for reason in ("a\x00b", "\ud800", "x" * 1001):
        with pytest.raises(InvalidInput) as refusal:
            await rota_kit.definitions.pause("tick", tenant_id="default", reason=reason)
        assert refusal.value.field == "reason"
    assert (await stored(rota_kit)).state == "active"


# delete ---------------------------------------------------------------------------------------------------------------


async def test_deleting_a_job_cancels_what_waits_and_lets_what_runs_end(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s"))
    await rota_kit.advance(30)
    running, failing = await rota_kit.worker("w-1", handlers=["h"]).claim(limit=2)
    assert await rota_kit.definitions.delete("tick", tenant_id="default") == 1
    with pytest.raises(NotFound):
        await rota_kit.definitions.get("tick", tenant_id="default")
    await running.succeed()
    await failing.fail("and nobody will try again")
    assert await states(rota_kit) == ["succeeded", "cancelled", "cancelled"]
    await rota_kit.advance(60)
    assert len(await slots(rota_kit)) == 3
    with pytest.raises(NotFound):
        await rota_kit.definitions.delete("tick", tenant_id="default")


async def test_a_lost_run_of_a_deleted_job_is_cancelled(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s", lease_duration=TEN_SECONDS))
    await rota_kit.advance(10)
    work = await rota_kit.worker("w-1", handlers=["h"]).claim_one()
    await rota_kit.definitions.delete("tick", tenant_id="default")
    await rota_kit.advance(11)
    assert await states(rota_kit) == ["cancelled"]
    with pytest.raises(LeaseLost):
        await work.succeed()


async def test_a_job_created_again_under_its_name_keeps_its_history_and_starts_afresh(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s"))
    await rota_kit.advance(10)
    await rota_kit.definitions.pause("tick", tenant_id="default", reason="before the end")
    await rota_kit.definitions.delete("tick", tenant_id="default")
    rota_kit.clock.advance(600)
    [created] = await rota_kit.definitions.put([every("10s", misfire=rota.catch_up(50))], if_version=0)
    assert created.changed
    assert (await stored(rota_kit)).state == "active"
    await rota_kit.tick()
    assert await states(rota_kit) == ["cancelled"], "nothing of the time without the job is made up for"
    await rota_kit.advance(10)
    assert await states(rota_kit) == ["cancelled", "pending"]
