"""Stories of one worker in this process, at a desk in memory."""

import asyncio
import threading
from dataclasses import replace
from datetime import timedelta

import pytest

from rota.clock import ManualClock
from rota.domain.attempt import CLAIM_LIMIT, ERROR_LIMIT, Claim, Outcome, Report
from rota.errors import GiveUp, RetryLater
from rota.worker import intake
from rota.worker.context import RunContext
from rota.worker.desk import WorkerInfo
from rota.worker.events import RunEvent
from rota.worker.handlers import HandlerRegistry
from rota.worker.worker import Worker
from tests.worker.fake_desk import FakeDesk
from tests.worker.kit import NotingHeart, at_work, info_of


async def test_coroutines_and_plain_functions_get_their_run_and_succeed(
    desk: FakeDesk, registry: HandlerRegistry
) -> None:
    seen: list[RunContext] = []
    threads: list[str] = []

    async def in_loop(run: RunContext) -> None:
        seen.append(run)

    def in_thread() -> None:
        threads.append(threading.current_thread().name)

    registry.register("in-loop", in_loop)
    registry.register("in-thread", in_thread)
    first, second = desk.add("in-loop", {"n": 1}), desk.add("in-thread")
    async with at_work(desk, registry) as (worker, heart):
        await desk.until(lambda: worker.stats.succeeded == 2)
        assert not heart.held
    assert (first.state, second.state) == ("succeeded", "succeeded")
    assert (seen[0].job_id, seen[0].payload, seen[0].attempt) == (first.job_id, {"n": 1}, 1)
    assert not seen[0].lease_lost
    assert threads[0].startswith("rota-run-")


async def test_a_handler_that_raises_fails_with_its_own_frames_only(desk: FakeDesk, registry: HandlerRegistry) -> None:
    async def broken() -> None:
        raise ValueError("upstream 500")

    registry.register("broken", broken)
    run = desk.add("broken", max_attempts=2)
    async with at_work(desk, registry):
        await desk.until(lambda: run.state == "dead")
    assert run.outcomes == [Outcome.FAILED, Outcome.FAILED]
    error = run.last.error or ""
    assert error.startswith("ValueError: upstream 500\n\nTraceback")
    assert "in broken" in error
    assert "executor.py" not in error


async def test_giving_up_ends_a_run_and_snoozing_does_not_count(desk: FakeDesk, registry: HandlerRegistry) -> None:
    snoozes = 5

    async def not_now(run: RunContext) -> None:
        nonlocal snoozes
        assert run.attempt == 1
        if snoozes:
            snoozes -= 1
            raise RetryLater(0.01, "not now")
        raise GiveUp("no such customer")

    registry.register("not-now", not_now)
    run = desk.add("not-now")
    async with at_work(desk, registry):
        await desk.until(lambda: run.state == "dead")
    assert run.outcomes == [Outcome.SNOOZED] * 5 + [Outcome.GAVE_UP]
    assert run.last.error == "no such customer"
    assert run.charged == 1


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_an_exit_raised_by_a_handler_ends_one_attempt(
    desk: FakeDesk, registry: HandlerRegistry, kind: str
) -> None:
    async def leave_async() -> None:
        raise SystemExit(4)

    def leave() -> None:
        raise KeyboardInterrupt

    registry.register("leave", leave_async if kind == "async" else leave)
    run = desk.add("leave", max_attempts=1)
    async with at_work(desk, registry):
        await desk.until(lambda: run.state == "dead")
    assert (run.last.error or "").startswith("SystemExit: 4" if kind == "async" else "KeyboardInterrupt")


