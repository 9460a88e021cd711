"""DAG lists become jobs: their schedules in Rota's words, and a line that cannot fire is refused."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.domain.misfire import CATCH_UP_LIMIT, CatchUp, FireOnce
from rota.domain.retry import RetryPolicy
from rota.domain.schedule import Cron, Interval, Once
from rota.importers.airflow import read_airflow
from rota.importers.result import ImportResult

CASE = Path(__file__).parent.parent / "cases" / "crontabs" / "17-airflow-dags.csv"
HEADING = "schedule_interval,start_date,timezone,catchup,retries,retry_delay,max_active_runs"
START = datetime(2020, 1, 1, tzinfo=UTC)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def read(*lines: str, heading: str = HEADING, now: datetime = NOW) -> ImportResult:
    return read_airflow("\n".join([heading, *lines]).encode(), file="dags.csv", now=now)


def warning_texts(result: ImportResult) -> str:
    return "\n".join(f"{warning.line}: {warning.text}" for warning in result.warnings)


def test_17_presets_a_one_shot_and_a_start_that_moves() -> None:
    result = read_airflow(CASE.read_bytes(), file=str(CASE), now=NOW)
    assert [entry.line for entry in result.imported] == [4, 5, 6, 7, 8, 9, 10]
    first, _, _, fourth, shot, daily, hourly = result.jobs
    start = datetime(2019, 3, 6, 8, tzinfo=UTC)
    assert first.schedule == Cron(expression="0 8-20 * * *", tz="America/Los_Angeles", start=start)
    assert first.schedule.next_slot(datetime(2010, 1, 1, tzinfo=UTC)) == datetime(2019, 3, 6, 16, tzinfo=UTC)
    assert (first.max_attempts, first.overlap, first.misfire) == (2, "allow", FireOnce())
    assert first.retry == RetryPolicy(initial=timedelta(minutes=2), factor=1.0, cap=timedelta(minutes=2), jitter=0.0)
    assert (fourth.max_attempts, fourth.overlap, fourth.max_concurrency) == (4, "queue", None)
    assert shot.schedule == Once(at=datetime(2022, 12, 6, tzinfo=UTC))
    assert shot.max_attempts == 1
    assert [job.schedule.expression for job in (daily, hourly) if isinstance(job.schedule, Cron)] == [
        "@daily",
        "@hourly",
    ]
    ((line, reason),) = [(refusal.line, refusal.reason) for refusal in result.refused]
    assert line == 11
    assert "never fires in Airflow" in reason
    assert "8: the schedule has no slot after now" in warning_texts(result)
    assert "max_active_runs" not in warning_texts(result)
    assert "7: no timezone is given: times are read in UTC" in warning_texts(result)


@pytest.mark.parametrize(("at_once", "cap"), [("", None), ("2", 2), ("16", 16), ("999999", 100_000)])
def test_runs_at_once_are_a_cap(at_once: str, cap: int | None) -> None:
    [job] = read(f"0 1 * * *,2020-01-01,UTC,false,,,{at_once}").jobs
    assert (job.overlap, job.max_concurrency) == ("allow", cap)


def test_a_second_import_gives_the_same_jobs_wherever_the_lines_stand() -> None:
    data = CASE.read_bytes()
    once, twice = (read_airflow(data, file="a.csv", now=NOW) for _ in range(2))
    assert once == twice
    moved = read_airflow(b"# a comment\n" + data.replace(b"\n", b"\r\n"), file="a.csv", now=NOW)
    assert moved.jobs == once.jobs
    two = read("@daily,2020-01-01,UTC,false,0,,", "@daily,2020-01-01,UTC,false,0,,").jobs
    assert len({job.job_id for job in two}) == 2


def test_a_one_shot_to_come_fires_once() -> None:
    result = read("@once,2026-02-01T03:00:00,Europe/Berlin,false,0,,")
    assert result.jobs[0].schedule == Once(at=datetime(2026, 2, 1, 2, tzinfo=UTC))
    assert "no slot" not in warning_texts(result)


def test_catchup_is_bounded() -> None:
    result = read("@daily,2020-01-01,UTC,true,0,,")
    assert result.jobs[0].misfire == CatchUp(CATCH_UP_LIMIT)
    assert "catchup is bounded" in warning_texts(result)


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("@quarterly", Cron(expression="0 0 1 */3 *", start=START)),
        (
            "timedelta(hours=6)",
            Interval(every=timedelta(hours=6), anchor=START, start=START),
        ),
        ("None", None),
    ],
)  # fmt: skip
def test_other_schedules_of_airflow(text: str, schedule: object) -> None:
    assert read(f"{text},2020-01-01,UTC,false,0,,").jobs[0].schedule == schedule


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("0 1 * * *,days_ago(1),UTC,false,0,,", "moves with the clock"),
        ("0 1 * * *,pendulum.now(),UTC,false,0,,", "moves with the clock"),
        ("0 1 * * *,soon,UTC,false,0,,", "start_date"),
        ("0 1 * * *,,UTC,false,0,,", "start_date"),
        ("0 1 * * *,0001-01-01,Asia/Tokyo,false,0,,", "start_date"),
        ("0 1 * * *,2020-01-01,Mars/Phobos,false,0,,", "Mars/Phobos"),
        ("61 1 * * *,2020-01-01,UTC,false,0,,", "schedule_interval"),
        (",2020-01-01,UTC,false,0,,", "schedule_interval"),
        ("@continuous,2020-01-01,UTC,false,0,,", "no slots"),
        ("=cmd|' /C calc'!A0,2020-01-01,UTC,false,0,,", "schedule_interval"),
        ("0 1 * * *,2020-01-01,UTC,maybe,0,,", "catchup"),
        ("0 1 * * *,2020-01-01,UTC,false,-1,,", "retries"),
        ("0 1 * * *,2020-01-01,UTC,false,5000,,", "max_attempts"),
        ("0 1 * * *,2020-01-01,UTC,false,1,later,", "retry_delay"),
        ("0 1 * * *,2020-01-01,UTC,false,1,timedelta(weeks=999999999),", "retry_delay"),
        ("0 1 * * *,2020-01-01,UTC,false,1,,0", "max_active_runs"),
        ("0 1 * * *,2020-01-01,UTC", "3 cells"),
        ('"0 1 * * *,2020-01-01', "not CSV"),
        ("0 1 * * *,2020-01-01,UTC,false,1,,\x00", "NUL"),
    ],
)
def test_a_bad_line_is_refused_and_the_others_go_on(line: str, reason: str) -> None:
    good = "0 1 * * *,2020-01-01,UTC,false,0,,"
    result = read(good, line, good)
    assert [entry.line for entry in result.imported] == [2, 4]
    ((found, why),) = [(refusal.line, refusal.reason) for refusal in result.refused]
    assert found == 3
    assert reason in why


def test_a_cell_that_begins_with_an_equals_sign_is_text() -> None:
    result = read("@daily,2020-01-01,=1+1", heading="schedule_interval,start_date,note")
    assert result.jobs[0].payload["dag"]["note"] == "=1+1"


def test_a_named_dag_keeps_its_name() -> None:
    result = read("@daily,2020-01-01,billing", heading="schedule_interval,start_date,dag_id")
    assert (result.jobs[0].job_id, result.jobs[0].handler) == ("billing", "billing")


@pytest.mark.parametrize("heading", ["a,b", "schedule_interval", "schedule_interval,start_date,start_date"])
def test_a_list_without_its_heading_is_refused_once(heading: str) -> None:
    result = read("@daily,2020-01-01", "@daily,2020-01-01", heading=heading)
    assert [refusal.line for refusal in result.refused] == [1]


CELL = st.text(max_size=8) | st.sampled_from(
    ["@daily", "@once", "2020-01-01", "UTC", "true", "1", "2m", "None", '"', ""]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(CELL, min_size=7, max_size=7).map(",".join), max_size=4), st.binary(max_size=40))
def test_no_bytes_raise_and_a_good_line_survives(lines: list[str], tail: bytes) -> None:
    text = "\n".join([HEADING, *lines, "7 7 7 7 *,2020-01-01,UTC,false,0,,", ""])
    result = read_airflow(text.encode("utf-8", errors="replace") + tail, file="x.csv", now=NOW)
    assert "7 7 7 7 *" in [job.payload["dag"]["schedule_interval"] for job in result.jobs]
