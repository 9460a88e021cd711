"""Documents of runs: what was asked for, what happened, and the way back for dead letters."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeVar
from uuid import UUID

from pydantic import AwareDatetime, Field, StrictInt, ValidationError

from rota.errors import InvalidInput, place_of
from rota.wire.document import Document, Many, Question

Item = TypeVar("Item", bound="RunItem")

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


class RunItem(Question):
    """One of many runs of a job: now, or at a slot; without a payload with the job's own."""

    payload: dict[str, Any] | None = None
    scheduled_for: AwareDatetime | None = None
    idempotency_key: str | None = None


class RunOfJobItem(RunItem):
    """One of many runs, of the job that it names."""

    job_id: str


RUNS_LIMIT: Final = 1000
"""The most runs of one call."""


class RunsQuestion(Question):
    """Runs of one job, at most 1,000."""

    items: Annotated[Many[RunItem], Field(min_length=1, max_length=RUNS_LIMIT)]


class RunsOfJobsQuestion(Question):
    """Runs of several jobs, at most 1,000."""

    items: Annotated[Many[RunOfJobItem], Field(min_length=1, max_length=RUNS_LIMIT)]


class MadeRun(Document):
    """What one of many came to: `created`, a new run; `repeated`, an earlier request with this key made it; `reused`,
    nothing, the key stands for another request; `taken`, nothing, the slot has a run. The run is the one that was made,
    or that stands in the way."""

    run_id: UUID
    job_id: str
    scheduled_for: datetime
    outcome: Literal["created", "repeated", "reused", "taken"]


class MadeRuns(Document):
    """What each of the items came to, in their order."""

    runs: tuple[MadeRun, ...]


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


def run_items(kind: type[Item], items: Sequence[Item | Mapping[str, Any]]) -> Iterator[Item]:
    """Yield what a caller gave as items. Raises InvalidInput, which names the item, as the server would."""
    for number, item in enumerate(items):
        try:
            yield item if isinstance(item, kind) else kind.model_validate(item)
        except ValidationError as error:
            first = error.errors()[0]
            raise InvalidInput(place_of(("items", number, *first["loc"])), first["msg"]) from None