async def test_a_coroutine_that_cancels_itself_has_failed(desk: FakeDesk, registry: HandlerRegistry) -> None:
    async def cancel_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.Event().wait()

    registry.register("cancel-itself", cancel_itself)
    run = desk.add("cancel-itself", max_attempts=2)
    async with at_work(desk, registry):
        await desk.until(lambda: run.state == "dead")
    assert run.outcomes == [Outcome.FAILED, Outcome.FAILED]
    assert run.last.error == "CancelledError: the handler cancelled itself"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("nul \x00 here", "nul \\x00 here"),
        ("half \ud800 a pair", "half \\ud800 a pair"),
        ("x" * 10_000_000, "cut by Rota"),
        ("cannot reach postgresql://rota:s3cret@db/rota", "postgresql://rota:***@db/rota"),
        ("cannot reach host=db password=s3cret", "host=db password=***"),
        ("x" * 460 + " postgresql://rota:s3cret" + "t" * 40 + "@db/rota", "postgresql://rota:***"),
    ],
    ids=["nul", "surrogate", "10 MB", "password", "password of a key and its value", "password at the summary's end"],
)
async def test_an_error_of_any_text_is_recorded(
    desk: FakeDesk, registry: HandlerRegistry, text: str, kept: str
) -> None:
    async def broken() -> None:
        raise ValueError(text)

    registry.register("broken", broken)
    run = desk.add("broken", max_attempts=1)
    async with at_work(desk, registry):
        await desk.until(lambda: run.state == "dead")
    error = run.last.error or ""
    assert kept in error
    assert len(error) <= ERROR_LIMIT
    assert "s3cret" not in error
    error.encode()


async def test_a_run_whose_handler_nobody_knows_waits(desk: FakeDesk, registry: HandlerRegistry) -> None:
    async def known() -> None: ...

    registry.register("known", known)
    stranger, friend = desk.add("unknown"), desk.add("known")
    async with at_work(desk, registry):
        await desk.until(lambda: friend.state == "succeeded")
    assert (stranger.state, stranger.attempts, stranger.claims) == ("pending", [], 0)


async def test_a_claim_that_the_registry_does_not_know_goes_back_uncharged(
    desk: FakeDesk, registry: HandlerRegistry
) -> None:
    async def known() -> None: ...

    registry.register("known", known)
    run = desk.add("known")
    claim = desk.claim

    async def careless(worker: WorkerInfo, *, limit: int) -> list[Claim]:
        return [replace(claimed, handler="gone") for claimed in await claim(worker, limit=limit)]

    desk.claim = careless  # type: ignore[method-assign]  # a desk that hands out what was not asked for
    async with at_work(desk, registry):
        await desk.until(lambda: run.attempts)
    assert set(run.outcomes) == {Outcome.RELEASED}
    assert run.charged == 0


async def test_a_claim_that_arrives_after_its_lease_has_ended_starts_nothing(registry: HandlerRegistry) -> None:
    clock = ManualClock()
    desk = FakeDesk(clock, lease=timedelta(seconds=2))
    begun: list[RunContext] = []

    async def work(run: RunContext) -> None:
        begun.append(run)

    registry.register("work", work)
    run = desk.add("work")
    claim = desk.claim

    async def slow(worker: WorkerInfo, *, limit: int) -> list[Claim]:
        claims = await claim(worker, limit=limit)
        clock.advance(desk.lease_duration)
        return claims

    desk.claim = slow  # type: ignore[method-assign]  # a desk whose answers take longer than a lease
    events: list[RunEvent] = []
    async with at_work(desk, registry, on_event=events.append) as (_, heart):
        await desk.until(lambda: desk.refused and not heart.held)
    assert (begun, run.claims) == ([], 1)
    assert [report.outcome for report in desk.refused] == [Outcome.RELEASED]
    assert [(event.started_at, event.outcome) for event in events] == [(None, Outcome.LOST)]


async def test_a_coroutine_past_its_timeout_is_cancelled(registry: HandlerRegistry) -> None:
    clock = ManualClock()
    desk = FakeDesk(clock)
    told: list[bool] = []
    begun = asyncio.Event()

    async def endless(run: RunContext) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            told.append(bool(run.lease_lost))

    registry.register("endless", endless)
    run = desk.add("endless", timeout=5, max_attempts=1, lease=timedelta(hours=1))
    async with at_work(desk, registry):
        await begun.wait()
        clock.advance(4.9)
        assert run.state == "running"
        clock.advance(0.2)
        await desk.until(lambda: run.state == "dead")
    assert run.outcomes == [Outcome.TIMED_OUT]
    assert run.last.error == "no result within 5 s: the handler was cancelled"
    assert told == [True]


