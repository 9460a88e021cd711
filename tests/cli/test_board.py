"""What `rota dev` shows: states, counts, start delays, and texts that stay on their line."""

import io
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from rich.console import Console

from rota.cli.board import ATTEMPTS_KEPT, Board, milliseconds
from rota.cli.event_lines import EventLines
from rota.cli.faces import Place, counts_text, counts_to_json
from rota.cli.live_table import LiveTable
from rota.clock import ManualClock
from rota.domain.attempt import Claim, LeaseKey, Outcome
from rota.worker.events import RunEvent

START = datetime(2026, 1, 1, tzinfo=UTC)
PLACE = Place(data="/srv/data", drain_seconds=30.0, jobs=3)


def claim(*, job_id: str = "job", slot: datetime = START, attempt: int = 1, token: UUID | None = None) -> Claim:
    return Claim(
        key=LeaseKey(0, 7, slot, token or uuid4()), tenant_id="default", job_id=job_id, handler="h", payload={},
        attempt=attempt, max_attempts=2, claimed_at=slot, expires_at=slot, lease_duration=timedelta(seconds=60),
        timeout=timedelta(seconds=60),
    )  # fmt: skip


def play(
    board: Board, run: Claim, *, delay_ms: int = 5, outcome: Outcome | None = None, error: str | None = None
) -> Any:
    started = run.key.scheduled_for + timedelta(milliseconds=delay_ms)
    line = board.take(RunEvent(claim=run, started_at=started))
    if outcome is not None:
        ended = started + timedelta(milliseconds=100)
        line = board.take(RunEvent(claim=run, started_at=started, outcome=outcome, ended_at=ended, error=error))
    return line


@pytest.mark.parametrize(
    ("outcome", "attempt", "state"),
    [
        (None, 1, "running"),
        (Outcome.SUCCEEDED, 1, "succeeded"),
        (Outcome.FAILED, 1, "pending"),
        (Outcome.FAILED, 2, "dead"),
        (Outcome.TIMED_OUT, 2, "dead"),
        (Outcome.GAVE_UP, 1, "dead"),
        (Outcome.SNOOZED, 2, "pending"),
        (Outcome.RELEASED, 2, "pending"),
        (Outcome.LOST, 2, "lost"),
    ],
)
def test_an_attempt_leaves_its_run_in_a_state(outcome: Outcome | None, attempt: int, state: str) -> None:
    assert play(Board(since=START), claim(attempt=attempt), outcome=outcome).state == state


def test_percentiles_count_first_starts_of_slots_since_the_board_was_ready() -> None:
    board = Board(since=START)
    assert board.start_delay(0.5) is None
    for delay in range(1, 101):
        play(board, claim(slot=START + timedelta(seconds=delay)), delay_ms=delay)
    play(board, claim(slot=START - timedelta(seconds=1)), delay_ms=9000)
    play(board, claim(attempt=2), delay_ms=9000)
    assert board.starts == 100
    assert milliseconds(board.start_delay(0.5)) == 50.0
    assert milliseconds(board.start_delay(0.99)) == 99.0


def test_a_run_that_was_snoozed_is_late_on_purpose() -> None:
    board, token = Board(since=START), uuid4()
    play(board, claim(token=token), outcome=Outcome.SNOOZED)
    play(board, claim(), delay_ms=60_000)
    assert board.starts == 1, "it is the same run, and again its first attempt"


def test_the_board_stays_bounded_and_forgets_no_run_that_runs() -> None:
    board = Board(since=START)
    play(board, claim(job_id="long"))
    for _ in range(ATTEMPTS_KEPT + 50):
        play(board, claim(), outcome=Outcome.SUCCEEDED)
    assert board.running == 1
    assert len(board.latest(10_000)) == ATTEMPTS_KEPT
    assert board.latest(10_000)[-1].job_id == "long"
    assert board.outcomes[Outcome.SUCCEEDED] == ATTEMPTS_KEPT + 50


