"""Runs that lost a worker: suspects run apart, in a child or alone, and the poison takes nobody with it again."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rota.domain.attempt import Outcome
from rota.worker.context import RunContext
from rota.worker.handlers import HandlerRegistry
from tests.worker.fake_desk import FakeDesk
from tests.worker.floor_app import TARGET, app
from tests.worker.kit import at_work, heart_of, lives, worker_process


@pytest.fixture
async def url(desk: FakeDesk, tmp_path: Path) -> AsyncIterator[str]:
    async with desk.serve(tmp_path / "desk") as served:
        yield served


async def test_one_poison_among_six_is_buried_and_the_others_succeed(desk: FakeDesk, url: str, tmp_path: Path) -> None:
    """One handler, six runs, all claimed together; one of them kills its process."""
    go, later = tmp_path / "go", tmp_path / "later"
    innocents = [desk.add("die_or_finish", {"go": str(later), "mark": str(tmp_path / f"{n}")}) for n in range(5)]
    poison = desk.add("die_or_finish", {"go": str(go), "mark": str(tmp_path / "poison"), "dies": True})
    async with worker_process(desk, url, concurrency=10) as first:
        await desk.until(lambda: len(list(tmp_path.glob("[0-9]"))) == 5)
        go.touch()
        await asyncio.to_thread(first.wait, 30)
        await desk.until(lambda: all(run.attempts for run in (*innocents, poison)))
        later.touch()
    async with worker_process(desk, url, concurrency=10) as second:
        await desk.until(lambda: all(run.state == "succeeded" for run in innocents))
        await desk.until(lambda: poison.state == "dead")
        assert second.poll() is None, "it took no second worker"
    assert [run.outcomes for run in innocents] == [[Outcome.LOST, Outcome.SUCCEEDED]] * 5
    assert poison.outcomes == [Outcome.LOST] + [Outcome.FAILED] * 3
    assert "the handler's process was killed by SIGKILL" in (poison.last.error or "")


async def test_what_runs_in_a_child_is_not_charged_with_its_workers_death(
    desk: FakeDesk, url: str, tmp_path: Path
) -> None:
    suspect = desk.add("wait_async", {"mark": str(tmp_path / "suspect")})
    suspect.charged = suspect.losses = 1
    inside = desk.add("wait_async", {"mark": str(tmp_path / "inside")})
    async with worker_process(desk, url) as worker:
        await desk.until(lambda: (tmp_path / "suspect").exists() and (tmp_path / "inside").exists())
        assert int((tmp_path / "suspect").read_text()) != worker.pid
        heart = heart_of(worker.pid)
        worker.kill()
        await desk.until(lambda: suspect.attempts and inside.attempts)
        await desk.until(lambda: not lives(heart))
    assert (suspect.outcomes, inside.outcomes) == ([Outcome.RELEASED], [Outcome.LOST])
    assert (suspect.losses, inside.losses) == (1, 1)


async def test_a_suspect_keeps_its_isolation_and_its_timeout_in_a_child(desk: FakeDesk, tmp_path: Path) -> None:
    suspect = desk.add("wait_async", {"mark": str(tmp_path / "suspect")}, timeout=6, max_attempts=1)
    suspect.charged = suspect.losses = 1
    async with at_work(desk, app.handlers, target=TARGET) as (worker, heart):
        await desk.until((tmp_path / "suspect").exists)
        assert int((tmp_path / "suspect").read_text()) in worker.child_pids
        assert heart.apart
        await desk.until(lambda: suspect.state == "dead")
    assert suspect.outcomes == [Outcome.TIMED_OUT]
    assert "the handler's process was killed" in (suspect.last.error or "")


async def test_a_suspect_that_no_child_can_load_runs_alone(desk: FakeDesk, registry: HandlerRegistry) -> None:
    at_work_now: set[str] = set()
    beside: dict[str, set[str]] = {}
    ends = {name: asyncio.Event() for name in ("neighbour", "suspect", "late")}

    async def work(run: RunContext) -> None:
        name = run.payload["name"]
        beside[name] = set(at_work_now)
        at_work_now.add(name)
        await ends[name].wait()
        at_work_now.discard(name)

    registry.register("work", work)
    neighbour = desk.add("work", {"name": "neighbour"})
    async with at_work(desk, registry) as (worker, _):
        await desk.until(lambda: "neighbour" in beside)
        suspect = desk.add("work", {"name": "suspect"})
        suspect.charged = suspect.losses = 1
        await desk.until(lambda: worker.stats.running == 2)
        late = desk.add("work", {"name": "late"})
        assert worker._free_slots() == 0
        assert "suspect" not in beside
        ends["neighbour"].set()
        await desk.until(lambda: "suspect" in beside)
        assert (late.state, neighbour.state) == ("pending", "succeeded")
        ends["suspect"].set()
        await desk.until(lambda: "late" in beside)
        ends["late"].set()
        await desk.until(lambda: late.state == "succeeded")
    assert beside == {"neighbour": set(), "suspect": set(), "late": set()}
    assert suspect.outcomes == [Outcome.SUCCEEDED]
