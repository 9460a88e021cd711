"""A run that somebody wants cancelled while it runs: its worker is told, and however the attempt ends, it is over."""

import asyncio
from datetime import timedelta
from uuid import uuid4

import pytest

from rota.domain.attempt import RESULT_LIMIT, LeaseKey, Outcome, Report
from rota.domain.job import Job
from rota.domain.progress import Progress
from rota.domain.run import RunState
from rota.errors import InvalidInput, LeaseLost, TooLarge
from rota.testing import RotaKit
from rota.testing.kit import KitWork
from tests.services.stories import MINUTE, SECOND, TEN_SECONDS, execute, fetch, states
from tests.store.stage import uncommitted


async def running(kit: RotaKit, **changes: object) -> KitWork:
    """Return the claim on a run of a job that retries at once."""
    await kit.put(Job(job_id="tick", handler="h", max_attempts=3).edited(**changes))
    await kit.on_demand.trigger("tick", tenant_id="default")
    return await kit.worker("w-1", handlers=["h"]).claim_one()


async def ask_for_the_end(kit: RotaKit) -> None:
    await execute(kit, "UPDATE rota.lease SET cancel_requested_at = $1", kit.clock.now())


async def test_a_renewal_tells_the_worker(rota_kit: RotaKit) -> None:
    work = await running(rota_kit)
    assert (await work.desk.renew([work.claim.key])).cancelled == frozenset()
    await ask_for_the_end(rota_kit)
    renewal = await work.desk.renew([work.claim.key])
    assert renewal.cancelled == {work.claim.key.token}
    assert not renewal.lost
    [lease] = (await rota_kit.rota.completion.renew([work.claim.key])).values()
    assert lease.cancel
    assert lease.expires_at == rota_kit.clock.now() + work.claim.lease_duration


@pytest.mark.parametrize(
    "outcome", [Outcome.CANCELLED, Outcome.FAILED, Outcome.GAVE_UP, Outcome.SNOOZED, Outcome.RELEASED, Outcome.LOST]
)
async def test_however_the_attempt_ends_the_run_is_cancelled(rota_kit: RotaKit, outcome: Outcome) -> None:
    work = await running(rota_kit, max_attempts=1)
    await ask_for_the_end(rota_kit)
    report = Report(key=work.claim.key, outcome=outcome, error="told to stop")
    told = await rota_kit.rota.completion.report([report])
    assert told == {work.claim.key.token: RunState.CANCELLED}
    [run] = await rota_kit.runs("tick")
    assert (run.state, run.reason, run.attempt) == ("cancelled", "cancelled on request", 1)
    assert [attempt.outcome for attempt in await rota_kit.attempts(run)] == [outcome]
    assert not await fetch(rota_kit, "SELECT FROM rota.pending") + await fetch(rota_kit, "SELECT FROM rota.dead")
    await rota_kit.check()


async def test_a_success_stays_a_success(rota_kit: RotaKit) -> None:
    work = await running(rota_kit)
    await ask_for_the_end(rota_kit)
    await work.succeed({"rows": 7})
    [run] = await rota_kit.runs("tick")
    assert (run.state, run.reason) == ("succeeded", None)


async def test_a_worker_that_is_gone_ends_the_run_as_well(rota_kit: RotaKit) -> None:
    await running(rota_kit)
    await ask_for_the_end(rota_kit)
    await rota_kit.advance(2 * MINUTE)
    [run] = await rota_kit.runs("tick")
    assert (run.state, run.reason) == ("cancelled", "cancelled on request")
    assert [attempt.outcome for attempt in await rota_kit.attempts(run)] == ["lost"]


async def test_a_worker_that_cancels_by_itself_says_so(rota_kit: RotaKit) -> None:
    work = await running(rota_kit)
    await work.report(Outcome.CANCELLED, error="nothing to do here")
    [run] = await rota_kit.runs("tick")
    assert (run.state, run.reason) == ("cancelled", "cancelled by its worker")


