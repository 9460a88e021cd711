"""Schedules as values: intervals, single slots, bounds, the calendar's ends, JSON and refusals."""

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.domain.schedule import (
    SLOTS_LIMIT,
    Cron,
    Interval,
    Once,
    Schedule,
    cron,
    every,
    next_slots,
    once,
    schedule_from_json,
    schedule_to_json,
)
from rota.errors import InvalidSchedule, NoFurtherSlot

MINUTE = timedelta(minutes=1)
MICROSECOND = timedelta(microseconds=1)
LAST = datetime.max.replace(tzinfo=UTC)
FIRST = datetime.min.replace(tzinfo=UTC)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def forward(schedule: Schedule, after: datetime, upto: datetime) -> list[datetime]:
    slots = []
    slot = schedule.next_slot(after)
    while slot is not None and slot <= upto:
        assert slot > after, "strictly after"
        slots.append(slot)
        after, slot = slot, schedule.next_slot(slot)
    return slots


def test_the_ends_of_the_calendar_are_no_errors() -> None:
    for key in ("UTC", "Asia/Tokyo", "America/New_York", "Pacific/Kiritimati"):
        for expression in ("* * * * *", "59 23 31 12 *", "0 2 * * *"):
            schedule = cron(expression, tz=key)
            assert schedule.next_slot(LAST) is None
            assert len(schedule.latest_slots(LAST, after=FIRST, count=2)) == 2
            assert schedule.latest_slots(FIRST, after=FIRST, count=2) == []
            assert schedule.next_slot(FIRST) is not None
            assert schedule.count_slots(LAST - 2 * MINUTE, LAST, limit=10) <= 2
    with pytest.raises(NoFurtherSlot):
        next_slots("0 0 1 1 *", after=at("9999-06-01T00:00:00"))
    assert len(next_slots("0 0 1 1 *", after=at("9997-06-01T00:00:00"), count=9)) == 2


def test_start_and_end_are_inclusive() -> None:
    start, end = at("2026-01-02T00:00:00"), at("2026-01-05T00:00:00")
    for schedule in (cron("0 0 * * *", start=start, end=end), every("1d", start=start, end=end)):
        days = [start + timedelta(days=n) for n in range(4)]
        assert forward(schedule, at("2025-01-01T00:00:00"), LAST) == days
        assert schedule.latest_slots(LAST, after=FIRST, count=9) == days
        assert schedule.latest_slots(LAST, after=days[1], count=1) == days[-1:]
        assert schedule.count_slots(FIRST, LAST, limit=9) == 4
        assert schedule.count_slots(FIRST, LAST, limit=2) == 2
        assert schedule.next_slot(end) is None
        assert schedule.latest_slots(start - MICROSECOND, after=FIRST, count=1) == []
    between = cron("0 0 * * *", start=start + MINUTE, end=start + 2 * MINUTE)
    assert between.next_slot(FIRST) is None
    assert between.latest_slots(LAST, after=FIRST, count=1) == []


def test_an_interval_keeps_to_its_grid_also_before_the_anchor() -> None:
    anchor = at("2026-01-01T00:00:30")
    schedule = every("7m", anchor=anchor)
    assert schedule.next_slot(anchor) == anchor + 7 * MINUTE
    assert schedule.next_slot(anchor - MICROSECOND) == anchor
    assert schedule.next_slot(anchor - 8 * MINUTE) == anchor - 7 * MINUTE
    assert schedule.latest_slots(anchor, after=anchor - 15 * MINUTE, count=9) == [
        anchor - 14 * MINUTE,
        anchor - 7 * MINUTE,
        anchor,
    ]
    assert every("1s").count_slots(FIRST, LAST, limit=10**15) == (LAST - FIRST) // timedelta(seconds=1)
    assert Interval(timedelta(days=4_000_000)).next_slot(at("1970-01-01T00:00:00")) is None


