"""Handlers in child processes: whatever they do to their process costs one attempt, and nobody else anything."""

import os
import signal
from pathlib import Path

import pytest

from rota.domain.attempt import ERROR_LIMIT, Outcome
from rota.worker.handlers import HandlerRegistry
from tests.worker.fake_desk import FakeDesk
from tests.worker.floor_app import TARGET, app
from tests.worker.kit import at_work, lives


@pytest.mark.parametrize(
    ("handler", "error"),
    [
        ("segfault", "the handler's process was killed by SIGSEGV (signal 11)"),
        ("exit_with_3", "the handler's process exited with code 3 without a result"),
        ("kill_self", "the handler's process was killed by SIGKILL (signal 9), perhaps out of memory"),
    ],
)
async def test_a_process_that_dies_costs_one_attempt(desk: FakeDesk, handler: str, error: str, tmp_path: Path) -> None:
    poison = desk.add(handler, max_attempts=1)
    async with at_work(desk, app.handlers, target=TARGET) as (worker, heart):
        await desk.until(lambda: poison.state == "dead")
        assert (poison.outcomes, poison.last.error) == ([Outcome.FAILED], error)
        healthy = desk.add("tell_pid_in_process", {"mark": str(tmp_path / "pid")})
        await desk.until(lambda: healthy.state == "succeeded")
        assert heart.groups == set(worker.child_pids)
    assert not lives(int((tmp_path / "pid").read_text()))


async def test_a_loop_that_holds_the_gil_is_killed_at_its_timeout_and_the_next_run_gets_a_new_child(
    desk: FakeDesk, tmp_path: Path
) -> None:
    looping = desk.add("loop_with_gil", {"mark": str(tmp_path / "looping")}, timeout=6, max_attempts=1)
    neighbour = desk.add("finish_when_told", {"mark": str(tmp_path / "neighbour"), "go": str(tmp_path / "go")})
    async with at_work(desk, app.handlers, target=TARGET):
        await desk.until((tmp_path / "looping").exists)
        await desk.until(lambda: looping.state == "dead")
        assert looping.outcomes == [Outcome.TIMED_OUT]
        assert looping.last.error == "no result within 6 s: the handler's process was killed"
        assert not lives(int((tmp_path / "looping").read_text()))
        assert neighbour.state == "running"
        (tmp_path / "go").touch()
        after = desk.add("tell_pid_in_process", {"mark": str(tmp_path / "after")})
        await desk.until(lambda: neighbour.state == "succeeded" and after.state == "succeeded")
    assert (tmp_path / "after").read_text() != (tmp_path / "looping").read_text()


async def test_a_child_is_used_again(desk: FakeDesk, tmp_path: Path) -> None:
    async with at_work(desk, app.handlers, target=TARGET, concurrency=1):
        first = desk.add("tell_pid_in_process", {"mark": str(tmp_path / "first")})
        second = desk.add("tell_pid_in_process", {"mark": str(tmp_path / "second")})
        await desk.until(lambda: (first.state, second.state) == ("succeeded", "succeeded"))
    assert (tmp_path / "first").read_text() == (tmp_path / "second").read_text() != str(os.getpid())


async def test_a_child_that_died_between_two_runs_is_not_the_next_ones_fault(desk: FakeDesk, tmp_path: Path) -> None:
    async with at_work(desk, app.handlers, target=TARGET, concurrency=1):
        first = desk.add("tell_pid_in_process", {"mark": str(tmp_path / "first")})
        await desk.until(lambda: first.state == "succeeded")
        os.kill(int((tmp_path / "first").read_text()), signal.SIGKILL)
        second = desk.add("tell_pid_in_process", {"mark": str(tmp_path / "second")}, max_attempts=1)
        await desk.until(lambda: second.attempts)
    assert second.outcomes == [Outcome.SUCCEEDED]


async def test_a_lost_lease_ends_the_child_which_may_clean_up(desk: FakeDesk, tmp_path: Path) -> None:
    run = desk.add("wait_in_process", {"mark": str(tmp_path / "mark"), "cleaned": str(tmp_path / "cleaned")})
    async with at_work(desk, app.handlers, target=TARGET) as (worker, heart):
        await desk.until((tmp_path / "mark").exists)
        assert run.lease is not None
        heart.learn(lost=[run.lease.token])
        await desk.until(lambda: worker.stats.ended[Outcome.LOST] == 1)
        assert (tmp_path / "cleaned").exists()
        assert not lives(int((tmp_path / "mark").read_text()))
    assert not run.attempts


async def test_a_cancelled_run_ends_its_child_which_may_clean_up(desk: FakeDesk, tmp_path: Path) -> None:
    run = desk.add("wait_in_process", {"mark": str(tmp_path / "mark"), "cleaned": str(tmp_path / "cleaned")})
    async with at_work(desk, app.handlers, target=TARGET) as (_, heart):
        await desk.until((tmp_path / "mark").exists)
        assert run.lease is not None
        heart.learn(cancelled=[run.lease.token])
        await desk.until(lambda: run.state == "cancelled")
        assert (tmp_path / "cleaned").exists()
        assert not lives(int((tmp_path / "mark").read_text()))
    assert run.outcomes == [Outcome.CANCELLED]


