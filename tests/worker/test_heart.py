"""The heart, and workers in processes of their own: stopped, killed, starved, told to leave."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from rota.domain.attempt import LeaseKey, Outcome
from rota.domain.progress import Progress
from rota.worker.desk import Renewal, WorkerInfo
from rota.worker.heart import HeartNews, ProcessHeart
from rota.worker.heart_process import BATCH
from tests.worker.fake_desk import FakeDesk, FakeRun
from tests.worker.floor_app import app
from tests.worker.kit import children_of, heart_of, info_of, kill, lives, worker_process

OPENER = "tests.worker.fake_desk:open_fake_desk"
SECOND = timedelta(seconds=1)


@pytest.fixture
async def url(desk: FakeDesk, tmp_path: Path) -> AsyncIterator[str]:
    async with desk.serve(tmp_path / "desk") as served:
        yield served


@pytest.fixture
def info() -> WorkerInfo:
    return info_of(app.handlers)


def renewals(run: FakeRun) -> int:
    return run.lease.renewals if run.lease is not None else -1


async def test_leases_are_renewed_until_they_are_dropped(desk: FakeDesk, url: str, info: WorkerInfo) -> None:
    kept, dropped = desk.add("wait_async", lease=SECOND), desk.add("wait_async", lease=SECOND)
    heart = ProcessHeart(url, opener=OPENER)
    await heart.start(lambda _: None)
    await heart.able.wait()
    claims = await desk.claim(info, limit=2)
    heart.hold(claims)
    await desk.until(lambda: renewals(kept) >= 2 and renewals(dropped) >= 2)
    heart.drop([claims[1].key.token])
    seen = renewals(kept)
    await desk.until(lambda: dropped.lease is None or dropped.lease.expires_at < desk.clock.now())
    assert renewals(kept) > seen
    await heart.stop(release=True)
    assert kept.outcomes == [Outcome.RELEASED]


async def test_a_lease_is_renewed_no_longer_than_its_attempt_may_last(
    desk: FakeDesk, url: str, info: WorkerInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.worker.heart.REPORT_GRACE", timedelta(seconds=0.5))
    run = desk.add("wait_async", lease=SECOND, timeout=1)
    news: list[HeartNews] = []
    heart = ProcessHeart(url, opener=OPENER)
    await heart.start(news.append)
    await heart.able.wait()
    [claim] = await desk.claim(info, limit=1)
    heart.hold([claim])
    await desk.until(lambda: news)
    assert news == [HeartNews(ended=frozenset({claim.key.token}))]
    assert 2 <= renewals(run) <= 6
    await heart.stop(release=False)


async def test_the_heart_tells_of_losses_and_cancellations_once(desk: FakeDesk, url: str, info: WorkerInfo) -> None:
    lost, cancelled = desk.add("wait_async", lease=SECOND), desk.add("wait_async", lease=SECOND)
    news: list[HeartNews] = []
    heart = ProcessHeart(url, opener=OPENER)
    await heart.start(news.append)
    await heart.able.wait()
    claims = await desk.claim(info, limit=2)
    heart.hold(claims)
    await desk.until(lambda: renewals(lost) >= 1)
    assert cancelled.lease is not None
    lost.lease, cancelled.lease.is_cancelled = None, True
    seen = renewals(cancelled)
    await desk.until(lambda: renewals(cancelled) >= seen + 3)
    assert HeartNews(lost=frozenset({claims[0].key.token})) in news
    assert HeartNews(cancelled=frozenset({claims[1].key.token})) in news
    assert len(news) == 2
    await heart.stop(release=False)


async def test_the_heart_outlives_an_outage(desk: FakeDesk, url: str, info: WorkerInfo) -> None:
    run = desk.add("wait_async", lease=timedelta(seconds=3))
    heart = ProcessHeart(url, opener=OPENER)
    await heart.start(lambda _: None)
    await heart.able.wait()
    heart.hold(await desk.claim(info, limit=1))
    await desk.until(lambda: renewals(run) >= 1)
    desk.is_away = True
    failed, pid = desk.calls["renew"], heart.pid
    await desk.until(lambda: desk.calls["renew"] >= failed + 3)
    desk.is_away = False
    seen = renewals(run)
    await desk.until(lambda: renewals(run) > seen)
    assert not run.attempts
    assert heart.pid == pid
    await heart.stop(release=False)


async def test_leases_that_cannot_be_renewed_do_not_keep_the_others(
    desk: FakeDesk, url: str, info: WorkerInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [desk.add("wait_async") for _ in range(BATCH + 1)]
    poisoned, last = runs[0], runs[-1]
    claims = [claim for _ in range(3) for claim in await desk.claim(info, limit=BATCH)]
    poison, renew = claims[0].key, desk.renew

    async def refuses(keys: Sequence[LeaseKey], **_: object) -> Renewal:
        desk.calls["refused renewal"] += poison in keys
        assert poison not in keys
        return await renew(keys)

    monkeypatch.setattr(desk, "renew", refuses)
    heart = ProcessHeart(url, opener=OPENER)
    await heart.start(lambda _: None)
    await heart.able.wait()
    # The last one asks for a round every third of a second.
    heart.hold([*claims[:-1], replace(claims[-1], lease_duration=SECOND)])
    await desk.until(lambda: desk.calls["refused renewal"] >= 5 and renewals(last) >= 5)
    assert renewals(poisoned) == 0
    monkeypatch.setattr(desk, "renew", renew)
    await desk.until(lambda: renewals(poisoned) >= 1)
    await heart.stop(release=False)


async def test_progress_goes_with_renewals_of_its_own_leases_at_most_once_a_second(
    desk: FakeDesk, url: str, info: WorkerInfo
) -> None:
    quick, quiet = desk.add("wait_async"), desk.add("wait_async")
    heart = ProcessHeart(url, opener=OPENER)
    await heart.start(lambda _: None)
    await heart.able.wait()
    claims = await desk.claim(info, limit=2)
    heart.hold(claims)
    token, lease = claims[0].key.token, quick.lease
    assert lease is not None
    began = desk.clock.now()
    heart.note({token: Progress(0.1, "begins")})
    await desk.until(lambda: lease.progress)
    seen = renewals(quick), renewals(quiet)
    for step in range(100):
        heart.note({token: Progress(step / 100, None)})
        await asyncio.to_thread(int)
    heart.note({token: Progress(None, "ends")})
    await desk.until(lambda: len(lease.progress) > 1)
    assert lease.progress == [Progress(0.1, "begins"), Progress(0.99, "ends")]
    assert desk.clock.now() - began >= SECOND
    assert (renewals(quick), renewals(quiet)) == (seen[0] + 1, seen[1]), "the other's renewal is not due"
    await heart.stop(release=False)


async def test_a_heart_that_is_hastened_renews_everything_but_not_for_each_word(
    desk: FakeDesk, url: str, info: WorkerInfo
) -> None:
    run = desk.add("wait_async")
    news: list[HeartNews] = []
    heart = ProcessHeart(url, opener=OPENER)
    await heart.start(news.append)
    await heart.able.wait()
    [claim] = await desk.claim(info, limit=1)
    heart.hold([claim])
    assert run.lease is not None
    run.lease.is_cancelled = True
    for _ in range(100):
        heart.hasten()
        await asyncio.to_thread(int)
    await desk.until(lambda: news)
    assert news == [HeartNews(cancelled=frozenset({claim.key.token}))]
    assert renewals(run) <= 2
    await heart.stop(release=False)


async def test_progress_that_the_desk_cannot_take_costs_no_lease(
    desk: FakeDesk, url: str, info: WorkerInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = desk.add("wait_async", lease=timedelta(seconds=3))
    renew = desk.renew

    async def refuses(keys: Sequence[LeaseKey], *, progress: Mapping[UUID, Progress] | None = None) -> Renewal:
        if progress:
            desk.calls["refused progress"] += 1
            raise ValueError("an older server does not know the word")
        return await renew(keys)

    monkeypatch.setattr(desk, "renew", refuses)
    heart = ProcessHeart(url, opener=OPENER)
    await heart.start(lambda _: None)
    await heart.able.wait()
    [claim] = await desk.claim(info, limit=1)
    heart.hold([claim])
    heart.note({claim.key.token: Progress(0.5)})
    await desk.until(lambda: desk.calls["refused progress"] and renewals(run) >= 1)
    assert desk.calls["refused progress"] == 1
    await heart.stop(release=False)


async def test_a_heart_that_dies_is_replaced_and_knows_every_lease(desk: FakeDesk, url: str, info: WorkerInfo) -> None:
    run = desk.add("wait_async", lease=timedelta(seconds=3))
    heart = ProcessHeart(url, opener=OPENER)
    await heart.start(lambda _: None)
    await heart.able.wait()
    heart.hold(await desk.claim(info, limit=1))
    await desk.until(lambda: renewals(run) >= 1)
    first = heart.pid
    assert first is not None
    kill(first)
    seen = renewals(run)
    await desk.until(lambda: renewals(run) > seen)
    assert heart.pid not in (None, first)
    await heart.stop(release=True)
    assert run.outcomes == [Outcome.RELEASED]


async def test_a_heart_that_hangs_is_replaced_before_a_lease_ends(desk: FakeDesk, url: str, tmp_path: Path) -> None:
    run = desk.add("wait_async", {"mark": str(tmp_path / "mark")}, lease=timedelta(seconds=2))
    async with worker_process(desk, url) as worker:
        await desk.until(lambda: renewals(run) >= 1)
        hung, seen = heart_of(worker.pid), renewals(run)
        os.kill(hung, signal.SIGSTOP)
        await desk.until(lambda: run.attempts or renewals(run) >= seen + 3)
        assert (run.claims, run.outcomes) == (1, [])
        await desk.until(lambda: not lives(hung))


async def test_a_heart_takes_no_signal_of_its_worker(desk: FakeDesk, url: str, info: WorkerInfo) -> None:
    run = desk.add("wait_async", lease=SECOND)
    heart = ProcessHeart(url, opener=OPENER)
    await heart.start(lambda _: None)
    await heart.able.wait()
    heart.hold(await desk.claim(info, limit=1))
    await desk.until(lambda: renewals(run) >= 1)
    pid = heart.pid
    assert pid is not None
    assert os.getsid(pid) == pid, "a session of its own: Ctrl-C does not get there"
    os.kill(pid, signal.SIGTERM)
    os.kill(pid, signal.SIGINT)
    seen = renewals(run)
    await desk.until(lambda: renewals(run) > seen)
    assert heart.pid == pid
    assert url not in Path(f"/proc/{pid}/cmdline").read_text()
    assert url not in Path(f"/proc/{pid}/environ").read_text()
    await heart.stop(release=False)
    assert not lives(pid)


async def test_a_killed_worker_gives_its_runs_back_at_once(desk: FakeDesk, url: str, tmp_path: Path) -> None:
    in_loop = desk.add("wait_async", {"mark": str(tmp_path / "loop")})
    in_child = desk.add("loop_with_gil", {"mark": str(tmp_path / "child")})
    command = f"echo $$ > {tmp_path}/shell.new; sleep 60 & mv {tmp_path}/shell.new {tmp_path}/shell; wait"
    in_shell = desk.add("shell", {"command": command})
    runs = (in_loop, in_child, in_shell)
    async with worker_process(desk, url) as worker:
        await desk.until(lambda: all((tmp_path / name).exists() for name in ("loop", "child", "shell")))
        heart, children = heart_of(worker.pid), children_of(worker.pid)
        worker.kill()
        await desk.until(lambda: all(run.attempts for run in runs))
        await desk.until(lambda: not any(map(lives, (heart, *children))))
    assert [run.last.outcome for run in runs] == [Outcome.LOST, Outcome.RELEASED, Outcome.RELEASED]
    assert [run.charged for run in runs] == [1, 0, 0], "what was outside of the worker cannot have ended it"
    assert [run.state for run in runs] == ["pending"] * 3
    assert "worker lost" in (in_loop.last.error or "")


async def test_a_stopped_worker_is_not_renewed_and_its_late_result_is_refused(
    desk: FakeDesk, url: str, tmp_path: Path
) -> None:
    payload = {"mark": str(tmp_path / "mark"), "go": str(tmp_path / "go")}
    run = desk.add("finish_when_told", payload, lease=SECOND)
    async with worker_process(desk, url, concurrency=1) as worker:
        await desk.until(lambda: (tmp_path / "mark").exists() and renewals(run) >= 2)
        heart = heart_of(worker.pid)
        worker.send_signal(signal.SIGSTOP)
        lease = run.lease
        assert lease is not None
        await desk.until(lambda: lease.expires_at < desk.clock.now(), within=4)
        desk.reap()
        assert run.outcomes == [Outcome.LOST]
        [claim] = await desk.claim(info_of(app.handlers, worker_id="w-2"), limit=1)
        assert claim.attempt == 2
        (tmp_path / "go").touch()
        # With one slot, and reports in their order, this one comes after the late result.
        after = desk.add("tell_pid", {"mark": str(tmp_path / "after")})
        worker.send_signal(signal.SIGCONT)
        await desk.until(lambda: after.state == "succeeded")
        assert run.lease is not None
        assert (run.lease.token, run.outcomes) == (claim.key.token, [Outcome.LOST])
        assert heart_of(worker.pid) == heart, "it was the worker that was stopped"


async def test_a_child_dies_with_its_worker_even_if_no_heart_can_help(desk: FakeDesk, url: str, tmp_path: Path) -> None:
    desk.add("loop_with_gil", {"mark": str(tmp_path / "mark")})
    async with worker_process(desk, url) as worker:
        await desk.until((tmp_path / "mark").exists)
        heart, child = heart_of(worker.pid), int((tmp_path / "mark").read_text())
        os.kill(heart, signal.SIGSTOP)
        try:
            worker.kill()
            await desk.until(lambda: not lives(child))
        finally:
            kill(heart)


async def test_a_handler_that_holds_the_gil_for_three_leases_keeps_them_all(
    desk: FakeDesk, url: str, tmp_path: Path
) -> None:
    greedy = desk.add("hold_in_thread", {"mark": str(tmp_path / "greedy"), "seconds": 3}, lease=SECOND)
    neighbour = desk.add("wait_async", {"mark": str(tmp_path / "neighbour")}, lease=SECOND)
    async with worker_process(desk, url) as worker:
        await desk.until((tmp_path / "greedy").exists)
        heart = heart_of(worker.pid)
        await desk.until(lambda: greedy.attempts)
        assert greedy.outcomes == [Outcome.SUCCEEDED]
        assert renewals(neighbour) >= 6
        assert neighbour.claims == 1
        assert heart_of(worker.pid) == heart


async def test_a_run_of_many_leases_outlives_a_drain(desk: FakeDesk, url: str, tmp_path: Path) -> None:
    payload = {"mark": str(tmp_path / "mark"), "go": str(tmp_path / "go")}
    run = desk.add("finish_when_told", payload, lease=SECOND)
    async with worker_process(desk, url, drain=20) as worker:
        await desk.until(lambda: (tmp_path / "mark").exists())
        worker.terminate()
        seen = renewals(run)
        await desk.until(lambda: renewals(run) > seen + 4)
        (tmp_path / "go").touch()
        await desk.until(lambda: run.attempts)
        assert await asyncio.to_thread(worker.wait, 5) == 0
    assert (run.outcomes, run.claims) == ([Outcome.SUCCEEDED], 1)


async def test_a_second_signal_leaves_at_once_with_a_stuck_thread(desk: FakeDesk, url: str, tmp_path: Path) -> None:
    stuck = desk.add("hold_in_thread", {"mark": str(tmp_path / "hold"), "seconds": 0.5})
    waiting = desk.add("wait_in_thread", {"mark": str(tmp_path / "thread")})
    child = desk.add("loop_with_gil", {"mark": str(tmp_path / "child")})
    async with worker_process(desk, url, drain=60) as worker:
        await desk.until(lambda: (tmp_path / "thread").exists() and (tmp_path / "child").exists())
        heart = heart_of(worker.pid)
        await desk.until(lambda: stuck.attempts)
        worker.send_signal(signal.SIGINT)
        worker.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(worker.wait, 5) == 0
        assert not lives(int((tmp_path / "child").read_text()))
        await desk.until(lambda: not lives(heart))
    assert (waiting.outcomes, child.outcomes) == ([Outcome.RELEASED], [Outcome.RELEASED])
    assert (waiting.charged, child.charged) == (0, 0)


async def test_a_drained_worker_that_cannot_reach_the_desk_still_ends(desk: FakeDesk, url: str, tmp_path: Path) -> None:
    run = desk.add("wait_async", {"mark": str(tmp_path / "mark")})
    async with worker_process(desk, url, drain=0) as worker:
        await desk.until((tmp_path / "mark").exists)
        heart = heart_of(worker.pid)
        desk.is_away = True
        worker.send_signal(signal.SIGINT)
        worker.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(worker.wait, 10) == 0
        assert run.state == "running"
        # The heart goes on by itself, and gives the run back when the desk is there again.
        desk.is_away = False
        await desk.until(lambda: run.attempts)
        await desk.until(lambda: not lives(heart))
    assert run.outcomes == [Outcome.RELEASED]
