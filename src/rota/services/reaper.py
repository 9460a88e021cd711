"""Looks after leases whose holders are gone: requeues their runs, or buries them."""

from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar
from uuid import UUID

import structlog

from rota.clock import MEASURE_INTERVAL, Clock, StepWatch
from rota.domain.attempt import Ended, LeaseKey, Verdict, set_apart
from rota.domain.run import RunState
from rota.errors import DatabaseUnavailable
from rota.services import settling
from rota.services.aside import Aside
from rota.services.failing import pause_failing, pause_noted
from rota.services.hints import Hints, pool_topic
from rota.services.owned import OwnedShards
from rota.services.returning import let_in
from rota.store import claims
from rota.store.database import Database

REAP_BATCH: Final = 500
INTERVAL: Final = 1.0
"""Seconds between two looks."""
OUTAGE: Final = 1.0
"""Seconds without an answer from the database that count as an outage; shorter trouble costs no lease its renewal."""

STEP_KNOWN: Final = timedelta(seconds=MEASURE_INTERVAL)
"""After a jump of the clock others may renew by the old time for so long, until they have measured it."""
HELD_FIRST: Final = 1.0
HELD_LONGEST: Final = 5.0
"""Seconds for which a job's lapsed leases are left out after somebody held the job: twice as long each time."""
HOLD_TIME: Final = timedelta(minutes=5)
"""How long a lease is left alone whose end cannot be written: what is missing for it may be there then."""

LEASE_EXPIRED: Final = "lease expired: the worker was lost, or stalled for longer than its lease"
JOB_HELD: Final = "an open transaction holds the job, so its run cannot be put back into the queue"

T = TypeVar("T")

log = structlog.get_logger()


