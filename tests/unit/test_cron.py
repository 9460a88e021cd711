"""Cron expressions: what a field may say, what is refused and how, and the wall times that come out."""

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.domain.cron import wall_times
from rota.domain.expression import BOUNDS, LENGTH_LIMIT, FieldName
from rota.domain.schedule import cron
from rota.errors import InvalidSchedule

NEW_YEAR = datetime(2026, 1, 1)


def walls(text: str, count: int, *, start: datetime = NEW_YEAR, seconds: bool = False) -> list[datetime]:
    times = wall_times(text, seconds=seconds)
    found: list[datetime] = []
    wall = times.first(start)
    while wall is not None and len(found) < count:
        found.append(wall)
        wall = times.first(wall + timedelta(seconds=1))
    return found


def days(text: str, count: int, *, start: datetime = NEW_YEAR) -> list[str]:
    return [wall.strftime("%Y-%m-%d") for wall in walls(text, count, start=start)]


def refusal(text: str, *, seconds: bool = False) -> InvalidSchedule:
    with pytest.raises(InvalidSchedule) as caught:
        wall_times(text, seconds=seconds)
    assert caught.value.field == "expression"
    return caught.value


@pytest.mark.parametrize(
    ("minutes", "expected"),
    [
        ("*/20", {0, 20, 40}),
        ("5/15", {5, 20, 35, 50}),
        ("59/7", {59}),
        ("10-50/15", {10, 25, 40}),
        ("5-5/10", {5}),
        ("7", {7}),
        ("007", {7}),
        ("1,3-5,58-59", {1, 3, 4, 5, 58, 59}),
        ("*/90", {0}),
        ("*,5", set(range(60))),
    ],
)
def test_a_field_names_the_values_that_vixie_cron_names(minutes: str, expected: set[int]) -> None:
    assert wall_times(f"{minutes} * * * *").minutes == expected


def test_names_are_read_in_any_case_alone_in_ranges_and_in_lists() -> None:
    times = wall_times("0 0 * jan-MAR,Dec mon,Wed-FRI")
    assert times.months == {1, 2, 3, 12}
    assert times.weekdays == {1, 3, 4, 5}


def test_every_macro_reads_as_its_five_fields() -> None:
    assert walls("@daily", 2) == walls("@midnight", 2) == [datetime(2026, 1, 1), datetime(2026, 1, 2)]
    assert days("@weekly", 2) == ["2026-01-04", "2026-01-11"]
    assert days("@yearly", 2) == days("@annually", 2) == ["2026-01-01", "2027-01-01"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("60 * * * *", 'minute "60" is outside 0-59'),
        ("* 24 * * *", 'hour "24" is outside 0-23'),
        ("0 0 32 * *", 'day-of-month "32" is outside 1-31'),
        ("0 0 * 13 *", 'month "13" is outside 1-12'),
        ("0 0 * * 8", 'day-of-week "8" is outside 0-7'),
        ("+5 * * * *", 'minute "+5" is not understood'),
        ("-5 * * * *", 'minute "-5" is not understood'),
        ("5- * * * *", 'minute "5-" is not understood'),
        ("1.5 * * * *", 'minute "1.5" is not understood'),
        ("*5 * * * *", 'minute "*5" is not understood'),
        ("*-5 * * * *", 'minute "*-5" is not understood'),
        ("mon * * * *", 'minute "mon" is not understood'),
        ("0 0 * january *", 'month "january" is not understood (names have three letters: feb)'),
        ("0 0 * * MONDAY", "names have three letters"),
        ("*/ * * * *", "the step is not a number"),
        ("*/-5 * * * *", "the step is not a number"),
        ("*/5/5 * * * *", "the step is not a number"),
        ("*/0 * * * *", "the step is 0"),
        ("50-10 * * * *", "the range ends before it starts (write 50-59,0-10 to wrap)"),
        ("0 0 * * fri-mon", "write 5-6,0-1 to wrap"),
        ("0 0 * * fri-sun", "Sunday is also 7: 5-7"),
        (", * * * *", "minute has an empty item"),
        ("5, 10 * * * *", "a list has no blanks inside"),
        ("H * * * *", "H is not supported"),
        ("H/15 * * * *", "the job a jitter"),
        ("0~30 * * * *", "~ picks a time by chance"),
        ("0 0 ? * 1", "write * for any day"),
        ("0 0 * * L", "5L for the month's last Friday"),
        ("0 0 L-0 * *", 'day-of-month "L-0": L- is followed by 1 to 30'),
        ("0 0 L-31 * *", 'day-of-month "L-31": L- is followed by 1 to 30'),
        ("0 0 L-x * *", 'day-of-month "L-x" is not understood'),
        ("0 0 W * *", 'day-of-month "W" is not understood'),
        ("0 0 32W * *", "outside 1-31"),
        ("0 0 * * 5#6", "# is followed by 1 to 5"),
        ("0 0 * * 5#", "# is followed by 1 to 5"),
        ("0 0 * * 5L/2", 'day-of-week "5L/2" is not understood'),
        ("L * * * *", 'minute "L" is not understood'),
        ("", "is empty"),
        (" \t ", "is empty"),
        ("* * * *", "needs five fields"),
        ("0 0 0 * * *", "seconds=True"),
        ("0 0 * * * 2030 x", "has 7"),
        ("TZ=Europe/Berlin 0 0 * * *", "give the zone as tz"),
        ("0 0 * * *\n", "character 10, U+000A, has"),
        ("0 0 * * *\x00", "character 10, U+0000, has"),
        ("0 0 * * *\u00a00", "character 10, U+00A0, has"),
        ("\u0663 * * * *", "character 1, U+0663, has"),
        ("\uff11 * * * *", "character 1, U+FF11, has"),
        ("\ud800 * * * *", "character 1, U+D800, has"),
        ("@reboot", "no meaning for a fleet"),
        ("@fortnightly", "unknown macro"),
        ("@", "unknown macro"),
        ("@daily 5", "unknown macro"),
        ("@every 5m", "@every is an interval"),
        ("0 0 31 4,6,9,11 *", "no such date ever comes"),
        ("0 0 30 2 */1", "no such date ever comes"),
        ("0 0 31W 2 *", "no such date ever comes"),
        ("0 0 1W * */7", "no such date ever comes"),
    ],
)
def test_a_wrong_expression_is_refused_by_name_of_field_and_value(text: str, words: str) -> None:
    assert words in str(refusal(text))


