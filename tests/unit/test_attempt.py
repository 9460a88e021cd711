"""How an attempt's end is judged, and what is kept of its error."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.domain.attempt import (
    ERROR_LIMIT,
    RESULT_LIMIT,
    SHORTEST_SNOOZE,
    Ended,
    LeaseKey,
    Outcome,
    Verdict,
    after_attempt,
    check_result,
    clean_error,
    success,
)
from rota.domain.ids import slot_of
from rota.domain.retry import DELAY_LIMIT, RetryPolicy
from rota.domain.run import Gate, RunState
from rota.errors import InvalidInput, TooLarge

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
WAITED_SINCE = NOW - timedelta(minutes=5)
TEN_SECONDS = timedelta(seconds=10)
KEY = LeaseKey(7, 7, NOW, UUID(int=1))

FIRST = Ended(
    key=KEY,
    outcome=Outcome.FAILED,
    error="upstream 500",
    retry_after=None,
    attempt=1,
    available_at=WAITED_SINCE,
    losses=0,
    max_attempts=3,
    max_losses=5,
    retry=RetryPolicy(initial=TEN_SECONDS, jitter=0.0),
    pool="default",
    orphaned=False,
)


def judged(**changes: object) -> Verdict:
    return after_attempt(replace(FIRST, **changes), now=NOW)  # type: ignore[arg-type]  # fields by name


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.TIMED_OUT])
def test_a_failure_waits_its_backoff_from_now(outcome: Outcome) -> None:
    """B31: counted from now, never from the slot."""
    verdict = judged(outcome=outcome, key=LeaseKey(7, 7, NOW - timedelta(hours=1), UUID(int=1)))
    assert (verdict.state, verdict.charged) == (RunState.PENDING, 1)
    assert (verdict.gate, verdict.available_at) == (Gate.TIME, NOW + TEN_SECONDS)
    assert (verdict.losses, verdict.reason) == (0, None)


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.TIMED_OUT])
@pytest.mark.parametrize(("attempt", "losses"), [(3, 0), (4, 0), (5, 2), (2**31 - 1, 0)])
def test_the_last_failure_buries_the_run(outcome: Outcome, attempt: int, losses: int) -> None:
    verdict = judged(outcome=outcome, attempt=attempt, losses=losses)
    assert (verdict.state, verdict.charged, verdict.losses) == (RunState.DEAD, attempt, losses)
    assert (verdict.outcome, verdict.reason) == (outcome, None)


def test_a_timeout_that_took_its_worker_is_a_loss_too_and_leaves_as_many_failures_as_any() -> None:
    first = judged(outcome=Outcome.TIMED_OUT, took_worker=True)
    assert (first.state, first.charged, first.losses, first.reason) == (RunState.PENDING, 2, 1, None)
    assert first.available_at == NOW + TEN_SECONDS, "its first failure"
    third = judged(outcome=Outcome.TIMED_OUT, took_worker=True, attempt=4, losses=1)
    assert (third.state, third.reason) == (RunState.DEAD, None)
    once = judged(outcome=Outcome.TIMED_OUT, took_worker=True, max_losses=1)
    assert (once.state, once.reason) == (RunState.DEAD, "worker lost 1 times")
    other = judged(outcome=Outcome.FAILED, took_worker=True)
    assert (other.charged, other.losses) == (1, 0), "only a timeout can have"


def test_giving_up_buries_at_once() -> None:
    assert judged(outcome=Outcome.GAVE_UP).state is RunState.DEAD


def test_the_first_worker_that_is_lost_costs_the_run_no_wait_and_keeps_its_place_in_the_queue() -> None:
    verdict = judged(outcome=Outcome.LOST)
    assert (verdict.state, verdict.charged, verdict.losses, verdict.gate) == (RunState.PENDING, 1, 1, Gate.OPEN)
    assert verdict.available_at == WAITED_SINCE


@pytest.mark.parametrize(("losses", "waits"), [(1, TEN_SECONDS), (2, 2 * TEN_SECONDS), (3, 4 * TEN_SECONDS)])
def test_a_run_that_loses_one_worker_after_another_waits_longer_each_time(losses: int, waits: timedelta) -> None:
    verdict = judged(outcome=Outcome.LOST, attempt=losses + 1, losses=losses)
    assert (verdict.state, verdict.losses, verdict.gate) == (RunState.PENDING, losses + 1, Gate.TIME)
    assert verdict.available_at == NOW + waits


@pytest.mark.parametrize("max_losses", [1, 5, 1000])
@pytest.mark.parametrize("failures", [0, 2])
def test_a_poison_run_is_buried_with_the_number_of_workers_that_it_cost(max_losses: int, failures: int) -> None:
    verdict = judged(
        outcome=Outcome.LOST,
        losses=max_losses - 1,
        attempt=failures + max_losses,
        max_losses=max_losses,
        max_attempts=3,
    )
    assert (verdict.state, verdict.losses) == (RunState.DEAD, max_losses)
    assert verdict.reason == f"worker lost {max_losses} times"


@given(
    st.lists(st.sampled_from([Outcome.FAILED, Outcome.TIMED_OUT, Outcome.LOST, Outcome.RELEASED, Outcome.SNOOZED])),
    st.integers(1, 6),
    st.integers(1, 6),
)
def test_failures_count_towards_one_bound_and_losses_towards_the_other(
    outcomes: list[Outcome], max_attempts: int, max_losses: int
) -> None:
    """B44: no number of releases, and no failure beside them, changes what a loss costs."""
    charged = losses = failed = lost = 0
    for outcome in outcomes:
        verdict = judged(
            outcome=outcome, attempt=charged + 1, losses=losses, max_attempts=max_attempts, max_losses=max_losses
        )
        failed += outcome in (Outcome.FAILED, Outcome.TIMED_OUT)
        lost += outcome is Outcome.LOST
        assert (verdict.state is RunState.DEAD) == (failed == max_attempts or lost == max_losses)
        if verdict.state is RunState.DEAD:
            break
        charged, losses = verdict.charged, verdict.losses
        assert (charged, losses) == (failed + lost, lost)


@pytest.mark.parametrize("attempt", [1, 3, 1000])
def test_a_release_charges_nothing_however_many_attempts_there_were(attempt: int) -> None:
    """B44: a shutdown is nobody's failure."""
    verdict = judged(outcome=Outcome.RELEASED, attempt=attempt)
    assert (verdict.state, verdict.charged, verdict.gate) == (RunState.PENDING, attempt - 1, Gate.OPEN)
    assert verdict.available_at == WAITED_SINCE