async def test_a_report_told_twice_answers_with_the_state_of_now(rota_kit: RotaKit) -> None:
    work = await running(rota_kit)
    report = Report(key=work.claim.key, outcome=Outcome.FAILED, error="upstream 500")
    completion = rota_kit.rota.completion
    token = work.claim.key.token
    assert await completion.report([report]) == {token: RunState.PENDING}
    await rota_kit.advance(MINUTE)
    again = await rota_kit.worker("w-2", handlers=["h"]).claim_one()
    assert await completion.report([report]) == {token: RunState.RUNNING}
    await again.succeed()
    assert await completion.report([report]) == {token: RunState.SUCCEEDED}
    late = Report(key=work.claim.key, outcome=Outcome.SUCCEEDED)
    assert await completion.report([late]) == {}


async def test_a_success_keeps_its_result_and_a_failure_none(rota_kit: RotaKit) -> None:
    work = await running(rota_kit)
    await work.report(Outcome.FAILED, error="no", result={"never": "kept"})
    await rota_kit.advance(MINUTE)
    [row] = await fetch(rota_kit, "SELECT result FROM rota.run")
    assert row["result"] is None
    again = await rota_kit.worker("w-1", handlers=["h"]).claim_one()
    await again.succeed({"rows": 7, "note": "schön"})
    [row] = await fetch(rota_kit, "SELECT result->>'note' AS note FROM rota.run")
    assert row["note"] == "schön"


async def test_a_result_that_cannot_be_kept_is_refused_and_nothing_is_recorded(rota_kit: RotaKit) -> None:
    work = await running(rota_kit)
    for result, error in (("x" * RESULT_LIMIT, TooLarge), ({"n": float("nan")}, InvalidInput), ("\x00", InvalidInput)):
        with pytest.raises(error, match=r"^result: "):
            await work.succeed(result)
    assert await states(rota_kit) == ["running"]
    await work.succeed("x" * (RESULT_LIMIT - 2))


async def test_a_failure_waits_as_long_as_the_upstream_asks(rota_kit: RotaKit) -> None:
    work = await running(rota_kit)
    await work.report(Outcome.FAILED, error="429", retry_after=10 * MINUTE)
    [run] = await rota_kit.runs("tick")
    assert (run.state, run.attempt, run.available_at) == ("pending", 1, rota_kit.clock.now() + 10 * MINUTE)


async def test_progress_is_seen_and_needs_the_lease(rota_kit: RotaKit) -> None:
    work = await running(rota_kit)
    note = rota_kit.rota.completion.note_progress
    await note(work.claim.key, 0.5, "half\x00way")
    await note(work.claim.key, 0.75, None)
    [row] = await fetch(rota_kit, "SELECT progress, progress_note FROM rota.lease")
    assert (row["progress"], row["progress_note"]) == (0.75, "half\\x00way")
    for value, text in ((1.5, None), (float("nan"), None), (None, "x" * 501)):
        with pytest.raises(InvalidInput, match="progress"):
            await note(work.claim.key, value, text)
    key = work.claim.key
    with pytest.raises(LeaseLost):
        await note(LeaseKey(key.shard, key.job_uid, key.scheduled_for, uuid4()), 0.9, None)


async def test_progress_travels_with_the_renewal_and_what_is_not_said_stays(rota_kit: RotaKit) -> None:
    work = await running(rota_kit)
    key, renew = work.claim.key, rota_kit.rota.completion.renew
    for progress in (Progress(0.25, "a quarter"), Progress(0.7), None, Progress(note="still half")):
        rota_kit.clock.advance(SECOND)
        held = await renew([key], progress=None if progress is None else {key.token: progress})
        assert held[key.token].expires_at == rota_kit.clock.now() + work.claim.lease_duration
    [run] = await rota_kit.runs("tick")
    assert (run.progress, run.progress_note) == (0.7, "still half")
    await work.succeed()
    assert await renew([key], progress={key.token: Progress(1.0)}) == {}, "too late, and no harm"


