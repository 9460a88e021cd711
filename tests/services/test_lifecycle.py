"""A run's way from slot to history, on a manual clock and a real database: one story per test."""

from datetime import timedelta

import pytest

import rota
from rota.domain.attempt import Outcome
from rota.domain.ids import job_uid
from rota.domain.job import Job
from rota.errors import LeaseLost, SlotTaken
from rota.testing import RotaKit

TEN_SECONDS = timedelta(seconds=10)


def every_ten(job_id: str = "tick", **changes: object) -> Job:
    return Job(job_id=job_id, handler="h", schedule=rota.every("10s"), **changes)  # type: ignore[arg-type]  # test data


async def test_a_due_slot_becomes_one_run_and_a_second_tick_makes_none(rota_kit: RotaKit) -> None:
    await rota_kit.put(every_ten())
    await rota_kit.advance(TEN_SECONDS)
    await rota_kit.tick()
    [run] = await rota_kit.runs("tick")
    assert run.state == "pending"
    assert run.scheduled_for == rota_kit.clock.now()


async def test_nothing_runs_before_its_slot(rota_kit: RotaKit) -> None:
    await rota_kit.put(every_ten())
    await rota_kit.advance(timedelta(seconds=9, milliseconds=999))
    assert await rota_kit.runs("tick") == []


async def test_a_run_is_handed_to_one_worker_and_succeeds(rota_kit: RotaKit) -> None:
    await rota_kit.put(every_ten(payload={"customer": "acme"}))
    await rota_kit.advance(TEN_SECONDS)
    first, second = rota_kit.worker("w-1", handlers=["h"]), rota_kit.worker("w-2", handlers=["h"])
    work = await first.claim_one()
    assert await second.claim() == []
    assert work.claim.payload == {"customer": "acme"}
    await work.succeed()
    [run] = await rota_kit.runs("tick")
    assert (run.state, run.attempt) == ("succeeded", 1)


async def test_a_worker_that_wakes_late_cannot_complete(rota_kit: RotaKit) -> None:
    """B12, B107: an old token is worth nothing, for success or for an error."""
    await rota_kit.put(every_ten(lease_duration=timedelta(seconds=30)))
    await rota_kit.advance(TEN_SECONDS)
    sleeper = await rota_kit.worker("w-1", handlers=["h"]).claim_one()
    await rota_kit.advance(timedelta(seconds=31))
    second = await rota_kit.worker("w-2", handlers=["h"]).claim(limit=10)
    [again] = [work for work in second if work.claim.run_id == sleeper.claim.run_id]
    assert again.claim.attempt == 2
    with pytest.raises(LeaseLost):
        await sleeper.succeed()
    with pytest.raises(LeaseLost):
        await sleeper.fail("a late error must not land on attempt 2")
    await again.succeed()
    [run, *_] = await rota_kit.runs("tick")
    assert [attempt.outcome for attempt in await rota_kit.attempts(run)] == ["lost", "succeeded"]


async def test_a_failure_comes_back_after_its_backoff_counted_from_now(rota_kit: RotaKit) -> None:
    """B31: never counted from the slot."""
    policy = rota.retry(initial=10, jitter=0)
    await rota_kit.put(Job(job_id="once", handler="h", retry=policy))
    await rota_kit.on_demand.trigger("once", tenant_id="default")
    worker = rota_kit.worker("w-1", handlers=["h"])
    work = await worker.claim_one()
    rota_kit.clock.advance(3600)
    await work.fail("upstream 500")
    [run] = await rota_kit.runs("once")
    assert (run.state, run.gate, run.available_at) == ("pending", "time", rota_kit.clock.now() + TEN_SECONDS)
    await rota_kit.advance(9)
    assert await worker.claim() == []
    await rota_kit.advance(1)
    assert (await worker.claim_one()).claim.attempt == 2