async def test_what_a_handler_started_is_killed_with_it(desk: FakeDesk, tmp_path: Path) -> None:
    payload = {"mark": str(tmp_path / "mark"), "command": str(tmp_path / "command")}
    run = desk.add("start_a_command", payload, timeout=6, max_attempts=1)
    async with at_work(desk, app.handlers, target=TARGET):
        await desk.until(lambda: run.state == "dead")
        await desk.until(lambda: not lives(int((tmp_path / "command").read_text())))
    assert run.outcomes == [Outcome.TIMED_OUT]


async def test_a_forgotten_fork_does_not_answer_for_the_handler(desk: FakeDesk, tmp_path: Path) -> None:
    async with at_work(desk, app.handlers, target=TARGET, concurrency=1):
        run = desk.add("fork_and_return", max_attempts=1)
        after = desk.add("tell_pid_in_process", {"mark": str(tmp_path / "after")}, max_attempts=1)
        await desk.until(lambda: run.attempts and after.attempts)
    assert (run.outcomes, after.outcomes) == ([Outcome.SUCCEEDED], [Outcome.SUCCEEDED])


async def test_signals_exits_and_output_pass_the_pipe(desk: FakeDesk) -> None:
    gone, later, left, loud = (desk.add(name, max_attempts=1) for name in ("give_up", "snooze", "leave", "print_much"))
    async with at_work(desk, app.handlers, target=TARGET):
        await desk.until(lambda: gone.attempts and later.attempts and left.attempts and loud.attempts)
    assert (gone.outcomes, gone.last.error) == ([Outcome.GAVE_UP], "no such customer")
    assert (later.outcomes[0], later.attempts[0].error) == (Outcome.SNOOZED, "not now")
    assert (left.last.error or "").startswith("SystemExit: 4")
    assert loud.outcomes == [Outcome.SUCCEEDED]


@pytest.mark.parametrize("text", ["'a\\x00b'", "'\\ud800'", "'x' * 10_000_000"])
async def test_an_error_of_any_text_passes_the_pipe(desk: FakeDesk, text: str) -> None:
    run = desk.add("fail_with", {"text": text}, max_attempts=1)
    async with at_work(desk, app.handlers, target=TARGET):
        await desk.until(lambda: run.state == "dead")
    error = run.last.error or ""
    assert error.startswith("ValueError: ")
    assert "fail_with" in error
    assert "child.py" not in error
    assert len(error) <= ERROR_LIMIT
    error.encode()


async def test_a_payload_passes_the_pipe_as_it_is(desk: FakeDesk) -> None:
    run = desk.add(
        "fail_with", {"text": "repr(run.payload['big'])", "big": [2**80, "\ud800", 1.5, None]}, max_attempts=1
    )
    async with at_work(desk, app.handlers, target=TARGET):
        await desk.until(lambda: run.state == "dead")
    assert (run.last.error or "").startswith(f"ValueError: [{2**80}, '\\ud800', 1.5, None]")


async def test_without_a_target_a_function_is_found_by_its_place(desk: FakeDesk, tmp_path: Path) -> None:
    def inner() -> None: ...

    registry = HandlerRegistry()
    registry.register("placed", app.handlers.resolve("tell_pid_in_process").function, isolation="process")
    registry.register("coroutine", app.handlers.resolve("tell_pid").function, isolation="process")
    registry.register("inner", inner, isolation="process")
    placed = desk.add("placed", {"mark": str(tmp_path / "placed")})
    coroutine = desk.add("coroutine", {"mark": str(tmp_path / "coroutine")})
    lost = desk.add("inner", max_attempts=1)
    async with at_work(desk, registry):
        await desk.until(lambda: placed.attempts and coroutine.attempts and lost.attempts)
    assert (placed.state, coroutine.state) == ("succeeded", "succeeded")
    assert int((tmp_path / "coroutine").read_text()) != os.getpid()
    assert "a process handler stands at a module's top level" in (lost.last.error or "")


async def test_an_app_that_cannot_be_loaded_fails_the_attempt_and_says_why(desk: FakeDesk, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import nowhere_to_be_found\n")
    run = desk.add("give_up", max_attempts=1)
    async with at_work(desk, app.handlers, target=str(broken)):
        await desk.until(lambda: run.attempts)
    assert run.outcomes == [Outcome.FAILED]
    assert "nowhere_to_be_found" in (run.last.error or "")
    assert "raised while it was imported" in (run.last.error or "")


async def test_a_drain_that_is_over_releases_what_runs_in_children(desk: FakeDesk, tmp_path: Path) -> None:
    run = desk.add("wait_in_process", {"mark": str(tmp_path / "mark")})
    async with at_work(desk, app.handlers, target=TARGET) as (worker, _):
        await desk.until((tmp_path / "mark").exists)
        worker.request_stop()
        worker.request_stop()
        await desk.until(lambda: desk.calls["retire"])
    assert run.outcomes == [Outcome.RELEASED]
    assert not lives(int((tmp_path / "mark").read_text()))
