"""What a handler and its worker tell each other: a cancellation, progress, a result, and 'not now'."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from rota.clock import ManualClock
from rota.domain.attempt import RESULT_LIMIT, Outcome
from rota.domain.progress import NOTE_LIMIT, Progress
from rota.errors import InvalidInput, RetryLater
from rota.worker.context import RunContext
from rota.worker.handlers import HandlerRegistry
from rota.worker.worker import STOP_GRACE
from tests.worker.fake_desk import FakeDesk, FakeRun
from tests.worker.floor_app import TARGET, app
from tests.worker.kit import NotingHeart, at_work


def cancel(heart: NotingHeart, run: FakeRun) -> None:
    """Let the heart learn with a renewal that somebody wants the run's end."""
    assert run.lease is not None
    heart.learn(cancelled=[run.lease.token])


def endless(begun: asyncio.Event) -> Callable[[RunContext], Awaitable[None]]:
    """Return a handler that begins and goes on for ever."""

    async def work(_: RunContext) -> None:
        begun.set()
        await asyncio.Event().wait()

    return work


# cancellation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("ends", ["returns", "raises"])
async def test_a_handler_that_sees_its_cancellation_ends_by_itself(
    desk: FakeDesk, registry: HandlerRegistry, kind: str, ends: str
) -> None:
    begun, tidied = threading.Event(), threading.Event()

    def end() -> str:
        tidied.set()
        if ends == "raises":
            raise ValueError("half of it is done")
        return "not kept"

    async def in_loop(run: RunContext) -> str:
        begun.set()
        await run.cancelled.wait_async()
        assert run.lease_lost, "who asks this alone is told as well"
        # What takes a while at the end is left its time.
        await asyncio.to_thread(threading.Event().wait, 0.01)
        return end()

    def in_thread(run: RunContext) -> str:
        begun.set()
        assert run.cancelled.wait(20)
        assert run.lease_lost, "who asks this alone is told as well"
        return end()

    registry.register("work", in_loop if kind == "async" else in_thread)
    run = desk.add("work")
    async with at_work(desk, registry) as (worker, heart):
        await desk.until(begun.is_set)
        cancel(heart, run)
        await desk.until(lambda: run.attempts)
        assert (worker.stats.ended[Outcome.CANCELLED], worker.stats.lingering) == (1, 0)
    assert tidied.is_set()
    assert (run.outcomes, run.state, run.last.result) == ([Outcome.CANCELLED], "cancelled", None)
    error = run.last.error or ""
    assert error.startswith("cancelled on request")
    assert ("ValueError: half of it is done" in error) == (ends == "raises")


async def test_a_coroutine_that_does_not_look_is_cancelled_after_its_grace(registry: HandlerRegistry) -> None:
    clock = ManualClock()
    desk = FakeDesk(clock)
    begun, ended = asyncio.Event(), asyncio.Event()

    async def work(_: RunContext) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    registry.register("work", work)
    run = desk.add("work")
    async with at_work(desk, registry) as (_, heart):
        await begun.wait()
        cancel(heart, run)
        clock.advance(STOP_GRACE - 0.1)
        assert (run.state, ended.is_set()) == ("running", False)
        clock.advance(0.1)
        await desk.until(lambda: run.attempts)
    assert ended.is_set()
    assert (run.outcomes, run.last.error) == ([Outcome.CANCELLED], "cancelled on request")


async def test_a_thread_that_does_not_look_is_left_behind_after_its_grace(registry: HandlerRegistry) -> None:
    clock = ManualClock()
    desk = FakeDesk(clock)
    begun, end = threading.Event(), threading.Event()

    def work(_: RunContext) -> None:
        begun.set()
        end.wait(20)

    registry.register("work", work)
    run = desk.add("work", timeout=60)
    async with at_work(desk, registry, concurrency=1) as (worker, heart):
        await desk.until(begun.is_set)
        cancel(heart, run)
        clock.advance(STOP_GRACE)
        await desk.until(lambda: run.attempts)
        assert worker.stats.lingering == 1, "the slot is taken until the thread returns"
        end.set()
        await desk.until(lambda: worker.stats.lingering == 0)
    assert run.outcomes == [Outcome.CANCELLED]


