"""Cron in zones, against a slow oracle that watches the clock every minute; and which zones there are."""

import time
import zoneinfo
from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rota.domain.cron import wall_times
from rota.domain.schedule import (
    Cron,
    Dst,
    Schedule,
    cron,
    next_slots,
)
from rota.domain.zones import latest_instant, shift_at, tzdata_version, zone, zone_keys
from rota.errors import InvalidSchedule

MINUTE = timedelta(minutes=1)
MICROSECOND = timedelta(microseconds=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


# Days on which clocks change, of every shape: an hour, half an hour, two hours, a whole day, at midnight, at 00:01,
# in the middle of Ramadan, with a negative winter, by a change of the base offset.
CHANGES = [
    ("Europe/Berlin", date(2026, 3, 29)),
    ("Europe/Berlin", date(2026, 10, 25)),
    ("America/New_York", date(2026, 3, 8)),
    ("America/New_York", date(2026, 11, 1)),
    ("Australia/Lord_Howe", date(2026, 4, 4)),
    ("Australia/Lord_Howe", date(2026, 10, 3)),
    ("Pacific/Chatham", date(2026, 9, 26)),
    ("Pacific/Apia", date(2011, 12, 30)),
    ("Pacific/Kwajalein", date(1993, 8, 21)),
    ("Antarctica/Troll", date(2026, 3, 29)),
    ("Antarctica/Troll", date(2026, 10, 25)),
    ("America/Sao_Paulo", date(2018, 11, 4)),
    ("America/Sao_Paulo", date(2018, 2, 18)),
    ("America/Havana", date(2024, 11, 3)),
    ("America/St_Johns", date(2006, 10, 29)),
    ("America/St_Johns", date(2006, 4, 2)),
    ("America/Nuuk", date(2026, 3, 29)),
    ("Africa/Cairo", date(2026, 4, 24)),
    ("Africa/Casablanca", date(2025, 2, 23)),
    ("Europe/Dublin", date(2025, 10, 26)),
    ("Asia/Pyongyang", date(2018, 5, 4)),
    ("America/Caracas", date(2007, 12, 9)),
    ("Asia/Kathmandu", date(2026, 1, 1)),
    ("UTC", date(2026, 1, 1)),
]

minutes = st.sampled_from(["0", "30", "59", "*", "*/7", "*/30", "15,45", "5-10", "1", "20/20"])
hours = st.sampled_from(["*", "*/2", "*/24", "*/5", "*,3", "0", "1", "2", "3", "23", "0-4", "1-23/2", "0,1,2,3,23"])
some_days = st.sampled_from(["*", "*", "*", "*/2", "1-31/3", "L", "25W"])
weekdays = st.sampled_from(["*", "*", "*", "0", "1-6"])
expressions = st.tuples(minutes, hours, some_days, weekdays).map(lambda f: f"{f[0]} {f[1]} {f[2]} * {f[3]}")


@lru_cache(maxsize=64)
def clock_readings(key: str, day: date) -> list[tuple[datetime, datetime]]:
    """Every minute of the two days before and after a change, and what the local clock shows."""
    start = datetime(day.year, day.month, day.day, tzinfo=UTC) - timedelta(days=2)
    where = zone(key)
    instants = (start + n * MINUTE for n in range(4 * 24 * 60))
    return [(instant, instant.astimezone(where).replace(tzinfo=None, fold=0)) for instant in instants]


def oracle(expression: str, key: str, day: date, *, elapsed: bool) -> list[datetime]:
    """All slots of the four days, by looking at every minute.

    elapsed: the instants at which the clock shows a matching time. fixed: for every matching time between the first
    and the last that the clock shows, the first instant at which it shows that time or a later one.
    """
    times = wall_times(expression)

    def matches(wall: datetime) -> bool:
        return wall.second == 0 and wall.minute in times.minutes and wall.hour in times.hours and times.match_day(wall)

    readings = clock_readings(key, day)
    if elapsed:
        return [instant for instant, wall in readings if matches(wall)]
    slots, shown = [], readings[0][1] - MINUTE
    for instant, wall in readings:
        passed = False
        while shown < wall:
            shown += MINUTE
            passed = passed or matches(shown)
        if passed:
            slots.append(instant)
    return slots


def forward(schedule: Schedule, after: datetime, upto: datetime) -> list[datetime]:
    slots = []
    slot = schedule.next_slot(after)
    while slot is not None and slot <= upto:
        assert slot > after, "strictly after"
        slots.append(slot)
        after, slot = slot, schedule.next_slot(slot)
    return slots


changes = st.sampled_from(CHANGES)
rules: st.SearchStrategy[Dst] = st.sampled_from(["auto", "wall"])
offsets = st.integers(0, 4 * 24 * 60 * 60 * 1_000_000 - 1).map(lambda n: timedelta(microseconds=n))


@settings(max_examples=150, deadline=None)
@given(expressions, changes, rules, offsets, offsets, st.integers(0, 30))
@example("*/20 2 * * *", ("Europe/Berlin", date(2026, 10, 25)), "auto", timedelta(hours=49), timedelta(hours=51), 9)
@example("0 */24 * * *", ("America/Sao_Paulo", date(2018, 11, 4)), "auto", timedelta(), timedelta(days=3), 3)
def test_slots_are_those_of_a_clock_that_is_watched_every_minute(
    expression: str, change: tuple[str, date], dst: Dst, one: timedelta, other: timedelta, count: int
) -> None:
    key, day = change
    schedule = Cron(expression, tz=key, dst=dst)
    expected = oracle(expression, key, day, elapsed=dst == "auto" and expression.split()[1].startswith("*"))
    start = clock_readings(key, day)[0][0]
    after, upto = start + min(one, other), start + max(one, other)
    window = expected[bisect_right(expected, after) : bisect_right(expected, upto)]

    assert forward(schedule, after, upto) == window
    assert schedule.latest_slots(upto, after=after, count=count) == window[len(window) - min(count, len(window)) :]
    assert schedule.count_slots(after, upto, limit=count) == min(count, len(window))


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["*/7 * * * * *", "0,59 59 * * * *", "30 0 */2 * * *", "5 30 2 * * *", "*/20 */10 1-3 * * *"]),
    st.sampled_from(CHANGES[:8]),
    rules,
)
def test_seconds_forward_and_backward_agree_over_a_change(text: str, change: tuple[str, date], dst: Dst) -> None:
    key, day = change
    schedule = Cron(text, tz=key, dst=dst, seconds=True)
    noon = datetime(day.year, day.month, day.day, tzinfo=UTC)
    slots = forward(schedule, noon - timedelta(hours=13), noon + timedelta(hours=17))[-300:]
    if slots:
        assert schedule.latest_slots(slots[-1], after=slots[0] - MICROSECOND, count=len(slots) + 1) == slots


