"""Why something is not running, as a document: one sentence for people, and the same in fields for programs."""

from datetime import datetime
from uuid import UUID

from rota.wire.document import Document


class HolderDocument(Document):
    """A run that holds permits of a limit."""

    run_id: UUID
    since: datetime
    worker_id: str


class WhyDocument(Document):
    """The first gate that holds a run or a job. What does not apply is null, or empty.

    `gate` is finished, running, paused, quarantined, frozen, on_demand, deadline, time, upstream, limit, handler or
    open, and `cause` says which kind of it. `at` is when it is over, as far as that is known. `run_id` is the run that
    is spoken of: of a job, its oldest one that waits. `ahead` counts the runs that go before it; with `ahead_is_more`
    there are more than were counted. `held_by` has runs of the asker's tenant; of those of others only the number is
    told.
    """

    gate: str
    text: str
    cause: str | None = None
    run_id: UUID | None = None
    at: datetime | None = None
    since: datetime | None = None
    worker_id: str | None = None
    limit: str | None = None
    permits: int | None = None
    in_use: int | None = None
    held_by: tuple[HolderDocument, ...] = ()
    held_by_others: int = 0
    ahead: int | None = None
    ahead_is_more: bool = False
    tenants: int | None = None
    seconds: float | None = None
    pool: str | None = None
    handler: str | None = None
    pools: tuple[str, ...] = ()
