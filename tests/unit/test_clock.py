"""The clocks: one that only tests move, and one that follows the primary and never runs backwards."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.clock import DatabaseClock, ManualClock, StepWatch, SystemClock

START = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


async def settle() -> None:
    """Let every task that can run come to its next wait."""
    for _ in range(10):
        turn = asyncio.Event()
        asyncio.get_running_loop().call_soon(turn.set)
        await turn.wait()


async def test_sleepers_wake_in_the_order_of_their_instants_and_those_of_one_instant_as_they_came() -> None:
    clock, woken = ManualClock(), list[str]()

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(name)

    tasks = [asyncio.ensure_future(sleeper(*each)) for each in (("b", 2), ("a", 1), ("c", 2), ("d", 3), ("now", 0))]
    await settle()
    assert woken == ["now"]
    assert clock.next_wake() == START + SECOND
    clock.advance(2)
    await settle()
    assert woken == ["now", "a", "b", "c"]
    clock.advance(0.999)
    await settle()
    assert woken[-1] == "c"
    clock.advance(timedelta(milliseconds=1))
    await asyncio.gather(*tasks)
    assert woken[-1] == "d"
    assert clock.next_wake() is None


async def test_a_wait_ends_with_its_event_or_its_time() -> None:
    clock, event = ManualClock(), asyncio.Event()
    told = asyncio.ensure_future(clock.wait(event, 10))
    await settle()
    event.set()
    assert await told is True
    assert await clock.wait(event, 10) is True, "an event that is set is not waited for"
    event.clear()
    assert await clock.wait(event, 0) is False
    assert await clock.wait(event, -1) is False
    timed = asyncio.ensure_future(clock.wait(event, 10))
    await settle()
    clock.advance(10)
    assert await timed is False


async def test_a_clock_that_moves_before_the_waiters_first_turn_still_wakes_it() -> None:
    clock, event = ManualClock(), asyncio.Event()
    waiting = asyncio.ensure_future(clock.wait(event, 1))
    turn = asyncio.Event()
    asyncio.get_running_loop().call_soon(turn.set)
    await turn.wait()
    clock.advance(5)
    assert await asyncio.wait_for(waiting, 5) is False


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = ManualClock()
    sleeping = asyncio.ensure_future(clock.sleep(5))
    await settle()
    sleeping.cancel()
    await settle()
    assert clock.next_wake() is None
    clock.advance(10)


async def test_a_clock_set_back_turns_no_stopwatch_back_and_keeps_no_sleeper_longer() -> None:
    """B80: `now` goes back, elapsed time does not."""
    clock = ManualClock()
    clock.advance(10)
    sleeping = asyncio.ensure_future(clock.sleep(5))
    await settle()
    clock.set(START - timedelta(hours=8))
    assert clock.now() == START - timedelta(hours=8)
    assert clock.monotonic() == 10.0
    assert clock.next_wake() == clock.now() + 5 * SECOND
    clock.advance(5)
    await asyncio.wait_for(sleeping, 5)
    assert clock.monotonic() == 15.0


def test_a_manual_clock_takes_aware_instants_and_forward_steps_only() -> None:
    with pytest.raises(ValueError, match="aware"):
        ManualClock(datetime(2026, 1, 1))
    clock = ManualClock()
    with pytest.raises(ValueError, match="aware"):
        clock.set(datetime(2026, 1, 1))
    with pytest.raises(ValueError, match="forward"):
        clock.advance(-1)
    assert clock.advance(0) == START


async def test_the_system_clock_keeps_the_promises_of_a_clock() -> None:
    clock, event = SystemClock(), asyncio.Event()
    assert clock.now().tzinfo is UTC
    before = clock.monotonic()
    await clock.sleep(-5)
    assert await clock.wait(event, 0.001) is False
    event.set()
    assert await clock.wait(event, 1000) is True
    assert clock.monotonic() > before


class Host:
    """A host's stopwatch, moved by the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.elapsed = 1000.0
        monkeypatch.setattr("rota.clock.time.monotonic", lambda: self.elapsed)

    def measure(self, clock: DatabaseClock, truth: datetime, *, there: float = 0.0, back: float = 0.0) -> None:
        """Ask the primary, whose clock shows `truth` when the question arrives; each way takes its time."""
        sent = self.elapsed
        self.elapsed += there + back
        clock.observe(sent=sent, received=self.elapsed, database=truth)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


def test_before_its_first_measurement_a_database_clock_knows_nothing() -> None:
    with pytest.raises(RuntimeError, match="before its first measurement"):
        DatabaseClock().now()


