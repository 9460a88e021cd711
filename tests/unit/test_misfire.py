"""What becomes of slots that passed while nobody looked: each policy against a slow and simple oracle."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.domain.misfire import (
    CATCH_UP_LIMIT,
    COUNT_LIMIT,
    LATE_LIMIT,
    MAX_AGE_LIMIT,
    CatchUp,
    Due,
    FireOnce,
    Misfire,
    Skip,
    decide,
    misfire_from_json,
    misfire_to_json,
)
from rota.domain.schedule import Schedule, cron, every, once
from rota.errors import InvalidInput

START = datetime(2026, 1, 1, tzinfo=UTC)
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
GRACE = timedelta(seconds=30)
MICROSECOND = timedelta(microseconds=1)

policies = st.one_of(
    st.just(Skip()),
    st.just(FireOnce()),
    st.builds(CatchUp, st.integers(1, 12), st.timedeltas(SECOND, timedelta(hours=3))),
)
schedules = st.one_of(
    st.integers(1, 900).map(lambda seconds: every(timedelta(seconds=seconds))),
    st.sampled_from([cron("* * * * *"), cron("*/7 * * * *"), cron("0 * * * *", tz="Europe/Berlin")]),
    st.timedeltas(timedelta(0), timedelta(hours=4)).map(
        lambda passed: once(START + timedelta(seconds=passed // SECOND))
    ),
    st.integers(1, 100).map(lambda seconds: every(timedelta(seconds=seconds), end=START + timedelta(hours=1))),
)
gaps = st.timedeltas(timedelta(0), timedelta(hours=4))
graces = st.sampled_from([timedelta(0), GRACE, 5 * MINUTE])


def due_slots(schedule: Schedule, slot: datetime, now: datetime) -> list[datetime]:
    slots, following = [slot], schedule.next_slot(slot)
    while following is not None and following <= now:
        slots.append(following)
        following = schedule.next_slot(following)
    return slots


def oracle(misfire: Misfire, due: list[datetime], *, now: datetime, grace: timedelta) -> list[datetime]:
    """The rules in the words of the documentation, over a plain list of slots."""
    if now - due[0] <= grace:
        return due[:LATE_LIMIT]
    match misfire:
        case Skip():
            return [slot for slot in due if now - slot <= grace][-LATE_LIMIT:]
        case FireOnce():
            return due[-1:]
        case CatchUp(limit, max_age):
            return [slot for slot in due if now - slot <= max_age][-limit:]


@given(schedules, policies, gaps, graces)
@settings(max_examples=250)
def test_each_policy_does_what_its_words_say(
    schedule: Schedule, misfire: Misfire, gap: timedelta, grace: timedelta
) -> None:
    slot = schedule.next_slot(START)
    if slot is None:
        return
    now = slot + gap
    due = due_slots(schedule, slot, now)
    decision = decide(schedule, misfire, slot=slot, now=now, grace=grace)
    assert list(decision.run) == oracle(misfire, due, now=now, grace=grace)


@given(schedules, policies, gaps, graces)
@settings(max_examples=250)
def test_run_skipped_and_next_cover_every_slot_exactly_once(
    schedule: Schedule, misfire: Misfire, gap: timedelta, grace: timedelta
) -> None:
    slot = schedule.next_slot(START)
    if slot is None:
        return
    now = slot + gap
    due = due_slots(schedule, slot, now)
    decision = decide(schedule, misfire, slot=slot, now=now, grace=grace)
    covered = [
        s for part in decision.skipped for s in due_slots(schedule, part.first, part.last) if s <= part.last
    ] + list(decision.run)
    left = [s for s in due if decision.next_slot is not None and s >= decision.next_slot]
    assert covered + left == due, "each slot once, in order"
    for part in decision.skipped:
        assert part.first in due
        assert part.last in due
        within = len([s for s in due if part.first <= s <= part.last])
        assert part.slots == (within if within <= COUNT_LIMIT else None)
    if not left:
        assert decision.next_slot == schedule.next_slot(now)


@pytest.mark.parametrize("off", [-MICROSECOND, timedelta(0), MICROSECOND])
@pytest.mark.parametrize("grace", [timedelta(0), GRACE])
def test_a_slot_exactly_as_old_as_the_grace_is_late_and_not_missed(off: timedelta, grace: timedelta) -> None:
    """B25: one rule on the boundary; services/test_scheduler holds the three paths against it."""
    slot = START + MINUTE
    now = slot + grace + off
    if now < slot:
        return
    decision = decide(cron("* * * * *"), Skip(), slot=slot, now=now, grace=grace)
    assert decision.run == (() if off > timedelta(0) else (slot,))


def test_two_seconds_late_is_late() -> None:
    """B29: a busy host skips nothing."""
    for misfire in (Skip(), FireOnce(), CatchUp(1)):
        assert decide(every("10s"), misfire, slot=START, now=START + 2 * SECOND, grace=GRACE).run == (START,)


SEVEN_DAYS = timedelta(days=7)


@pytest.mark.parametrize(("misfire", "runs"), [(Skip(), 0), (FireOnce(), 1), (CatchUp(3), 3)])
def test_a_minutely_job_that_was_off_for_seven_days_goes_on(misfire: Misfire, runs: int) -> None:
    """B23: 10,080 missed slots are no reason to stop."""
    # Half a minute past the latest slot, so that none lies within the grace.
    now = START + SEVEN_DAYS + timedelta(seconds=45)
    decision = decide(cron("* * * * *"), misfire, slot=START, now=now, grace=GRACE)
    assert len(decision.run) == runs
    assert decision.next_slot == START + SEVEN_DAYS + MINUTE
    [skipped] = decision.skipped
    assert skipped.first == START
    assert skipped.slots is None, "counted up to COUNT_LIMIT only"


@pytest.mark.parametrize(
    ("misfire", "runs"),
    [
        (Skip(), 31),  # the latest half minute lies within the grace
        (FireOnce(), 1),
        (CatchUp(CATCH_UP_LIMIT, MAX_AGE_LIMIT), CATCH_UP_LIMIT),
    ],
)
@pytest.mark.parametrize("schedule", [every("1s"), cron("* * * * * *", seconds=True, tz="Europe/Berlin")])
def test_a_secondly_job_that_was_off_for_ten_years_costs_no_more_than_its_bounds(
    schedule: Schedule, misfire: Misfire, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches = 0

    def counted(search: Callable[..., datetime | None]) -> Callable[..., datetime | None]:
        def counting(self: Schedule, instant: datetime) -> datetime | None:
            nonlocal searches
            searches += 1
            return search(self, instant)

        return counting

    for name in ("_next", "_latest"):
        monkeypatch.setattr(type(schedule), name, counted(getattr(type(schedule), name)))
    now = START + timedelta(days=3653)
    decision = decide(schedule, misfire, slot=START, now=now, grace=GRACE)
    assert len(decision.run) == runs
    assert decision.run[-1] == now
    assert decision.next_slot == now + SECOND
    # 315 million slots passed.
    assert searches <= CATCH_UP_LIMIT + COUNT_LIMIT + 10


def test_a_long_grace_is_worked_off_in_bounded_steps() -> None:
    now, slot = START + timedelta(hours=1), START
    made: list[datetime] = []
    for _ in range(10):
        decision = decide(every("1s"), Skip(), slot=slot, now=now, grace=timedelta(days=1))
        assert len(decision.run) <= LATE_LIMIT
        assert not decision.skipped
        made += decision.run
        assert decision.next_slot is not None
        slot = decision.next_slot
        if slot > now:
            break
    assert made == [START + n * SECOND for n in range(3601)]


@pytest.mark.parametrize(("missed", "counted"), [(COUNT_LIMIT, COUNT_LIMIT), (COUNT_LIMIT + 1, None)])
def test_skipped_slots_are_counted_up_to_the_limit(missed: int, counted: int | None) -> None:
    now = START + missed * SECOND
    [skipped] = decide(every("1s"), FireOnce(), slot=START, now=now, grace=GRACE).skipped
    assert (skipped.first, skipped.last, skipped.slots) == (START, now - SECOND, counted)


def test_a_stored_slot_that_the_rule_does_not_name_is_skipped_like_the_others() -> None:
    odd = START + timedelta(milliseconds=500)
    decision = decide(every("10s"), FireOnce(), slot=odd, now=START + MINUTE, grace=GRACE)
    assert decision.run == (START + MINUTE,)
    [skipped] = decision.skipped
    assert (skipped.first, skipped.last, skipped.slots) == (odd, START + 50 * SECOND, 6)


def test_a_slot_that_is_not_due_has_no_decision() -> None:
    with pytest.raises(AssertionError):
        decide(every("10s"), Skip(), slot=START + MICROSECOND, now=START, grace=GRACE)


def test_the_last_slot_of_a_schedule_leaves_nothing_to_wait_for() -> None:
    assert decide(once(START), FireOnce(), slot=START, now=START, grace=GRACE) == Due(
        run=(START,), skipped=(), next_slot=None
    )


@given(policies)
def test_json_brings_the_same_policy_back(misfire: Misfire) -> None:
    assert misfire_from_json(misfire_to_json(misfire)) == misfire


@pytest.mark.parametrize("name", ["skip", "fire_once"])
def test_a_bare_name_is_enough(name: str) -> None:
    assert misfire_to_json(misfire_from_json(name)) == {"policy": name}


@pytest.mark.parametrize(
    "bad",
    [
        None, 3, [], {}, "catch_up", "Skip", "", {"policy": "skip", "limit": 3}, {"policy": "catch_up"},
        {"policy": ["skip"]}, {"policy": "catch_up", "limit": 3, "age": 3},
    ],
)  # fmt: skip
def test_what_is_no_policy_is_refused(bad: object) -> None:
    with pytest.raises(InvalidInput) as refusal:
        misfire_from_json(bad)
    assert refusal.value.field == "misfire"


@pytest.mark.parametrize("limit", [0, -1, 2**31, CATCH_UP_LIMIT + 1, None, "3", 3.5, float("nan"), True])
def test_a_bad_limit_is_refused(limit: object) -> None:
    with pytest.raises(InvalidInput) as refusal:
        misfire_from_json({"policy": "catch_up", "limit": limit})
    assert refusal.value.field == "misfire.limit"


@pytest.mark.parametrize("age", [0, -1, 1e9, 1e300, "3", float("nan"), float("inf"), True, []])
def test_a_bad_age_is_refused(age: object) -> None:
    with pytest.raises(InvalidInput) as refusal:
        misfire_from_json({"policy": "catch_up", "limit": 3, "max_age": age})
    assert refusal.value.field == "misfire.max_age"


@pytest.mark.parametrize("age", [timedelta(0), -SECOND, timedelta.max, MAX_AGE_LIMIT + MICROSECOND, None, 60])
def test_an_age_that_could_leave_the_calendar_is_refused(age: timedelta) -> None:
    with pytest.raises(InvalidInput) as refusal:
        CatchUp(3, age)
    assert refusal.value.field == "misfire.max_age"
