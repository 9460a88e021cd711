"""A run: one slot of a job. Its states and the one table of moves between them."""

from enum import StrEnum
from typing import Final


class RunState(StrEnum):
    """Where a run stands; the same words in SQL, JSON and on screen."""

    BLOCKED = "blocked"
    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"


MOVES: Final[dict[RunState, frozenset[RunState]]] = {
    RunState.BLOCKED: frozenset({RunState.PENDING, RunState.CANCELLED}),
    RunState.PENDING: frozenset({RunState.RUNNING, RunState.CANCELLED}),
    RunState.RUNNING: frozenset({RunState.PENDING, RunState.SUCCEEDED, RunState.DEAD, RunState.CANCELLED}),
    RunState.DEAD: frozenset({RunState.PENDING}),  # replay, by an operator only
    RunState.SUCCEEDED: frozenset(),
    RunState.CANCELLED: frozenset(),
}
"""A move that is not listed does not happen; SQL and documentation are tested against this table."""

FINISHED: Final = frozenset({RunState.SUCCEEDED, RunState.DEAD, RunState.CANCELLED})
"""States whose run has neither a `pending` nor a `lease` row, and whose outcome stands in the ledger."""


class Gate(StrEnum):
    """What a waiting run waits for; the `gate` of its `pending` row."""

    OPEN = "open"  # a worker
    TIME = "time"  # its `available_at`: jitter, backoff, snooze
    HANDLER = "handler"  # a live worker that knows its handler
    LIMIT = "limit"  # a permit or a token
    UPSTREAM = "upstream"  # the runs that it depends on


class Origin(StrEnum):
    """Who asked for a run."""

    SCHEDULE = "schedule"
    MANUAL = "manual"
