"""The same stories told to the desk at the database and to the desk over HTTP: whoever works hears the same answers."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast
from uuid import uuid4

import pytest

from rota.client import Client
from rota.domain.attempt import ERROR_LIMIT, Claim, LeaseKey, Outcome, Report
from rota.domain.job import Job
from rota.domain.progress import Progress
from rota.domain.run import RunState
from rota.errors import InvalidInput
from rota.testing import RotaKit
from rota.wire.work import CompleteAnswer, CompleteAnswers, CompleteOne
from rota.worker.desk import Desk, WorkerInfo
from rota.worker.rest import RestDesk
from tests.client.served import LossyLine, lossy, served

LEASE = timedelta(seconds=60)
PATIENCE = 60.0


@pytest.fixture(params=["local", "rest"])
async def desk(request: pytest.FixtureRequest, rota_kit: RotaKit) -> AsyncIterator[Desk]:
    if request.param == "local":
        yield rota_kit.rota.desk()
        return
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(served(rota_kit))
        yield RestDesk(await stack.enter_async_context(Client(url, await token(rota_kit, "default"))))


async def token(kit: RotaKit, tenant_id: str) -> str:
    _, text = await kit.rota.access.create_token(
        tenant_id=tenant_id, scopes=["worker"], name="desk", expires_at=None, actor="test"
    )
    return text


def info(*handlers: str, worker_id: str = "w-1", pool: str = "default") -> WorkerInfo:
    return WorkerInfo(
        worker_id=worker_id,
        instance=uuid4(),
        pool=pool,
        handlers=frozenset(handlers or ("h",)),
        concurrency=7,
        tenant_id="default",
    )


async def pending(kit: RotaKit, count: int = 1, **parts: Any) -> list[str]:
    """Make jobs with a run each; returns their ids in order."""
    ids = [f"j{number}" for number in range(count)]
    await kit.put(*(Job(**{"job_id": job_id, "handler": "h", "max_attempts": 3, **parts}) for job_id in ids))
    for job_id in ids:
        await kit.on_demand.trigger(job_id, tenant_id="default")
    return ids


async def state(kit: RotaKit, job_id: str = "j0") -> str:
    [run] = await kit.runs(job_id)
    return run.state


async def claim_one(desk: Desk) -> Claim:
    [claim] = await desk.claim(info(), limit=1)
    return claim


async def test_a_worker_is_known_from_its_announcement_until_it_retires(desk: Desk, rota_kit: RotaKit) -> None:
    worker = info("g", "h")
    assert not await desk.announce(worker)
    assert not await desk.announce(worker)
    [seen] = await rota_kit.rota.fleet.workers(tenant_id="default")
    assert (seen.worker_id, seen.instance, seen.pool, seen.handlers, seen.concurrency) == (
        "w-1", worker.instance, "default", ("g", "h"), 7,
    )  # fmt: skip
    await desk.retire(worker)
    await desk.retire(worker)
    assert await rota_kit.rota.fleet.workers(tenant_id="default") == []


async def test_a_worker_that_is_drained_hears_it_at_its_next_announcement(desk: Desk, rota_kit: RotaKit) -> None:
    worker = info()
    await desk.announce(worker)
    await rota_kit.rota.fleet.drain("w-1", tenant_id="default")
    assert await desk.announce(worker)


async def test_a_worker_that_tells_what_it_claimed_is_shown_with_its_rate(desk: Desk, rota_kit: RotaKit) -> None:
    worker, rates = info(), []
    for claimed in (100, 150, 150, None, 170, 0, 10):
        await desk.announce(worker, claimed=claimed)
        [seen] = await rota_kit.rota.fleet.workers(tenant_id="default")
        rates.append(seen.claim_rate)
        rota_kit.clock.advance(5)
        # Over HTTP a claim announces its worker too, without news of this.
        assert await desk.claim(worker, limit=1) == []
    # Half of it is the latest stretch: 10/s, then nothing, then 20 in 10 s, and after a strange zero 2/s.
    assert rates == [None, 10, 5, 5, 3.5, 3.5, 2.75]
    await desk.announce(worker, claimed=20)
    await desk.announce(worker, claimed=10_000)
    [seen] = await rota_kit.rota.fleet.workers(tenant_id="default")
    assert seen.claim_rate == 2.375, "no time has passed, so this says nothing"


async def test_a_claim_tells_from_when_on_its_run_could_start(desk: Desk, rota_kit: RotaKit) -> None:
    await pending(rota_kit)
    claim = await claim_one(desk)
    assert claim.available_at == claim.key.scheduled_for
    await desk.report([Report(key=claim.key, outcome=Outcome.SNOOZED, retry_after=timedelta(minutes=10))])
    until = rota_kit.clock.now() + timedelta(minutes=10)
    await rota_kit.advance(601)
    again = await claim_one(desk)
    assert (again.attempt, again.available_at) == (1, until)


async def test_a_claim_holds_all_that_a_handler_needs(desk: Desk, rota_kit: RotaKit) -> None:
    payload = {"n": 10**30, "f": 0.1, "text": "é\n", "list": [None, True]}
    await rota_kit.put(
        Job(job_id="a/b ☃", handler="h", payload=payload, max_attempts=5, timeout=timedelta(seconds=90.5),
            lease_duration=timedelta(seconds=30.25))
    )  # fmt: skip
    run_id = await rota_kit.on_demand.trigger("a/b ☃", tenant_id="default")
    [run] = await rota_kit.runs("a/b ☃")
    claim = await claim_one(desk)
    now = rota_kit.clock.now()
    assert claim == Claim(
        key=LeaseKey(claim.key.shard, claim.key.job_uid, run.scheduled_for, claim.key.token),
        tenant_id="default",
        job_id="a/b ☃",
        handler="h",
        payload=payload,
        attempt=1,
        max_attempts=5,
        claimed_at=now,
        available_at=run.available_at,
        expires_at=now + timedelta(seconds=30.25),
        lease_duration=timedelta(seconds=30.25),
        timeout=timedelta(seconds=90.5),
    )
    assert claim.run_id == run_id
    assert await desk.report([Report(key=claim.key, outcome=Outcome.SUCCEEDED)])


async def test_claims_are_of_the_pool_and_the_handlers_best_rank_first_and_no_more_than_asked_for(
    desk: Desk, rota_kit: RotaKit
) -> None:
    await rota_kit.put(
        Job(job_id="low", handler="h", priority=0),
        Job(job_id="high", handler="h", priority=9),
        Job(job_id="middle", handler="g"),
        Job(job_id="elsewhere", handler="h", pool="other"),
        Job(job_id="stranger", handler="x"),
    )
    for job_id in ("low", "middle", "high", "elsewhere", "stranger"):
        await rota_kit.on_demand.trigger(job_id, tenant_id="default")
    worker = info("g", "h")
    assert [claim.job_id for claim in await desk.claim(worker, limit=2)] == ["high", "middle"]
    assert [claim.job_id for claim in await desk.claim(worker, limit=2)] == ["low"]
    assert await desk.claim(worker, limit=2) == []
    assert [claim.job_id for claim in await desk.claim(info(pool="other"), limit=9)] == ["elsewhere"]


async def test_renewals_extend_what_is_held_and_name_what_is_lost_or_to_be_cancelled(
    desk: Desk, rota_kit: RotaKit
) -> None:
    await pending(rota_kit, 3)
    held, unwanted, ended = await desk.claim(info(), limit=3)
    await rota_kit.on_demand.cancel(unwanted.run_id, tenant_id="default")
    await desk.report([Report(key=ended.key, outcome=Outcome.SUCCEEDED)])
    strange = replace(held.key, token=uuid4())
    rota_kit.clock.advance(LEASE / 2)
    renewal = await desk.renew([held.key, unwanted.key, ended.key, strange])
    until = rota_kit.clock.now() + LEASE
    assert renewal.renewed == {held.key.token: until, unwanted.key.token: until}
    assert renewal.lost == {ended.key.token, strange.token}
    assert renewal.cancelled == {unwanted.key.token}
    await rota_kit.advance(LEASE)
    assert (await desk.renew([held.key])).lost == {held.key.token}
    assert await desk.renew([]) == replace(renewal, renewed={}, lost=frozenset(), cancelled=frozenset())
    assert await desk.claim(info(), limit=0) == []


async def test_renewals_note_how_far_runs_are_and_the_latest_counts(desk: Desk, rota_kit: RotaKit) -> None:
    await pending(rota_kit, 3)
    first, second, ended = await desk.claim(info(), limit=3)
    await desk.report([Report(key=ended.key, outcome=Outcome.SUCCEEDED)])
    keys = [first.key, second.key, ended.key]
    rota_kit.clock.advance(LEASE / 2)
    told = {first.key.token: Progress(0.25, "a quarter"), ended.key.token: Progress(1.0)}
    renewal = await desk.renew(keys, progress=told)
    until = rota_kit.clock.now() + LEASE
    assert renewal.renewed == {first.key.token: until, second.key.token: until}
    assert renewal.lost == {ended.key.token}
    await desk.renew(keys, progress={first.key.token: Progress(0.75), second.key.token: Progress(None, "x" * 500)})
    await desk.renew(keys)
    seen = [
        (run.progress, run.progress_note) for job in (first.job_id, second.job_id) for run in await rota_kit.runs(job)
    ]
    assert seen == [(0.75, "a quarter"), (None, "x" * 500)]


async def test_more_leases_than_one_call_takes_are_renewed_and_ended(desk: Desk, rota_kit: RotaKit) -> None:
    await pending(rota_kit, 1003)
    worker = info()
    claims = [claim for _ in range(3) for claim in await desk.claim(worker, limit=1000)]
    assert len(claims) == 1003
    assert len((await desk.renew([claim.key for claim in claims])).renewed) == 1003
    text = "x" * ERROR_LIMIT
    reports = [Report(key=claim.key, outcome=Outcome.GAVE_UP, error=text) for claim in claims]
    assert await desk.report(reports) == {claim.key.token for claim in claims}


@pytest.mark.parametrize(
    ("outcome", "becomes", "charged"),
    [
        (Outcome.SUCCEEDED, "succeeded", 1),
        (Outcome.FAILED, "pending", 1),
        (Outcome.TIMED_OUT, "pending", 1),
        (Outcome.GAVE_UP, "dead", 1),
        (Outcome.SNOOZED, "pending", 0),
        (Outcome.RELEASED, "pending", 0),
        (Outcome.LOST, "pending", 1),
        (Outcome.CANCELLED, "cancelled", 1),
    ],
)
async def test_every_outcome_is_taken_once_and_the_same_again_alike(
    desk: Desk, rota_kit: RotaKit, outcome: Outcome, becomes: str, charged: int
) -> None:
    await pending(rota_kit)
    claim = await claim_one(desk)
    error = None if outcome is Outcome.SUCCEEDED else "why\x00\ud800"
    report = Report(key=claim.key, outcome=outcome, error=error, retry_after=timedelta(seconds=90))
    assert await desk.report([report]) == {claim.key.token}
    assert await desk.report([report]) == {claim.key.token}
    [run] = await rota_kit.runs("j0")
    assert (run.state, run.attempt) == (becomes, charged)
    if outcome in (Outcome.SNOOZED, Outcome.FAILED):
        assert run.available_at == rota_kit.clock.now() + timedelta(seconds=90)
    if outcome is not Outcome.SUCCEEDED:
        [attempt] = await rota_kit.attempts(run)
        assert (attempt.outcome, attempt.error) == (outcome, "why\\x00\\ud800")


async def test_a_run_that_took_its_worker_is_a_suspect_at_its_next_claim(desk: Desk, rota_kit: RotaKit) -> None:
    await pending(rota_kit)
    claim = await claim_one(desk)
    report = Report(key=claim.key, outcome=Outcome.TIMED_OUT, error="it held the loop", took_worker=True)
    assert await desk.report([report]) == {claim.key.token}
    rota_kit.clock.advance(timedelta(hours=1))
    await rota_kit.tick()
    again = await claim_one(desk)
    assert (again.losses, again.attempt) == (1, 3)


async def test_an_api_of_before_hears_of_a_timeout_as_of_any_other(rota_kit: RotaKit) -> None:
    class Before:
        """An API of 0.1.0, which refuses what it does not know."""

        async def complete_many(self, reports: Sequence[CompleteOne]) -> CompleteAnswers:
            said = [report.model_dump(mode="json") for report in reports]
            if any("took_worker" in one for one in said):
                raise InvalidInput("reports.0.took_worker", "is not permitted")
            answers = tuple(CompleteAnswer(run_id=report.run_id, state="pending") for report in reports)
            return CompleteAnswers(accepted=answers, lost=())

    await pending(rota_kit)
    claim = await claim_one(rota_kit.worker("w", handlers=["h"]).desk)
    report = Report(key=claim.key, outcome=Outcome.TIMED_OUT, took_worker=True)
    desk = RestDesk(cast(Any, Before()))
    assert await desk.report([report]) == {claim.key.token}


async def test_a_result_is_kept_with_the_success_and_one_that_cannot_be_kept_is_refused(
    desk: Desk, rota_kit: RotaKit
) -> None:
    await pending(rota_kit)
    claim = await claim_one(desk)
    report = Report(key=claim.key, outcome=Outcome.SUCCEEDED, result={"rows": 10**20})
    with pytest.raises(InvalidInput) as refused:
        await desk.report([replace(report, result="x" * 70_000)])
    assert refused.value.field == "result"
    assert await desk.report([report]) == {claim.key.token}
    [run] = await rota_kit.runs("j0")
    assert run.result == {"rows": 10**20}


async def test_a_report_without_its_lease_is_left_out_and_keeps_no_other(desk: Desk, rota_kit: RotaKit) -> None:
    await pending(rota_kit, 2, lease_duration=LEASE)
    first, second = await desk.claim(info(), limit=2)
    rota_kit.clock.advance(LEASE / 2)
    await desk.renew([second.key])
    await rota_kit.advance(LEASE / 2)
    reports = [Report(key=claim.key, outcome=Outcome.SUCCEEDED) for claim in (first, second)]
    assert await desk.report(reports) == {second.key.token}
    assert (await state(rota_kit, first.job_id), await state(rota_kit, second.job_id)) == ("pending", "succeeded")


async def test_waiting_ends_when_there_is_work_and_after_its_time(desk: Desk, rota_kit: RotaKit) -> None:
    worker = info()
    await rota_kit.put(Job(job_id="j0", handler="h"))
    waiting = asyncio.create_task(desk.wait_for_work(worker, timeout=20))
    async with asyncio.timeout(PATIENCE):
        while rota_kit.clock.next_wake() is None:
            await asyncio.wait({waiting}, timeout=0.01)
        assert not waiting.done()
        await rota_kit.on_demand.trigger("j0", tenant_id="default")
        await waiting
    assert await desk.claim(worker, limit=1)
    waiting = asyncio.create_task(desk.wait_for_work(worker, timeout=20))
    async with asyncio.timeout(PATIENCE):
        while not waiting.done():
            rota_kit.clock.advance(1)
            await asyncio.wait({waiting}, timeout=0.01)


# Over HTTP alone: there is no way between the services and their own desk.


@pytest.fixture
async def line(rota_kit: RotaKit) -> AsyncIterator[LossyLine]:
    async with served(rota_kit) as url, lossy(url) as one:
        yield one


@pytest.fixture
async def far(line: LossyLine, rota_kit: RotaKit) -> AsyncIterator[RestDesk]:
    """A desk behind a line that loses answers."""
    async with Client(line.url, await token(rota_kit, "default"), timeout=5) as client:
        yield RestDesk(client)


async def test_a_claim_whose_answer_is_lost_is_asked_for_again(
    far: RestDesk, line: LossyLine, rota_kit: RotaKit
) -> None:
    await pending(rota_kit, 3)
    line.losses = 2
    assert len(await far.claim(info(), limit=2)) == 2
    assert line.passed == ["/v1/claims"] * 3
    assert sorted([await state(rota_kit, f"j{number}") for number in range(3)]) == ["pending", "running", "running"]


async def test_a_claim_that_was_given_up_hands_its_runs_to_the_next_and_gives_back_what_has_no_room(
    far: RestDesk, line: LossyLine, rota_kit: RotaKit
) -> None:
    await pending(rota_kit, 3)
    worker = info()
    line.losses = 1
    claiming = asyncio.create_task(far.claim(worker, limit=2))
    async with asyncio.timeout(PATIENCE):
        while not line.passed:
            await asyncio.wait({claiming}, timeout=0.01)
    claiming.cancel()
    await asyncio.gather(claiming, return_exceptions=True)
    line.losses = 0
    [claim] = await far.claim(worker, limit=1)
    assert sorted([await state(rota_kit, f"j{number}") for number in range(3)]) == ["pending", "pending", "running"]
    assert await far.report([Report(key=claim.key, outcome=Outcome.SUCCEEDED)])
    assert len(await far.claim(worker, limit=3)) == 2


async def test_a_report_whose_answer_is_lost_is_accepted_again(
    far: RestDesk, line: LossyLine, rota_kit: RotaKit
) -> None:
    await pending(rota_kit)
    claim = await claim_one(far)
    line.losses = 1
    assert await far.report([Report(key=claim.key, outcome=Outcome.SUCCEEDED)]) == {claim.key.token}
    assert await state(rota_kit) == RunState.SUCCEEDED


async def test_a_stranger_neither_takes_nor_renews_nor_ends_a_run(rota_kit: RotaKit) -> None:
    await pending(rota_kit)
    async with served(rota_kit) as url, Client(url, await token(rota_kit, "acme")) as client:
        stranger = RestDesk(client)
        assert await stranger.claim(info(), limit=1) == []
        claim = await claim_one(rota_kit.rota.desk())
        assert (await stranger.renew([claim.key])).lost == {claim.key.token}
        assert await stranger.report([Report(key=claim.key, outcome=Outcome.GAVE_UP)]) == frozenset()
    assert await state(rota_kit) == "running"
