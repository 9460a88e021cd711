"""What happens to a slot that comes while a run of its job lives: policy by policy."""

from datetime import timedelta
from typing import Any

import pytest

import rota
from rota.domain.attempt import LeaseKey, Outcome
from rota.services.hints import CANCELS
from rota.store import due
from rota.testing import RotaKit
from rota.testing.kit import KitWork
from tests.services.stories import START, TEN_SECONDS, every, execute, fetch, ledger, slots, states
from tests.store.stage import uncommitted

ONE_WAITS = pytest.mark.parametrize("policy", ["queue_one", "replace"])


async def running(kit: RotaKit, **changes: Any) -> KitWork:
    """Return a claim on the first run of a job that ticks every ten seconds."""
    await kit.put(every("10s", **changes))
    await kit.advance(10)
    return await claimed(kit)


async def claimed(kit: RotaKit) -> KitWork:
    return await kit.worker("w", handlers=["h"]).claim_one()


async def reasons(kit: RotaKit) -> list[str | None]:
    return [run.reason for run in await kit.runs("tick")]


async def is_asked_to_end(kit: RotaKit, key: LeaseKey) -> bool:
    [lease] = (await kit.rota.completion.renew([key])).values()
    return lease.cancel


async def test_where_runs_queue_every_slot_waits_for_its_turn(rota_kit: RotaKit) -> None:
    work = await running(rota_kit, overlap="queue")
    await rota_kit.advance(20)
    assert await states(rota_kit) == ["running", "pending", "pending"]
    assert await ledger(rota_kit) == []
    assert not await is_asked_to_end(rota_kit, work.claim.key)


@pytest.mark.parametrize("policy", ["queue", "queue_one", "replace"])
async def test_those_that_wait_for_their_turn_run_one_at_a_time(rota_kit: RotaKit, policy: str) -> None:
    work = await running(rota_kit, overlap=policy, lease_duration=timedelta(seconds=15))
    worker = rota_kit.worker("w", handlers=["h"])
    await rota_kit.advance(10)
    assert await worker.claim(limit=10) == []
    await work.succeed()
    [work] = await worker.claim(limit=10)
    assert work.claim.key.scheduled_for == START + 2 * TEN_SECONDS
    await rota_kit.advance(14)
    assert await worker.claim(limit=10) == []
    await rota_kit.advance(2)
    assert len(await worker.claim(limit=10)) == 1, "its worker was lost"


async def test_where_one_queues_the_newest_waits_and_the_older_one_is_superseded(rota_kit: RotaKit) -> None:
    work = await running(rota_kit, overlap="queue_one")
    await rota_kit.advance(30)
    assert await states(rota_kit) == ["running", "cancelled", "cancelled", "pending"]
    assert (await reasons(rota_kit))[1:3] == [
        "superseded by the slot 2026-01-01T00:00:30Z",
        "superseded by the slot 2026-01-01T00:00:40Z",
    ]
    assert await ledger(rota_kit) == [], "each of them is a run, and says itself what became of it"
    assert not await is_asked_to_end(rota_kit, work.claim.key)
    await work.succeed()
    assert (await claimed(rota_kit)).claim.key.scheduled_for == START + 40 * timedelta(seconds=1)


@ONE_WAITS
async def test_of_slots_that_came_due_together_only_the_latest_becomes_a_run(rota_kit: RotaKit, policy: str) -> None:
    await rota_kit.put(every("1m", overlap=policy, misfire=rota.catch_up(3)))
    rota_kit.clock.advance(600)
    await rota_kit.tick()
    assert await slots(rota_kit) == [START + timedelta(minutes=10)]
    assert [reason for reason, *_ in await ledger(rota_kit)] == ["misfire", "overlap", "overlap"]


async def test_where_the_newest_replaces_the_one_that_runs_is_asked_to_end(rota_kit: RotaKit) -> None:
    hint = rota_kit.rota.hints.subscribe(CANCELS)
    work = await running(rota_kit, overlap="replace")
    assert not await is_asked_to_end(rota_kit, work.claim.key)
    assert not hint.is_set()
    await rota_kit.advance(10)
    assert hint.is_set(), "its worker is told now, not at its next renewal"
    assert await is_asked_to_end(rota_kit, work.claim.key)
    await work.fail("it stopped half-way")
    assert await states(rota_kit) == ["cancelled", "pending"]
    assert (await claimed(rota_kit)).claim.key.scheduled_for == START + 2 * TEN_SECONDS