async def test_a_coroutine_that_ignores_its_cancellation_is_reported_all_the_same(registry: HandlerRegistry) -> None:
    clock = ManualClock()
    desk = FakeDesk(clock)
    begun, ignored, end = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def stubborn() -> None:
        begun.set()
        try:
            await end.wait()
        except asyncio.CancelledError:
            ignored.set()
            await end.wait()

    registry.register("stubborn", stubborn)
    run = desk.add("stubborn", timeout=5, max_attempts=1, lease=timedelta(hours=1))
    async with at_work(desk, registry, concurrency=1) as (worker, _):
        await begun.wait()
        clock.advance(5)
        await ignored.wait()
        clock.advance(5)
        await desk.until(lambda: run.state == "dead")
        assert worker.stats.running == 1, "the slot is taken for as long as the handler works"
        end.set()
        await desk.until(lambda: worker.stats.running == 0)
    assert run.outcomes == [Outcome.TIMED_OUT]


async def test_a_thread_past_its_timeout_keeps_its_slot_until_it_returns(
    desk: FakeDesk, registry: HandlerRegistry
) -> None:
    end = threading.Event()

    def stuck(run: RunContext) -> None:
        assert run.lease_lost.wait(10)
        end.wait(10)

    async def other() -> None: ...

    registry.register("stuck", stuck)
    registry.register("other", other)
    run = desk.add("stuck", timeout=0.05, max_attempts=1)
    async with at_work(desk, registry, concurrency=1) as (worker, _):
        await desk.until(lambda: run.state == "dead" and worker.stats.lingering == 1)
        waiting = desk.add("other")
        assert waiting.state == "pending"
        assert worker._free_slots() == 0
        end.set()
        await desk.until(lambda: waiting.state == "succeeded")
        assert worker.stats.lingering == 0
    assert "no result within 0.05 s" in (run.last.error or "")


async def test_a_lost_lease_stops_the_handler_and_says_nothing(desk: FakeDesk, registry: HandlerRegistry) -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def work(run: RunContext) -> None:
        begun.set()
        try:
            await run.lease_lost.wait_async()
        finally:
            stopped.set()

    registry.register("work", work)
    run = desk.add("work", max_attempts=1)
    events: list[RunEvent] = []
    async with at_work(desk, registry, on_event=events.append) as (worker, heart):
        await begun.wait()
        assert run.lease is not None
        heart.learn(lost=[run.lease.token])
        await stopped.wait()
        await desk.until(lambda: worker.stats.ended[Outcome.LOST] == 1)
        assert not heart.held
    assert desk.calls["report"] == 0
    assert [event.outcome for event in events] == [None, Outcome.LOST]


async def test_a_cancelled_run_stops_and_says_so(desk: FakeDesk, registry: HandlerRegistry) -> None:
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    registry.register("work", work)
    run = desk.add("work")
    async with at_work(desk, registry) as (_, heart):
        await begun.wait()
        assert run.lease is not None
        heart.learn(cancelled=[run.lease.token])
        await desk.until(lambda: run.attempts)
    assert run.attempts[0].outcome is Outcome.CANCELLED
    assert run.attempts[0].error == "cancelled on request"
    assert run.state == "cancelled"


async def test_a_thread_that_is_cancelled_is_told_by_its_flag(desk: FakeDesk, registry: HandlerRegistry) -> None:
    begun, told = threading.Event(), threading.Event()

    def work(run: RunContext) -> None:
        begun.set()
        assert run.lease_lost.wait(20)
        told.set()

    registry.register("work", work)
    run = desk.add("work")
    async with at_work(desk, registry) as (worker, heart):
        await desk.until(begun.is_set)
        assert run.lease is not None
        heart.learn(cancelled=[run.lease.token])
        await desk.until(lambda: run.state == "cancelled")
        await desk.until(told.is_set)
        assert worker.stats.ended[Outcome.CANCELLED] == 1
    assert run.outcomes == [Outcome.CANCELLED]