def test_an_expression_longer_than_the_limit_is_refused_before_it_is_read() -> None:
    text = "*/1," * 128 + "1 * * * *"
    assert len(text) > LENGTH_LIMIT
    assert "more than 512" in refusal(text).reason
    assert "characters" in refusal("9" * 10_000_000).reason


def test_a_long_list_within_the_limit_is_fine_and_a_huge_number_is_quoted_short() -> None:
    everything = ",".join(map(str, range(60)))
    assert wall_times(f"{everything} * * * *").minutes == set(range(60))
    assert len(str(refusal(f"{'9' * 400} * * * *"))) < 120


def test_text_is_asked_for() -> None:
    with pytest.raises(InvalidSchedule, match="must be text"):
        cron(5)  # type: ignore[arg-type] # what JSON may bring


def test_seconds_come_first_and_only_when_asked_for() -> None:
    assert walls("*/40 59 23 31 12 *", 2, seconds=True) == [
        datetime(2026, 12, 31, 23, 59, 0),
        datetime(2026, 12, 31, 23, 59, 40),
    ]
    assert "needs six fields" in refusal("0 0 * * *", seconds=True).reason
    assert 'second "60"' in refusal("60 0 0 * * *", seconds=True).reason
    assert walls("@hourly", 1, seconds=True) == [NEW_YEAR]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0 0 L 2 *", ["2026-02-28", "2027-02-28", "2028-02-29"]),
        ("0 0 LW * *", ["2026-01-30", "2026-02-27", "2026-03-31"]),
        ("0 0 L-3 * *", ["2026-01-28", "2026-02-25", "2026-03-28"]),
        ("0 0 l-1,L 2 *", ["2026-02-27", "2026-02-28", "2027-02-27"]),
        ("0 0 L-30 * *", ["2026-01-01", "2026-03-01", "2026-05-01"]),
        ("0 0 * * 1/2", ["2026-01-02", "2026-01-05", "2026-01-07"]),
        ("0 0 * * 2/2", ["2026-01-01", "2026-01-03", "2026-01-06"]),
        ("0 0 * * 1-7/2", ["2026-01-02", "2026-01-04", "2026-01-05"]),
        ("0 0 * * 7/2", ["2026-01-04", "2026-01-11", "2026-01-18"]),
        ("0 0 1W * *", ["2026-01-01", "2026-02-02", "2026-03-02"]),  # 1 February and March are Sundays
        ("0 0 1W 8 *", ["2026-08-03", "2027-08-02", "2028-08-01"]),  # a Saturday 1st may not leave the month
        ("0 0 31W * *", ["2026-01-30", "2026-03-31", "2026-05-29"]),
        ("0 0 15W,L 2 *", ["2026-02-16", "2026-02-28", "2027-02-15"]),
        ("0 0 29W 2 *", ["2028-02-29", "2032-02-27", "2036-02-29"]),
        ("0 0 * * fril", ["2026-01-30", "2026-02-27", "2026-03-27"]),
        ("0 0 * * mon#5", ["2026-03-30", "2026-06-29", "2026-08-31"]),
        ("0 0 * * 7#1", ["2026-01-04", "2026-02-01", "2026-03-01"]),
        ("0 0 13 * fri", ["2026-01-02", "2026-01-09", "2026-01-13"]),
        ("0 0 */2 * 1", ["2026-01-05", "2026-01-19", "2026-02-09"]),
        ("0 0 13W * */7", None),
    ],
)
def test_days_by_rule(text: str, expected: list[str] | None) -> None:
    if expected is None:
        assert "no such date" in refusal(text).reason
    else:
        assert days(text, 3) == expected


