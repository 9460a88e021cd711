"""Tables on narrow terminals: ids and instants are whole or absent, and no heading moves the cursor."""

import io
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from rich.console import Console

from rota.cli.output import Table, rich_table

SLOT = datetime(2026, 1, 1, 2, 30, tzinfo=UTC)
RUNS = [(uuid4(), "nightly-billing-of-all-customers", SLOT, "succeeded", "1/3", SLOT + timedelta(seconds=9.25))] * 3
COLUMNS = ("run", "job", "slot", "state", "attempt", "finished")


def drawn(table: Table, width: int) -> list[str]:
    screen = Console(width=width, file=io.StringIO(), record=True)
    screen.print(rich_table(table, width=width))
    return screen.export_text().splitlines()


@pytest.mark.parametrize(("width", "absent"), [(80, ["attempt", "finished"]), (114, ["attempt"]), (130, [])])
def test_ids_and_instants_are_whole_or_absent(width: int, absent: list[str]) -> None:
    lesser = ("attempt", "finished")
    lines = drawn(Table(columns=COLUMNS, rows=RUNS, lesser=lesser), width)
    assert max(map(len, lines)) <= width
    head = next(line for line in lines if "slot" in line)
    assert [name for name in COLUMNS if name not in head] == absent
    rows = [line for line in lines if str(RUNS[0][0]) in line]
    assert len(rows) == 3, "an id stands on one line"
    assert all("2026-01-01T02:30:00Z" in row for row in rows)
    assert all(("2026-01-01T02:30:09.250Z" in row) == ("finished" not in absent) for row in rows)
    assert any(line.strip() == f"no room for {', '.join(absent)}; --json has all" for line in lines) == bool(absent)


@pytest.mark.parametrize("job", ["sample-minutely", "nightly.crontab-backup-27c"])
def test_80_columns_show_a_run_with_its_job_and_state(job: str) -> None:
    columns = ("run", "job", "slot", "state", "attempt")
    run = uuid4()
    table = Table(columns=columns, rows=[(run, job, SLOT, "succeeded", "1/3")], lesser=("attempt", "slot"))
    assert f"{run}   {job}   succeeded" in "\n".join(drawn(table, 80))


@pytest.mark.parametrize("job", ["sample-minutely", "nightly.crontab-backup-full-7d7"])
def test_80_columns_show_a_job_with_its_state(job: str) -> None:
    jobs = Table(
        columns=("job", "state", "handler", "schedule", "next slot", "pool", "version"),
        rows=[(job, "active", "shell", "at minutes 9 and 39 of every hour, Europe/Berlin time", SLOT, "default", 1)],
        lesser=("version", "pool", "handler"),
    )
    assert f"{job}   active" in "\n".join(drawn(jobs, 80))


def test_a_heading_is_as_plain_as_a_cell() -> None:
    text = "\n".join(drawn(Table(columns=("a\u202eb",), rows=[("c\u202ed",)]), 40))
    assert "\u202e" not in text
    assert "a\\u202eb" in text
