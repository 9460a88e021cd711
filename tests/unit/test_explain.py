"""Schedules in words."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.domain.schedule import cron, every, once


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("* * * * *", "every minute"),
        ("*/15 * * * *", "every 15 minutes"),
        ("*/35 * * * *", "at minutes 0 and 35 of every hour"),
        ("*/7 * * * *", "at every 7th minute from 0 of every hour"),
        ("0 * * * *", "every hour, on the hour"),
        ("30 * * * *", "at minute 30 of every hour"),
        ("5-55/10 * * * *", "at minutes 5, 15, 25, 35, 45 and 55 of every hour"),
        ("0 2 * * *", "at 02:00 every day"),
        ("0 2,14 * * *", "at 02:00 and 14:00 every day"),
        ("1,31 0-5 * * *", "at minutes 1 and 31 of the hours 0 to 5"),
        ("*/10 2 * * *", "every 10 minutes of hour 2"),
        ("* 9-17 * * 1-5", "every minute of the hours 9 to 17 on Monday to Friday"),
        ("0 */2 * * *", "at minute 0 of every 2nd hour"),
        ("0 1-23/2 * * *", "at minute 0 of every 2nd hour from 1 to 23"),
        ("0 2 * * 1", "at 02:00 on Monday"),
        ("0 6 * jan-MAR mon,Wed,FRI", "at 06:00 on Monday, Wednesday and Friday in January to March"),
        ("0 0 * * 0,7", "at 00:00 on Sunday"),
        ("0 0 * * */2", "at 00:00 on Sunday, Tuesday, Thursday and Saturday"),
        ("0 0 * 3 *", "at 00:00 every day in March"),
        ("0 0 * */3 *", "at 00:00 every day in January, April, July and October"),
        ("0 0 29 2 *", "at 00:00 on 29 February"),
        ("0 0 1,15 * *", "at 00:00 on days 1 and 15 of the month"),
        ("0 0 */2 * *", "at 00:00 on every 2nd day from 1 of the month"),
        ("0 0 13 * 5", "at 00:00 on day 13 of the month or on Friday"),
        ("0 0 */2 * 1", "at 00:00 on every 2nd day from 1 of the month if that is also Monday"),
        ("0 0 1-31/10 * *", "at 00:00 on days 1, 11, 21 and 31 of the month"),
        ("0 0 1-7,15 * *", "at 00:00 on days 1 to 7 and 15 of the month"),
        ("0 0 L * *", "at 00:00 on the last day of the month"),
        ("0 0 L-3 * *", "at 00:00 on 3 days before the last day of the month"),
        ("0 0 LW * *", "at 00:00 on the last weekday (Monday to Friday) of the month"),
        ("0 0 15W * *", "at 00:00 on the weekday nearest to day 15 of the month"),
        ("0 0 * * 5#3,5L", "at 00:00 on the 3rd Friday of the month and the last Friday of the month"),
        ("0 0 13 6 5", "at 00:00 on day 13 of the month or on Friday, in June"),
        ("@hourly", "every hour, on the hour"),
        ("@yearly", "at 00:00 on 1 January"),
        ("@weekly", "at 00:00 on Sunday"),
    ],
)
def test_an_expression_reads_as_english(expression: str, words: str) -> None:
    assert cron(expression).describe() == f"{words}, UTC"


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("* * * * * *", "every second"),
        ("*/10 * * * * *", "every 10 seconds"),
        ("15 * * * * *", "at second 15 of every minute"),
        ("15 30 2 * * *", "at 02:30:15 every day"),
        ("*/10 5 * * * *", "every 10 seconds, at minute 5"),
    ],
)
def test_seconds_read_as_english(expression: str, words: str) -> None:
    assert cron(expression, seconds=True).describe() == f"{words}, UTC"


def test_zone_and_bounds_are_told() -> None:
    start, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 6, 1, 12, 30, tzinfo=UTC)
    told = cron("0 2 * * *", tz="Europe/Berlin", start=start, end=end).describe()
    assert told == "at 02:00 every day, Europe/Berlin time, from 2026-01-01T00:00:00Z, until 2026-06-01T12:30:00Z"


def test_intervals_and_single_slots_read_as_english() -> None:
    assert every("1h30m").describe() == "every 1 h 30 min, on the grid of 1970-01-01T00:00:00Z"
    assert cron("@every 5m").describe() == "every 5 min, on the grid of 1970-01-01T00:00:00Z"
    assert every(timedelta(days=1, milliseconds=1)).describe().startswith("every 1 d 1 ms, ")
    assert once(datetime(2026, 1, 1, tzinfo=UTC)).describe() == "once, at 2026-01-01T00:00:00Z"


def test_the_rule_for_clock_changes_is_one_sentence() -> None:
    assert "fires at the change" in cron("0 2 * * *", tz="Europe/Berlin").dst_note
    assert "elapsed time" in cron("0 * * * *", tz="Europe/Berlin").dst_note
    assert "fires at the change" in cron("0 * * * *", tz="Europe/Berlin", dst="wall").dst_note
    for schedule in (cron("0 2 * * *"), every("1h"), once(datetime(2026, 1, 1, tzinfo=UTC))):
        assert schedule.dst_note == "Clock changes do not matter here."


@given(st.lists(st.sampled_from(["*", "*/2", "3", "1-5", "2-6/2", "1,4", "5/3"]), min_size=5, max_size=5))
def test_every_expression_has_words(fields: list[str]) -> None:
    words = cron(" ".join(fields)).describe()
    assert words.endswith(", UTC")
    assert "  " not in words
    assert "None" not in words
