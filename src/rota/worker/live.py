"""An attempt while it lives in this worker, and the reasons for which it is stopped before its handler is done."""

import asyncio
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum, auto
from math import inf
from typing import Final
from uuid import UUID

from rota.domain.attempt import Claim, Outcome, Report, clean_error
from rota.worker.context import RunContext
from rota.worker.ending import Ending
from rota.worker.handlers import SHELL, Handler
from rota.worker.progress import Notes


class Stop(Enum):
    """Why an attempt is stopped."""

    TIMEOUT = auto()
    LEASE_LOST = auto()
    CANCELLED = auto()
    RELEASE = auto()


_ON_REQUEST: Final = "cancelled on request"

_TIMEOUT_TEXTS = {
    "async": "the handler was cancelled",
    "thread": "the handler was told to stop; its thread keeps its slot until it returns",
    "process": "the handler's process was killed",
}


@dataclass(slots=True, kw_only=True, eq=False)
class LiveAttempt:
    """One claim in work. `deadline` is on the worker clock's stopwatch, in seconds.

    Once `stop` is set it decides the outcome: a handler that returns because it was told to stop has not succeeded. Nor
    has one that returns after its run was cancelled.
    `lingering` is the end of a call that nobody waits for any more and nothing can end: a thread past its time.
    One that `must_wait` begins when an older attempt of its run has ended here, and, if it `is_alone`, all others have.
    """

    claim: Claim
    handler: Handler
    context: RunContext
    notes: Notes | None = None
    started_at: datetime | None = None
    deadline: float = inf
    stop: Stop | None = None
    has_begun: bool = False
    is_alone: bool = False
    must_wait: bool = False
    overran: float | None = None
    is_settled: bool = False
    task: asyncio.Task[None] | None = None
    lingering: asyncio.Future[Ending] | None = field(default=None)

    @property
    def token(self) -> UUID:
        return self.claim.key.token

    @property
    def may_see_cancel(self) -> bool:
        """Whether the handler can end by itself when its run is cancelled: user code in this process, with its run."""
        handler = self.handler
        is_ours = handler.takes_claim or handler.name == SHELL
        return self.has_begun and handler.takes_run and not is_ours and handler.isolation != "process"

    def ask_to_end(self) -> None:
        """Tell the handler that its run is cancelled, and leave it to it to end."""
        self.context.cancelled.set()
        self.context.lease_lost.set()

    def halt(self, reason: Stop) -> None:
        """Tell the handler to stop. The first reason counts, and a cancellation before a timeout or a shutdown."""
        if self.stop is not None:
            return
        if reason is Stop.CANCELLED:
            self.context.cancelled.set()
        self.stop = Stop.CANCELLED if self.context.cancelled and reason is not Stop.LEASE_LOST else reason
        self.context.lease_lost.set()
        # A task that is cancelled before its first step never runs at all, so it could not report either.
        if self.task is not None and self.has_begun:
            self.task.cancel()

    def report(self, ending: Ending) -> Report:
        """Return the report of a call that ended by itself."""
        if self.context.cancelled:
            return self._cancelled(ending.error)
        return Report(
            key=self.claim.key,
            outcome=ending.outcome,
            error=ending.error,
            retry_after=ending.retry_after,
            result=ending.result,
        )

    def overrun(self, seconds: float) -> None:
        """The handler ended after its time, before anybody could stop it: what it says comes too late."""
        self.stop, self.overran = Stop.TIMEOUT, seconds
        self.context.lease_lost.set()

    def report_of_no_turn(self, *, retry_after: timedelta) -> Report:
        """Return the report of an attempt that waited in vain for others to end: it comes back later, uncharged."""
        why = "runs alone after a loss, and others" if self.is_alone else "does not run twice, and its older attempt"
        error = f"the run {why} did not end in this worker"
        return Report(key=self.claim.key, outcome=Outcome.SNOOZED, error=error, retry_after=retry_after)

    def report_of_stop(self) -> Report | None:
        """Return the report of an attempt that was stopped; None after a lost lease: then nothing may be said."""
        assert self.stop is not None, "only a stopped attempt is reported by its stop"
        if self.stop is Stop.LEASE_LOST:
            return None
        if self.stop is Stop.TIMEOUT:
            told = _TIMEOUT_TEXTS[self.handler.isolation]
            if self.overran is not None:
                told = f"the handler ended {self.overran:.1f} s later, and had not let the event loop go until then"
            seconds = self.claim.timeout.total_seconds()
            return Report(
                key=self.claim.key, outcome=Outcome.TIMED_OUT, error=f"no result within {seconds:g} s: {told}"
            )
        if self.stop is Stop.CANCELLED:
            return self._cancelled()
        return Report(key=self.claim.key, outcome=Outcome.RELEASED)

    def _cancelled(self, error: str | None = None) -> Report:
        text = _ON_REQUEST if error is None else f"{_ON_REQUEST}\n\n{error}"
        return Report(key=self.claim.key, outcome=Outcome.CANCELLED, error=clean_error(text))
