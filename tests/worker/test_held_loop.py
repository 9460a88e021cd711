"""A handler that never gives the event loop back: the heart ends its worker, and knows whose handler it was."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from rota.domain.attempt import Outcome
from rota.worker.lease_book import Held
from rota.worker.parting import after_death, after_silence
from tests.worker.fake_desk import FakeDesk
from tests.worker.kit import heart_of, lives, worker_process

SLOT = datetime.fromisoformat("2026-01-01T00:00:00+00:00")


@pytest.fixture
async def url(desk: FakeDesk, tmp_path: Path) -> AsyncIterator[str]:
    async with desk.serve(tmp_path / "desk") as served:
        yield served


@pytest.mark.parametrize("gil", [False, True])
async def test_a_worker_held_past_a_timeout_is_ended_and_only_the_guilty_run_is_charged(
    desk: FakeDesk, url: str, tmp_path: Path, gil: bool
) -> None:
    neighbour = desk.add("wait_async", {"mark": str(tmp_path / "neighbour")})
    in_child = desk.add("wait_in_process", {"mark": str(tmp_path / "child")})
    async with worker_process(desk, url) as worker:
        await desk.until(lambda: (tmp_path / "neighbour").exists() and (tmp_path / "child").exists())
        guilty = desk.add("hold_the_loop", {"mark": str(tmp_path / "guilty"), "gil": gil}, timeout=1, max_attempts=1)
        await desk.until((tmp_path / "guilty").exists)
        heart = heart_of(worker.pid)
        assert await asyncio.to_thread(worker.wait, 30) == -9
        await desk.until(lambda: guilty.attempts and neighbour.attempts and in_child.attempts)
        await desk.until(lambda: not lives(heart) and not lives(int((tmp_path / "child").read_text())))
    assert (guilty.outcomes, guilty.state) == ([Outcome.TIMED_OUT], "dead")
    assert "held the worker's event loop" in (guilty.last.error or "")
    assert (neighbour.outcomes, in_child.outcomes) == ([Outcome.RELEASED], [Outcome.RELEASED])
    assert (neighbour.charged, in_child.charged) == (0, 0)


async def test_a_run_that_took_its_worker_runs_apart_the_next_time_and_takes_no_other(
    desk: FakeDesk, url: str, tmp_path: Path
) -> None:
    guilty = desk.add("hold_the_loop", {"mark": str(tmp_path / "guilty")}, timeout=1, max_attempts=3)
    async with worker_process(desk, url) as worker:
        assert await asyncio.to_thread(worker.wait, 30) == -9
        await desk.until(lambda: guilty.attempts)
    assert (guilty.state, guilty.charged - guilty.losses, guilty.losses) == ("pending", 1, 1)
    async with worker_process(desk, url) as second:
        neighbour = desk.add("wait_async", {"mark": str(tmp_path / "neighbour")})
        await desk.until((tmp_path / "neighbour").exists)
        await desk.until(lambda: guilty.state == "dead")
        assert second.poll() is None
        assert neighbour.attempts == []
    assert guilty.outcomes == [Outcome.TIMED_OUT] * 3


async def test_a_run_that_holds_the_loop_past_anothers_timeout_is_the_one_that_is_charged(
    desk: FakeDesk, url: str, tmp_path: Path
) -> None:
    guilty = desk.add("hold_the_loop", {"mark": str(tmp_path / "guilty")}, timeout=3600)
    victim = desk.add("wait_async", {"mark": str(tmp_path / "victim")}, timeout=1, max_attempts=1)
    async with worker_process(desk, url) as worker:
        await asyncio.to_thread(worker.wait, 30)
        await desk.until(lambda: guilty.attempts and victim.attempts)
    assert (guilty.outcomes, victim.outcomes) == ([Outcome.LOST], [Outcome.RELEASED])
    assert (guilty.losses, victim.charged) == (1, 0)


def held(*, deadline: float = 100.0, apart: bool = False) -> Held:
    line = [str(uuid4()), 0, 1, SLOT.isoformat(), 60.0]
    return Held(line, 60.0, deadline + 30, deadline, apart)


def outcomes(reports: object) -> dict[UUID, Outcome]:
    assert isinstance(reports, list)
    return {report.key.token: report.outcome for report in reports}


def test_where_the_holder_is_not_known_all_inside_are_suspects() -> None:
    overdue, other, child = held(deadline=10), held(), held(apart=True)
    said = outcomes(after_silence([overdue, other, child], holder=None, now=20.0))
    assert said == {
        overdue.key.token: Outcome.LOST, other.key.token: Outcome.LOST, child.key.token: Outcome.RELEASED,
    }  # fmt: skip
    assert outcomes(after_silence([overdue, child], holder=None, now=20.0))[overdue.key.token] is Outcome.TIMED_OUT


def test_a_worker_that_dies_with_children_only_charges_them() -> None:
    alone, child = held(), held(apart=True)
    assert outcomes(after_death([child])) == {child.key.token: Outcome.LOST}
    assert outcomes(after_death([alone, child])) == {
        alone.key.token: Outcome.LOST, child.key.token: Outcome.RELEASED,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("handler", "payload"),
    [("fork_in_loop", {"task": False}), ("fork_in_loop", {"task": True}), ("fork_in_thread", {})],
)
async def test_a_worker_that_a_handler_forked_ends_at_once_and_says_nothing(
    desk: FakeDesk, url: str, tmp_path: Path, handler: str, payload: dict[str, object]
) -> None:
    run = desk.add(handler, {**payload, "mark": str(tmp_path / "mark"), "fork": str(tmp_path / "fork")})
    async with worker_process(desk, url, log=tmp_path / "log") as worker:
        await desk.until(lambda: run.state == "succeeded" and (tmp_path / "fork").exists())
        await desk.until(lambda: not lives(int((tmp_path / "fork").read_text())))
        after = desk.add("tell_pid", {"mark": str(tmp_path / "after")})
        await desk.until(lambda: after.state == "succeeded")
        assert worker.poll() is None
        assert int((tmp_path / "mark").read_text()) == worker.pid
        assert (run.claims, run.outcomes, len(desk.accepted), desk.refused) == (1, [Outcome.SUCCEEDED], 2, [])
    assert "Traceback" not in (tmp_path / "log").read_text()


async def test_a_child_whose_worker_is_killed_says_nothing(desk: FakeDesk, url: str, tmp_path: Path) -> None:
    desk.add("wait_in_process", {"mark": str(tmp_path / "mark")})
    async with worker_process(desk, url, log=tmp_path / "log") as worker:
        await desk.until((tmp_path / "mark").exists)
        worker.kill()
        await desk.until(lambda: not lives(int((tmp_path / "mark").read_text())))
    assert "Traceback" not in (tmp_path / "log").read_text()


async def test_the_drain_time_is_the_whole_time(desk: FakeDesk, url: str, tmp_path: Path) -> None:
    """What has not ended is told to a quarter before the end, and given back uncharged before the end."""
    run = desk.add("wait_async", {"mark": str(tmp_path / "mark")}, lease=timedelta(minutes=10))
    stubborn = desk.add("wait_in_thread", {"mark": str(tmp_path / "thread")})
    async with worker_process(desk, url, drain=4) as worker:
        await desk.until(lambda: (tmp_path / "mark").exists() and (tmp_path / "thread").exists())
        worker.terminate()
        assert await asyncio.to_thread(worker.wait, 30) == 0
        assert (run.outcomes, stubborn.outcomes) == ([Outcome.RELEASED], [Outcome.RELEASED])