async def test_a_run_that_fails_too_often_is_a_dead_letter_that_an_operator_replays_once(rota_kit: RotaKit) -> None:
    """B52: the next slot is unaffected, the identity stays, and the second replay finds nothing."""
    await rota_kit.put(every_ten(max_attempts=2, retry=rota.retry(initial=1, jitter=0)))
    worker = rota_kit.worker("w-1", handlers=["h"])
    await rota_kit.advance(TEN_SECONDS)
    await (await worker.claim_one()).fail("upstream 500")
    await rota_kit.advance(1)
    await (await worker.claim_one()).fail("upstream 500")
    [letter] = await rota_kit.history.dead_letters(tenant_id="default")
    assert letter.error == "upstream 500"
    assert await rota_kit.on_demand.replay([letter.run_id]) == {letter.run_id}
    assert await rota_kit.on_demand.replay([letter.run_id]) == frozenset()
    again = await worker.claim_one()
    assert (again.claim.attempt, again.claim.run_id) == (3, letter.run_id)
    await again.succeed()
    await rota_kit.advance(9)
    assert [run.state for run in await rota_kit.runs("tick")] == ["succeeded", "pending"]


async def test_giving_up_is_a_dead_letter_at_once(rota_kit: RotaKit) -> None:
    await rota_kit.put(every_ten(max_attempts=5))
    await rota_kit.advance(TEN_SECONDS)
    work = await rota_kit.worker("w-1", handlers=["h"]).claim_one()
    await work.report(Outcome.GAVE_UP, error="no such customer")
    [letter] = await rota_kit.history.dead_letters(tenant_id="default")
    assert (letter.attempt, letter.outcome) == (1, "gave_up")


async def test_deploys_and_snoozes_eat_no_attempts(rota_kit: RotaKit) -> None:
    """B44, B50: five releases and fifty snoozes, then the first failure is attempt 1."""
    await rota_kit.put(Job(job_id="long", handler="h", max_attempts=3))
    await rota_kit.on_demand.trigger("long", tenant_id="default")
    worker = rota_kit.worker("w-1", handlers=["h"])
    for _ in range(5):
        await (await worker.claim_one()).release()
    for _ in range(50):
        work = await worker.claim_one()
        await work.report(Outcome.SNOOZED, retry_after=timedelta(seconds=2))
        await rota_kit.advance(2)
    work = await worker.claim_one()
    assert work.claim.attempt == 1
    await work.fail()
    [run] = await rota_kit.runs("long")
    assert (run.state, run.attempt) == ("pending", 1)


@pytest.mark.parametrize("how", ["released", "lost"])
async def test_a_run_that_is_given_back_keeps_its_place_before_those_that_came_later(
    rota_kit: RotaKit, how: str
) -> None:
    """A deploy, or a host that dies, sends nothing to the end of the queue."""
    await rota_kit.put(Job(job_id="once", handler="h", lease_duration=timedelta(seconds=30)))
    for _ in range(3):
        await rota_kit.on_demand.trigger("once", tenant_id="default")
        rota_kit.clock.advance(60)
    worker = rota_kit.worker("w-1", handlers=["h"])
    oldest = await worker.claim_one()
    for _ in range(2):
        if how == "released":
            await oldest.release()
        else:
            await rota_kit.advance(31)
        again = await worker.claim_one()
        assert again.claim.run_id == oldest.claim.run_id
        if how == "lost":
            break
        oldest = again


async def test_a_claim_that_was_asked_for_before_the_slot_does_not_say_that_it_started_before_it(
    rota_kit: RotaKit,
) -> None:
    """The scheduler may have read the clock after the claimer, whose question then waited for the database."""
    await rota_kit.put(every_ten())
    await rota_kit.advance(TEN_SECONDS)
    slot = rota_kit.clock.now()
    rota_kit.clock.set(slot - timedelta(milliseconds=430))
    work = await rota_kit.worker("w-1", handlers=["h"]).claim_one()
    assert work.claim.claimed_at == slot
    await work.succeed()
    [run] = await rota_kit.runs("tick")
    [attempt] = await rota_kit.attempts(run)
    assert (attempt.started_at, attempt.ended_at) == (slot, slot)
    assert run.finished_at == slot


async def test_a_report_that_is_repeated_is_accepted_again(rota_kit: RotaKit) -> None:
    await rota_kit.put(every_ten())
    await rota_kit.advance(TEN_SECONDS)
    work = await rota_kit.worker("w-1", handlers=["h"]).claim_one()
    await work.succeed()
    await work.succeed()
    with pytest.raises(LeaseLost):
        await work.fail("but another outcome is not")
    [run] = await rota_kit.runs("tick")
    assert len(await rota_kit.attempts(run)) == 1