async def test_a_handler_has_the_token_of_its_lease_and_shows_it_to_nobody(
    desk: FakeDesk, registry: HandlerRegistry
) -> None:
    seen: list[RunContext] = []
    registry.register("work", seen.append)
    run = desk.add("work")
    async with at_work(desk, registry):
        await desk.until(lambda: run.state == "succeeded")
    [context] = seen
    assert str(context.lease_token) not in repr(context)
    again = RunContext.from_wire(context.to_wire(), lease_lost=context.lease_lost, cancelled=context.cancelled)
    assert again == context


async def test_a_drained_worker_claims_nothing_until_it_may_again(
    desk: FakeDesk, registry: HandlerRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "ANNOUNCE_INTERVAL", 0.01)

    async def work() -> None:
        pass

    registry.register("work", work)
    desk.drains = True
    async with at_work(desk, registry):
        await desk.until(lambda: desk.calls["announce"] >= 3)
        held_back = desk.add("work")
        await desk.until(lambda: desk.calls["announce"] >= 10)
        assert (held_back.state, desk.calls["claim"]) == ("pending", 0)
        desk.drains = False
        await desk.until(lambda: held_back.state == "succeeded")


async def test_a_full_worker_counts_as_well_as_one_that_claims(
    desk: FakeDesk, registry: HandlerRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "ANNOUNCE_INTERVAL", 0.01)
    end = asyncio.Event()
    registry.register("work", end.wait)
    run = desk.add("work")
    async with at_work(desk, registry, concurrency=1):
        await desk.until(lambda: run.state == "running")
        claims, since = desk.calls["claim"], desk.clock.now()
        await desk.until(lambda: desk.last_claim_at is not None and desk.last_claim_at > since)
        assert desk.calls["claim"] == claims
        end.set()
        await desk.until(lambda: run.state == "succeeded")


async def test_a_result_is_reported_when_the_database_is_back(desk: FakeDesk, registry: HandlerRegistry) -> None:
    async def work() -> None:
        desk.is_away = True

    registry.register("work", work)
    run = desk.add("work")
    async with at_work(desk, registry) as (worker, heart):
        await desk.until(lambda: desk.calls["report"] >= 3)
        assert run.lease is not None
        assert run.lease.token in heart.held, "the lease is renewed while the report waits"
        desk.is_away = False
        await desk.until(lambda: run.state == "succeeded")
        desk.add("work")
        await desk.until(lambda: worker.stats.claimed == 2)
        desk.is_away = False
    assert run.outcomes == [Outcome.SUCCEEDED]


async def test_a_report_that_cannot_be_recorded_does_not_keep_its_neighbours(
    desk: FakeDesk, registry: HandlerRegistry
) -> None:
    async def work(run: RunContext) -> None:
        if run.payload.get("poison"):
            raise ValueError("poison")

    def refuses(report: Report) -> bool:
        return "poison" in (report.error or "")

    registry.register("work", work)
    desk.refuses = refuses
    runs = [desk.add("work", {"poison": n == 3}, max_attempts=1) for n in range(8)]
    async with at_work(desk, registry, concurrency=8):
        await desk.until(lambda: all(run.state in ("succeeded", "dead") for run in runs))
    assert [run.state for run in runs].count("succeeded") == 7
    assert "could not be recorded: ValueError" in (runs[3].last.error or "")


async def test_a_desk_in_trouble_never_ends_the_loop(desk: FakeDesk, registry: HandlerRegistry) -> None:
    async def work() -> None: ...

    registry.register("work", work)
    desk.is_away = True
    run = desk.add("work")
    async with at_work(desk, registry):
        await desk.until(lambda: desk.calls["claim"] >= 3)
        desk.is_away = False
        await desk.until(lambda: run.state == "succeeded")


