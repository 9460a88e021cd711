"""An attempt while it lives in this worker, and the reasons for which it is stopped before its handler is done."""

import asyncio
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, auto
from math import inf
from uuid import UUID

from rota.domain.attempt import Claim, Outcome, Report
from rota.worker.context import RunContext
from rota.worker.ending import Ending
from rota.worker.handlers import Handler


class Stop(Enum):
    """Why an attempt is stopped."""

    TIMEOUT = auto()
    LEASE_LOST = auto()
    CANCELLED = auto()
    RELEASE = auto()


_TIMEOUT_TEXTS = {
    "async": "the handler was cancelled",
    "thread": "the handler was told to stop; its thread keeps its slot until it returns",
    "process": "the handler's process was killed",
}


@dataclass(slots=True, kw_only=True, eq=False)
class LiveAttempt:
    """One claim in work. `deadline` is on the worker clock's stopwatch, in seconds.

    Once `stop` is set it decides the outcome: a handler that returns because it was told to stop has not succeeded.
    `lingering` is the end of a call that nobody waits for any more and nothing can end: a thread past its time.
    """

    claim: Claim
    handler: Handler
    context: RunContext
    started_at: datetime | None = None
    deadline: float = inf
    stop: Stop | None = None
    has_begun: bool = False
    is_settled: bool = False
    task: asyncio.Task[None] | None = None
    lingering: asyncio.Future[Ending] | None = field(default=None)

    @property
    def token(self) -> UUID:
        return self.claim.key.token

    def halt(self, reason: Stop) -> None:
        """Tell the handler to stop. The first reason counts."""
        if self.stop is not None:
            return
        self.stop = reason
        self.context.lease_lost.set()
        # A task that is cancelled before its first step never runs at all, so it could not report either.
        if self.task is not None and self.has_begun:
            self.task.cancel()

    def report(self, ending: Ending) -> Report:
        """Return the report of a call that ended by itself."""
        return Report(
            key=self.claim.key,
            outcome=ending.outcome,
            error=ending.error,
            retry_after=ending.retry_after,
            result=ending.result,
        )

    def report_of_stop(self) -> Report | None:
        """Return the report of an attempt that was stopped; None after a lost lease: then nothing may be said."""
        assert self.stop is not None, "only a stopped attempt is reported by its stop"
        if self.stop is Stop.LEASE_LOST:
            return None
        if self.stop is Stop.TIMEOUT:
            told = _TIMEOUT_TEXTS[self.handler.isolation]
            seconds = self.claim.timeout.total_seconds()
            return Report(
                key=self.claim.key, outcome=Outcome.TIMED_OUT, error=f"no result within {seconds:g} s: {told}"
            )
        if self.stop is Stop.CANCELLED:
            return Report(key=self.claim.key, outcome=Outcome.CANCELLED, error="cancelled on request")
        return Report(key=self.claim.key, outcome=Outcome.RELEASED)
