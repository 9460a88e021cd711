"""Documents of the define stage: jobs, and the slots of their schedules."""

from datetime import datetime
from typing import Any, Literal

from pydantic import AwareDatetime

from rota.wire.document import Document, Many, Question

Missed = Literal["policy", "drop", "once", "catch_up"]
"""What becomes of slots that a pause held back: left to the job's policy, nothing, one run, or one each, bounded."""

Owner = Literal["code", "operator"]
"""Whose a job is: that of the code that declares it, or an operator's."""

Fate = Literal["kept", "overwritten", "changed"]

JobState = Literal["active", "paused", "finished", "quarantined"]


class JobDocument(Document):
    """Where a job stands. `job` is its definition as `PUT /v1/jobs/{job_id}` takes it; null when it cannot be read.

    `source` is the app that declares it, or the import that made it; `overrides` are fields in which an operator
    changed what the code says; `orphaned_at`: since when the source declares it no longer. `set_aside` says what of it
    schedulers cannot do for now, and why; they try again by themselves.

    In lists the payload in it is null, which no put takes, and `set_aside` too: read the job alone for them.
    """

    job_id: str
    tenant_id: str
    state: JobState
    version: int
    next_run_at: datetime | None
    next_slot: datetime | None
    paused_at: datetime | None
    pause_reason: str | None
    resume_at: datetime | None
    quarantined: str | None
    created_at: datetime
    updated_at: datetime
    job: dict[str, Any] | None
    problem: str | None
    resume_missed: Missed | None = None
    owner: Owner | None = None
    source: str | None = None
    overrides: tuple[str, ...] = ()
    orphaned_at: datetime | None = None
    set_aside: str | None = None


class DifferenceDocument(Document):
    """A field in which the code differs from what stood there, both as JSON, long ones cut. `fate`: an operator's value
    was `kept` or `overwritten`, or the code's own earlier one was `changed`."""

    field: str
    code: str
    stood: str
    fate: Fate


class PutAnswer(Document):
    """What a put did. `changed` is false when the same definition stood there already.

    `fields` names what changed of a job that stood there, and `reset` those of them that went back to their defaults.
    `differs` is about jobs that code declares.
    """

    job_id: str
    version: int
    next_run_at: datetime | None
    next_slot: datetime | None
    changed: bool
    created: bool
    warnings: tuple[str, ...]
    fields: tuple[str, ...] = ()
    reset: tuple[str, ...] = ()
    differs: tuple[DifferenceDocument, ...] = ()


class DeclareAnswer(Document):
    """What a declaration did, in the order of its definitions; and jobs, 20 at most, that the source declares no
    longer: they go on until somebody pauses or deletes them."""

    jobs: tuple[PutAnswer, ...]
    orphaned: tuple[str, ...]
    more_orphaned: bool


class PutAnswers(Document):
    """What a batch did, in the order of its definitions."""

    jobs: tuple[PutAnswer, ...]


class JobPage(Document):
    jobs: tuple[JobDocument, ...]
    next_cursor: str | None


class SlotDocument(Document):
    """One slot. `rule` says what made it: `named` by the schedule, moved out of a `gap` of the clock, taken once or
    twice in a `fold`. `starts_at` is the slot plus the job's jitter."""

    slot: datetime
    local: str
    rule: Literal["named", "gap", "fold"]
    starts_at: datetime


class SlotsAnswer(Document):
    words: str
    slots: tuple[SlotDocument, ...]
    warnings: tuple[str, ...]
    state: JobState | None = None


class SkippedDocument(Document):
    """A range of the slot ledger: slots that made no run. `slots` is null past 1,000."""

    first_slot: datetime
    last_slot: datetime
    slots: int | None
    reason: str
    policy: Any
    recorded_at: datetime


class SkippedList(Document):
    skipped: tuple[SkippedDocument, ...]


class SkippedOfJobDocument(SkippedDocument):
    job_id: str


class SkippedPage(Document):
    """A page of the slot ledger over all jobs, latest entries first."""

    skipped: tuple[SkippedOfJobDocument, ...]
    next_cursor: str | None


class PauseQuestion(Question):
    reason: str = ""
    resume_at: AwareDatetime | None = None
    missed: Missed = "policy"


class ResumeQuestion(Question):
    missed: Missed = "policy"


class PreviewQuestion(Question):
    """A schedule as in a job; with `job_id` the jitter is that job's."""

    schedule: dict[str, Any]
    job_id: str = "preview"
    jitter: float = 0.0
    after: AwareDatetime | None = None
    count: int = 10


class JobsBatch(Question):
    """Definitions, at most 1,000: all are put, or none."""

    jobs: Many[dict[str, Any]]


class DeclareQuestion(Question):
    """The jobs that an app, `source`, declares in its code, at most 1,000 at once.

    `every_id` names all jobs of the app, where they come in several calls; null: these are all.
    """

    source: str
    jobs: Many[dict[str, Any]]
    every_id: tuple[str, ...] | None = None


class JobFilterQuestion(Question):
    """Which jobs are meant; what is left out is not asked for. `label` is `name` or `name=value`."""

    prefix: str = ""
    label: str = ""
    handler: str = ""
    enabled: bool | None = None
    owner: str = ""
    source: str = ""
    orphaned: bool | None = None


class ManyQuestion(Question):
    """The jobs of `filter`, `limit` of them from `cursor` on. `all` must be said where the filter is empty. With
    `dry_run` they are only counted."""

    filter: JobFilterQuestion = JobFilterQuestion()
    all: bool = False
    dry_run: bool = False
    limit: int = 100
    cursor: str | None = None


class PauseManyQuestion(ManyQuestion):
    reason: str = ""
    resume_at: AwareDatetime | None = None
    missed: Missed = "policy"


class ResumeManyQuestion(ManyQuestion):
    """With a `pause_reason` only jobs that were paused for just that."""

    missed: Missed = "policy"
    pause_reason: str = ""


class TriggerManyQuestion(ManyQuestion):
    payload: dict[str, Any] | None = None
    scheduled_for: AwareDatetime | None = None


class LeftDocument(Document):
    """A job that was left as it is, and why."""

    job_id: str
    reason: str


class ManyAnswer(Document):
    """Of `matched` jobs `done` are changed; the others were so already, or are in `left`. A dry run counts those that
    match, up to 10,000; `more` tells that there are more. `next_cursor` goes on with the same filter."""

    matched: int
    done: int
    left: tuple[LeftDocument, ...] = ()
    more: bool
    next_cursor: str | None = None


class DeletedAnswer(Document):
    job_id: str
    cancelled: int
