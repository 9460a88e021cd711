"""The worker's side of a lease: renewals, and reports that end an attempt."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import structlog

from rota.clock import Clock
from rota.domain.attempt import Ended, Lease, LeaseKey, Outcome, Report, Verdict, success
from rota.domain.progress import Progress, check_progress
from rota.domain.run import RunState
from rota.errors import DatabaseUnavailable, InvalidInput, LeaseLocked, LeaseLost
from rota.services import settling
from rota.services.failing import pause_failing
from rota.services.hints import Hints, pool_topic
from rota.services.returning import let_in
from rota.store import claims
from rota.store.database import Database, repeat

log = structlog.get_logger()


class Completion:
    """Writes down how attempts end. Every call can be repeated: the token decides, and the answer is the same."""

    def __init__(self, database: Database, clock: Clock, hints: Hints) -> None:
        self._database = database
        self._clock = clock
        self._hints = hints

    async def jobs_of_tenant(self, keys: Sequence[LeaseKey], *, tenant_id: str) -> frozenset[int]:
        """Return the numbers of those jobs of these leases that are a tenant's."""
        return await claims.jobs_of_tenant(self._database, keys, tenant_id=tenant_id)

    async def renew(
        self, keys: Sequence[LeaseKey], *, progress: Mapping[UUID, Progress] | None = None
    ) -> dict[UUID, Lease]:
        """Extend leases; returns token -> lease of those still held, with whether their run is to be cancelled.

        A token left out is lost. `progress` says by token how far some of these runs are.
        """
        return await claims.renew(self._database, keys, now=self._clock.now(), progress=progress or {})

    async def note_progress(self, key: LeaseKey, value: float | None, note: str | None) -> None:
        """Note how far a run is: a share from 0 to 1, a text, or both. Raises LeaseLost, InvalidInput."""
        said = check_progress(value, note)
        if not await claims.note_progress(self._database, key, said):
            raise LeaseLost(key.run_id)

    async def report(self, reports: Sequence[Report]) -> dict[UUID, RunState]:
        """End attempts; returns token -> state of the runs of those that were accepted.

        A token left out had lost its lease: nothing of it is kept. A report that was recorded before is accepted again,
        with the run's state of now. Raises LeaseLocked for those whose lease another transaction holds, and
        InvalidInput for a result that cannot be kept; all others are recorded then.
        """
        reported = await self.settle(reports)
        if reported.locked:
            raise LeaseLocked(reported.locked, accepted=reported.states.keys())
        return reported.states

    async def settle(self, reports: Sequence[Report]) -> "Reported":
        """End attempts as `report` does; tells of locked leases by a value."""
        return await repeat(lambda: self._settle(reports), clock=self._clock)

    async def _settle(self, reports: Sequence[Report]) -> "Reported":
        now = self._clock.now()
        told = {report.key.token: report for report in reports}
        verdicts, refused = _successes(told.values(), now=now)
        ended = await self._ended([report for report in told.values() if report.outcome is not Outcome.SUCCEEDED])
        verdicts += settling.decided(ended, now=now)
        written = await settling.write(self._database, verdicts, now=now)
        refused |= {verdict.key.token: error for verdict, error in written.refused}
        settled = written.settled.states
        self._tell(ended, verdicts, settled)
        await self._let_in(written.settled.awaited)
        known = settled.keys() | written.settled.locked | refused.keys()
        missing = [report for token, report in told.items() if token not in known]
        states = settled | await self._recorded_before(missing)
        buried = [report.key for token, report in told.items() if states.get(token) is RunState.DEAD]
        await pause_failing(self._database, buried, now=now)
        if refused:
            raise next(iter(refused.values()))
        return Reported(states=states, locked=written.settled.locked)

    async def _let_in(self, awaited: Mapping[str, str]) -> None:
        """Let runs in that waited for what is free now. The answer does not depend on it: schedulers look as well."""
        try:
            await let_in(self._database, self._clock, self._hints, awaited)
        except DatabaseUnavailable as error:
            log.info("limits.left_to_schedulers", limits=len(awaited), error=str(error))

    async def _ended(self, reports: Sequence[Report]) -> list[Ended]:
        """Return what is to be decided about attempts that did not succeed, those of them that are still leased."""
        if not reports:
            return []
        told = {report.key.token: (report.outcome, report.error, report.retry_after) for report in reports}
        return await claims.facts(
            self._database, [report.key for report in reports], told=told,
            took_worker={report.key.token for report in reports if report.took_worker},
        )  # fmt: skip

    async def _recorded_before(self, missing: Sequence[Report]) -> dict[UUID, RunState]:
        """Return the states of runs whose reports are repeated: recorded already, with the same outcome."""
        before = await claims.recorded(self._database, [report.key for report in missing])
        again: dict[UUID, RunState] = {}
        refused: list[Report] = []
        for report in missing:
            outcome, state = before.get(report.key.token, (None, None))
            if outcome is report.outcome and state is not None:
                again[report.key.token] = state
            else:
                refused.append(report)
        if refused:
            # One line for all of them: strangers may report what they like, over the callbacks of targets.
            log.info("reports.refused", reports=len(refused), run_id=str(refused[0].key.run_id))
        return again

    def _tell(self, ended: Sequence[Ended], verdicts: Sequence[Verdict], settled: Mapping[UUID, RunState]) -> None:
        for verdict in verdicts:
            state = settled.get(verdict.key.token)
            if state is not None and state is not RunState.SUCCEEDED:
                log.info("attempt.ended", run_id=str(verdict.key.run_id), outcome=verdict.outcome, state=state)
        for pool in {attempt.pool for attempt in ended if attempt.key.token in settled}:
            self._hints.publish(pool_topic(pool))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """What became of reports: token -> state of the run, of those that were accepted.

    `locked` are those whose lease another transaction holds: they are to be reported again. All others had lost their
    lease.
    """

    states: dict[UUID, RunState]
    locked: frozenset[UUID]


def _successes(reports: Iterable[Report], *, now: datetime) -> tuple[list[Verdict], dict[UUID, Exception]]:
    """Return the verdicts on those that succeeded, and by token what is wrong with a result that cannot be kept."""
    verdicts: list[Verdict] = []
    refused: dict[UUID, Exception] = {}
    for report in reports:
        if report.outcome is Outcome.SUCCEEDED:
            try:
                verdicts.append(success(report.key, now=now, result=report.result))
            except InvalidInput as error:
                refused[report.key.token] = error
    return verdicts, refused