async def test_what_is_done_before_it_hears_of_its_replacement_is_done(rota_kit: RotaKit) -> None:
    work = await running(rota_kit, overlap="replace")
    await rota_kit.advance(20)
    await work.succeed()
    assert await states(rota_kit) == ["succeeded", "cancelled", "pending"]


@ONE_WAITS
async def test_a_run_that_has_begun_is_not_superseded_while_it_waits_to_be_tried_again(
    rota_kit: RotaKit, policy: str
) -> None:
    work = await running(rota_kit, overlap=policy, retry=rota.retry(initial=60, jitter=0))
    await work.fail()
    await rota_kit.advance(20)
    assert await states(rota_kit) == ["pending", "cancelled", "pending"]


@ONE_WAITS
@pytest.mark.parametrize("outcome", [Outcome.RELEASED, Outcome.SNOOZED])
async def test_a_run_that_was_given_back_has_begun_and_keeps_its_turn(
    rota_kit: RotaKit, policy: str, outcome: Outcome
) -> None:
    """A release and a snooze charge no attempt; what it did so far is done all the same."""
    work = await running(rota_kit, overlap=policy)
    await work.report(outcome, retry_after=timedelta(seconds=60) if outcome is Outcome.SNOOZED else None)
    await rota_kit.advance(20)
    assert await states(rota_kit) == ["pending", "cancelled", "pending"]


@ONE_WAITS
async def test_a_resume_supersedes_no_run_that_was_given_back(rota_kit: RotaKit, policy: str) -> None:
    work = await running(rota_kit, overlap=policy)
    await work.release()
    await rota_kit.definitions.pause("tick", tenant_id="default", reason="")
    rota_kit.clock.advance(35)
    await rota_kit.definitions.resume("tick", tenant_id="default", missed="catch_up")
    assert await states(rota_kit) == ["pending", "pending"]


@ONE_WAITS
async def test_a_run_that_somebody_asked_for_supersedes_nothing_and_keeps_its_turn(
    rota_kit: RotaKit, policy: str
) -> None:
    await rota_kit.put(every("10s", overlap=policy))
    await rota_kit.advance(11)
    await rota_kit.on_demand.trigger("tick", tenant_id="default", payload={"asked": True})
    assert await states(rota_kit) == ["pending", "pending"]
    await rota_kit.advance(9)
    assert await states(rota_kit) == ["cancelled", "pending", "pending"]


@ONE_WAITS
async def test_a_slot_that_somebody_triggered_before_is_there_already(rota_kit: RotaKit, policy: str) -> None:
    await rota_kit.put(every("10s", overlap=policy))
    await rota_kit.on_demand.trigger("tick", tenant_id="default", scheduled_for=START + 2 * TEN_SECONDS)
    await rota_kit.advance(20)
    assert await states(rota_kit) == ["pending", "pending"], "no run is new, so none is superseded"


@ONE_WAITS
async def test_the_run_of_a_resume_takes_the_place_of_those_before_the_pause(rota_kit: RotaKit, policy: str) -> None:
    work = await running(rota_kit, overlap=policy)
    await rota_kit.advance(10)
    await rota_kit.definitions.pause("tick", tenant_id="default", reason="")
    rota_kit.clock.advance(35)
    await rota_kit.definitions.resume("tick", tenant_id="default", missed="catch_up")
    assert await states(rota_kit) == ["running", "cancelled", "pending"]
    assert (await reasons(rota_kit))[1] == "superseded by the slot 2026-01-01T00:00:50Z"
    assert await is_asked_to_end(rota_kit, work.claim.key) == (policy == "replace")


async def test_each_job_of_a_herd_supersedes_its_own_runs_only(rota_kit: RotaKit) -> None:
    names = {"newest": "queue_one", "other": "queue_one", "all": "queue", "free": "allow"}
    await rota_kit.put(*(every("10s", name, overlap=policy) for name, policy in names.items()))
    await rota_kit.advance(20)
    assert {name: await states(rota_kit, name) for name in names} == {
        "newest": ["cancelled", "pending"], "other": ["cancelled", "pending"],
        "all": ["pending", "pending"], "free": ["pending", "pending"],
    }  # fmt: skip