def test_counts_are_the_same_for_people_and_machines() -> None:
    board = Board(since=START)
    play(board, claim(), outcome=Outcome.SUCCEEDED)
    play(board, claim(attempt=2), outcome=Outcome.FAILED)
    assert counts_text(board) == (
        "running 0, succeeded 1, failed 1, dead 1   start delay p50 5.0 ms, p99 5.0 ms over 1 start"
    )
    counts = counts_to_json(board)
    assert (counts["attempts"]["succeeded"], counts["dead"]) == (1, 1)
    assert counts["start_delay_ms"] == {"p50": 5.0, "p99": 5.0, "starts": 1}


def test_the_live_table_shows_the_latest_first_with_its_error_on_one_line_and_how_to_end() -> None:
    board, clock = Board(since=START), ManualClock(START + timedelta(seconds=2))
    play(board, claim(job_id="first"), outcome=Outcome.SUCCEEDED)
    play(board, claim(job_id="second"), outcome=Outcome.FAILED, error="ValueError: [b]no\x1b[31m\n\nTraceback ...")
    table = LiveTable(board, PLACE, clock)
    page = Console(width=160, file=io.StringIO(), record=True)
    page.print(table.drawn(now=clock.now()))
    text = page.export_text()
    assert text.index("second") < text.index("first")
    assert "ValueError: [b]no\\x1b[31m" in text
    assert "Traceback" not in text
    assert "data: /srv/data\nCtrl-C ends it: running handlers get up to 30 s" in text


@pytest.mark.parametrize("width", [80, 120])
def test_the_live_table_fits_the_terminal_with_its_head_and_its_footer(width: int) -> None:
    board, clock = Board(since=START), ManualClock(START + timedelta(minutes=2))
    for second in range(60):
        job_id = f"a-job-with-a-name-that-goes-on-and-on-{second}"
        run = claim(job_id=job_id, slot=START + timedelta(seconds=second), attempt=1 + second % 2)
        play(board, run, outcome=Outcome.FAILED if second % 2 else Outcome.SUCCEEDED, error="ValueError: no " * 20)
    screen = Console(width=width, height=24, file=io.StringIO(), record=True)
    place = Place(data="/a/very/long/path" * 9, drain_seconds=30.0, jobs=60)
    screen.print(LiveTable(board, place, clock, screen=screen).drawn(now=clock.now()))
    lines = screen.export_text().splitlines()
    assert len(lines) <= 24 - 3  # two notes above it, and the cursor below
    assert max(map(len, lines)) <= width
    assert ("start delay" in lines[1]) == (width == 120)
    assert "slot (UTC)" in lines[1]
    rows = [line.split() for line in lines[3:-5]]
    assert len(rows) == 13
    assert [row[1] for row in rows[:2]] == ["00:00:59", "00:00:58"]
    assert [row[2] for row in rows[:2]] == ["dead", "succeeded"]
    assert lines[-4].startswith("running 0, succeeded 30")
    assert lines[-3].startswith("start delay p50 5.0 ms")
    assert lines[-1] == "Ctrl-C ends it: running handlers get up to 30 s"


def test_what_is_given_back_before_it_began_makes_no_line() -> None:
    board, stream = Board(since=START), io.StringIO()
    lines = EventLines(board, PLACE, ManualClock(START), as_json=False, stream=stream)
    for _ in range(100):
        lines.attempt(board.take(RunEvent(claim=claim(), started_at=None, outcome=Outcome.RELEASED, ended_at=START)))
    lines.stopped()
    assert stream.getvalue().count("\n") == 1


def test_lines_for_people_are_one_an_event() -> None:
    board, stream = Board(since=START), io.StringIO()
    lines = EventLines(board, PLACE, ManualClock(START), as_json=False, stream=stream)
    run = claim()
    lines.started(1.94)
    lines.attempt(play(board, run))
    lines.attempt(play(board, run, outcome=Outcome.FAILED, error="ValueError: no\nmore"))
    lines.first_run(2.5)
    lines.stopping(at_once=False)
    lines.stopping(at_once=True)
    assert stream.getvalue().splitlines() == [
        "3 jobs ready after 1.9 s; data in /srv/data",
        "2026-01-01T00:00:00Z job running attempt 1/2, start delay 5.0 ms",
        "2026-01-01T00:00:00Z job pending attempt 1/2, took 100 ms: ValueError: no",
        "first run done 2.5 s after the start",
        "ending: running handlers get up to 30 s; Ctrl-C again ends it at once",
        "ending at once",
    ]
