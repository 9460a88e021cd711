"""The reporter beside leases that somebody else's transaction holds: it asks for those again, and for nothing else."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

import pytest

from rota.domain.attempt import Outcome, Report
from rota.errors import LeaseLocked
from rota.worker.desk import WorkerInfo
from rota.worker.reporter import Ended, Reporter
from tests.services.stories import WatchedClock
from tests.worker.fake_desk import FakeDesk


class HeldDesk(FakeDesk):
    """A desk over a database in which somebody holds the leases of `held`."""

    held: frozenset[UUID] = frozenset()

    async def report(self, reports: Sequence[Report]) -> frozenset[UUID]:
        accepted = await super().report([report for report in reports if report.key.token not in self.held])
        if locked := {report.key.token for report in reports} & self.held:
            raise LeaseLocked(locked, accepted=accepted)
        return accepted


class Answers:
    """What a reporter was told, by the number of the run."""

    def __init__(self, clock: WatchedClock, desk: HeldDesk) -> None:
        self.clock, self.desk = clock, desk
        self.told: dict[UUID, bool] = {}
        self.changed = asyncio.Event()
        self.reporter = Reporter(desk, clock, answered=self.note)

    def note(self, ended: Ended, accepted: bool) -> None:
        self.told[ended.report.key.token] = accepted
        self.changed.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.told) < count:
                await self.changed.wait()
                self.changed.clear()


@asynccontextmanager
async def reporting() -> AsyncIterator[Answers]:
    clock = WatchedClock()
    answers = Answers(clock, HeldDesk(clock))
    running = asyncio.create_task(answers.reporter.run())
    try:
        yield answers
    finally:
        running.cancel()


async def ended(answers: Answers, count: int) -> list[Ended]:
    """Return so many attempts that have ended, and that nobody has reported yet."""
    for _ in range(count):
        answers.desk.add("h")
    worker = WorkerInfo(worker_id="w", instance=uuid4(), pool="default", handlers=frozenset({"h"}), concurrency=count)
    claims = await answers.desk.claim(worker, limit=count)
    return [Ended(claim=claim, report=Report(key=claim.key, outcome=Outcome.SUCCEEDED)) for claim in claims]


async def test_a_locked_lease_keeps_no_other_report_and_is_asked_for_again() -> None:
    async with reporting() as answers:
        held, *others = await ended(answers, 5)
        answers.desk.held = frozenset({held.report.key.token})
        for each in (held, *others[:2]):
            answers.reporter.add(each)
        await answers.until(2)
        for each in others[2:]:
            answers.reporter.add(each)
        await answers.until(4)
        assert held.report.key.token not in answers.told
        assert (answers.reporter.unsent, answers.reporter.done.is_set()) == (1, False)
        answers.desk.held = frozenset()
        await answers.clock.until_asleep(1)
        answers.clock.advance(2)
        await answers.until(5)
        assert all(answers.told.values())
        async with asyncio.timeout(20):
            await answers.reporter.done.wait()


async def test_the_longer_a_lease_is_locked_the_less_often_it_is_asked_for() -> None:
    async with reporting() as answers:
        [held] = await ended(answers, 1)
        answers.desk.held = frozenset({held.report.key.token})
        answers.reporter.add(held)
        for wait in range(1, 12):
            await answers.clock.until_begun(wait)
            answers.clock.advance(2)
        calls = answers.desk.calls["report"]
        await answers.clock.until_begun(12)
        answers.clock.advance(0.5)
        assert answers.desk.calls["report"] == calls + 1, "after many tries it waits for more than half a second"


@pytest.mark.parametrize("is_locked_still", [True, False])
async def test_a_locked_lease_that_ends_meanwhile_is_asked_for_once_more(is_locked_still: bool) -> None:
    async with reporting() as answers:
        [held] = await ended(answers, 1)
        token = held.report.key.token
        answers.desk.held = frozenset({token})
        answers.reporter.add(held)
        await answers.clock.until_asleep(1)
        answers.reporter.abandon({token})
        if not is_locked_still:
            answers.desk.held = frozenset()
        answers.clock.advance(2)
        await answers.until(1)
        assert answers.told == {token: not is_locked_still}
