"""An attempt: one worker's try at a run, the lease under which it runs, and how it ended."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from rota.domain.admission import rank
from rota.domain.ids import run_id
from rota.domain.retry import DELAY_LIMIT, RetryPolicy
from rota.domain.run import Gate, RunState

ERROR_LIMIT: Final = 16 * 1024
"""The most characters of an error text that are kept, once, on its attempt."""

CLAIM_LIMIT: Final = 500
"""The most runs that one claim gives, however many are asked for."""

SHORTEST_SNOOZE: Final = timedelta(seconds=1)
"""The soonest that a snoozed run comes back: one that asks for less would be claimed and postponed without a pause."""

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

    @property
    def run_id(self) -> UUID:
        return self.key.run_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a worker says of one attempt.

    `retry_after` is set with `snoozed` only, and counts from SHORTEST_SNOOZE up to DELAY_LIMIT.
    """

    key: LeaseKey
    outcome: Outcome
    error: str | None = None
    retry_after: timedelta | None = None


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
    claimed_at: datetime
    max_attempts: int
    retry: RetryPolicy
    priority: int
    pool: str
    orphaned: bool
    """Its job was deleted: nothing is tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What becomes of the run: finished in `state`, or pending again from `available_at` on."""

    key: LeaseKey
    outcome: Outcome
    error: str | None
    state: RunState
    charged: int
    available_at: datetime
    rank: int
    gate: Gate


def success(key: LeaseKey, *, now: datetime) -> Verdict:
    """Return the verdict on an attempt that succeeded: it needs to know nothing of its job."""
    return Verdict(
        key=key, outcome=Outcome.SUCCEEDED, error=None, state=RunState.SUCCEEDED, charged=0, available_at=now, rank=0,
        gate=Gate.OPEN,
    )  # fmt: skip


def after_attempt(ended: Ended, *, now: datetime) -> Verdict:
    """Decide what becomes of a run; `services.completion` and `services.reaper` write it down.

    A failure, a timeout and a lost worker charge the attempt; a shutdown's release and a snooze do not.
    """
    state, charged, wait = _judge(ended)
    available_at = now + wait
    # A run that was put back through no fault of its own keeps the place in the order that it had when claimed.
    since = ended.claimed_at if ended.outcome in (Outcome.LOST, Outcome.RELEASED) else available_at
    return Verdict(
        key=ended.key,
        outcome=ended.outcome,
        error=None if ended.error is None else clean_error(ended.error),
        state=state,
        charged=charged,
        available_at=available_at,
        rank=rank(since, priority=ended.priority),
        gate=Gate.TIME if available_at > now else Gate.OPEN,
    )


def _judge(ended: Ended) -> tuple[RunState, int, timedelta]:
    at_once = timedelta(0)
    match ended.outcome:
        case Outcome.SUCCEEDED:
            raise AssertionError("a success has no alternatives: see success()")
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
        case _ if ended.attempt >= ended.max_attempts:
            return RunState.DEAD, ended.attempt, at_once
        case Outcome.LOST:
            return RunState.PENDING, ended.attempt, at_once
        case _:
            return RunState.PENDING, ended.attempt, ended.retry.delay_after(ended.attempt, seed=ended.key.token.bytes)
