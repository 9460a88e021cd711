"""Connections of a lane are lent in turn, never too many, and none of them gets lost."""

import asyncio
from collections.abc import Callable

import asyncpg
import pytest

from rota.store import lane_pool
from rota.store.lane_pool import LanePool


class Raw:
    """What the pool knows of a connection."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.in_transaction = False

    @property
    def ended(self) -> bool:
        return self.gone.is_set()

    def is_closed(self) -> bool:
        return self.gone.is_set()

    def is_in_transaction(self) -> bool:
        return self.in_transaction

    def terminate(self) -> None:
        self.gone.set()

    async def close(self) -> None:
        self.gone.set()


@pytest.fixture
def opened() -> list[Raw]:
    """All connections that were opened, oldest first."""
    return []


@pytest.fixture
def make(opened: list[Raw]) -> Callable[[int], LanePool]:
    async def open_connection() -> Raw:
        opened.append(Raw())
        return opened[-1]

    return lambda size: LanePool(open_connection, size=size)


async def a_turn() -> None:
    """Let everything that is ready to run do so."""
    passed = asyncio.Event()
    asyncio.get_running_loop().call_soon(passed.set)
    await passed.wait()


async def waiting(pool: LanePool, count: int) -> list[asyncio.Task[Raw]]:
    """Callers that wait for a connection, in the order of their coming."""
    tasks = [asyncio.create_task(pool.acquire(within=60)) for _ in range(count)]
    await a_turn()
    assert not any(task.done() for task in tasks)
    return tasks


async def test_the_one_used_last_is_lent_first_and_no_more_than_size_are_open(
    make: Callable[[int], LanePool], opened: list[Raw]
) -> None:
    pool = make(2)
    one, two = await pool.acquire(within=1), await pool.acquire(within=1)
    with pytest.raises(TimeoutError):
        await pool.acquire(within=0.01)
    pool.release(one)
    pool.release(two)
    assert (await pool.acquire(within=1), await pool.acquire(within=1)) == (two, one)
    assert (opened, pool.open_count, pool.is_at_rest) == ([one, two], 2, False)


async def test_callers_are_served_in_turn_and_one_that_left_keeps_no_place(make: Callable[[int], LanePool]) -> None:
    pool = make(1)
    raw = await pool.acquire(within=1)
    first, left, last = await waiting(pool, 3)
    left.cancel()
    pool.release(raw)
    assert await first is raw
    assert not last.done()
    pool.release(raw)
    assert await last is raw
    pool.release(raw)
    assert pool.is_at_rest


async def test_one_that_is_served_and_leaves_at_once_keeps_no_place(make: Callable[[int], LanePool]) -> None:
    pool = make(1)
    raw = await pool.acquire(within=1)
    [left] = await waiting(pool, 1)
    pool.release(raw)
    left.cancel()
    await asyncio.wait({left})
    if not left.cancelled():
        pool.release(left.result())
    assert await pool.acquire(within=1) is raw


async def test_a_place_whose_connection_did_not_open_is_free_again() -> None:
    outcomes: list[Exception | Raw] = [OSError("refused"), Raw()]

    async def open_connection() -> Raw:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    pool = LanePool(open_connection, size=1)
    with pytest.raises(OSError, match="refused"):
        await pool.acquire(within=1)
    assert isinstance(await pool.acquire(within=1), Raw)


async def test_opening_takes_no_longer_than_a_caller_waits() -> None:
    pool = LanePool(asyncio.Event().wait, size=1)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await pool.acquire(within=0.01)


@pytest.mark.parametrize("state", ["ended", "in transaction"])
async def test_what_cannot_be_used_again_is_replaced(
    make: Callable[[int], LanePool], opened: list[Raw], state: str
) -> None:
    pool = make(1)
    raw = await pool.acquire(within=1)
    if state == "ended":
        raw.terminate()
    raw.in_transaction = state == "in transaction"
    pool.release(raw)
    assert raw.ended
    assert await pool.acquire(within=1) is opened[1]


async def test_one_that_ended_while_idle_is_passed_over(make: Callable[[int], LanePool], opened: list[Raw]) -> None:
    pool = make(2)
    one, two = await pool.acquire(within=1), await pool.acquire(within=1)
    pool.release(one)
    pool.release(two)
    two.terminate()
    assert pool.open_count == 1
    assert await pool.acquire(within=1) is one
    assert await pool.acquire(within=1) is opened[2]


async def test_what_nobody_needed_for_a_while_is_ended(
    make: Callable[[int], LanePool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_pool, "IDLE_LIFETIME", 0.02)
    pool = make(2)
    lent, idle = await pool.acquire(within=1), await pool.acquire(within=1)
    pool.release(idle)
    async with asyncio.timeout(10):
        await idle.gone.wait()
    assert not lent.ended, "it is in use"
    assert pool.open_count == 1
    pool.release(lent)
    async with asyncio.timeout(10):
        await lent.gone.wait()


async def test_closing_lends_no_more_and_waits_for_what_is_lent(make: Callable[[int], LanePool]) -> None:
    pool = make(2)
    idle, lent = await pool.acquire(within=1), await pool.acquire(within=1)
    [waiter] = await waiting(pool, 1)
    pool.release(idle)
    assert await waiter is idle
    pool.release(idle)
    closing = asyncio.create_task(pool.close())
    await a_turn()
    assert idle.ended
    assert not lent.ended
    with pytest.raises(asyncpg.InterfaceError):
        await pool.acquire(within=1)
    assert not closing.done()
    pool.release(lent)
    await closing
    assert lent.ended


async def test_closing_sends_those_away_who_wait(make: Callable[[int], LanePool]) -> None:
    pool = make(1)
    raw = await pool.acquire(within=1)
    [waiter] = await waiting(pool, 1)
    closing = asyncio.create_task(pool.close())
    await a_turn()
    pool.release(raw)
    with pytest.raises(asyncpg.InterfaceError):
        await waiter
    await closing


async def test_terminating_ends_what_is_lent_too(make: Callable[[int], LanePool]) -> None:
    pool = make(1)
    raw = await pool.acquire(within=1)
    pool.terminate()
    assert raw.ended
    pool.release(raw)
    with pytest.raises(asyncpg.InterfaceError):
        await pool.acquire(within=1)
