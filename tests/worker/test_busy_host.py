"""A heart that is slow is not dead: on a busy host it starts late, is late, and costs no run."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from rota.domain.attempt import Outcome
from rota.worker.handlers import HandlerRegistry
from rota.worker.heart import ProcessHeart
from rota.worker.worker import Worker
from tests.worker.fake_desk import FakeDesk, FakeRun
from tests.worker.kit import info_of, lives

SLOW = "tests.worker.slow_opener:open_fake_desk"
TWO_SECONDS = timedelta(seconds=2)


@pytest.fixture
async def url(desk: FakeDesk, tmp_path: Path) -> AsyncIterator[str]:
    async with desk.serve(tmp_path / "desk") as served:
        yield served


@contextlib.asynccontextmanager
async def at_work_with(desk: FakeDesk, registry: HandlerRegistry, heart: ProcessHeart) -> AsyncIterator[Worker]:
    worker = Worker(desk, registry, info_of(registry), desk.clock, heart)
    working = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.request_stop()
        worker.request_stop()
        await working


def renewals(run: FakeRun) -> int:
    return run.lease.renewals if run.lease is not None else -1


async def test_nothing_is_claimed_before_the_heart_could_renew_it(
    desk: FakeDesk, registry: HandlerRegistry, url: str
) -> None:
    end = asyncio.Event()

    async def work() -> None:
        await end.wait()

    registry.register("work", work)
    run = desk.add("work", lease=TWO_SECONDS)
    heart = ProcessHeart(url, opener=SLOW)
    async with at_work_with(desk, registry, heart):
        await desk.until(lambda: desk.calls["announce"] and heart.pid)
        first = heart.pid
        assert (heart.able.is_set(), run.claims) == (False, 0)
        await desk.until(lambda: renewals(run) >= 3)
        assert heart.pid == first, "a heart that starts is not killed for it"
        end.set()
        await desk.until(lambda: run.state == "succeeded")
    assert (run.claims, run.outcomes) == (1, [Outcome.SUCCEEDED])


async def test_a_late_heart_is_replaced_by_one_that_works_and_no_lease_ends_meanwhile(
    desk: FakeDesk, registry: HandlerRegistry, url: str
) -> None:
    """The new heart needs longer to start than a lease lasts: until then the worker renews itself."""
    end = asyncio.Event()

    async def work() -> None:
        await end.wait()

    registry.register("work", work)
    run = desk.add("work", lease=TWO_SECONDS)
    heart = ProcessHeart(url, opener=SLOW)
    async with at_work_with(desk, registry, heart):
        await desk.until(lambda: renewals(run) >= 1)
        late = heart.pid
        assert late is not None
        os.kill(late, signal.SIGSTOP)
        await desk.until(lambda: len(heart._links) == 2)
        assert lives(late), "it is not ended before another works"
        await desk.until(lambda: heart.pid not in (None, late) and not lives(late))
        seen = renewals(run)
        await desk.until(lambda: renewals(run) >= seen + 2)
        end.set()
        await desk.until(lambda: run.state == "succeeded")
    assert (run.claims, run.outcomes) == (1, [Outcome.SUCCEEDED])


async def test_a_heart_that_comes_back_while_its_successor_starts_costs_nothing_either(
    desk: FakeDesk, registry: HandlerRegistry, url: str
) -> None:
    end = asyncio.Event()

    async def work() -> None:
        await end.wait()

    registry.register("work", work)
    run = desk.add("work", lease=TWO_SECONDS)
    heart = ProcessHeart(url, opener=SLOW)
    async with at_work_with(desk, registry, heart):
        await desk.until(lambda: renewals(run) >= 1)
        late = heart.pid
        assert late is not None
        os.kill(late, signal.SIGSTOP)
        await desk.until(lambda: len(heart._links) == 2)
        os.kill(late, signal.SIGCONT)
        await desk.until(heart.able.is_set)
        await desk.until(lambda: len(heart._links) == 1)
        seen = renewals(run)
        await desk.until(lambda: renewals(run) >= seen + 2)
        end.set()
        await desk.until(lambda: run.state == "succeeded")
    assert (run.claims, run.outcomes) == (1, [Outcome.SUCCEEDED])


async def test_patience_grows_with_each_heart_that_was_late(
    desk: FakeDesk, registry: HandlerRegistry, url: str
) -> None:
    heart = ProcessHeart(url, opener="tests.worker.fake_desk:open_fake_desk")
    async with at_work_with(desk, registry, heart):
        await desk.until(heart.able.is_set)
        for doubt in (2, 4):
            late = heart.pid
            assert late is not None
            os.kill(late, signal.SIGSTOP)
            # No lease: its patience would be for ever.
            heart._patience = lambda: 0.5  # type: ignore[method-assign]  # as with a lease of two seconds
            await desk.until(lambda late=late: heart.pid != late and heart.able.is_set())  # type: ignore[misc]
            assert heart._doubt == doubt
