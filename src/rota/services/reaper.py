"""Looks after leases whose holders are gone: requeues their runs, or buries them."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog

from rota.clock import Clock
from rota.domain.attempt import after_attempt
from rota.domain.run import RunState
from rota.errors import DatabaseUnavailable
from rota.services.failing import pause_failing
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

LEASE_EXPIRED: Final = "lease expired: the worker was lost, or stalled for longer than its lease"

log = structlog.get_logger()


class Reaper:
    """One scheduler's eye on the leases of its shards.

    After an outage nobody is reaped until one lease's time has passed: the workers could not renew meanwhile. A
    database that answers, but as late as an outage is long, was away for them as well.
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

    async def tick(self) -> bool:
        """Settle one batch of lapsed leases. True means: there may be more, tick again."""
        now = self._clock.now()
        shards = self._owned.shards(now=now)
        if not shards:
            # Nobody was asked, so nothing is known of the database: an outage that costs the shards goes on.
            return False
        try:
            more = await self._reap(shards, now=now)
        except DatabaseUnavailable:
            self._failing = True
            raise
        self._failing = False
        self._answered_at = self._clock.monotonic()
        return more

    async def pause(self) -> float:
        """Look once a second."""
        return INTERVAL

    async def _reap(self, shards: Sequence[int], *, now: datetime) -> bool:
        self._note_outage(now)
        asked_at = self._clock.monotonic()
        lapsed = await claims.expired(
            self._database, shards, now=now, resumed_at=self._resumed_at, limit=REAP_BATCH, error=LEASE_EXPIRED
        )
        self._note_stall(self._clock.monotonic() - asked_at)
        if not lapsed:
            return False
        verdicts = [after_attempt(ended, now=now) for ended in lapsed]
        done = await claims.settle(self._database, verdicts, now=now, expired_by=now)
        settled = done.states
        for verdict in verdicts:
            state = settled.get(verdict.key.token)
            if state is not None:
                log.warning("lease.reaped", run_id=str(verdict.key.run_id), state=state, attempt=verdict.charged)
        for pool in {ended.pool for ended in lapsed if ended.key.token in settled}:
            self._hints.publish(pool_topic(pool))
        await let_in(self._database, self._clock, self._hints, done.awaited)
        buried = [verdict.key for verdict in verdicts if settled.get(verdict.key.token) is RunState.DEAD]
        await pause_failing(self._database, buried, now=now)
        # What was renewed in between is no longer lapsed, and what is locked is not found: full batches make progress.
        return len(lapsed) == REAP_BATCH

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

    def _hold_back(self, since: datetime) -> None:
        self._resumed_at = since
        log.warning("reaper.holds_back", since=since.isoformat())