@settings(max_examples=200, deadline=None)
@given(
    expressions,
    st.sampled_from(sorted(zone_keys())),
    rules,
    st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(2100, 1, 1)),
)
def test_in_every_zone_and_year_backward_is_forward_reversed(
    expression: str, key: str, dst: Dst, moment: datetime
) -> None:
    schedule = Cron(expression, tz=key, dst=dst)
    after = moment.replace(tzinfo=UTC)
    slots: list[datetime] = []
    slot = schedule.next_slot(after)
    while slot is not None and len(slots) < 40:
        assert slot > (slots[-1] if slots else after)
        slots.append(slot)
        slot = schedule.next_slot(slot)
    assert schedule.latest_slots(slots[-1], after=after, count=100) == slots
    assert schedule.count_slots(after, slots[-1], limit=1_000) == len(slots)
    middle = slots[20] - MICROSECOND
    assert schedule.next_slot(middle) == slots[20]


@settings(max_examples=100, deadline=None)
@given(expressions, changes, rules, offsets, offsets)
def test_the_next_slot_never_goes_back(
    expression: str, change: tuple[str, date], dst: Dst, one: timedelta, other: timedelta
) -> None:
    key, day = change
    schedule = Cron(expression, tz=key, dst=dst)
    start = clock_readings(key, day)[0][0]
    earlier, later = schedule.next_slot(start + min(one, other)), schedule.next_slot(start + max(one, other))
    assert earlier is not None
    assert later is not None
    assert earlier <= later


