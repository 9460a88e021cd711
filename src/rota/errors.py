"""Every error that Rota raises on purpose: what happened, what to do, and a code to look it up by.

`code` is the anchor of the error's entry in docs/reference/errors.md. `GiveUp` and `RetryLater` are not errors of
Rota: a handler raises them to say what should become of its run.
"""

from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import Self
from uuid import UUID


class RotaError(Exception):
    """Base of all errors of Rota. `hint` says what to do about it."""

    code = "rota-error"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(f"{message} ({hint})" if hint else message)
        self.hint = hint


class InvalidInput(RotaError):
    """A value that somebody gave is refused; `field` names it and `reason` says why."""

    code = "invalid-input"

    def __init__(self, field: str, reason: str, *, hint: str | None = None) -> None:
        super().__init__(f"{field}: {reason}", hint=hint)
        self.field = field
        self.reason = reason

    def at(self, place: str) -> Self:
        """Return the same refusal of a field that is a part of something: `tz` at `schedule` is `schedule.tz`."""
        return type(self)(f"{place}.{self.field}", self.reason, hint=self.hint)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_invalid, (type(self), self.field, self.reason, self.hint))


def place_of(parts: Iterable[int | str]) -> str:
    """Return where a value stands, such as `items[3].payload`, from the names and numbers that lead to it."""
    place = ""
    for part in parts:
        place += f"[{part}]" if isinstance(part, int) else f".{part}" if place else part
    return place


def _rebuild_invalid(kind: type[InvalidInput], field: str, reason: str, hint: str | None) -> InvalidInput:
    return kind(field, reason, hint=hint)


class InvalidSchedule(InvalidInput):
    """A cron expression, zone, interval or instant that cannot be a schedule."""

    code = "invalid-schedule"


class NoFurtherSlot(InvalidSchedule):
    """The schedule is well formed and will never have another slot."""

    code = "no-further-slot"


class NotFound(RotaError):
    """What was asked for does not exist."""

    code = "not-found"


class Conflict(RotaError):
    """The request was understood and something that exists stands against it."""

    code = "conflict"


class LeaseLost(Conflict):
    """The caller no longer owns the run's lease, so nothing of what it reports is recorded."""

    code = "lease-lost"

    def __init__(self, run_id: object) -> None:
        super().__init__(f"the lease on run {run_id} was reclaimed: stop, and report nothing")


class SlotTaken(Conflict):
    """A run at this slot exists already: a slot is a run's identity."""

    code = "slot-taken"


class VersionConflict(Conflict):
    """Somebody else changed the job since the caller read it."""

    code = "version-conflict"


class KeyReused(Conflict):
    """The Idempotency-Key stands for another request already."""

    code = "key-reused"


class NotDead(Conflict):
    """The run is no dead letter (any more): there is nothing to replay."""

    code = "not-dead"


class RunFinished(Conflict):
    """The run has ended already, so it cannot be cancelled."""

    code = "run-finished"


class InvalidCursor(InvalidInput):
    """A cursor that this list did not give."""

    code = "invalid-cursor"


class TooLarge(InvalidInput):
    """A value is larger than its limit, or than its tenant's quota."""

    code = "too-large"


class Unauthorized(RotaError):
    """There is no token, or it does not hold (any more)."""

    code = "unauthorized"


class Forbidden(RotaError):
    """The token holds, and does not allow this."""

    code = "forbidden"


class QuotaExceeded(RotaError):
    """The tenant has as much as it may have."""

    code = "quota-exceeded"


class TooManyCalls(RotaError):
    """The tenant has made more calls than its rate allows; `retry_after` is in seconds."""

    code = "too-many-calls"

    def __init__(self, message: str, *, retry_after: float, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class Shed(TooManyCalls):
    """The pool is too deep, and this tenant has more waiting there than its share: no run was made."""

    code = "shed"


class SchemaMismatch(RotaError):
    """The database's schema and this program's do not fit together."""

    code = "schema-mismatch"


class DatabaseUnavailable(RotaError):
    """The database cannot be reached, or refuses writes, for now."""

    code = "database-unavailable"


class ServerUnavailable(DatabaseUnavailable):
    """Rota's API cannot be reached for now: whoever waits for its database waits for it in the same way."""

    code = "server-unavailable"


class CommitUnknown(DatabaseUnavailable):
    """The connection ended while a statement ran: it may have committed. Read the outcome back by its key."""

    code = "commit-unknown"


class Locked(DatabaseUnavailable):
    """Another transaction holds what this needs. Nothing was changed: ask again once it has ended."""

    code = "locked"


class TooSlow(DatabaseUnavailable):
    """The database took too long and ended the statement. Nothing was changed; a narrower question is answered."""

    code = "too-slow"


class LeaseLocked(Locked):
    """Another transaction holds these leases, perhaps one that completes their runs: report again when it has ended.

    `locked` and `accepted` are lease tokens: these, and those that were recorded beside them.
    """

    code = "lease-locked"

    def __init__(self, locked: Collection[UUID], *, accepted: Collection[UUID] = ()) -> None:
        super().__init__(f"{len(locked)} leases are locked by other transactions", hint="report again a little later")
        self.locked = frozenset(locked)
        self.accepted = frozenset(accepted)


class SetupFailed(RotaError):
    """Something outside Rota (a file, a folder, a port, a program) is not as it must be."""

    code = "setup-failed"


class GiveUp(Exception):
    """Raised by a handler: trying again cannot help. The run becomes a dead letter at once."""


class RetryLater(Exception):
    """Raised by a handler: not now. The run comes back after `delay`; the attempt is not counted."""

    def __init__(self, delay: timedelta | float, reason: str = "") -> None:
        self.delay = delay if isinstance(delay, timedelta) else timedelta(seconds=delay)
        if self.delay < timedelta(0):
            raise InvalidInput("delay", "must not be negative", hint="give seconds or a timedelta from now")
        self.reason = reason
        super().__init__(reason or f"try again in {self.delay}")

    def __reduce__(self) -> tuple[object, ...]:
        return (RetryLater, (self.delay, self.reason))
