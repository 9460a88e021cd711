"""How many runs a worker asks for: few where it found none, all that it has room for where there was enough."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast
from uuid import uuid4

import pytest

from rota.clock import ManualClock
from rota.domain.attempt import CLAIM_LIMIT, Claim
from rota.worker.desk import Desk, WorkerInfo
from rota.worker.intake import FIRST_CLAIM, GATHER_TIME, Intake, StopRequest
from tests.services.stories import START, WatchedClock

CONCURRENCY = 400


class CountingDesk:
    """Gives as many runs as the test says, and notes how many were asked for."""

    def __init__(self, gives: Callable[[int], int]) -> None:
        self.asked: asyncio.Queue[int] = asyncio.Queue()
        self.waits: asyncio.Queue[float] = asyncio.Queue()
        self.gives = gives

    async def announce(self, *_: object, **__: object) -> bool:
        return False

    async def claim(self, _: object, *, limit: int) -> list[Claim]:
        self.asked.put_nowait(limit)
        return cast("list[Claim]", [None] * min(limit, self.gives(limit)))

    async def wait_for_work(self, _: object, *, timeout: float) -> None:
        self.waits.put_nowait(timeout)
        if self.waits.qsize() > 1:
            await asyncio.Event().wait()


class Taking:
    """An intake with room for so many runs."""

    def __init__(self, desk: CountingDesk, clock: ManualClock) -> None:
        self.free = CONCURRENCY
        self.stop = StopRequest()
        self.room = asyncio.Event()
        able = asyncio.Event()
        able.set()
        info = WorkerInfo(
            worker_id="w", instance=uuid4(), pool="default", handlers=frozenset({"h"}), concurrency=CONCURRENCY
        )
        self.intake = Intake(
            cast("Desk", desk), info, clock,
            stop=self.stop, able=able, room=self.room, free_slots=lambda: self.free, begin=self._begin,
            claimed=lambda: 0,
        )  # fmt: skip

    def end(self, runs: int) -> None:
        """Let so many runs end."""
        self.free += runs
        self.room.set()

    def _begin(self, claims: Sequence[Any]) -> bool:
        self.free -= len(claims)
        return False


@asynccontextmanager
async def taking(gives: Callable[[int], int]) -> AsyncIterator[tuple[Taking, CountingDesk, WatchedClock]]:
    clock, desk = WatchedClock(START), CountingDesk(gives)
    made = Taking(desk, clock)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        announcing = group.create_task(made.intake.announce())
        group.create_task(made.intake.run())
        try:
            yield made, desk, clock
        finally:
            made.stop.ask()
            made.room.set()
            announcing.cancel()


@pytest.mark.parametrize(("found", "next_claim"), [(0, FIRST_CLAIM), (1, FIRST_CLAIM), (10, 40)])
async def test_an_idle_worker_asks_for_few(found: int, next_claim: int) -> None:
    async with taking(lambda _: found) as (_, desk, _):
        assert await desk.asked.get() == FIRST_CLAIM
        await desk.waits.get()
        assert await desk.asked.get() == next_claim


async def test_where_there_is_enough_it_asks_for_all_that_it_has_room_for() -> None:
    async with taking(lambda limit: limit) as (_, desk, _):
        assert await desk.asked.get() == FIRST_CLAIM
        assert await desk.asked.get() == min(CLAIM_LIMIT, CONCURRENCY - FIRST_CLAIM)
        assert desk.waits.empty()


async def test_with_little_room_it_waits_a_moment_for_more_and_once() -> None:
    async with taking(lambda limit: limit) as (made, desk, clock):
        assert [await desk.asked.get(), await desk.asked.get()] == [FIRST_CLAIM, CONCURRENCY - FIRST_CLAIM]
        made.end(10)
        await clock.until_asleep(2)  # one announces
        made.end(20)
        assert desk.asked.empty()
        clock.advance(GATHER_TIME)
        assert await desk.asked.get() == 30


async def test_with_much_room_it_waits_for_no_more() -> None:
    async with taking(lambda limit: limit) as (made, desk, _):
        assert [await desk.asked.get(), await desk.asked.get()] == [FIRST_CLAIM, CONCURRENCY - FIRST_CLAIM]
        made.end(CONCURRENCY // 2)
        assert await desk.asked.get() == CONCURRENCY // 2
