"""A schedule file is known by what is in it; one that is none of the known kinds is refused and explained."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.domain.job import Job
from rota.importers.detect import FILE_LIMIT, LINES_LIMIT, Kind, kind_of, read_schedules
from rota.importers.result import JOB_LIMIT, Harvest, ImportResult

CASES = Path(__file__).parent.parent / "cases" / "crontabs"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def read(data: bytes, *, file: str = "file", system: bool | None = None) -> ImportResult:
    return read_schedules(data, file=file, now=NOW, system=system)


@pytest.mark.parametrize(
    ("name", "jobs", "refused"),
    [
        ("01-debian-system.crontab", 6, []),
        ("03-debian-zfsutils.cron.d", 3, []),
        ("05-debian-sysstat.cron.d", 2, []),
        ("07-dragonfly-system.crontab", 6, []),
        ("09-augeas-odd.crontab", 4, []),
        ("11-anacrontab.txt", 0, [8]),
        ("13-reboot-and-lists.crontab", 5, [3, 4]),
        ("15-kubernetes-cronjobs.yaml", 3, []),
        ("17-airflow-dags.csv", 7, [11]),
        ("19-systemd-timers.txt", 10, []),
    ],
)
@pytest.mark.parametrize("renamed", [False, True])
def test_every_case_is_read_as_its_index_says_under_any_name(
    name: str, jobs: int, refused: list[int], renamed: bool
) -> None:
    result = read((CASES / name).read_bytes(), file="upload" if renamed else str(CASES / name))
    assert len(result.jobs) == jobs
    assert [refusal.line for refusal in result.refused] == refused
    assert json.loads(json.dumps(result.to_json())).keys() == {"jobs", "refused", "warnings"}


def test_every_case_is_tested() -> None:
    assert len(list(CASES.glob("[0-9]*"))) == 10


def test_a_job_in_json() -> None:
    value = read(b"CRON_TZ=Europe/Berlin\n0 3 * * * /opt/a\n", file="tab").to_json()["jobs"][0]
    assert (value["handler"], value["overlap"], value["start_deadline"], value["paused"]) == (
        "shell",
        "allow",
        3600.0,
        False,
    )
    assert (value["schedule"]["expression"], value["schedule"]["tz"]) == ("0 3 * * *", "Europe/Berlin")
    assert value["source"] == {"file": "tab", "line": 2}
    assert Job.from_json({key: value[key] for key in value.keys() - {"paused", "source"}}).job_id == value["job_id"]


@pytest.mark.parametrize(
    ("text", "name", "kind"),
    [
        ("[Timer]\nOnUnitActiveSec=5min\n", "x", Kind.SYSTEMD),
        ("[Unit]\nDescription=a\n", "x.timer", Kind.SYSTEMD),
        ("OnCalendar=daily\n0 1 * * * /opt/a\n", "x", Kind.CRONTAB),
        ("kind: ConfigMap\napiVersion: v1\ndata:\n  tab: |\n    0 1 * * * root /opt/a\n", "x", Kind.KUBERNETES),
        ('{"kind": "CronJob"}', "x", Kind.KUBERNETES),
        ("a: b\n", "x.yml", Kind.KUBERNETES),
        ("a: b\n", "x", Kind.CRONTAB),
        ("\ufeffschedule_interval,start_date\n", "x", Kind.AIRFLOW),
        ("@daily /opt/a\n", "x.yaml", Kind.CRONTAB),
    ],
)
def test_kinds(text: str, name: str, kind: Kind) -> None:
    assert kind_of(text.encode(), file=name) is kind


def test_one_entry_of_cron_saves_a_file_from_being_an_anacrontab() -> None:
    result = read(b"1 5 cron.daily run-parts /etc/cron.daily\n0 3 * * * /opt/a\n")
    assert [entry.line for entry in result.imported] == [2]
    assert [refusal.line for refusal in result.refused] == [1]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"0 1 * * * a #" + b"x" * FILE_LIMIT, "bytes"),
        (b"\n" * (LINES_LIMIT + 1), "lines"),
        ("0 1 * * * a\n".encode("utf-16"), "UTF-16"),
    ],
)
def test_a_file_that_is_too_large_or_no_text_is_refused_once(data: bytes, reason: str) -> None:
    result = read(data)
    assert len(result.refused) == 1
    assert reason in result.refused[0].reason


def test_an_empty_file_is_no_error() -> None:
    assert read(b" \n").refused == ()
    assert len(read(b"").warnings) == 1


def test_jobs_past_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert JOB_LIMIT < LINES_LIMIT
    monkeypatch.setattr("rota.importers.result.JOB_LIMIT", 2)
    harvest = Harvest("tab")
    for number in range(4):
        harvest.add(Job(job_id=f"j{number}", handler="h"), line=number + 1)
    result = harvest.result()
    assert [job.job_id for job in result.jobs] == ["j0", "j1"]
    assert [refusal.line for refusal in result.refused] == [3, 4]


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["x", "x.yaml", "x.timer", "crontab", "/etc/cron.d/x"]))
def test_no_bytes_raise(data: bytes, name: str) -> None:
    assert read(data, file=name) == read(data, file=name)
