"""Concurrent calls go together; each gets its own answer, after the batch's commit, and nobody spoils another's."""

import asyncio
from collections.abc import Sequence

import pytest

from rota.api.coalescer import Coalescer
from rota.clock import ManualClock
from rota.errors import DatabaseUnavailable, TooManyCalls


class Database:
    """What a batch meets: it waits until it is let through, refuses what is poison, and can be away."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.may_commit = asyncio.Event()
        self.may_commit.set()
        self.is_away = False

    async def double(self, items: Sequence[int]) -> list[int]:
        self.batches.append(list(items))
        await self.may_commit.wait()
        if self.is_away:
            raise DatabaseUnavailable("away")
        if -1 in items:
            raise ValueError("poison")
        return [2 * item for item in items]


def calls(coalescer: Coalescer[int, int], *items: int) -> list[asyncio.Task[int]]:
    return [asyncio.create_task(coalescer.call(item)) for item in items]


async def turns() -> None:
    """Let everybody go on who can."""
    loop = asyncio.get_running_loop()
    for _ in range(10):
        done = loop.create_future()
        loop.call_soon(done.set_result, None)
        await done


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def test_calls_of_one_turn_go_together_and_each_gets_its_answer(database: Database, clock: ManualClock) -> None:
    coalescer = Coalescer(database.double, clock)
    assert await asyncio.gather(*calls(coalescer, 1, 2, 3)) == [2, 4, 6]
    assert database.batches == [[1, 2, 3]]


async def test_a_lone_call_does_not_wait(database: Database, clock: ManualClock) -> None:
    coalescer = Coalescer(database.double, clock)
    assert await coalescer.call(1) == 2
    clock.advance(1)
    assert await coalescer.call(2) == 4


async def test_calls_shortly_after_a_batch_gather(database: Database, clock: ManualClock) -> None:
    coalescer = Coalescer(database.double, clock, max_wait=0.005)
    await coalescer.call(1)
    later = calls(coalescer, 2)
    await turns()
    later += calls(coalescer, 3)
    await turns()
    assert database.batches == [[1]]
    clock.advance(0.005)
    assert await asyncio.gather(*later) == [4, 6]
    assert database.batches == [[1], [2, 3]]


async def test_one_batch_is_under_way_while_the_next_gathers(database: Database, clock: ManualClock) -> None:
    coalescer = Coalescer(database.double, clock, max_wait=0.0)
    database.may_commit.clear()
    first = calls(coalescer, 1)
    await turns()
    rest = calls(coalescer, 2, 3)
    await turns()
    assert database.batches == [[1]]
    assert not first[0].done()
    database.may_commit.set()
    assert await asyncio.gather(*first, *rest) == [2, 4, 6]
    assert database.batches == [[1], [2, 3]]


async def test_a_batch_has_a_limit(database: Database, clock: ManualClock) -> None:
    coalescer = Coalescer(database.double, clock, max_wait=0.0, limit=2)
    await asyncio.gather(*calls(coalescer, 1, 2, 3))
    assert database.batches == [[1, 2], [3]]


async def test_a_poison_item_fails_alone(database: Database, clock: ManualClock) -> None:
    coalescer = Coalescer(database.double, clock)
    answers = await asyncio.gather(*calls(coalescer, 1, 2, -1, 4), return_exceptions=True)
    assert [answer for answer in answers if not isinstance(answer, BaseException)] == [2, 4, 8]
    assert isinstance(answers[2], ValueError)


async def test_when_the_database_is_away_all_hear_of_it_and_the_next_call_succeeds(
    database: Database, clock: ManualClock
) -> None:
    coalescer = Coalescer(database.double, clock, max_wait=0.0)
    database.is_away = True
    answers = await asyncio.gather(*calls(coalescer, 1, -1), return_exceptions=True)
    assert [type(answer) for answer in answers] == [DatabaseUnavailable] * 2
    assert database.batches == [[1, -1]]
    database.is_away = False
    assert await coalescer.call(3) == 6


async def test_a_caller_that_leaves_does_not_take_the_batch_along(database: Database, clock: ManualClock) -> None:
    coalescer = Coalescer(database.double, clock)
    database.may_commit.clear()
    leaving, staying = calls(coalescer, 1, 2)
    await turns()
    leaving.cancel()
    await turns()
    database.may_commit.set()
    assert await staying == 4
    assert leaving.cancelled()


async def test_a_caller_that_leaves_before_his_batch_takes_his_item_along(
    database: Database, clock: ManualClock
) -> None:
    coalescer = Coalescer(database.double, clock, max_wait=0.005)
    await coalescer.call(0)
    leaving, staying = calls(coalescer, 1, 2)
    await turns()
    leaving.cancel()
    await turns()
    clock.advance(0.005)
    assert await staying == 4
    assert database.batches == [[0], [2]]


async def test_owners_take_turns_at_the_places_of_a_batch(database: Database, clock: ManualClock) -> None:
    coalescer = Coalescer(database.double, clock, limit=4)
    database.may_commit.clear()
    first = calls(coalescer, 0)
    await turns()
    many = asyncio.create_task(coalescer.call_many(range(1, 11), owner="many"))
    await turns()
    few = asyncio.create_task(coalescer.call_many([21, 22], owner="few"))
    await turns()
    database.may_commit.set()
    clock.advance(1)
    assert await few == [42, 44]
    assert database.batches[:2] == [[0], [1, 21, 2, 22]]
    assert await asyncio.gather(*first) == [0]
    while not many.done():
        clock.advance(1)
        await turns()
    assert await many == [2 * item for item in range(1, 11)]


async def test_an_owner_cannot_have_any_number_of_items_wait(
    database: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.api.coalescer.WAITING_LIMIT", 3)
    coalescer = Coalescer(database.double, clock)
    database.may_commit.clear()
    first = calls(coalescer, 1)
    await turns()
    waiting = calls(coalescer, 2, 3, 4)
    await turns()
    with pytest.raises(TooManyCalls):
        await coalescer.call(5)
    waiting += [asyncio.create_task(coalescer.call(6, owner="other"))]
    await turns()
    database.may_commit.set()
    clock.advance(1)
    assert await asyncio.gather(*first, *waiting) == [2, 4, 6, 8, 12]
