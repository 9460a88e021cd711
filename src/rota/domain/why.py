"""Why is it not running? The first gate that holds a run or a job, as a value, and the facts that tell it.

`services.why` reads the facts, and `domain.reasons` tells the reason from them.
"""

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from rota.domain.run import Gate


class Hold(StrEnum):
    """What holds a run or a job; those that a waiting run can stand behind are the words of `Gate`."""

    FINISHED = "finished"
    RUNNING = "running"
    PAUSED = "paused"
    QUARANTINED = "quarantined"
    FROZEN = "frozen"
    ON_DEMAND = "on_demand"
    DEADLINE = "deadline"
    TIME = Gate.TIME.value
    UPSTREAM = Gate.UPSTREAM.value
    LIMIT = Gate.LIMIT.value
    HANDLER = Gate.HANDLER.value
    OPEN = Gate.OPEN.value


class Cause(StrEnum):
    """Which of a gate's kinds it is."""

    SLOT = "slot"
    JITTER = "jitter"
    BACKOFF = "backoff"
    SNOOZE = "snooze"
    REPLAY = "replay"
    SCHEDULER = "scheduler"  # its time has come, and a scheduler has yet to see it
    SET_ASIDE = "set_aside"  # its time has come, and what a scheduler would do cannot be done for now
    PERMITS = "permits"
    TOKENS = "tokens"
    CLOSED = "closed"  # a limit without a single permit
    BEHIND = "behind"  # there is room, and runs of better rank get it first
    RETURNING = "returning"  # what it waited for is there: it is being let back in
    NO_WORKER = "no_worker"  # nobody serves the pool
    DRAINING = "draining"  # only workers that claim no more
    UNKNOWN = "unknown"  # workers serve the pool, and none knows the handler
    NEXT = "next"
    QUEUE = "queue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A run that holds permits of a limit."""

    run_id: UUID
    since: datetime
    worker_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """The first gate that holds a run or a job. What does not apply is None, or empty."""

    gate: Hold
    text: str
    """One sentence."""
    cause: str | None = None
    """A word of `Cause`; of what is finished its outcome, of a job's schedule None."""
    run_id: UUID | None = None
    at: datetime | None = None
    """When it is over, as far as that is known; of what is finished, when that was."""
    since: datetime | None = None
    worker_id: str | None = None
    limit: str | None = None
    """The limit's name; "job" and "key" are those of the job itself."""
    permits: int | None = None
    in_use: int | None = None
    held_by: tuple[Holder, ...] = ()
    """Runs of the asker's tenant, the longest first."""
    held_by_others: int = 0
    """How many runs of other tenants hold it as well."""
    ahead: int | None = None
    """Runs that go before it: in its tenant's order, or in that of the limit."""
    ahead_is_more: bool = False
    """There are more ahead than were counted."""
    tenants: int | None = None
    """Other tenants that have runs waiting in the pool, and take turns with its own."""
    seconds: float | None = None
    """About how long it takes at the present rate; None: nobody knows."""
    pool: str | None = None
    handler: str | None = None
    pools: tuple[str, ...] = ()
    """Other pools whose workers know the handler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A run that waits."""

    run_id: UUID
    scheduled_for: datetime
    available_at: datetime
    deadline_at: datetime | None
    gate: str
    limit_key: str | None
    pool: str
    handler: str
    attempt: int
    losses: int
    max_attempts: int
    max_losses: int
    jitter: timedelta
    last_outcome: str | None
    """How its last attempt ended; None before that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitLook:
    """A limit that a run is under, as it stands now."""

    limit_key: str
    name: str
    """"job" and "key" for the job's own."""
    kind: str
    weight: int
    permits: int | None
    in_use: int
    """Permits that are held, also those beyond a number that was lowered."""
    rate: float | None
    burst: int | None
    tokens: float | None
    """Tokens in the bucket by now."""
    ahead: int
    """Runs of the same tenant that are parked on it and rank better."""
    saved: int = 0
    """What it saves at the moment for a run of another tenant or pool."""

    @property
    def cost(self) -> int:
        """What the run takes: one that costs more than there is takes all of it."""
        bounds = [self.weight]
        bounds += [max(self.permits, 1)] if self.permits is not None else []
        bounds += [self.burst] if self.burst is not None else []
        return min(bounds)

    def full(self) -> Cause | None:
        """Return what it lacks for the run; None: nothing."""
        if self.permits == 0:
            return Cause.CLOSED
        if self.permits is not None and self.permits - self.in_use - self.saved < self.cost:
            return Cause.PERMITS
        if self.tokens is not None and self.tokens - self.saved < self.cost:
            return Cause.TOKENS
        return None

    def refilled_at(self, *, now: datetime) -> datetime:
        """Return when the bucket holds enough for the run, if nobody else takes of it; rounded up to a millisecond."""
        assert self.rate is not None, "it has a rate"
        assert self.tokens is not None, "it has a rate"
        missing = max(0.0, self.cost + self.saved - self.tokens)
        return now + timedelta(milliseconds=math.ceil(missing / self.rate * 1000))


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Who holds a limit."""

    own: tuple[Holder, ...] = ()
    own_count: int = 0
    others: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolWorkers:
    """Live workers of a pool that would take runs of the asker's tenant, of one kind."""

    pool: str
    is_draining: bool
    knows: bool
    """They know the handler."""
    is_own: bool
    """They serve the asker's tenant alone."""
    workers: int
    rate: float | None
    """Runs a second that they claimed of late, together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLook:
    """What stands before a run that could start."""

    ahead: int
    most: int
    """Where counting ended."""
    tenants: int
    weight: int
    """The run's tenant's own, and below that of all the others together."""
    other_weight: int
