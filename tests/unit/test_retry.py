"""Backoff: the cap is a promise, the seed decides, and no attempt number is too great."""

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.domain.retry import DELAY_LIMIT, RetryPolicy
from rota.errors import InvalidInput

ZERO = timedelta(0)
SECOND = timedelta(seconds=1)

attempts = st.one_of(st.integers(1, 100), st.integers(1, 10**6), st.just(10**6))
seeds = st.binary(min_size=0, max_size=32)
delays = st.timedeltas(min_value=ZERO, max_value=DELAY_LIMIT)
factors = st.one_of(st.floats(1.0, 100.0), st.integers(1, 100))
shares = st.floats(0.0, 1.0)


@st.composite
def policies(draw: st.DrawFn, jitter: st.SearchStrategy[float] = shares) -> RetryPolicy:
    initial, cap = sorted((draw(delays), draw(delays)))
    return RetryPolicy(initial=initial, cap=cap, factor=draw(factors), jitter=draw(jitter))


@given(policies(), attempts, seeds)
def test_no_delay_is_negative_or_longer_than_the_cap(policy: RetryPolicy, attempt: int, seed: bytes) -> None:
    assert ZERO <= policy.delay_after(attempt, seed=seed) <= policy.cap


@given(policies(), attempts, seeds)
def test_the_same_seed_gives_the_same_delay(policy: RetryPolicy, attempt: int, seed: bytes) -> None:
    assert policy.delay_after(attempt, seed=seed) == policy.delay_after(attempt, seed=bytes(seed))


@given(policies(jitter=st.just(0.0)), st.lists(attempts, min_size=2, max_size=8), seeds)
def test_without_jitter_a_later_attempt_never_waits_less(policy: RetryPolicy, numbers: list[int], seed: bytes) -> None:
    waits = [policy.delay_after(attempt, seed=seed) for attempt in sorted(numbers)]
    assert waits == sorted(waits)


@given(policies(), attempts, seeds)
def test_jitter_takes_away_at_most_its_share(policy: RetryPolicy, attempt: int, seed: bytes) -> None:
    bare = RetryPolicy(initial=policy.initial, cap=policy.cap, factor=policy.factor, jitter=0.0)
    full = bare.delay_after(attempt, seed=seed)
    assert full * (1.0 - policy.jitter) - timedelta(microseconds=2) <= policy.delay_after(attempt, seed=seed) <= full


def test_delays_double_from_the_first_to_the_cap() -> None:
    policy = RetryPolicy(initial=10 * SECOND, cap=60 * SECOND, jitter=0.0)
    waits = [policy.delay_after(attempt, seed=b"") for attempt in range(1, 6)]
    assert waits == [10 * SECOND, 20 * SECOND, 40 * SECOND, 60 * SECOND, 60 * SECOND]


@pytest.mark.parametrize("factor", [100, 50, 10, 100.0, 1.5])
@pytest.mark.parametrize("attempt", [156, 183, 250, 310, 10**6])
def test_a_whole_factor_grows_no_further_than_the_cap(factor: float, attempt: int) -> None:
    policy = RetryPolicy(initial=10 * SECOND, factor=factor, cap=3600 * SECOND, jitter=0.0)
    assert policy.delay_after(attempt, seed=b"") == 3600 * SECOND


def test_the_millionth_attempt_waits_the_cap() -> None:
    policy = RetryPolicy(initial=timedelta(microseconds=1), factor=2.0, cap=DELAY_LIMIT, jitter=0.0)
    assert policy.delay_after(10**6, seed=b"") == DELAY_LIMIT


def test_a_slow_growth_reaches_the_cap_too() -> None:
    policy = RetryPolicy(initial=SECOND, factor=1.01, cap=timedelta(hours=1), jitter=0.0)
    assert policy.delay_after(10**6, seed=b"") == timedelta(hours=1)


def test_different_seeds_spread_a_herd_over_the_whole_share() -> None:
    policy = RetryPolicy(initial=100 * SECOND, jitter=0.5)
    waits = sorted(policy.delay_after(1, seed=number.to_bytes(4)) for number in range(1000))
    assert waits[0] < 51 * SECOND
    assert waits[-1] > 99 * SECOND
    assert max(later - earlier for earlier, later in pairwise(waits)) < SECOND


@given(policies())
def test_json_brings_the_same_policy_back(policy: RetryPolicy) -> None:
    assert RetryPolicy.from_json(policy.to_json()) == policy


@pytest.mark.parametrize("bad", [None, "3", True, [], {}, float("nan"), float("inf"), -1, 1e300])
@pytest.mark.parametrize("field", ["initial", "factor", "cap", "jitter"])
def test_a_bad_number_is_refused_under_its_name(field: str, bad: object) -> None:
    with pytest.raises(InvalidInput) as refusal:
        RetryPolicy.from_json({field: bad})
    assert refusal.value.field in (f"retry.{field}", "retry.cap"), "a long first delay shows as a cap below it"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"initial": -SECOND}, "retry.initial"),
        ({"initial": DELAY_LIMIT + SECOND}, "retry.initial"),
        ({"initial": 10}, "retry.initial"),
        ({"cap": SECOND}, "retry.cap"),
        ({"cap": timedelta.max}, "retry.cap"),
        ({"cap": None}, "retry.cap"),
        ({"factor": 0.99}, "retry.factor"),
        ({"factor": 101}, "retry.factor"),
        ({"factor": True}, "retry.factor"),
        ({"jitter": 1.01}, "retry.jitter"),
        ({"jitter": -0.01}, "retry.jitter"),
        ({"jitter": float("nan")}, "retry.jitter"),
    ],
)
def test_a_policy_out_of_bounds_is_refused_under_its_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        RetryPolicy(**changes)
    assert refusal.value.field == field


@pytest.mark.parametrize("bad", [None, 3, "exponential", [], [1]])
def test_what_is_no_object_is_no_policy(bad: object) -> None:
    with pytest.raises(InvalidInput) as refusal:
        RetryPolicy.from_json(bad)
    assert refusal.value.field == "retry"


def test_an_unknown_field_is_named() -> None:
    with pytest.raises(InvalidInput) as refusal:
        RetryPolicy.from_json({"initial": 1, "maximum": 5})
    assert refusal.value.field == "retry.maximum"