async def test_a_timeout_within_the_grace_is_still_a_cancellation(registry: HandlerRegistry) -> None:
    clock = ManualClock()
    desk = FakeDesk(clock)
    begun = asyncio.Event()

    registry.register("work", endless(begun))
    run = desk.add("work", timeout=2)
    async with at_work(desk, registry) as (_, heart):
        await begun.wait()
        cancel(heart, run)
        clock.advance(2)
        await desk.until(lambda: run.attempts)
    assert run.outcomes == [Outcome.CANCELLED]


async def test_a_worker_that_leaves_within_the_grace_reports_the_cancellation(
    desk: FakeDesk, registry: HandlerRegistry
) -> None:
    begun = asyncio.Event()

    registry.register("work", endless(begun))
    run = desk.add("work")
    async with at_work(desk, registry) as (_, heart):
        await begun.wait()
        cancel(heart, run)
    assert run.outcomes == [Outcome.CANCELLED]


async def test_a_lease_lost_within_the_grace_says_nothing(desk: FakeDesk, registry: HandlerRegistry) -> None:
    begun = asyncio.Event()

    registry.register("work", endless(begun))
    run = desk.add("work")
    async with at_work(desk, registry) as (worker, heart):
        await begun.wait()
        cancel(heart, run)
        assert run.lease is not None
        heart.learn(lost=[run.lease.token])
        await desk.until(lambda: worker.stats.ended[Outcome.LOST] == 1)
    assert desk.calls["report"] == 0


@pytest.mark.parametrize("why", ["cancelled", "lost"])
async def test_a_child_process_knows_why_it_is_stopped(desk: FakeDesk, tmp_path: Path, why: str) -> None:
    run = desk.add("tell_why_it_stops", {word: str(tmp_path / word) for word in ("mark", "cancelled", "lost")})
    async with at_work(desk, app.handlers, target=TARGET) as (worker, heart):
        await desk.until((tmp_path / "mark").exists)
        assert run.lease is not None
        heart.learn(**{why: [run.lease.token]})
        await desk.until(lambda: worker.stats.ended)
    assert [word for word in ("cancelled", "lost") if (tmp_path / word).exists()] == [why]


