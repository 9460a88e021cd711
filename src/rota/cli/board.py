"""What `rota dev` shows, as values: the latest attempts, counts, and how late runs started."""

from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from math import ceil
from typing import Final
from uuid import UUID

from rota.cli.output import summary
from rota.domain.attempt import Outcome
from rota.domain.run import RunState
from rota.worker.events import RunEvent

ATTEMPTS_KEPT: Final = 200
DELAYS_KEPT: Final = 10_000
"""The latest starts over which the percentiles are taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One attempt as it is shown."""

    run_id: UUID
    job_id: str
    scheduled_for: datetime
    attempt: int
    max_attempts: int
    started_at: datetime | None
    ended_at: datetime | None = None
    outcome: Outcome | None = None
    error: str | None = None

    @property
    def state(self) -> str:
        """The run's state after this; `lost` when somebody else owns the run and decides it."""
        match self.outcome:
            case None:
                return RunState.RUNNING
            case Outcome.SUCCEEDED:
                return RunState.SUCCEEDED
            case Outcome.GAVE_UP:
                return RunState.DEAD
            case Outcome.LOST:
                return Outcome.LOST
            case Outcome.CANCELLED:
                return RunState.CANCELLED
            case Outcome.FAILED | Outcome.TIMED_OUT if self.attempt >= self.max_attempts:
                return RunState.DEAD
        return RunState.PENDING

    @property
    def start_delay(self) -> timedelta | None:
        """From the slot to the handler's start; of a first attempt only, since a later one waits on purpose."""
        return self.started_at - self.scheduled_for if self.started_at is not None and self.attempt == 1 else None

    def duration(self, *, now: datetime) -> timedelta | None:
        """From the handler's start to its end, or to now."""
        return (self.ended_at or now) - self.started_at if self.started_at is not None else None

    @property
    def message(self) -> str | None:
        """The error on one line."""
        return summary(self.error)


class Board:
    """Takes a worker's events. `since` is when this process was ready: slots before it could not start on time."""

    def __init__(self, *, since: datetime) -> None:
        self.since = since
        self.outcomes: Counter[Outcome] = Counter()
        self.dead = 0
        self._lines: dict[UUID, Line] = {}
        self._delays: deque[timedelta] = deque(maxlen=DELAYS_KEPT)
        self._begun: OrderedDict[UUID, None] = OrderedDict()

    @property
    def running(self) -> int:
        return sum(line.outcome is None for line in self._lines.values())

    @property
    def starts(self) -> int:
        """How many starts the percentiles are taken over."""
        return len(self._delays)

    def take(self, event: RunEvent) -> Line:
        """Take an event; returns the attempt as it stands now."""
        token = event.claim.key.token
        before = self._lines.get(token)
        if before is None:
            line = _begun(event)
            delay = line.start_delay
            # A run that was snoozed or given back comes again as its first attempt, and is late on purpose.
            if delay is not None and line.scheduled_for >= self.since and line.run_id not in self._begun:
                self._delays.append(delay)
            self._begun[line.run_id] = None
            if len(self._begun) > DELAYS_KEPT:
                self._begun.popitem(last=False)
        else:
            line = before
        if event.outcome is not None:
            line = replace(line, outcome=event.outcome, ended_at=event.ended_at, error=event.error)
            self.outcomes[event.outcome] += 1
            self.dead += line.state == RunState.DEAD
        self._lines[token] = line
        self._forget()
        return line

    def latest(self, count: int) -> Sequence[Line]:
        """Return the latest attempts, newest first."""
        return list(islice(reversed(self._lines.values()), max(0, count)))

    def start_delay(self, share: float) -> timedelta | None:
        """Return the delay that this share of starts did not exceed (nearest rank); None before the first start."""
        ordered = sorted(self._delays)
        return ordered[max(1, ceil(share * len(ordered))) - 1] if ordered else None

    def _forget(self) -> None:
        """Keep it bounded: the oldest attempt that has ended goes."""
        if len(self._lines) > ATTEMPTS_KEPT:
            oldest = next((token for token, line in self._lines.items() if line.outcome is not None), None)
            if oldest is not None:
                del self._lines[oldest]


def _begun(event: RunEvent) -> Line:
    claim = event.claim
    return Line(
        run_id=claim.run_id,
        job_id=claim.job_id,
        scheduled_for=claim.key.scheduled_for,
        attempt=claim.attempt,
        max_attempts=claim.max_attempts,
        started_at=event.started_at,
    )


def milliseconds(length: timedelta | None) -> float | None:
    """Return a length in milliseconds, to the tenth."""
    return None if length is None else round(length / timedelta(milliseconds=1), 1)
