"""An attempt: one worker's try at a run, the lease under which it runs, and how it ended."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from rota.domain.ids import run_id
from rota.domain.json_value import json_text
from rota.domain.retry import DELAY_LIMIT, RetryPolicy
from rota.domain.run import Gate, RunState

ERROR_LIMIT: Final = 16 * 1024
"""The most characters of an error text that are kept, once, on its attempt."""

RESULT_LIMIT: Final = 64 * 1024
"""The most bytes of a result, as compact JSON."""

ANY_HANDLER: Final = "*"
"""Among the handlers that a worker knows: any but shell commands and HTTP targets, which are named or left alone."""

CLAIM_LIMIT: Final = 500
"""The most runs that one claim gives, however many are asked for."""

SHORTEST_SNOOZE: Final = timedelta(seconds=1)
"""The soonest that a snoozed run comes back: one that asks for less would be claimed and postponed without a pause."""

SET_APART: Final = "set apart: "
"""How the reason begins of a run whose end could not be decided or written, so that it would have stopped others."""

REASON_LIMIT: Final = 500
"""The most characters of such a reason."""

_CUT: Final = "\n… cut by Rota from {length} characters …\n"


class Outcome(StrEnum):
    """How an attempt ended; the field's word in the `attempt` table."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    GAVE_UP = "gave_up"
    SNOOZED = "snoozed"
    RELEASED = "released"
    LOST = "lost"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class LeaseKey:
    """A run's row and the token of this very claim: the proof that goes with every renewal and report."""

    shard: int
    job_uid: int
    scheduled_for: datetime
    token: UUID

    @property
    def run_id(self) -> UUID:
        return run_id(self.job_uid, self.scheduled_for)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A lease as its renewal leaves it. `cancel`: somebody wants the run to end."""

    expires_at: datetime
    cancel: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One run, handed to one worker under a lease."""

    key: LeaseKey
    tenant_id: str
    job_id: str
    handler: str
    payload: dict[str, Any]
    attempt: int
    max_attempts: int
    claimed_at: datetime
    expires_at: datetime
    lease_duration: timedelta
    timeout: timedelta
    losses: int = 0
    """How many workers it has lost: after one it is run apart from others, which it may have taken with it."""
    available_at: datetime | None = None
    """From when on it could start: after its jitter, its backoff or its snooze. None where 0.1.0 does not tell."""

    @property
    def run_id(self) -> UUID:
        return self.key.run_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a worker says of one attempt.

    `retry_after` is the soonest that the run comes back: of a snooze, from SHORTEST_SNOOZE up to DELAY_LIMIT; of a
    failure, where its backoff is shorter. `result` is JSON (see `check_result`) and kept of a success only. A timeout
    that `took_worker` could only be ended with its worker.
    """

    key: LeaseKey
    outcome: Outcome
    error: str | None = None
    retry_after: timedelta | None = None
    result: Any = None
    took_worker: bool = False


def check_result(result: Any) -> str | None:
    """Return a result as the JSON text that is kept of it; None where there is none.

    Raises InvalidInput, and TooLarge beyond RESULT_LIMIT bytes; both name the field `result`.
    """
    return None if result is None else json_text("result", result, limit=RESULT_LIMIT)


def clean_error(text: str) -> str:
    """Return an error text that every store can hold: no NUL, no lone surrogates, at most ERROR_LIMIT characters.

    A longer text keeps its head and its tail, since a traceback says where at the top and what at the bottom.
    """
    if len(text) <= ERROR_LIMIT and len(whole := _storable(text)) <= ERROR_LIMIT:
        return whole
    mark = _CUT.format(length=len(text))
    half = (ERROR_LIMIT - len(mark)) // 2
    # Cleaning lengthens a text and never shortens it, so half of each end is all that can be kept.
    return _storable(text[:half])[:half] + mark + _storable(text[-half:])[-half:]


def _storable(text: str) -> str:
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """An attempt that came to its end, with what its job says about trying again."""

    key: LeaseKey
    outcome: Outcome
    error: str | None
    retry_after: timedelta | None
    attempt: int
    available_at: datetime
    """From when on it had waited when it was claimed."""
    losses: int
    max_attempts: int
    max_losses: int
    retry: RetryPolicy
    pool: str
    orphaned: bool
    """Its job was deleted: nothing is tried again."""
    took_worker: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What becomes of the run: finished in `state`, or pending again from `available_at` on."""

    key: LeaseKey
    outcome: Outcome
    error: str | None
    state: RunState
    charged: int
    losses: int
    available_at: datetime
    gate: Gate
    reason: str | None = None
    result: str | None = None
    """JSON text, with a success."""


