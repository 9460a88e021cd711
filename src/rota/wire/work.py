"""Documents of workers: claims, renewals, and reports that end an attempt."""

from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

from pydantic import AwareDatetime, Field, SerializerFunctionWrapHandler, model_serializer

from rota.domain.progress import NOTE_LIMIT
from rota.wire.document import Document, Many, Question

ANY_HANDLER: Final = "*"
"""In place of handlers' names: every handler but shell commands and HTTP targets."""
WAIT_LIMIT: Final = 30.0
"""The longest long poll, in seconds."""
BATCH_LIMIT: Final = 1000
"""The most leases or reports in one call."""
HANDLERS_LIMIT: Final = 1000
"""The most handlers that one worker knows by name: all schedulers look through them again and again."""

Status = Literal["succeeded", "failed", "dead", "released", "timed_out", "snoozed", "lost", "cancelled"]
"""How an attempt ended. `dead`: trying again cannot help. `released`: given back, no attempt is charged."""


class AnnounceQuestion(Question):
    """A worker process says that it lives. `instance` is this very process.

    `claimed` is how many runs it has claimed since its start: the difference shows as its `claim_rate`.
    """

    worker_id: str
    instance: UUID
    pool: str = "default"
    handlers: Many[str] = Field(default=(ANY_HANDLER,), max_length=HANDLERS_LIMIT)
    concurrency: int = Field(default=1, ge=1, le=100_000)
    claimed: int | None = Field(default=None, ge=0, le=2**63 - 1)


class AnnounceAnswer(Document):
    """`drain` asks the worker to claim no more until it is told otherwise."""

    drain: bool


class ClaimQuestion(Question):
    """`claim_id`, chosen by the worker, makes the claim repeatable. `limit` 0 only waits until there may be work."""

    worker_id: str
    pool: str = "default"
    handlers: Many[str] = Field(default=(ANY_HANDLER,), max_length=HANDLERS_LIMIT)
    limit: int = Field(default=1, ge=0, le=500)
    wait: float = Field(default=0.0, ge=0, le=WAIT_LIMIT)
    claim_id: UUID | None = None
    instance: UUID | None = None
    concurrency: int | None = Field(default=None, ge=1, le=100_000)


class ClaimedRun(Document):
    """A run in a worker's hands. `lease_token` proves the lease; times are in seconds where they are no instants."""

    run_id: UUID
    tenant_id: str
    job_id: str
    scheduled_for: datetime
    handler: str
    payload: dict[str, Any]
    attempt: int
    max_attempts: int
    lease_token: UUID
    claimed_at: datetime
    lease_expires_at: datetime
    lease_seconds: float
    timeout_seconds: float
    losses: int = 0
    """How many workers the run has lost. After one, run it apart from others: it may have ended that worker."""
    available_at: datetime | None = None
    """From when on it could start."""


class ClaimAnswer(Document):
    runs: tuple[ClaimedRun, ...]


class Progress(Question):
    """How far a run is: 0 to 1, and a note. What is left out stays as it was."""

    value: float | None = Field(default=None, ge=0, le=1)
    note: str | None = Field(default=None, max_length=NOTE_LIMIT)


class LeaseQuestion(Question):
    """A run and the proof of its lease, and how far it is if there is news of that."""

    run_id: UUID
    lease_token: UUID
    progress: Progress | float | None = None


class HeartbeatQuestion(Question):
    lease_token: UUID
    progress: Progress | float | None = None


class HeartbeatAnswer(Document):
    lease_expires_at: datetime
    cancel: bool


class RenewQuestion(Question):
    worker_id: str
    leases: Many[LeaseQuestion] = Field(max_length=BATCH_LIMIT)


class RenewedLease(Document):
    run_id: UUID
    lease_token: UUID
    lease_expires_at: datetime
    cancel: bool


class RenewAnswer(Document):
    """Every lease asked for is in `renewed` or, by its token, in `lost`."""

    renewed: tuple[RenewedLease, ...]
    lost: tuple[UUID, ...]


class CompleteQuestion(Question):
    """`retry_after` in seconds: with `snoozed` and `failed`, the soonest that the run comes back.

    `took_worker`, with `timed_out`: the worker had to be ended with it, so it counts as a loss too, and its next
    attempt is to run apart.
    """

    lease_token: UUID
    status: Status
    error: str | None = None
    retry_after: float | None = Field(default=None, ge=0)
    result: Any = None
    took_worker: bool = False

    @model_serializer(mode="wrap")
    def _lean(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # An API of 0.1.0 refuses what it does not know.
        values: dict[str, Any] = serialize(self)
        if not self.took_worker:
            del values["took_worker"]
        return values


class CompleteOne(CompleteQuestion):
    run_id: UUID


class CompleteQuestions(Question):
    reports: Many[CompleteOne] = Field(max_length=BATCH_LIMIT)


class CompleteAnswer(Document):
    run_id: UUID
    state: str


class CompleteAnswers(Document):
    """Every report is in `accepted` or, by its token, in `lost` or `locked`.

    Nothing of what is lost is kept. What is locked is to be reported again a little later: another transaction holds
    the lease, perhaps one that completes the run.
    """

    accepted: tuple[CompleteAnswer, ...]
    lost: tuple[UUID, ...]
    locked: tuple[UUID, ...] = ()


class WorkerDocument(Document):
    instance: UUID
    worker_id: str
    tenant_id: str | None
    pool: str
    handlers: tuple[str, ...]
    concurrency: int
    started_at: datetime
    expires_at: datetime
    last_claim_at: datetime | None
    draining_at: datetime | None
    version: str
    tzdata: str
    claim_rate: float | None = None
    """Runs a second that it claimed of late; null as long as that is not known."""


class WorkerList(Document):
    workers: tuple[WorkerDocument, ...]


class ShardDocument(Document):
    shard: int
    owner: str | None
    epoch: int
    expires_at: datetime


class ShardList(Document):
    shards: tuple[ShardDocument, ...]


class DepthDocument(Document):
    """Runs that wait in a pool behind one gate, and since when the first of them could have started."""

    pool: str
    gate: str
    runs: int
    oldest: AwareDatetime | None


class StatsAnswer(Document):
    jobs: int
    waiting: tuple[DepthDocument, ...]
    running: int
    dead: int
    workers: int


class HealthDocument(Document):
    """`problems` is empty when ready. Ages are seconds since the last success, null when there was none."""

    ready: bool
    problems: tuple[str, ...]
    tick_age: float | None
    claim_age: float | None
