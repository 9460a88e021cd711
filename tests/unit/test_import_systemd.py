"""systemd timers: the instants of systemd, or a refusal; settings hold for the whole timer."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rota.domain.misfire import FireOnce, Skip
from rota.domain.schedule import Interval, cron
from rota.errors import InvalidInput
from rota.importers.on_calendar import SHORTHANDS, read_on_calendar
from rota.importers.result import ImportResult
from rota.importers.systemd import read_systemd

CASES = Path(__file__).parents[1] / "cases" / "crontabs"
START = datetime(2026, 1, 1, tzinfo=UTC)  # a Thursday


def read(text: str, *, file: str = "backup.timer", tz: str = "UTC") -> ImportResult:
    return read_systemd(text.encode(), file=file, tz=tz)


def slots(text: str, count: int, *, tz: str = "UTC") -> list[str]:
    (job,) = read(f"[Timer]\nOnCalendar={text}\n", tz=tz).jobs
    assert job.schedule is not None
    found, at = [], START - timedelta(milliseconds=1)
    for _ in range(count):
        later = job.schedule.next_slot(at)
        assert later is not None
        found.append(f"{later:%m-%d %H:%M:%S}")
        at = later
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("daily", ["01-01 00:00:00", "01-02 00:00:00"]),
        ("weekly", ["01-05 00:00:00", "01-12 00:00:00"]),
        ("quarterly", ["01-01 00:00:00", "04-01 00:00:00"]),
        ("hourly Europe/Berlin", ["01-01 00:00:00", "01-01 01:00:00"]),
        ("daily Europe/Berlin", ["01-01 23:00:00", "01-02 23:00:00"]),
        ("Mon..Fri 08:25", ["01-01 08:25:00", "01-02 08:25:00", "01-05 08:25:00"]),
        ("Mon-Fri 08:25", ["01-01 08:25:00", "01-02 08:25:00", "01-05 08:25:00"]),
        ("Sat..Sun 6:00", ["01-03 06:00:00", "01-04 06:00:00", "01-10 06:00:00"]),
        ("sat..mon 6:00", ["01-03 06:00:00", "01-04 06:00:00", "01-05 06:00:00", "01-10 06:00:00"]),
        ("Monday,wed *-*-* 12:00", ["01-05 12:00:00", "01-07 12:00:00"]),
        ("Mon", ["01-05 00:00:00", "01-12 00:00:00"]),
        ("Mon..Fri 08..09:00/20", ["01-01 08:00:00", "01-01 08:20:00", "01-01 08:40:00", "01-01 09:00:00"]),
        ("6,18:00", ["01-01 06:00:00", "01-01 18:00:00"]),
        ("01..03:00 UTC", ["01-01 01:00:00", "01-01 02:00:00", "01-01 03:00:00", "01-02 01:00:00"]),
        ("*:0/10", ["01-01 00:00:00", "01-01 00:10:00", "01-01 00:20:00"]),
        ("*-*-* *:00/15:00", ["01-01 00:00:00", "01-01 00:15:00"]),
        ("02/4:30:00", ["01-01 02:30:00", "01-01 06:30:00", "01-01 10:30:00"]),
        ("0/6:00:00", ["01-01 00:00:00", "01-01 06:00:00"]),
        ("*-*-01 00:00:00", ["01-01 00:00:00", "02-01 00:00:00"]),
        ("*-02-*", ["02-01 00:00:00", "02-02 00:00:00"]),
        ("02-29 12:00", ["02-29 12:00:00"]),
        ("Sat *-*-1..7 18:00:00", ["01-03 18:00:00", "02-07 18:00:00"]),
        ("Mon,Fri *-*-8..14", ["01-09 00:00:00", "01-12 00:00:00", "02-09 00:00:00"]),
        ("Mon *-*-1/2", ["01-05 00:00:00", "01-19 00:00:00", "02-09 00:00:00"]),
        ("*-*~1", ["01-31 00:00:00", "02-28 00:00:00"]),
        ("*-*~03 04:00", ["01-29 04:00:00", "02-26 04:00:00"]),
        ("*-*-* 00:00:30", ["01-01 00:00:30", "01-02 00:00:30"]),
        ("*:*:0/20", ["01-01 00:00:00", "01-01 00:00:20", "01-01 00:00:40"]),
    ],
)
def test_an_expression_gives_the_instants_of_systemd(text: str, expected: list[str]) -> None:
    assert slots(text, len(expected)) == expected


@pytest.mark.parametrize("word", SHORTHANDS)
def test_every_shorthand_is_read(word: str) -> None:
    assert slots(word, 1) == slots(SHORTHANDS[word], 1)


def test_local_hours_stay_local_where_clocks_change() -> None:
    times = read_on_calendar("0/6:00 Europe/Berlin")
    schedule = cron(times.expression, tz=times.zone or "UTC")
    at = datetime(2026, 3, 28, 23, 30, tzinfo=UTC)
    first = schedule.next_slot(at)
    assert first == datetime(2026, 3, 29, 4, tzinfo=UTC), "06:00 in Berlin, in summer time already"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Mon *-*-01", "must both hold"),
        ("Mon *-*-1..8", "must both hold"),
        ("2027-01-01 00:00", "names the year"),
        ("*-*-* 25:00", "is outside 0 to 23"),
        ("*-13-01", "is outside 1 to 12"),
        ("Mun 12:00", "no day of the week"),
        ("12:00:00.5", "a part of a second"),
        ("*-*~1..3", "only one is converted"),
        ("12:00 Mars/Phobos", "not understood"),
        ("*:0/0", "is outside"),
        ("whenever", "no day of the week"),
        ("\u0661:00", "not understood"),
    ],
)
def test_what_cron_cannot_say_is_refused_with_its_line(text: str, reason: str) -> None:
    result = read(f"[Timer]\nOnCalendar={text}\nOnCalendar=daily\n")
    (refusal,) = result.refused
    assert refusal.line == 2
    assert reason in refusal.reason
    assert len(result.jobs) == 1, "one bad line does not lose the others"


def test_a_timers_settings_hold_for_all_its_lines() -> None:
    result = read(
        "[Unit]\nDescription=x\n[Timer]\nOnCalendar=daily\nOnCalendar=Mon 12:00\nPersistent=true\n"
        "RandomizedDelaySec=1h 30min\nUnit=nightly-backup.service\n"
    )
    assert [job.handler for job in result.jobs] == ["nightly-backup"] * 2
    assert {job.misfire for job in result.jobs} == {FireOnce()}
    assert {job.jitter for job in result.jobs} == {timedelta(minutes=90)}
    assert {job.overlap for job in result.jobs} == {"skip"}
    assert len({job.job_id for job in result.jobs}) == 2
    assert any("must register the handler 'nightly-backup'" in warning.text for warning in result.warnings)


def test_a_timer_that_is_not_persistent_makes_nothing_up() -> None:
    (job,) = read("OnCalendar=daily\n").jobs
    assert job.misfire == Skip()
    assert job.handler == "backup"


def test_an_empty_line_takes_back_those_above_it() -> None:
    result = read("OnCalendar=daily\nOnCalendar=\nOnCalendar=hourly\n")
    assert [job.description for job in result.jobs] == ["OnCalendar=hourly"]


def test_a_unit_that_starts_again_some_time_after_its_start_is_an_interval() -> None:
    (job,) = read("OnUnitActiveSec=5min 30s\n").jobs
    assert job.schedule == Interval(timedelta(seconds=330))


@pytest.mark.parametrize("name", ["OnBootSec", "OnStartupSec", "OnActiveSec", "OnUnitInactiveSec"])
def test_what_counts_from_a_start_is_refused_with_an_interval(name: str) -> None:
    (refusal,) = read(f"{name}=15min\n").refused
    assert "'@every 15m'" in refusal.reason


def test_a_default_zone_is_the_importers() -> None:
    assert slots("daily", 1, tz="Asia/Tokyo") == ["01-01 15:00:00"]
    with pytest.raises(InvalidInput):
        read("OnCalendar=daily", tz="Mars/Phobos")


def test_read_again_it_is_the_same() -> None:
    text = "OnCalendar=daily\nOnCalendar=Mon 12:00\n"
    assert read("# a comment\n" + text).jobs == read(text).jobs


def test_the_case_of_public_timers_is_imported_whole() -> None:
    path = CASES / "19-systemd-timers.txt"
    result = read_systemd(path.read_bytes(), file=str(path))
    assert result.refused == ()
    assert len(result.jobs) == 10
    assert {job.jitter for job in result.jobs} == {timedelta(hours=2)}