def test_a_snooze_charges_nothing_and_comes_back_when_it_said() -> None:
    """B50: postponed, not tried."""
    verdict = judged(outcome=Outcome.SNOOZED, attempt=3, retry_after=TEN_SECONDS)
    assert (verdict.state, verdict.charged, verdict.available_at) == (RunState.PENDING, 2, NOW + TEN_SECONDS)


@pytest.mark.parametrize(
    ("asked", "waits"),
    [
        (None, SHORTEST_SNOOZE),
        (timedelta(0), SHORTEST_SNOOZE),
        (SHORTEST_SNOOZE / 2, SHORTEST_SNOOZE),
        (-TEN_SECONDS, SHORTEST_SNOOZE),
        (timedelta.min, SHORTEST_SNOOZE),
        (DELAY_LIMIT, DELAY_LIMIT),
        (timedelta.max, DELAY_LIMIT),
    ],
)
def test_a_snooze_lies_between_the_shortest_and_the_longest_delay(asked: timedelta | None, waits: timedelta) -> None:
    verdict = judged(outcome=Outcome.SNOOZED, retry_after=asked)
    assert verdict.available_at == NOW + waits
    assert verdict.gate is Gate.TIME


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.SUCCEEDED])
def test_nothing_is_tried_again_for_a_job_that_was_deleted(outcome: Outcome) -> None:
    assert judged(outcome=outcome, orphaned=True).state is RunState.CANCELLED


