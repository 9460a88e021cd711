"""Documents of runs: what was asked for, what happened, and the way back for dead letters."""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import AwareDatetime, Field, StrictInt

from rota.wire.document import Document, Question

State = Literal["blocked", "pending", "running", "succeeded", "dead", "cancelled"]


class RunDocument(Document):
    """One run. `error` is that of its last ended attempt. Of a run that has ended, `started_at`, `duration_seconds` and
    progress are that attempt's, too, and null if there was none.

    In lists `payload` and `result` are null, and an error has at most 500 characters: read the run alone for them.
    """

    run_id: UUID
    tenant_id: str | None
    job_id: str | None
    scheduled_for: datetime
    state: State
    gate: str | None
    origin: str
    attempt: int
    max_attempts: int | None
    handler: str | None
    pool: str | None
    priority: int | None
    created_at: datetime
    available_at: datetime | None
    started_at: datetime | None
    worker_id: str | None
    lease_expires_at: datetime | None
    cancel_requested_at: datetime | None
    progress: float | None
    progress_note: str | None
    finished_at: datetime | None
    reason: str | None
    payload: Any
    result: Any
    error: str | None = None
    died_at: datetime | None = None
    duration_seconds: float | None = None


class AttemptDocument(Document):
    """An ended attempt. `job_version`: which version of its job it ran with, if that is known. `progress` and its note
    are what its run had last said."""

    attempt: int
    outcome: str
    worker_id: str
    started_at: datetime
    ended_at: datetime
    error: str | None
    job_version: int | None = None
    progress: float | None = None
    progress_note: str | None = None


class RunDetail(RunDocument):
    attempts: tuple[AttemptDocument, ...]


class RunPage(Document):
    runs: tuple[RunDocument, ...]
    next_cursor: str | None


class TriggerQuestion(Question):
    scheduled_for: AwareDatetime | None = None
    payload: dict[str, Any] | None = None


class TriggerAnswer(Document):
    """The run that was asked for, as it was made: a repeated request gets the same answer.

    `created`, false when an earlier request with the same key made it, travels as the status: 201 or 200.
    """

    run_id: UUID
    job_id: str
    scheduled_for: datetime
    state: State
    created: bool = Field(default=True, exclude=True)


class RunFilterQuestion(Question):
    """Which runs are meant; what is left out is not asked for. `error` is a part of the last error's text,
    `failed` asks for a failed, timed out or lost attempt."""

    job_id: str = ""
    state: str = ""
    handler: str = ""
    label: str = ""
    since: AwareDatetime | None = None
    until: AwareDatetime | None = None
    error: str = ""
    failed: bool = False


class CancelManyQuestion(Question):
    """Runs to cancel: those of `filter` that wait or run, at most `limit`. `all` must be said where the filter is
    empty. With `dry_run` they are only counted."""

    filter: RunFilterQuestion = RunFilterQuestion()
    all: bool = False
    dry_run: bool = False
    limit: int = 1000


class CancelManyAnswer(Document):
    """`cancelled` runs that waited have ended, the workers of `asked` are told. `more`: ask again for the others.
    `matched` are those that a dry run counted, up to 10,000."""

    matched: int | None = None
    cancelled: int
    asked: int
    more: bool


class ReplayQuestion(Question):
    """Dead letters to send back: those of `filter` (its state is dead), at most `limit`, `rate` of them a second."""

    filter: RunFilterQuestion = RunFilterQuestion()
    rate: float | None = None
    limit: int = 1000


class ReplayAnswer(Document):
    """How many runs wait again. `more` tells that the limit was reached. `last_at`: when the last of them may start."""

    replayed: int
    more: bool
    last_at: datetime | None


class PriorityQuestion(Question):
    """The priority that a run that waits is to have: 0 to 9, 9 goes first."""

    priority: StrictInt


class CancelAnswer(Document):
    """`state` is cancelled for a run that waited; a running one stays running until its worker has been told."""

    run_id: UUID
    state: State
    cancel_requested: bool
