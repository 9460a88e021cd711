"""The worker's side of a lease: renewals, and reports that end an attempt."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import structlog

from rota.clock import Clock
from rota.domain.attempt import Ended, LeaseKey, Outcome, Report, Verdict, after_attempt, success
from rota.domain.run import RunState
from rota.services.hints import Hints, pool_topic
from rota.store import claims
from rota.store.database import Database, repeat

log = structlog.get_logger()


class Completion:
    """Writes down how attempts end. Every call can be repeated: the token decides, and the answer is the same."""

    def __init__(self, database: Database, clock: Clock, hints: Hints) -> None:
        self._database = database
        self._clock = clock
        self._hints = hints

    async def renew(self, keys: Sequence[LeaseKey]) -> dict[UUID, datetime]:
        """Extend leases; returns token -> expiry of those still held. A token left out is lost."""
        return await claims.renew(self._database, keys, now=self._clock.now())

    async def report(self, reports: Sequence[Report]) -> frozenset[UUID]:
        """End attempts; returns the tokens accepted. A token left out had lost its lease: nothing of it is kept.

        A report that was recorded before is accepted again.
        """
        return await repeat(lambda: self._report(reports), clock=self._clock)

    async def _report(self, reports: Sequence[Report]) -> frozenset[UUID]:
        now = self._clock.now()
        told = {report.key.token: report for report in reports}
        verdicts = [success(report.key, now=now) for report in told.values() if report.outcome is Outcome.SUCCEEDED]
        troubled = [report for report in told.values() if report.outcome is not Outcome.SUCCEEDED]
        ended = await self._ended(troubled)
        verdicts += [after_attempt(attempt, now=now) for attempt in ended]
        settled = await claims.settle(self._database, verdicts, now=now)
        self._tell(ended, verdicts, settled)
        return settled | await self._recorded_before([report for token, report in told.items() if token not in settled])

    async def _ended(self, reports: Sequence[Report]) -> list[Ended]:
        """Return what is to be decided about attempts that did not succeed, those of them that are still leased."""
        if not reports:
            return []
        told = {report.key.token: (report.outcome, report.error, report.retry_after) for report in reports}
        return await claims.facts(self._database, [report.key for report in reports], told=told)

    async def _recorded_before(self, missing: Sequence[Report]) -> frozenset[UUID]:
        """Return the tokens of reports that are repeated: recorded already, with the same outcome."""
        before = await claims.recorded(self._database, [report.key for report in missing])
        again = {report.key.token for report in missing if before.get(report.key.token) is report.outcome}
        for report in missing:
            if report.key.token not in again:
                log.warning("report.refused", run_id=str(report.key.run_id), outcome=report.outcome)
        return frozenset(again)

    def _tell(self, ended: Sequence[Ended], verdicts: Sequence[Verdict], settled: frozenset[UUID]) -> None:
        for verdict in verdicts:
            if verdict.key.token in settled and verdict.state is not RunState.SUCCEEDED:
                log.info("attempt.ended", run_id=str(verdict.key.run_id), outcome=verdict.outcome, state=verdict.state)
        for pool in {attempt.pool for attempt in ended if attempt.key.token in settled}:
            self._hints.publish(pool_topic(pool))