def test_the_hosts_own_idea_of_the_time_does_not_matter(host: Host) -> None:
    """B78: a scheduler's host may be years off; its slots are due by the database's clock."""
    for elapsed in (0.0, 1e9):
        host.elapsed = elapsed
        clock = DatabaseClock()
        host.measure(clock, START)
        assert clock.now() == START
        host.elapsed += 5
        assert clock.now() == START + 5 * SECOND


@given(there=st.floats(0, 2), back=st.floats(0, 2), later=st.floats(0, 100))
def test_the_stated_error_covers_the_true_one(there: float, back: float, later: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        host, clock = Host(patch), DatabaseClock()
        host.measure(clock, START, there=there, back=back)
        host.elapsed += later
        truth = START + timedelta(seconds=back + later)
        # A microsecond on top: datetimes are no finer, and floats of epoch seconds hardly are.
        assert abs((clock.now() - truth).total_seconds()) <= clock.error_bound() + 2e-6


def test_a_slow_answer_does_not_replace_a_tight_one(host: Host) -> None:
    clock = DatabaseClock()
    host.measure(clock, START, there=0.001, back=0.001)
    host.measure(clock, START + timedelta(seconds=0.001), there=0.0, back=2.0)
    assert abs(clock.now() - (START + timedelta(seconds=2.001))) <= timedelta(milliseconds=1)
    assert clock.error_bound() < 0.01


def test_an_old_measurement_ages_until_a_fresh_wide_one_is_better(host: Host) -> None:
    clock = DatabaseClock()
    host.measure(clock, START, there=0.001, back=0.001)
    host.elapsed += 3600
    assert clock.error_bound() > 0.5
    host.measure(clock, START + timedelta(seconds=3600), there=0.05, back=0.05)
    assert clock.error_bound() == pytest.approx(0.05)


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(-0.9, 3600), st.floats(0, 0.5)), min_size=1, max_size=20))
def test_now_never_goes_back_while_the_primary_does_not_either(steps: list[tuple[float, float, float]]) -> None:
    """The primary's clock runs forward by jumps, or is corrected by less than a second: nobody sees it go back."""
    with pytest.MonkeyPatch.context() as patch:
        host, clock = Host(patch), DatabaseClock()
        host.measure(clock, START)
        truth, seen = START, clock.now()
        for passed, correction, delay in steps:
            host.elapsed += passed
            truth += timedelta(seconds=passed)
            assert clock.now() >= seen
            seen = clock.now()
            corrected = truth + timedelta(seconds=correction)
            # The correction must stay small against what was seen, or it is a step.
            truth = max(corrected, seen - timedelta(seconds=0.5))
            host.measure(clock, truth, there=delay / 2, back=delay / 2)
            truth += timedelta(seconds=delay)
            assert clock.now() >= seen
            seen = clock.now()


def test_a_primary_that_was_hours_ahead_is_believed_at_once_when_it_is_corrected(host: Host) -> None:
    """B80: who waited for eight hours to come true again would run nothing for eight hours."""
    clock = DatabaseClock()
    host.measure(clock, START, there=0.001, back=0.001)
    host.measure(clock, START + timedelta(hours=8), there=0.001, back=0.001)
    assert clock.now() - START >= timedelta(hours=8)
    host.measure(clock, START + SECOND, there=0.001, back=0.001)
    assert abs(clock.now() - (START + SECOND)) < timedelta(milliseconds=5)


def test_a_small_correction_stands_still_until_time_has_caught_up(host: Host) -> None:
    clock = DatabaseClock()
    host.measure(clock, START)
    assert clock.now() == START
    host.measure(clock, START - timedelta(seconds=0.5))
    assert clock.now() == START
    host.elapsed += 0.25
    assert clock.now() == START
    host.elapsed += 0.75
    assert clock.now() == START + timedelta(seconds=0.5)


def test_a_clock_that_gets_ahead_of_its_stopwatch_has_jumped() -> None:
    clock = ManualClock()
    watch = StepWatch(clock, patience=10)
    assert watch.look() == 0.0
    clock.advance(3600)
    assert (watch.look(), watch.fair_now()) == (0.0, clock.now())
    before = clock.now()
    clock.jump(120)
    assert (watch.look(), watch.look()) == (120.0, 0.0)
    assert watch.fair_now() == before
    clock.advance(9)
    clock.jump(timedelta(seconds=60))
    assert watch.fair_now() == before + timedelta(seconds=9), "the second jump lies within the patience for the first"
    clock.advance(10)
    assert watch.fair_now() == clock.now()


@pytest.mark.parametrize("seconds", [0.9, -3600])
def test_a_small_correction_or_a_step_back_is_no_jump(seconds: float) -> None:
    clock = ManualClock()
    watch = StepWatch(clock, patience=10)
    watch.look()
    clock.jump(seconds)
    assert (watch.look(), watch.fair_now()) == (0.0, clock.now())