class PromptDesk(FakeDesk):
    """A desk with hints."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.hint = asyncio.Event()

    async def wait_for_cancel(self) -> None:
        await self.hint.wait()
        self.hint.clear()


async def test_a_hint_of_a_cancellation_hastens_the_renewal_but_not_more_than_twice_a_second(
    registry: HandlerRegistry,
) -> None:
    clock = ManualClock()
    desk = PromptDesk(clock)
    async with at_work(desk, registry) as (_, heart):
        desk.hint.set()
        await desk.until(lambda: heart.hastened == 1)
        desk.hint.set()
        clock.advance(0.4)
        for _ in range(10):
            await asyncio.to_thread(int)  # the worker's turns
        assert heart.hastened == 1
        clock.advance(0.1)
        await desk.until(lambda: heart.hastened == 2)


# progress ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_the_latest_progress_reaches_the_heart(desk: FakeDesk, registry: HandlerRegistry, kind: str) -> None:
    told, end = threading.Event(), threading.Event()

    def tell(run: RunContext) -> None:
        run.progress(0.0, "begins")
        for step in range(1, 1001):
            run.progress(step / 2000)
        told.set()

    async def in_loop(run: RunContext) -> None:
        tell(run)
        await asyncio.to_thread(end.wait, 20)

    def in_thread(run: RunContext) -> None:
        tell(run)
        end.wait(20)

    registry.register("work", in_loop if kind == "async" else in_thread)
    run = desk.add("work")
    async with at_work(desk, registry) as (_, heart):
        await desk.until(told.is_set)
        assert run.lease is not None
        token = run.lease.token
        await desk.until(lambda: heart.progress.get(token) == Progress(0.5, "begins"))
        end.set()
        await desk.until(lambda: run.state == "succeeded")


async def test_progress_of_a_child_process_reaches_the_heart(desk: FakeDesk, tmp_path: Path) -> None:
    run = desk.add("say_how_far", {"mark": str(tmp_path / "mark"), "go": str(tmp_path / "go")})
    async with at_work(desk, app.handlers, target=TARGET, concurrency=1) as (_, heart):
        await desk.until(lambda: run.lease and heart.progress.get(run.lease.token) == Progress(0.5, "step 1000"))
        (tmp_path / "go").touch()
        after = desk.add("return_what_was_asked", {"text": "'the pipe is in step'"})
        await desk.until(lambda: run.state == "succeeded" and after.attempts)
    assert after.last.result == "the pipe is in step"


@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("ends", ["returns", "raises"])
async def test_what_a_handler_says_last_is_told_before_its_report(
    desk: FakeDesk, registry: HandlerRegistry, kind: str, ends: str
) -> None:
    def end(run: RunContext) -> None:
        run.progress(0.5, "half")
        run.progress(1.0)
        if ends == "raises":
            raise ValueError("and yet")

    async def in_loop(run: RunContext) -> None:
        end(run)

    registry.register("work", in_loop if kind == "async" else end)
    run, silent = desk.add("work", max_attempts=1), desk.add("silent")
    registry.register("silent", lambda _: None)
    async with at_work(desk, registry):
        await desk.until(lambda: run.attempts and silent.attempts)
    assert run.last.progress == [Progress(1.0, "half")]
    assert silent.last.progress == []


async def test_what_a_child_process_says_last_is_told_before_its_report(desk: FakeDesk, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    run = desk.add("say_how_far", {"mark": str(tmp_path / "mark"), "go": str(tmp_path / "go")})
    async with at_work(desk, app.handlers, target=TARGET, concurrency=1):
        await desk.until(lambda: run.state == "succeeded")
    assert run.last.progress == [Progress(0.5, "step 1000")]


async def test_progress_that_the_desk_refuses_costs_no_report(
    desk: FakeDesk, registry: HandlerRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuses(*_: object, **__: object) -> None:
        raise InvalidInput("progress", "is refused")

    monkeypatch.setattr(desk, "renew", refuses)
    registry.register("work", lambda run: run.progress(1.0))
    run = desk.add("work")
    async with at_work(desk, registry):
        await desk.until(lambda: run.state == "succeeded")


@pytest.mark.parametrize(
    ("value", "note"),
    [(1.5, None), (-0.1, None), (float("nan"), None), (True, None), ("half", None), (None, "x" * 501), (None, b"x")],
)
async def test_progress_that_is_none_is_the_handlers_mistake(
    desk: FakeDesk, registry: HandlerRegistry, value: Any, note: Any
) -> None:
    raised: list[InvalidInput] = []

    async def work(run: RunContext) -> None:
        with pytest.raises(InvalidInput, match="progress") as info:
            run.progress(value, note)
        raised.append(info.value)

    registry.register("work", work)
    run = desk.add("work")
    async with at_work(desk, registry) as (_, heart):
        await desk.until(lambda: run.state == "succeeded")
        assert not heart.progress
    assert raised


async def test_progress_after_the_end_or_a_lost_lease_goes_nowhere_and_raises_nothing(
    desk: FakeDesk, registry: HandlerRegistry
) -> None:
    kept: list[RunContext] = []
    registry.register("work", kept.append)
    run = desk.add("work")
    async with at_work(desk, registry):
        await desk.until(lambda: run.state == "succeeded")
        kept[0].progress(0.5)
    kept[0].progress(0.6, "\x00" * NOTE_LIMIT)


# results ----------------------------------------------------------------------------------------------------------


def return_it(value: object) -> Callable[[], object]:
    return lambda: value


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_what_a_handler_returns_is_its_runs_result(desk: FakeDesk, registry: HandlerRegistry, kind: str) -> None:
    rows: list[object] = [10**20, "é"]

    def in_thread() -> object:
        desk.is_away = True
        return {"rows": rows}

    async def in_loop() -> object:
        return in_thread()

    registry.register("work", in_loop if kind == "async" else in_thread)
    run = desk.add("work")
    async with at_work(desk, registry):
        await desk.until(lambda: desk.calls["report"])
        rows.append("too late")
        desk.is_away = False
        await desk.until(lambda: run.state == "succeeded")
    assert run.last.result == {"rows": [10**20, "é"]}


@pytest.fixture
def logs() -> Iterator[list[MutableMapping[str, Any]]]:
    """What is logged, though another test of this process may have configured logs that tell less."""
    before = structlog.get_config()
    structlog.reset_defaults()
    with capture_logs() as entries:
        yield entries
    structlog.configure(**before)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (object(), "is not JSON"),
        ({1: "one"}, "keys of JSON objects are text"),
        (float("nan"), "is not JSON"),
        ("a\x00b", "NUL"),
        ("x" * RESULT_LIMIT, "more than 65536 bytes|at most 65536"),
        ([0] * 10_000_000, "more than 65536 bytes"),
        (["é" * 40_000], "at most 65536"),
    ],
    ids=["object", "key", "nan", "nul", "text", "list", "bytes"],
)
async def test_a_result_that_cannot_be_kept_is_dropped_and_the_success_stays(
    desk: FakeDesk, registry: HandlerRegistry, logs: list[MutableMapping[str, Any]], value: object, reason: str
) -> None:
    registry.register("work", return_it(value))
    run = desk.add("work", max_attempts=1)
    async with at_work(desk, registry):
        await desk.until(lambda: run.attempts)
    assert (run.outcomes, run.last.result) == ([Outcome.SUCCEEDED], None)
    [warning] = [entry for entry in logs if entry["event"] == "result.dropped"]
    assert (warning["log_level"], warning["handler"]) == ("warning", "work")
    assert any(part in warning["reason"] for part in reason.split("|"))


async def test_results_pass_the_pipe_of_a_child_process(desk: FakeDesk, logs: list[MutableMapping[str, Any]]) -> None:
    plain, coroutine, dropped = (
        desk.add("return_what_was_asked", {"text": "{'n': 2**80, 'list': (1, None)}"}),
        desk.add("return_what_was_asked_async", {"text": "[0.5]"}),
        desk.add("return_what_was_asked", {"text": "object()"}),
    )
    async with at_work(desk, app.handlers, target=TARGET):
        await desk.until(lambda: all(run.attempts for run in (plain, coroutine, dropped)))
    assert [run.state for run in (plain, coroutine, dropped)] == ["succeeded"] * 3
    assert (plain.last.result, coroutine.last.result, dropped.last.result) == (
        {"n": 2**80, "list": [1, None]},
        [0.5],
        None,
    )
    assert [entry["run_id"] for entry in logs if entry["event"] == "result.dropped"]


# not now ----------------------------------------------------------------------------------------------------------


async def test_fifty_snoozes_in_a_thread_cost_no_attempt(desk: FakeDesk, registry: HandlerRegistry) -> None:
    attempts: list[int] = []

    def work(run: RunContext) -> None:
        attempts.append(run.attempt)
        if len(attempts) <= 50:
            raise RetryLater(0, "the provider asks for patience")
        raise ValueError("upstream 500")

    registry.register("work", work)
    run = desk.add("work", max_attempts=1)
    async with at_work(desk, registry):
        await desk.until(lambda: run.state == "dead")
    assert attempts == [1] * 51
    assert run.outcomes == [Outcome.SNOOZED] * 50 + [Outcome.FAILED]
    assert run.charged == 1