@pytest.mark.parametrize(
    ("asked", "waits"),
    [
        (None, TEN_SECONDS),
        (TEN_SECONDS / 2, TEN_SECONDS),
        (TEN_SECONDS * 2, TEN_SECONDS * 2),
        (timedelta.max, DELAY_LIMIT),
        (-TEN_SECONDS, TEN_SECONDS),
    ],
)
def test_a_failure_waits_the_longer_of_its_backoff_and_what_was_asked(
    asked: timedelta | None, waits: timedelta
) -> None:
    verdict = judged(retry_after=asked)
    assert (verdict.available_at, verdict.charged, verdict.gate) == (NOW + waits, 1, Gate.TIME)
    assert judged(outcome=Outcome.TIMED_OUT, retry_after=asked).available_at == NOW + TEN_SECONDS


@pytest.mark.parametrize("attempt", [1, 3])
def test_a_cancelled_attempt_cancels_its_run(attempt: int) -> None:
    verdict = judged(outcome=Outcome.CANCELLED, attempt=attempt)
    assert (verdict.state, verdict.charged) == (RunState.CANCELLED, attempt)


@pytest.mark.parametrize("result", [{"n": 1}, [1, 2.5, None], "text", 0, False, ""])
def test_any_json_is_a_result(result: object) -> None:
    text = check_result(result)
    assert text is not None
    assert json.loads(text) == result


def test_a_result_has_a_limit_in_bytes_and_none_is_none() -> None:
    assert check_result(None) is None
    assert len((check_result("ü" * ((RESULT_LIMIT - 2) // 2)) or "").encode()) == RESULT_LIMIT
    with pytest.raises(TooLarge, match=r"^result: has 65538 bytes"):
        check_result("ü" * (RESULT_LIMIT // 2))


@pytest.mark.parametrize("result", [{"n": float("inf")}, {1: 2}, "\x00", "\ud800", object(), {"a": {"b": b""}}])
def test_what_is_no_json_is_no_result(result: object) -> None:
    with pytest.raises(InvalidInput, match=r"^result: "):
        check_result(result)


def test_success_needs_no_judgement() -> None:
    verdict = success(KEY, now=NOW)
    assert (verdict.state, verdict.outcome, verdict.error) == (RunState.SUCCEEDED, Outcome.SUCCEEDED, None)
    with pytest.raises(AssertionError):
        judged(outcome=Outcome.SUCCEEDED)


def test_a_lease_key_leads_to_its_run() -> None:
    assert slot_of(KEY.run_id) == (KEY.job_uid, KEY.scheduled_for)


def test_an_error_is_cleaned_on_its_way_into_the_verdict() -> None:
    assert judged(error="a\x00b").error == "a\\x00b"
    assert judged(error=None).error is None


@given(st.text(st.characters(), max_size=200), st.sampled_from([1, 100, 1000]))
def test_any_error_text_can_be_kept(text: str, times: int) -> None:
    """B57: NUL, lone surrogates and any length."""
    kept = clean_error(text * times)
    assert len(kept) <= ERROR_LIMIT
    assert "\x00" not in kept
    kept.encode("utf-8")


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=ERROR_LIMIT))
def test_a_short_clean_error_stays_as_it_is(text: str) -> None:
    assert clean_error(text) == text


def test_a_long_error_keeps_both_ends_and_says_that_it_was_cut() -> None:
    """B57: a traceback says where at the top and what at the bottom."""
    kept = clean_error("first line\n" + "x" * 10_000_000 + "\nlast line")
    assert kept.startswith("first line\n")
    assert kept.endswith("\nlast line")
    assert "cut by Rota from 10000021 characters" in kept
    assert len(clean_error("\ud800" * ERROR_LIMIT)) <= ERROR_LIMIT