def test_rare_dates_are_found_over_the_century_that_has_no_leap_day() -> None:
    leap_day = "0 0 29 2 *"
    assert days("0 0 * 2 1#5", 2) == ["2044-02-29", "2072-02-29"]
    assert days("0 0 * 2 1#5", 1, start=datetime(2073, 1, 1)) == ["2112-02-29"]
    assert days(leap_day, 2, start=datetime(2096, 3, 1)) == ["2104-02-29", "2108-02-29"]


def test_the_calendar_ends_without_an_error() -> None:
    times = wall_times("0 0 1 1 *")
    assert times.first(datetime(9999, 1, 2)) is None
    assert times.first(datetime.max.replace(microsecond=0)) is None  # noqa: DTZ901 - a wall time is naive
    assert wall_times("0 0 2 1 *").last(datetime(1, 1, 1)) is None
    assert wall_times("59 23 31 12 *").first(datetime(9999, 1, 1)) == datetime(9999, 12, 31, 23, 59)


@pytest.mark.parametrize("field", ["7/2", "6/2", "SAT/3"])
def test_a_step_that_reaches_nothing_is_warned_of(field: str) -> None:
    [warning] = cron(f"0 0 * * {field}").warnings
    assert "the step reaches no other day-of-week" in warning


def test_warnings_name_what_is_easily_misread() -> None:
    assert cron("0 2 * * *").warnings == ()
    assert cron("*/15 */6 * */3 *").warnings == ()
    assert "either is taken (OR)" in cron("0 0 13 * 5").warnings[0]
    assert "must match both (AND)" in cron("0 0 */2 * 1").warnings[0]
    assert cron("*/35 * * * *").warnings == ("minute */35 restarts every hour: 35 does not divide 60",)
    assert "only minute 0 matches" in cron("*/90 * * * *").warnings[0]
    assert "every day" in cron("0 */5 * * *").warnings[0]
    assert cron("0 0 31 * *").warnings == ("day 31 is missing in some months: nothing fires there",)
    assert cron("0 0 31 12 *").warnings == ()
    assert "leap years" in cron("0 0 29 2 *").warnings[0]
    assert "February of most years" in cron("0 0 29 * *").warnings[0]
    assert cron("@every 7m").warnings == ()


def terms(name: FieldName) -> st.SearchStrategy[tuple[str, frozenset[int]]]:
    """A term's text, and its values counted out by hand."""
    low, high = BOUNDS[name]
    number, step = st.integers(low, high), st.integers(1, high + 2)
    single = number.map(lambda n: (str(n), frozenset({n})))
    pairs = st.tuples(number, number).map(sorted)
    ranges = pairs.map(lambda p: (f"{p[0]}-{p[1]}", frozenset(range(p[0], p[1] + 1))))
    stepped = st.tuples(pairs, step).map(
        lambda x: (
            f"{x[0][0]}-{x[0][1]}/{x[1]}",
            frozenset(n for n in range(x[0][0], x[0][1] + 1) if not (n - x[0][0]) % x[1]),
        )
    )
    stars = step.map(lambda s: (f"*/{s}", frozenset(n for n in range(low, high + 1) if not (n - low) % s)))
    return st.one_of(single, ranges, stepped, stars)


@given(
    st.lists(terms(FieldName.MINUTE), min_size=1, max_size=5), st.lists(terms(FieldName.HOUR), min_size=1, max_size=5)
)
def test_a_list_names_the_union_of_its_terms(
    minutes: list[tuple[str, frozenset[int]]], hours: list[tuple[str, frozenset[int]]]
) -> None:
    text = f"{','.join(m[0] for m in minutes)} {','.join(h[0] for h in hours)} * * *"
    times = wall_times(text)
    assert times.minutes == frozenset().union(*(m[1] for m in minutes))
    assert times.hours == frozenset().union(*(h[1] for h in hours))


@given(st.text(max_size=40) | st.text(alphabet="0123456789*,-/LW#@ \tHmonfeb", max_size=24))
def test_any_text_is_read_or_refused_never_an_error_of_another_kind(text: str) -> None:
    try:
        times = wall_times(text)
    except InvalidSchedule:
        return
    first = times.first(NEW_YEAR)
    assert first is not None
    assert times.last(first) == first