async def test_a_run_that_was_cancelled_keeps_its_last_progress(rota_kit: RotaKit) -> None:
    work = await running(rota_kit)
    await work.desk.renew([work.claim.key], progress={work.claim.key.token: Progress(0.7, "page 7 of 10")})
    await ask_for_the_end(rota_kit)
    await work.report(Outcome.CANCELLED)
    [run] = await rota_kit.runs("tick")
    assert (run.state, run.progress, run.progress_note) == ("cancelled", 0.7, "page 7 of 10")
    shown, [attempt] = await rota_kit.history.run(run.run_id)
    assert (shown.progress, shown.progress_note) == (attempt.progress, attempt.progress_note) == (0.7, "page 7 of 10")


async def test_each_attempt_keeps_what_it_said_of_its_progress_however_it_ended(rota_kit: RotaKit) -> None:
    work = await running(rota_kit)
    for share in (0.25, 0.5):
        await work.desk.renew([work.claim.key], progress={work.claim.key.token: Progress(share, None)})
        await work.fail("no")
        [run] = await rota_kit.runs("tick")
        assert (run.state, run.progress) == ("pending", None), "what waits is at its beginning"
        await rota_kit.advance(60)
        work = await rota_kit.worker("w-1", handlers=["h"]).claim_one()
    await work.desk.renew([work.claim.key], progress={work.claim.key.token: Progress(0.75, "lost")})
    await rota_kit.advance(61)  # the lease is 60 s
    [run] = await rota_kit.runs("tick")
    assert [attempt.progress for attempt in await rota_kit.attempts(run)] == [0.25, 0.5, 0.75]


async def test_asking_for_the_end_of_a_run_that_runs_is_heard_at_once(rota_kit: RotaKit) -> None:
    work = await running(rota_kit)
    desk = rota_kit.rota.desk()
    hearing = asyncio.create_task(desk.wait_for_cancel())
    await rota_kit.on_demand.trigger("tick", tenant_id="default", scheduled_for=rota_kit.clock.now() + SECOND)
    waiting = next(run for run in await rota_kit.runs("tick") if run.run_id != work.claim.run_id)
    await rota_kit.on_demand.cancel(waiting.run_id, tenant_id="default")
    assert not hearing.done(), "a run that waits has no worker to be told"
    await rota_kit.on_demand.cancel(work.claim.run_id, tenant_id="default")
    async with asyncio.timeout(30):
        await hearing
    assert (await desk.renew([work.claim.key])).cancelled == {work.claim.key.token}


async def test_fifty_snoozes_and_then_a_failure_are_one_attempt(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h", max_attempts=1))
    await rota_kit.on_demand.trigger("tick", tenant_id="default")
    worker = rota_kit.worker("w-1", handlers=["h"])
    for _ in range(50):
        work = await worker.claim_one()
        assert work.claim.attempt == 1
        await work.report(Outcome.SNOOZED, retry_after=SECOND)
        await rota_kit.advance(SECOND)
    await (await worker.claim_one()).fail()
    [run] = await rota_kit.runs("tick")
    assert (run.state, run.attempt) == ("dead", 1)
    assert len(await rota_kit.attempts(run)) == 51


async def test_a_run_that_a_long_transaction_ends_does_not_keep_the_reaper_from_the_others(rota_kit: RotaKit) -> None:
    """A handler ends its run in its own transaction, after its lease has lapsed, and takes its time to commit."""
    slow = await running(rota_kit, lease_duration=TEN_SECONDS)
    await rota_kit.on_demand.trigger("tick", tenant_id="default", scheduled_for=rota_kit.clock.now() - SECOND)
    await rota_kit.worker("w-2", handlers=["h"]).claim_one()
    async with uncommitted(rota_kit.dsn) as handler:
        await handler.execute("DELETE FROM rota.lease WHERE token = $1", slow.claim.key.token)
        await rota_kit.advance(timedelta(minutes=1))
        assert sorted(await states(rota_kit)) == ["pending", "running"]
    await rota_kit.tick()
    assert await states(rota_kit) == ["pending", "pending"]
