"""The reporter: brings ended attempts to the desk in batches, and does not let go before the desk has answered."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final
from uuid import UUID

import structlog

from rota.clock import Clock
from rota.domain.attempt import Claim, Outcome, Report
from rota.domain.progress import Progress
from rota.errors import DatabaseUnavailable, LeaseLocked
from rota.worker.backoff import Backoff
from rota.worker.desk import Desk
from rota.worker.ending import error_text

REPORT_BATCH: Final = 500
"""The most reports in one call. While one call is under way the next batch gathers."""

TRANSIENT: Final = (DatabaseUnavailable, OSError)
"""What passes by itself (a TimeoutError is an OSError): the same call is made again."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True, kw_only=True, eq=False)
class Ended:
    """One ended attempt on its way to the desk. `is_hopeless`: its lease will not be renewed any more."""

    claim: Claim
    report: Report
    started_at: datetime | None = None
    ended_at: datetime | None = None
    progress: Progress | None = None
    """What it said last, and the desk may not know."""
    is_hopeless: bool = False
    is_substitute: bool = False
    backoff: Backoff | None = None
    """Of one whose lease another transaction holds."""
    not_before: float = 0.0
    """On the stopwatch: it is reported again from then on."""


class Reporter:
    """Sends reports, one call at a time. `answered(ended, accepted)` is called once for each of them.

    `done` is set while the desk has answered for everything.
    """

    def __init__(self, desk: Desk, clock: Clock, *, answered: Callable[[Ended, bool], None]) -> None:
        self._desk = desk
        self._clock = clock
        self._answered = answered
        self._waiting: deque[Ended] = deque()
        self._under_way: Sequence[Ended] = ()
        self._locked: list[Ended] = []
        self._batch_limit = REPORT_BATCH
        self._backoff = Backoff()
        self._some = asyncio.Event()
        self.done = asyncio.Event()
        self.done.set()

    @property
    def unsent(self) -> int:
        """How many attempts the desk has not answered for."""
        return len(self._waiting) + len(self._under_way) + len(self._locked)

    def add(self, ended: Ended) -> None:
        """Report this attempt. What is added in one turn of the loop goes in one call."""
        self._waiting.append(ended)
        self._some.set()
        self.done.clear()

    def abandon(self, tokens: Collection[UUID]) -> None:
        """Try these once more at most: their leases end, and the desk will take them for lost."""
        for ended in (*self._waiting, *self._under_way, *self._locked):
            if ended.report.key.token in tokens:
                ended.is_hopeless = True

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            await self._for_some()
            self._under_way = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._batch_limit))]
            delay = await self._send(self._under_way)
            self._under_way = ()
            if not self._waiting:
                self._some.clear()
                if not self._locked:
                    self.done.set()
            if delay:
                await self._clock.sleep(delay)

    async def _for_some(self) -> None:
        """Wait until there is something to report; what is locked is asked for again when its time has come."""
        while not self._waiting:
            if not self._locked:
                await self._some.wait()
                continue
            next_at = min(ended.not_before for ended in self._locked)
            await self._clock.wait(self._some, max(0.0, next_at - self._clock.monotonic()))
            self._unlock()
        self._unlock()

    def _unlock(self) -> None:
        """Let those wait for the next call whose turn it is to be asked for again."""
        now = self._clock.monotonic()
        self._waiting.extend(ended for ended in self._locked if ended.not_before <= now)
        self._locked = [ended for ended in self._locked if ended.not_before > now]

    async def _send(self, batch: Sequence[Ended]) -> float:
        """Make one call and hand out the answers. Returns the seconds to wait before the next one."""
        try:
            await self._tell_progress(batch)
            accepted = await self._desk.report([ended.report for ended in batch])
        except LeaseLocked as error:
            self._set_aside([ended for ended in batch if ended.report.key.token in error.locked])
            batch = [ended for ended in batch if ended.report.key.token not in error.locked]
            accepted = error.accepted
        except TRANSIENT as error:
            delay = self._backoff.next()
            _log.warning("reports.postponed", reports=len(batch), seconds=round(delay, 2), error=str(error))
            self._put_back(batch)
            return delay
        except Exception as error:
            # Something in this batch cannot be taken, and must not keep the others: halve until it stands alone.
            if len(batch) > 1:
                self._batch_limit = len(batch) // 2
                self._put_back(batch)
            else:
                self._substitute(batch[0], error)
            return 0.0
        self._backoff.reset()
        self._batch_limit = min(REPORT_BATCH, self._batch_limit * 2)
        for ended in batch:
            self._answered(ended, ended.report.key.token in accepted)
        return 0.0

    async def _tell_progress(self, batch: Sequence[Ended]) -> None:
        """Tell what runs said in their last moments: with their leases, while they are there. Raises what passes."""
        saying = [ended for ended in batch if ended.progress is not None]
        if not saying:
            return
        said = {ended.report.key.token: ended.progress for ended in saying if ended.progress is not None}
        try:
            await self._desk.renew([ended.report.key for ended in saying], progress=said)
        except TRANSIENT:
            raise
        except Exception as error:
            # Should it be the progress that a desk cannot take: it must not cost the report.
            _log.warning("progress.refused", reports=len(saying), error=repr(error))
        for ended in saying:
            ended.progress = None

    def _set_aside(self, locked: Sequence[Ended]) -> None:
        """Ask for these again by themselves, after a wait that grows: a transaction may stay open for long."""
        for ended in locked:
            if ended.is_hopeless:
                self._answered(ended, False)
                continue
            if ended.backoff is None:
                ended.backoff = Backoff()
                _log.info("report.waits_for_lock", run_id=str(ended.claim.run_id), outcome=ended.report.outcome)
            ended.not_before = self._clock.monotonic() + ended.backoff.next()
            self._locked.append(ended)

    def _put_back(self, batch: Sequence[Ended]) -> None:
        """Keep the order, and let go of what cannot succeed any more."""
        for ended in batch:
            if ended.is_hopeless:
                self._answered(ended, False)
        self._waiting.extendleft(ended for ended in reversed(batch) if not ended.is_hopeless)

    def _substitute(self, ended: Ended, error: Exception) -> None:
        """Replace a report that the desk cannot take by a plain failure that says so; if that fails too, let go."""
        _log.error("report.refused", run_id=str(ended.claim.run_id), outcome=ended.report.outcome, error=repr(error))
        if ended.is_substitute:
            self._answered(ended, False)
            return
        text = error_text(f"the outcome {ended.report.outcome} could not be recorded: {type(error).__name__}: {error}")
        ended.report = replace(ended.report, outcome=Outcome.FAILED, error=text[:1000], retry_after=None)
        ended.is_substitute = True
        self._waiting.appendleft(ended)