async def test_a_manual_run_at_a_slot_is_that_slot(rota_kit: RotaKit) -> None:
    """B20: the scheduler finds the slot taken and goes on."""
    await rota_kit.put(every_ten())
    slot = rota_kit.clock.now() + TEN_SECONDS
    await rota_kit.on_demand.trigger("tick", tenant_id="default", scheduled_for=slot)
    with pytest.raises(SlotTaken):
        await rota_kit.on_demand.trigger("tick", tenant_id="default", scheduled_for=slot)
    await rota_kit.advance(timedelta(seconds=20))
    runs = await rota_kit.runs("tick")
    assert [(run.origin, run.scheduled_for) for run in runs] == [
        ("manual", slot),
        ("schedule", slot + TEN_SECONDS),
    ]


async def test_an_error_with_a_nul_half_a_surrogate_or_ten_megabytes_moves_the_run_on(rota_kit: RotaKit) -> None:
    """B57: cleaned, cut and marked, and the state moves on."""
    await rota_kit.put(every_ten(max_attempts=1))
    await rota_kit.advance(TEN_SECONDS)
    work = await rota_kit.worker("w-1", handlers=["h"]).claim_one()
    await work.fail("a\x00b\ud800c" + "x" * 10_000_000 + "the end")
    [letter] = await rota_kit.history.dead_letters(tenant_id="default")
    assert letter.error is not None
    assert letter.error.startswith("a\\x00b\\ud800c")
    assert letter.error.endswith("the end")
    assert "cut by Rota" in letter.error
    assert len(letter.error) <= 16 * 1024


async def test_a_lapsed_lease_that_nobody_reclaimed_is_renewed_by_its_token(rota_kit: RotaKit) -> None:
    await rota_kit.put(every_ten(lease_duration=timedelta(seconds=30)))
    await rota_kit.advance(TEN_SECONDS)
    work = await rota_kit.worker("w-1", handlers=["h"]).claim_one()
    rota_kit.clock.advance(45)
    assert await work.renew() == rota_kit.clock.now() + timedelta(seconds=30)
    await rota_kit.tick()
    await work.succeed()


async def test_four_leases_of_work_with_renewals_are_one_attempt(rota_kit: RotaKit) -> None:
    """B14: a living run is never rescued for its age."""
    await rota_kit.put(every_ten(lease_duration=timedelta(seconds=30)))
    await rota_kit.advance(TEN_SECONDS)
    work = await rota_kit.worker("w-1", handlers=["h"]).claim_one()
    for _ in range(12):
        await rota_kit.advance(TEN_SECONDS)
        await work.renew()
    await work.succeed()
    [run, *_] = await rota_kit.runs("tick")
    assert [attempt.outcome for attempt in await rota_kit.attempts(run)] == ["succeeded"]


async def test_a_process_with_a_dead_ones_name_does_not_keep_its_runs_alive(rota_kit: RotaKit) -> None:
    """B03: leases are renewed by token, never by a worker's name."""
    await rota_kit.put(every_ten(lease_duration=timedelta(seconds=30)))
    await rota_kit.advance(TEN_SECONDS)
    await rota_kit.worker("w-1", handlers=["h"]).claim_one()
    for _ in range(4):
        await rota_kit.worker("w-1", handlers=["h"]).announce()
        await rota_kit.advance(TEN_SECONDS)
    [run, *_] = await rota_kit.runs("tick")
    assert (run.state, run.attempt) == ("pending", 1)


async def test_a_counter_at_its_columns_maximum_does_not_fail_the_batch(rota_kit: RotaKit) -> None:
    """B55: one damaged row costs its neighbours nothing."""
    await rota_kit.put(every_ten("poison"), every_ten("neighbour"))
    await rota_kit.advance(TEN_SECONDS)
    [poison] = await rota_kit.runs("poison")
    async with rota_kit.database.transaction() as tx:
        await tx._raw.execute(  # a row that only damage can make, so no statement of ours writes it
            "UPDATE rota.pending SET attempt = 2147483647 WHERE scheduled_for = $1 AND job_uid = $2",
            poison.scheduled_for,
            job_uid(*Job(job_id="poison", handler="h").name),
        )
    claimed = await rota_kit.worker("w-1", handlers=["h"]).claim(limit=10)
    assert {work.claim.job_id for work in claimed} == {"poison", "neighbour"}
    for work in claimed:
        await work.fail()
    assert [letter.job_id for letter in await rota_kit.history.dead_letters(tenant_id="default")] == ["poison"]