class Reaper:
    """One scheduler's eye on the leases of its shards.

    After an outage nobody is reaped until one lease's time has passed: the workers could not renew meanwhile. A
    database that answers, but as late as an outage is long, was away for them as well, and a clock that jumps ahead has
    ended their leases before they could renew them. Only statements that wait for nobody's lock tell of an outage.
    """

    def __init__(self, database: Database, clock: Clock, owned: OwnedShards, hints: Hints) -> None:
        self._database = database
        self._clock = clock
        self._owned = owned
        self._hints = hints
        self._answered_at: float | None = None
        self._failing = False
        self._was_late = False
        self._resumed_at = datetime(1970, 1, 1, tzinfo=UTC)
        self._steps = StepWatch(clock, patience=0.0)
        self.aside = Aside()

    async def tick(self) -> bool:
        """Settle one batch of lapsed leases. True means: there may be more, tick again."""
        now = self._clock.now()
        # A clock that was set back must not leave the end of an outage in the future.
        self._resumed_at = min(self._resumed_at, now + STEP_KNOWN)
        if (seconds := self._steps.look()) > 0:
            self._hold_back(now + STEP_KNOWN, jumped=round(seconds, 3))
        shards = self._owned.shards(now=now)
        if not shards:
            # Nobody was asked, so nothing is known of the database: an outage that costs the shards goes on.
            return False
        monotonic = self._clock.monotonic()
        lapsed = await self._witness(self._lapsed(shards, aside=self.aside.out(monotonic=monotonic), now=now))
        if lapsed:
            await self._settle(lapsed, now=now)
        self.aside.forget_back(monotonic=monotonic)
        await pause_noted(self._database, shards, now=now)
        # What was renewed in between is no longer lapsed, what is locked is not found, what cannot be written lapses
        # later, and jobs that somebody holds were set aside: full batches make progress.
        return len(lapsed) == REAP_BATCH

    async def pause(self) -> float:
        """Look once a second."""
        return INTERVAL

    async def _witness(self, answer: Awaitable[T]) -> T:
        """Await what waits for nobody's lock: its answer, or none, tells whether the database is there for workers."""
        try:
            answered = await answer
        except DatabaseUnavailable:
            self._failing = True
            raise
        self._failing = False
        self._answered_at = self._clock.monotonic()
        return answered

    async def _lapsed(self, shards: Sequence[int], *, aside: Sequence[int], now: datetime) -> list[Ended]:
        self._note_outage(now)
        asked_at = self._clock.monotonic()
        lapsed = await claims.expired(
            self._database, shards, now=now, resumed_at=self._resumed_at, limit=REAP_BATCH, error=LEASE_EXPIRED,
            aside=aside,
        )  # fmt: skip
        self._note_stall(self._clock.monotonic() - asked_at)
        return lapsed

    async def _settle(self, lapsed: Sequence[Ended], *, now: datetime) -> None:
        verdicts = settling.decided(lapsed, now=now)
        written = await self._witness(settling.write(self._database, verdicts, now=now, expired_by=now))
        for verdict, error in written.refused:
            verdicts += await self._set_apart(verdict, error, written.settled.states, now=now)
        settled = written.settled.states
        untouched = {verdict.key.token for verdict in verdicts} - settled.keys()
        untouched -= {verdict.key.token for verdict, _ in written.refused}
        waiting = [verdict.key for verdict in verdicts if verdict.state is RunState.PENDING]
        self._leave_out([key for key in waiting if key.token in untouched])
        for verdict in verdicts:
            state = settled.get(verdict.key.token)
            if state is not None:
                log.warning("lease.reaped", run_id=str(verdict.key.run_id), state=state, attempt=verdict.charged)
        for pool in {ended.pool for ended in lapsed if ended.key.token in settled}:
            self._hints.publish(pool_topic(pool))
        buried = [verdict.key for verdict in verdicts if settled.get(verdict.key.token) is RunState.DEAD]
        await pause_failing(self._database, buried, now=now)
        await let_in(self._database, self._clock, self._hints, written.settled.awaited)

    def _leave_out(self, held: Sequence[LeaseKey]) -> None:
        """Set jobs aside whose runs could not wait again: somebody edits them, or has their leases this moment."""
        for uid in {key.job_uid for key in held}:
            news = self.aside.put(
                uid, JOB_HELD, first=HELD_FIRST, longest=HELD_LONGEST, monotonic=self._clock.monotonic()
            )
            if news:
                log.warning("leases.set_aside", job_uid=uid, reason=JOB_HELD)

    async def _set_apart(
        self, verdict: Verdict, error: Exception, settled: dict[UUID, RunState], *, now: datetime
    ) -> list[Verdict]:
        """Bury a run whose future cannot be written; where not even that can, hold its lease, with the reason on it."""
        why = f"its end cannot be written: {error!r}"
        burial = set_apart(verdict.key, verdict.outcome, verdict.error, why, now=now)
        written = await settling.write(self._database, [burial], now=now, expired_by=now)
        settled |= written.settled.states
        if written.refused:
            await claims.hold(self._database, verdict.key, reason=burial.reason or why, now=now, until=now + HOLD_TIME)
            return []
        return [burial]

    def _note_outage(self, now: datetime) -> None:
        if not self._failing or self._answered_at is None:
            return
        if self._clock.monotonic() - self._answered_at >= OUTAGE + INTERVAL:
            self._hold_back(now)

    def _note_stall(self, seconds: float) -> None:
        """Take note of how long the answer took. What it says lapsed before the question, and so before the stall."""
        is_late = seconds >= OUTAGE + INTERVAL
        if is_late:
            # One late answer after another only stops the time that must pass: where all are late, somebody is reaped.
            self._hold_back(self._resumed_at + timedelta(seconds=seconds) if self._was_late else self._clock.now())
        self._was_late = is_late

    def _hold_back(self, since: datetime, **facts: object) -> None:
        self._resumed_at = max(self._resumed_at, since)
        log.warning("reaper.holds_back", since=since.isoformat(), **facts)
