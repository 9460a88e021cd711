"""A worker's places: whatever a handler raises, its place is free afterwards, and a run has one place at most."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from rota.clock import ManualClock
from rota.domain.attempt import Outcome
from rota.settings import Settings
from rota.worker.context import RunContext
from rota.worker.handlers import HandlerRegistry
from rota.worker.worker import DRAIN_TIME
from tests.worker.fake_desk import FakeDesk, FakeRun
from tests.worker.kit import at_work


class Unreadable(dict[str, object]):
    """A result that raises when it is looked at."""

    def values(self) -> object:  # type: ignore[override]  # it has none
        raise KeyboardInterrupt


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


async def lets_go() -> None:
    raise GeneratorExit


async def lets_go_later() -> None:
    await asyncio.get_running_loop().run_in_executor(None, int)
    raise GeneratorExit


async def is_cancelled() -> None:
    raise asyncio.CancelledError


def returns_in_a_thread() -> object:
    return Unreadable(a=1)


async def returns_in_the_loop() -> object:
    return Unreadable(a=1)


def raises_in_a_thread() -> None:
    raise Unspeakable


async def raises_in_the_loop() -> None:
    raise Unspeakable


@pytest.mark.parametrize(
    ("handler", "outcome", "error"),
    [
        (lets_go, Outcome.FAILED, "GeneratorExit"),
        (lets_go_later, Outcome.FAILED, "GeneratorExit"),
        (is_cancelled, Outcome.FAILED, "CancelledError"),
        (returns_in_a_thread, Outcome.SUCCEEDED, ""),
        (returns_in_the_loop, Outcome.SUCCEEDED, ""),
        (raises_in_a_thread, Outcome.FAILED, "Unspeakable"),
        (raises_in_the_loop, Outcome.FAILED, "Unspeakable"),
    ],
)
async def test_a_place_is_free_whatever_its_handler_raises(
    desk: FakeDesk,
    registry: HandlerRegistry,
    handler: Callable[[], Awaitable[object]],
    outcome: Outcome,
    error: str,
) -> None:
    async def other() -> None: ...

    registry.register("odd", handler)
    registry.register("other", other)
    odd = [desk.add("odd", max_attempts=1) for _ in range(3)]
    async with at_work(desk, registry, concurrency=2) as (worker, heart):
        await desk.until(lambda: all(run.attempts for run in odd))
        after = desk.add("other")
        await desk.until(lambda: after.state == "succeeded")
        await desk.until(lambda: not heart.held)
        assert (worker.stats.running, worker.stats.lingering, worker._free_slots()) == (0, 0, 2)
    assert [run.outcomes for run in odd] == [[outcome]] * 3
    assert all((run.last.error or "").startswith(error) for run in odd)


def take_back(desk: FakeDesk, run: FakeRun, *, losses: int) -> None:
    """The reaper ends the lease: the run waits again, and a worker may take it."""
    desk._settle(run, Outcome.LOST, "lease expired", None)
    run.losses = losses


@pytest.mark.parametrize("losses", [0, 1])
async def test_a_run_that_comes_back_waits_for_the_end_of_its_older_attempt(
    desk: FakeDesk, registry: HandlerRegistry, losses: int
) -> None:
    """A thread cannot be stopped: its lease is lost, it works on, and the same worker gets the run once more."""
    at_once: list[int] = []
    active = 0
    begun, end = threading.Event(), threading.Event()

    def work(run: RunContext) -> None:
        nonlocal active
        active += 1
        at_once.append(active)
        begun.set()
        end.wait(20)
        active -= 1

    registry.register("work", work)
    run = desk.add("work")
    async with at_work(desk, registry, concurrency=3) as (worker, heart):
        await desk.until(begun.is_set)
        assert run.lease is not None
        token = run.lease.token
        take_back(desk, run, losses=losses)
        heart.learn(lost=[token])
        await desk.until(lambda: run.claims == 2 and worker.stats.lingering == 1)
        assert at_once == [1]
        end.set()
        await desk.until(lambda: run.state == "succeeded")
    assert at_once == [1, 1], "never twice at once"


async def test_a_run_whose_older_attempt_does_not_end_comes_back_later_and_is_not_charged(
    registry: HandlerRegistry,
) -> None:
    clock = ManualClock()
    desk = FakeDesk(clock, lease=timedelta(hours=1))
    begun, ignored, end = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def stubborn() -> None:
        begun.set()
        while not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                ignored.set()

    registry.register("stubborn", stubborn)
    run = desk.add("stubborn")
    async with at_work(desk, registry, concurrency=3) as (worker, heart):
        await begun.wait()
        assert run.lease is not None
        token = run.lease.token
        take_back(desk, run, losses=0)
        heart.learn(lost=[token])
        await ignored.wait()
        await desk.until(lambda: worker.stats.running == 2)
        clock.advance(20)
        await desk.until(lambda: len(run.attempts) == 2)
        assert (run.last.outcome, run.charged) == (Outcome.SNOOZED, 1)
        assert "its older attempt did not end" in (run.last.error or "")
        end.set()
        await desk.until(lambda: worker.stats.running == 0)


async def test_a_coroutine_that_returns_after_its_time_has_timed_out(registry: HandlerRegistry) -> None:
    """It held the event loop, or it would have been stopped in time: one rule, whatever it returns."""
    clock = ManualClock()
    desk = FakeDesk(clock, lease=timedelta(hours=1))

    async def blocks() -> str:
        clock.advance(12)
        return "done"

    async def blocks_and_raises() -> None:
        clock.advance(12)
        raise ValueError("late as well")

    async def is_in_time() -> None:
        clock.advance(3.9)

    for handler in (blocks, blocks_and_raises, is_in_time):
        registry.register(handler.__name__, handler)
    late, raised = (desk.add(name, timeout=4, max_attempts=1) for name in ("blocks", "blocks_and_raises"))
    async with at_work(desk, registry, concurrency=1):
        await desk.until(lambda: late.state == "dead" and raised.state == "dead")
        in_time = desk.add("is_in_time", timeout=4)
        await desk.until(lambda: in_time.state == "succeeded")
    for run in (late, raised):
        assert run.outcomes == [Outcome.TIMED_OUT]
        assert "no result within 4 s: the handler ended 8.0 s later" in (run.last.error or "")
    assert late.last.result is None


async def test_what_a_drain_does_not_end_is_given_back_before_the_drain_time_is_over(
    registry: HandlerRegistry,
) -> None:
    """The default is 20 s in all: the last quarter is for giving back what runs on, within any supervisor's 30 s."""
    assert timedelta(seconds=20) == DRAIN_TIME
    assert Settings().drain_time == DRAIN_TIME
    clock = ManualClock()
    desk = FakeDesk(clock, lease=timedelta(hours=1))
    begun = asyncio.Event()

    async def works_on() -> None:
        begun.set()
        await asyncio.Event().wait()

    registry.register("works-on", works_on)
    run = desk.add("works-on")
    async with at_work(desk, registry) as (worker, _):
        await begun.wait()
        worker.request_stop()
        clock.advance(14.9)
        assert run.state == "running"
        clock.advance(0.2)
        await desk.until(lambda: desk.calls["retire"])
    assert (run.outcomes, run.charged) == ([Outcome.RELEASED], 0)
