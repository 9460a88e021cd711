"""What the faces of `rota dev` share: the calls that are made on them, and their texts and documents."""

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

from rota.cli.board import Board, Line, milliseconds
from rota.cli.output import counted
from rota.domain.attempt import Outcome

COLUMNS: Final = ("job", "slot", "state", "attempt", "start delay", "duration", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What the footer says: where the data is, and how long running handlers get at the end."""

    data: str
    drain_seconds: float
    jobs: int


class Face(Protocol):
    """How `rota dev` shows itself."""

    def started(self, seconds: float) -> None:
        """All is ready, that many seconds after the command's start."""
        ...

    def serving(self, url: str) -> None:
        """The API answers there, whoever asks."""
        ...

    def attempt(self, line: Line) -> None:
        """An attempt has started or ended."""
        ...

    def first_run(self, seconds: float) -> None:
        """The first run has succeeded, that many seconds after the command's start."""
        ...

    def stopping(self, *, at_once: bool) -> None:
        """Somebody ends it."""
        ...

    async def run(self, gone: asyncio.Event) -> None:
        """Show what happens until the event is set."""
        ...

    def stopped(self) -> None:
        """All has ended; say the last words."""
        ...


def row_of(line: Line, *, now: datetime) -> tuple[object, ...]:
    """Return an attempt's cells, in the order of COLUMNS."""
    return (
        line.job_id,
        line.scheduled_for,
        str(line.state),
        f"{line.attempt}/{line.max_attempts}",
        _ms(milliseconds(line.start_delay)),
        _ms(milliseconds(line.duration(now=now))),
        line.message,
    )


def line_to_json(line: Line, *, now: datetime) -> dict[str, Any]:
    """Return an attempt as JSON; lengths in milliseconds."""
    return {
        "run_id": line.run_id,
        "job_id": line.job_id,
        "scheduled_for": line.scheduled_for,
        "state": line.state,
        "attempt": line.attempt,
        "max_attempts": line.max_attempts,
        "outcome": line.outcome,
        "start_delay_ms": milliseconds(line.start_delay),
        "duration_ms": None if line.outcome is None else milliseconds(line.duration(now=now)),
        "error": line.message,
    }


def counts_to_json(board: Board) -> dict[str, Any]:
    """Return the board's counts of attempts, of dead runs, and its start delays."""
    return {
        "attempts": {str(outcome): board.outcomes[outcome] for outcome in Outcome},
        "dead": board.dead,
        "start_delay_ms": {
            "p50": milliseconds(board.start_delay(0.5)),
            "p99": milliseconds(board.start_delay(0.99)),
            "starts": board.starts,
        },
    }


def counts_text(board: Board) -> str:
    """Return the same in one line."""
    return "   ".join(counts_texts(board))


def counts_texts(board: Board) -> list[str]:
    """Return the same in its parts: counts, and start delays if there are any."""
    failed = board.outcomes[Outcome.FAILED] + board.outcomes[Outcome.TIMED_OUT] + board.outcomes[Outcome.GAVE_UP]
    counts = (
        f"running {board.running}, succeeded {board.outcomes[Outcome.SUCCEEDED]}, failed {failed}, dead {board.dead}"
    )
    if not board.starts:
        return [counts]
    half, most = _ms(milliseconds(board.start_delay(0.5))), _ms(milliseconds(board.start_delay(0.99)))
    return [counts, f"start delay p50 {half}, p99 {most} over {counted(board.starts, 'start')}"]


def serving_text(url: str) -> str:
    return f"the API answers at {url} (its documentation: {url}/docs); from this machine it needs no token"


def ending_text(place: Place) -> str:
    return f"ending: running handlers get up to {place.drain_seconds:g} s; Ctrl-C again ends it at once"


def last_words(board: Board, place: Place) -> str:
    return f"ended: {counts_text(board)}; the data stays in {place.data}"


def _ms(value: float | None) -> str | None:
    if value is None:
        return None
    return f"{value:.1f} ms" if value < 100 else f"{value:,.0f} ms"