def test_a_shift_is_found_to_the_second() -> None:
    gap = shift_at(datetime(2026, 3, 29, 2, 30), zone("Europe/Berlin"))
    assert gap is not None
    assert (gap.skips, gap.instant) == (True, at("2026-03-29T01:00:00"))
    assert (gap.bottom, gap.top) == (datetime(2026, 3, 29, 2), datetime(2026, 3, 29, 3))
    assert shift_at(datetime(2026, 3, 29, 3), zone("Europe/Berlin")) is None
    local_mean_time = shift_at(datetime(1883, 11, 18, 12, 0), zone("America/New_York"))
    assert local_mean_time is not None
    assert local_mean_time.instant == at("1883-11-18T17:00:00")


def test_a_year_of_missed_minutes_costs_no_more_than_the_last_three() -> None:
    schedule = cron("* * * * *", tz="Europe/Berlin")
    asked = 0

    class Counting:
        def first(self, start: datetime) -> datetime | None:
            raise AssertionError("looked forward")

        def last(self, start: datetime) -> datetime | None:
            nonlocal asked
            asked += 1
            return wall_times("* * * * *").last(start)

    upto = at("2026-10-25T01:30:30")
    slots: list[datetime] = []
    for _ in range(3):
        slot = latest_instant(Counting(), zone("Europe/Berlin"), upto, elapsed=True)
        assert slot is not None
        slots.append(slot)
        upto = slot - MICROSECOND
    assert asked == 3
    assert schedule.latest_slots(at("2026-10-25T01:30:30"), after=at("2025-01-01T00:00:00"), count=3) == slots[::-1]


def test_a_second_field_in_a_day_that_never_was_collapses_without_being_counted() -> None:
    schedule = Cron("* * 10-14 30 12 *", tz="Pacific/Apia", seconds=True)  # 18,000 walls, one instant
    jump = at("2011-12-30T10:00:00")
    assert schedule.next_slot(at("2011-12-30T00:00:00")) == jump
    latest = schedule.latest_slots(at("2012-01-01T00:00:00"), after=at("2010-12-31T00:59:57"), count=3)
    assert latest == [at("2010-12-31T00:59:58"), at("2010-12-31T00:59:59"), jump]


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("America/New_Yrok", "did you mean America/New_York?"),
        ("europe/berlin", "did you mean Europe/Berlin?"),
        ("utc", "did you mean UTC?"),
        ("UTC+3", "is an offset"),
        ("+03:00", "is an offset"),
        ("GMT-5", "is an offset"),
        ("PST", "abbreviations"),
        ("", "is empty"),
        ("../../etc/passwd", "is not a zone"),
        ("/etc/localtime", "is not a zone"),
        ("Europe", "is not a zone"),
        ("Europe/Berlin ", "is not a zone"),
        ("Europe/Berlin\x00", "is not a zone"),
        ("zones", "is not a zone"),
        ("x" * 10_000, "has 10000 characters"),
    ],
)
def test_a_wrong_zone_is_refused_with_help(key: str, words: str) -> None:
    with pytest.raises(InvalidSchedule, match="tz") as refusal:
        cron("0 0 * * *", tz=key)
    assert refusal.value.field == "tz"
    assert words in str(refusal.value)


def test_links_and_old_keys_are_zones_and_the_version_is_known() -> None:
    for key in ("US/Eastern", "EST", "EST5EDT", "Etc/GMT+3", "Asia/Calcutta", "America/Argentina/Buenos_Aires"):
        assert zone(key).utcoffset(datetime(2026, 1, 1)) is not None
    assert tzdata_version()[:2] == "20"
    for key in zone_keys():
        zone(key)


@pytest.fixture
def lying_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A host in Sydney whose own file for Berlin holds something else."""
    (tmp_path / "Europe").mkdir()
    (tmp_path / "Europe" / "Berlin").write_bytes(b"not a zone")
    monkeypatch.setenv("TZ", "Australia/Sydney")
    time.tzset()
    zoneinfo.reset_tzpath([str(tmp_path)])
    zone.cache_clear()
    yield
    monkeypatch.undo()
    time.tzset()
    zoneinfo.reset_tzpath()


@pytest.mark.usefixtures("lying_host")
def test_the_host_has_no_say_in_time() -> None:
    after = at("2025-10-05T02:00:00")
    hourly = [after + timedelta(hours=1), after + timedelta(hours=2)]
    assert next_slots("0 * * * *", after=after, count=2) == hourly
    assert next_slots("0 2 * * *", tz="Europe/Berlin", after=at("2026-03-29T00:00:00"), count=2) == [
        at("2026-03-29T01:00:00"),
        at("2026-03-30T00:00:00"),
    ]