async def test_a_run_that_is_being_claimed_at_this_very_moment_is_asked_to_end_after_that(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s", overlap="replace"))
    await rota_kit.advance(10)
    async with uncommitted(rota_kit.dsn, "SELECT FROM rota.pending FOR UPDATE") as claiming:
        await rota_kit.advance(10)
        assert await states(rota_kit) == ["pending", "pending"], "who claims it has it"
        await claiming.execute("COMMIT")
    old = await claimed(rota_kit)
    assert old.claim.key.scheduled_for == START + TEN_SECONDS
    [found] = await fetch(rota_kit, "SELECT shard, job_uid FROM rota.job")
    [later] = await fetch(rota_kit, "SELECT scheduled_for FROM rota.pending")
    step = due.Advance(
        due=due.DueSchedule(
            shard=found["shard"], job_uid=found["job_uid"], due_at=later["scheduled_for"], slot=later["scheduled_for"],
            version=1, schedule=None, misfire="{}", grace_ms=0, jitter_ms=0, overlap="replace", start_deadline_ms=None,
            priority=5, pool="default", handler="h", tenant_id="default",
        ),
        runs=(due.NewRun(scheduled_for=later["scheduled_for"], available_at=START, deadline_at=None, gate="open"),),
        skipped=(),
        next_slot=None,
    )  # fmt: skip
    now = rota_kit.clock.now()
    assert [await due.ask_replaced(rota_kit.database, [step], now=now) for _ in range(2)] == [1, 0]
    assert await is_asked_to_end(rota_kit, old.claim.key)


async def test_an_edit_to_another_policy_holds_from_the_next_slot_on(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s", overlap="queue"))
    await rota_kit.advance(30)
    await rota_kit.put(every("10s", overlap="queue_one"))
    assert await states(rota_kit) == ["pending"] * 3
    await rota_kit.advance(10)
    assert await states(rota_kit) == ["cancelled"] * 3 + ["pending"]


async def test_the_database_takes_no_policy_that_nobody_knows(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s"))
    with pytest.raises(Exception, match="job_overlap_check"):
        await execute(rota_kit, "UPDATE rota.job SET overlap = 'sometimes'")


# `skip`: what lives, and what somebody asks for -----------------------------------------------------------------------


async def test_a_run_wanted_for_tomorrow_takes_no_slot_of_today(rota_kit: RotaKit) -> None:
    tomorrow = START + timedelta(days=1)
    await rota_kit.put(every("10s", overlap="skip"))
    await rota_kit.on_demand.trigger("tick", tenant_id="default", scheduled_for=tomorrow - timedelta(seconds=5))
    for _ in range(3):
        await rota_kit.advance(10)
        await (await claimed(rota_kit)).succeed()
    assert await states(rota_kit) == ["succeeded"] * 3 + ["pending"]
    rota_kit.clock.set(tomorrow - timedelta(seconds=4))
    await rota_kit.tick()
    await rota_kit.advance(4)
    late = await ledger(rota_kit)
    assert (late[-1][0], late[-1][2]) == ("overlap", tomorrow), "from its time on it lives"


@pytest.mark.parametrize("end", [Outcome.FAILED, Outcome.RELEASED, Outcome.SNOOZED])
async def test_a_run_that_waits_to_go_on_lives(rota_kit: RotaKit, end: Outcome) -> None:
    work = await running(rota_kit, overlap="skip", retry=rota.retry(initial=timedelta(hours=1)))
    await work.report(end, error="no", retry_after=timedelta(hours=1) if end is Outcome.SNOOZED else None)
    await rota_kit.advance(20)
    assert await states(rota_kit) == ["pending"]
    assert [reason for reason, *_ in await ledger(rota_kit)] == ["overlap", "overlap"]


async def test_a_run_that_its_jitter_delays_lives(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s", overlap="skip", jitter=timedelta(hours=1)))
    await rota_kit.advance(40)
    assert len(await states(rota_kit)) == 1
    assert len(await ledger(rota_kit)) == 3


async def test_a_run_that_somebody_asks_for_waits_for_its_turn_beside_skip(rota_kit: RotaKit) -> None:
    """Whatever the policy but `allow`, two runs of the job never run at once."""
    work = await running(rota_kit, overlap="skip")
    for _ in range(2):
        await rota_kit.on_demand.trigger("tick", tenant_id="default")
    worker = rota_kit.worker("w", handlers=["h"])
    assert await worker.claim(limit=10) == []
    await rota_kit.advance(10)
    assert [reason for reason, *_ in await ledger(rota_kit)] == ["overlap"]
    for _ in range(2):
        await work.succeed()
        await rota_kit.tick()
        [work] = await worker.claim(limit=10)
    await work.succeed()
    await rota_kit.advance(10)
    assert await states(rota_kit) == ["succeeded"] * 3 + ["pending"]
    await rota_kit.check()