async def test_a_drain_finishes_what_runs_and_takes_no_more(desk: FakeDesk, registry: HandlerRegistry) -> None:
    begun, end = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await end.wait()

    registry.register("work", work)
    first, second = desk.add("work"), desk.add("work")
    async with at_work(desk, registry, concurrency=1) as (worker, heart):
        await begun.wait()
        assert first.lease is not None
        worker.request_stop()
        assert first.lease.token in heart.held, "renewals go on until the last run is done"
        end.set()
        await desk.until(lambda: desk.calls["retire"])
    assert first.outcomes == [Outcome.SUCCEEDED]
    assert (second.state, second.attempts) == ("pending", [])


async def test_five_drains_cost_no_attempt(desk: FakeDesk, registry: HandlerRegistry) -> None:
    begun = asyncio.Event()
    is_last = False

    async def work(run: RunContext) -> None:
        assert run.attempt == 1
        begun.set()
        if not is_last:
            await asyncio.Event().wait()

    registry.register("work", work)
    run = desk.add("work", max_attempts=3)
    for _ in range(5):
        begun.clear()
        async with at_work(desk, registry, drain_time=timedelta(0)) as (worker, _):
            await begun.wait()
            worker.request_stop()
            await desk.until(lambda: desk.calls["retire"])
        desk.calls.clear()
    is_last = True
    async with at_work(desk, registry):
        await desk.until(lambda: run.state == "succeeded")
    assert run.outcomes == [Outcome.RELEASED] * 5 + [Outcome.SUCCEEDED]


async def test_a_second_request_leaves_at_once_and_releases(desk: FakeDesk, registry: HandlerRegistry) -> None:
    begun = asyncio.Event()

    async def stubborn() -> None:
        begun.set()
        for _ in range(3):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    registry.register("stubborn", stubborn)
    run = desk.add("stubborn")
    async with at_work(desk, registry, drain_time=timedelta(hours=1)) as (worker, _):
        await begun.wait()
        worker.request_stop()
        worker.request_stop()
        await desk.until(lambda: desk.calls["retire"], within=3)
    assert run.outcomes == [Outcome.RELEASED]
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
        task.cancel()


async def test_a_worker_cancelled_by_its_program_releases_its_runs(desk: FakeDesk, registry: HandlerRegistry) -> None:
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    registry.register("work", work)
    run = desk.add("work")
    worker = Worker(desk, registry, info_of(registry), desk.clock, NotingHeart(desk))
    working = asyncio.create_task(worker.run())
    await begun.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert run.outcomes == [Outcome.RELEASED]


async def test_an_event_loop_that_ends_under_a_worker_charges_no_attempt(
    desk: FakeDesk, registry: HandlerRegistry
) -> None:
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    registry.register("work", work)
    run = desk.add("work")
    worker = Worker(desk, registry, info_of(registry), desk.clock, NotingHeart(desk))
    working = asyncio.create_task(worker.run())
    await begun.wait()
    # What `asyncio.run` does at its end.
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.wait({working})
    assert run.outcomes == [Outcome.RELEASED]


async def test_reports_of_one_turn_go_in_one_call(desk: FakeDesk, registry: HandlerRegistry) -> None:
    async def work() -> None: ...

    registry.register("work", work)
    for _ in range(200):
        desk.add("work")
    async with at_work(desk, registry, concurrency=100) as (worker, _):
        await desk.until(lambda: worker.stats.succeeded == 200)
    assert desk.calls["report"] <= 6
    assert desk.calls["claim"] <= 6


async def test_a_worker_with_more_room_than_a_claim_gives_asks_again_at_once(
    desk: FakeDesk, registry: HandlerRegistry
) -> None:
    end = asyncio.Event()

    async def work() -> None:
        await end.wait()

    registry.register("work", work)
    count = 2 * CLAIM_LIMIT + 1
    for _ in range(count):
        desk.add("work")
    async with at_work(desk, registry, concurrency=count) as (worker, _):
        await desk.until(lambda: worker.stats.running == count)
        assert (desk.calls["claim"], desk.calls["wait_for_work"]) == (3, 0)
        end.set()
        await desk.until(lambda: worker.stats.succeeded == count)