@given(
    st.timedeltas(timedelta(seconds=1), timedelta(days=400)).map(lambda t: t // timedelta(milliseconds=1)),
    st.datetimes(datetime(1971, 1, 1), datetime(2500, 1, 1)),
    st.integers(1, 20),
)
def test_an_interval_backward_is_forward_reversed(length: int, moment: datetime, count: int) -> None:
    schedule = Interval(timedelta(milliseconds=length), anchor=at("2026-01-01T00:00:00.005"))
    after = moment.replace(tzinfo=UTC)
    slots = [after]
    for _ in range(count):
        slot = schedule.next_slot(slots[-1])
        assert slot is not None
        assert slot > slots[-1]
        slots.append(slot)
    assert schedule.latest_slots(slots[-1], after=after, count=count + 1) == slots[1:]
    assert schedule.count_slots(after, slots[-1], limit=1_000) == count


def test_once_has_one_slot() -> None:
    moment = at("2026-01-01T00:00:00.001")
    schedule = once(moment)
    assert schedule.next_slot(moment - MICROSECOND) == moment
    assert schedule.next_slot(moment) is None
    assert schedule.latest_slots(moment, after=FIRST, count=5) == [moment]
    assert schedule.latest_slots(moment, after=moment, count=5) == []
    assert schedule.count_slots(FIRST, LAST, limit=5) == 1
    assert schedule.count_slots(FIRST, moment - MICROSECOND, limit=5) == 0


def test_instants_of_any_zone_are_answered_in_utc() -> None:
    tokyo = timezone(timedelta(hours=9))
    assert once(datetime(2026, 1, 1, 9, tzinfo=tokyo)) == once(at("2026-01-01T00:00:00"))
    slot = cron("0 0 * * *").next_slot(datetime(2026, 1, 1, 8, 59, tzinfo=tokyo))
    assert slot == at("2026-01-01T00:00:00")
    assert slot is not None
    assert slot.tzinfo is UTC


SCHEDULES: list[Schedule] = [
    cron("0 2 * * *", tz="Europe/Berlin"),
    cron("*/5 0 2 * * *", seconds=True, dst="wall", start=at("2026-01-01T00:00:00"), end=at("2027-01-01T00:00:00.5")),
    cron("@daily", tz="US/Eastern"),
    cron("@every 1h30m"),
    every("1d2h3m4s5ms", anchor=at("2026-01-01T00:00:00"), start=at("2026-01-01T00:00:00.000001")),
    once(at("2026-01-01T00:00:00.123")),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: type(schedule).__name__)
def test_json_carries_a_schedule_both_ways(schedule: Schedule) -> None:
    document = json.loads(json.dumps(schedule_to_json(schedule)))
    back = schedule_from_json(document)
    assert back == schedule
    assert hash(back) == hash(schedule)
    assert schedule_to_json(back) == document


def test_json_says_what_people_would_write() -> None:
    assert schedule_to_json(every("90m")) == {"kind": "interval", "every": "1h30m", "anchor": "1970-01-01T00:00:00Z"}
    assert schedule_to_json(cron("0 2 * * *", end=at("2027-01-01T00:00:00"))) == {
        "kind": "cron",
        "expression": "0 2 * * *",
        "tz": "UTC",
        "dst": "auto",
        "seconds": False,
        "end": "2027-01-01T00:00:00Z",
    }
    assert schedule_from_json({"kind": "cron", "expression": "0 2 * * *", "end": None}) == cron("0 2 * * *")


@pytest.mark.parametrize(
    ("document", "field"),
    [
        (None, "schedule"),
        ([], "schedule"),
        ({}, "kind"),
        ({"kind": "quartz"}, "kind"),
        ({"kind": ["cron"]}, "kind"),
        ({"kind": "cron"}, "expression"),
        ({"kind": "cron", "expression": 5}, "expression"),
        ({"kind": "cron", "expression": "@every 5m"}, "expression"),
        ({"kind": "cron", "expression": "* * * * *", "tz": 5}, "tz"),
        ({"kind": "cron", "expression": "* * * * *", "tz": ["UTC"]}, "tz"),
        ({"kind": "cron", "expression": ["*"]}, "expression"),
        ({"kind": "cron", "expression": "* * * * *", "dst": "maybe"}, "dst"),
        ({"kind": "cron", "expression": "* * * * *", "dst": []}, "dst"),
        ({"kind": "cron", "expression": "* * * * *", "seconds": 1}, "seconds"),
        ({"kind": "cron", "expression": "* * * * *", "timezone": "UTC"}, "timezone"),
        ({"kind": "cron", "expression": "* * * * *", "start": "2026-01-01"}, "start"),
        ({"kind": "cron", "expression": "* * * * *", "end": "2026-01-01T00:00:00"}, "end"),
        ({"kind": "interval"}, "every"),
        ({"kind": "interval", "every": 5}, "every"),
        ({"kind": "interval", "every": "5"}, "every"),
        ({"kind": "interval", "every": "999ms"}, "every"),
        ({"kind": "interval", "every": "1m1h"}, "every"),
        ({"kind": "interval", "every": "9" * 20 + "d"}, "every"),
        ({"kind": "interval", "every": "9" * 5000 + "d"}, "every"),
        ({"kind": "interval", "every": "1h", "anchor": "2026-01-01T00:00:00.0001Z"}, "anchor"),
        ({"kind": "interval", "every": "1h", "at": "2026-01-01T00:00:00Z"}, "at"),
        ({"kind": "once"}, "at"),
        ({"kind": "once", "at": 5}, "at"),
        ({"kind": "once", "at": "2026-02-30T00:00:00Z"}, "at"),
        ({"kind": "once", "at": "0001-01-01T00:00:00+09:00"}, "at"),
        ({"kind": "once", "at": "2026-01-01T00:00:00.0001Z"}, "at"),
    ],
)
def test_wrong_json_is_refused_by_name_of_the_key(document: object, field: str) -> None:
    with pytest.raises(InvalidSchedule) as refusal:
        schedule_from_json(document)
    assert refusal.value.field == field


def test_a_naive_datetime_is_refused_wherever_it_is_given() -> None:
    naive, aware = datetime(2026, 1, 1), at("2026-01-01T00:00:00")
    calls: dict[str, Callable[[], object]] = {
        "start": lambda: cron("* * * * *", start=naive),
        "end": lambda: every("1h", end=naive),
        "anchor": lambda: every("1h", anchor=naive),
        "at": lambda: once(naive),
        "after": lambda: next_slots("* * * * *", after=naive),
        "upto": lambda: cron("* * * * *").latest_slots(naive, after=aware, count=1),
    }
    for field, call in calls.items():
        with pytest.raises(InvalidSchedule, match="has no zone") as refusal:
            call()
        assert refusal.value.field == field


def test_wrong_values_are_refused_by_name_of_the_field() -> None:
    moment = at("2026-01-01T00:00:00")
    calls: dict[str, Callable[[], object]] = {
        "end": lambda: cron("* * * * *", start=moment, end=moment - MICROSECOND),
        "every": lambda: every(timedelta(milliseconds=999)),
        "at": lambda: once(moment + MICROSECOND),
        "count": lambda: next_slots("* * * * *", after=moment, count=SLOTS_LIMIT + 1),
        "anchor": lambda: next_slots("* * * * *", after=moment, anchor=moment),
        "tz": lambda: cron("@every 14d", tz="Europe/Berlin"),
        "dst": lambda: cron("@every 5m", dst="wall"),
        "seconds": lambda: cron("@every 5m", seconds=True),
        "expression": lambda: cron("@every 5 minutes"),
    }
    for field, call in calls.items():
        with pytest.raises(InvalidSchedule) as refusal:
            call()
        assert refusal.value.field == field
    with pytest.raises(InvalidSchedule, match="finer than a millisecond"):
        every(timedelta(seconds=1, microseconds=1))
    for text in ("@every", "@every -5m", "@every 0s", "@every 500ms", "@every 1.5h", "@every 5M5m", "@every 1w"):
        with pytest.raises(InvalidSchedule) as refusal:
            cron(text)
        assert refusal.value.field == "expression"


def test_schedules_are_values() -> None:
    one = Cron("0 2 * * *", tz="Europe/Berlin")
    assert len({one, Cron("0 2 * * *", tz="Europe/Berlin"), replace(one, dst="wall"), Once(FIRST)}) == 3
    assert pickle.loads(pickle.dumps(one)) == one  # noqa: S301 - our own bytes: child processes get schedules this way
    with pytest.raises(AttributeError):
        one.tz = "UTC"  # type: ignore[misc] # that it cannot be set is the point