def success(key: LeaseKey, *, now: datetime, result: Any = None) -> Verdict:
    """Return the verdict on an attempt that succeeded: it needs to know nothing of its job. Raises as check_result."""
    return Verdict(
        key=key, outcome=Outcome.SUCCEEDED, error=None, state=RunState.SUCCEEDED, charged=0, losses=0,
        available_at=now, gate=Gate.OPEN, result=check_result(result),
    )  # fmt: skip


def after_attempt(ended: Ended, *, now: datetime) -> Verdict:
    """Decide what becomes of a run; `services.completion` and `services.reaper` write it down.

    There are two reasons to try again, and two counters. A failure and a timeout count towards `max_attempts`, a lost
    worker towards `max_losses`; a shutdown's release and a snooze count towards neither. The attempt's number grows
    with every failure and loss. A timeout that took its worker along is both, and its number grows by two: the run is
    a suspect from then on, and has as many failures left as after any timeout. Where a cancel was asked for, what would
    wait or be buried is cancelled instead: the writing statement sees to that.
    """
    is_lost = ended.outcome is Outcome.LOST
    took_worker = ended.took_worker and ended.outcome is Outcome.TIMED_OUT
    if took_worker:
        ended = replace(ended, attempt=ended.attempt + 1, losses=ended.losses + 1)
    losses = ended.losses + is_lost
    is_lost_too_often = (is_lost or took_worker) and losses >= ended.max_losses
    state, charged, wait = _judge(ended, losses=losses)
    # A run that was put back through no fault of its own keeps the place in the order that it had.
    blameless = ended.outcome is Outcome.RELEASED or is_lost
    available_at = ended.available_at if blameless and not wait else now + wait
    return Verdict(
        key=ended.key,
        outcome=ended.outcome,
        error=None if ended.error is None else clean_error(ended.error),
        state=state,
        charged=charged,
        losses=losses,
        available_at=available_at,
        gate=Gate.TIME if available_at > now else Gate.OPEN,
        reason=f"worker lost {losses} times" if state is RunState.DEAD and is_lost_too_often else None,
    )


def set_apart(key: LeaseKey, outcome: Outcome, error: str | None, why: str, *, now: datetime) -> Verdict:
    """Return the verdict on an attempt whose own cannot be found or written: buried, for a person to look at."""
    return Verdict(
        key=key, outcome=outcome, error=None if error is None else clean_error(error), state=RunState.DEAD, charged=0,
        losses=0, available_at=now, gate=Gate.OPEN, reason=clean_error(SET_APART + why)[:REASON_LIMIT],
    )  # fmt: skip


def _judge(ended: Ended, *, losses: int) -> tuple[RunState, int, timedelta]:
    at_once = timedelta(0)
    match ended.outcome:
        case Outcome.SUCCEEDED:
            raise AssertionError("a success has no alternatives: see success()")
        case Outcome.CANCELLED:
            return RunState.CANCELLED, ended.attempt, at_once
        case _ if ended.orphaned:
            return RunState.CANCELLED, ended.attempt, at_once
        case Outcome.GAVE_UP:
            return RunState.DEAD, ended.attempt, at_once
        case Outcome.RELEASED:
            return RunState.PENDING, ended.attempt - 1, at_once
        case Outcome.SNOOZED:
            # Bounded, since an instant past the calendar's end would fail the whole batch of reports with this one.
            wait = min(max(SHORTEST_SNOOZE, ended.retry_after or SHORTEST_SNOOZE), DELAY_LIMIT)
            return RunState.PENDING, ended.attempt - 1, wait
        case Outcome.TIMED_OUT if ended.took_worker and losses >= ended.max_losses:
            return RunState.DEAD, ended.attempt, at_once
        case Outcome.LOST if losses >= ended.max_losses:
            return RunState.DEAD, ended.attempt, at_once
        case Outcome.LOST:
            # The first loss may be the host's; a run that loses its second worker waits before it takes a third.
            wait = at_once if losses == 1 else _backoff(ended, losses - 1)
            return RunState.PENDING, ended.attempt, wait
        case _ if (failures := ended.attempt - losses) >= ended.max_attempts:
            return RunState.DEAD, ended.attempt, at_once
        case _:
            asked = min(ended.retry_after or at_once, DELAY_LIMIT) if ended.outcome is Outcome.FAILED else at_once
            return RunState.PENDING, ended.attempt, max(_backoff(ended, failures), asked)


def _backoff(ended: Ended, times: int) -> timedelta:
    # An older program may have counted differently: there is no retry before the first.
    return ended.retry.delay_after(max(1, times), seed=ended.key.token.bytes)
