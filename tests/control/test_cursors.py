"""Cursors: a place in one list; whatever this list did not give is refused in the same words."""

import base64
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.control.cursors import CURSOR_LIMIT, Cursors
from rota.domain.ids import job_uid, run_id
from rota.errors import InvalidCursor

JOBS = Cursors(kind="jobs", chosen_by=("default", "pre", "", "", None))
RUNS = Cursors(kind="runs", chosen_by=("default", "job", "dead"))
AUDIT = Cursors(kind="audit", chosen_by=("default", ""))

SLOT = datetime(2026, 1, 1, tzinfo=UTC)
RUN = run_id(job_uid("default", "job"), SLOT)

HOSTILE = [
    "",
    "=",
    "null",
    "0",
    "AAAA",
    "'; DROP TABLE rota.run; --",
    "' OR 1=1",
    "ü",
    "\x00",
    "\ud800",
    "%00",
    "../../etc/passwd",
    str(RUN),
    "A" * 40,
    "A" * 1_000_000,
    base64.urlsafe_b64encode(b"\xff" * 64).decode(),
    base64.urlsafe_b64encode(b"{}" * 9).decode(),
]


def test_a_place_is_read_back_by_the_list_that_gave_it() -> None:
    assert JOBS.job(JOBS.after_job("a/b ü")) == "a/b ü"
    assert RUNS.run(RUNS.after_run(RUN)) == (SLOT, RUN)
    entry = (datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=UTC), uuid4())
    assert AUDIT.entry(AUDIT.after_entry(*entry)) == entry


def test_the_longest_id_has_a_cursor_that_is_read_back() -> None:
    longest = "😀" * 200
    cursor = JOBS.after_job(longest)
    assert len(cursor) <= CURSOR_LIMIT
    assert JOBS.job(cursor) == longest


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text)[:20])
def test_hostile_text_is_no_cursor(text: str) -> None:
    for read in (JOBS.job, RUNS.run, AUDIT.entry):
        with pytest.raises(InvalidCursor, match="this list did not give it"):
            read(text)


@given(st.text(max_size=100))
def test_random_text_is_no_cursor(text: str) -> None:
    with pytest.raises(InvalidCursor):
        RUNS.run(text)


def test_a_cursor_that_was_cut_or_changed_is_refused() -> None:
    cursor = RUNS.after_run(RUN)
    for end in range(len(cursor)):
        with pytest.raises(InvalidCursor):
            RUNS.run(cursor[:end])
    for place in range(len(cursor)):
        other = "A" if cursor[place] != "A" else "B"
        with pytest.raises(InvalidCursor):
            RUNS.run(cursor[:place] + other + cursor[place + 1 :])
    for wrong in (cursor + "A", cursor + "=", f" {cursor}", cursor + "\n", cursor.swapcase()):
        with pytest.raises(InvalidCursor):
            RUNS.run(wrong)


def test_a_cursor_of_another_list_tenant_or_filter_is_refused() -> None:
    others = [
        Cursors(kind="runs", chosen_by=("acme", "job", "dead")),
        Cursors(kind="runs", chosen_by=("default", "job", "")),
        Cursors(kind="runs", chosen_by=("default", "jobdead", "")),
        Cursors(kind="jobs", chosen_by=("default", "job", "dead")),
    ]
    for other in others:
        with pytest.raises(InvalidCursor):
            RUNS.run(other.after_run(RUN))
    with pytest.raises(InvalidCursor):
        JOBS.job(JOBS.after_run(RUN))
    # Well sealed, and no run's id.
    with pytest.raises(InvalidCursor):
        RUNS.run(RUNS.after_run(UUID(int=7)))
    with pytest.raises(InvalidCursor):
        RUNS.run(RUNS.after_job("job"))
    with pytest.raises(InvalidCursor):
        AUDIT.entry(AUDIT.after_job("job"))
