"""Priority with ageing: who goes first, and how long anybody can be made to wait."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.domain.admission import AGEING, rank

START = datetime(2026, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)

priorities = st.integers(0, 9)
instants = st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=400)).map(lambda passed: START + passed)


@given(priorities, instants)
def test_at_the_same_instant_the_higher_priority_goes_first(priority: int, now: datetime) -> None:
    ranks = [rank(now, priority=other) for other in range(10)]
    assert ranks == sorted(ranks, reverse=True)
    assert len(set(ranks)) == 10


@given(priorities, instants, instants)
def test_with_one_priority_the_earlier_goes_first(priority: int, one: datetime, other: datetime) -> None:
    earlier, later = sorted((one, other))
    assert rank(earlier, priority=priority) <= rank(later, priority=priority)
    if later - earlier >= MILLISECOND:
        assert rank(earlier, priority=priority) < rank(later, priority=priority)


@given(priorities, priorities, instants, st.timedeltas(min_value=timedelta(0), max_value=timedelta(hours=2)))
def test_nobody_waits_behind_work_that_came_more_than_the_ageing_of_the_priority_gap_later(
    low: int, high: int, arrived: datetime, later: timedelta
) -> None:
    """B66: the bound has no plateau, however long anybody has waited."""
    low, high = sorted((low, high))
    bound = AGEING * (high - low)
    goes_first = rank(arrived, priority=low) < rank(arrived + later, priority=high)
    if later >= bound + MILLISECOND:
        assert goes_first
    if later <= bound - MILLISECOND:
        assert not goes_first


@given(priorities, priorities, instants, instants, st.timedeltas(timedelta(0), timedelta(days=30)))
def test_the_order_of_two_waiting_runs_never_changes(
    one: int, other: int, first: datetime, second: datetime, waited: timedelta
) -> None:
    # Rank does not know the present instant, so this holds by its signature; what it must not do is round unevenly.
    whole = waited // MILLISECOND * MILLISECOND
    gap = rank(first, priority=one) - rank(second, priority=other)
    assert gap == rank(first + whole, priority=one) - rank(second + whole, priority=other)


def test_a_low_run_among_ever_new_high_ones_is_next_after_nine_minutes() -> None:
    """B66: low work behind a stream of the highest priority, one every second."""
    low = rank(START, priority=0)
    before = [second for second in range(3600) if rank(START + timedelta(seconds=second), priority=9) < low]
    assert len(before) == 9 * 60


@pytest.mark.parametrize("year", [1970, 2038, 9999])
def test_ranks_fit_a_bigint_for_ever(year: int) -> None:
    for priority in range(10):
        assert -(2**63) < rank(datetime(year, 12, 31, tzinfo=UTC), priority=priority) < 2**63
