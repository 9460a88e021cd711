"""Housekeeping that nobody waits for: partitions made ahead, the handler gate, rows that nobody asks for any more."""

from datetime import timedelta
from typing import Final

import structlog

from rota.clock import Clock, StepWatch
from rota.services.hints import Hints, pool_topic
from rota.store import claims, partitions, runs, workers
from rota.store.database import Database

INTERVAL: Final = 1.0
GATE_BATCH: Final = 1000
ANNOUNCED_WITHIN: Final = 20.0
"""Seconds in which every live worker has announced itself by a clock that has jumped ahead."""
PARTITION_INTERVAL: Final = 3600.0
FORGET_AFTER: Final = timedelta(hours=1)
KEEP_CLAIMS: Final = timedelta(hours=1)
"""How long a claim can be asked for again."""
KEEP_KEYS: Final = timedelta(hours=24)
"""How long a request with an Idempotency-Key can be repeated."""
FORGET_INTERVAL: Final = 10.0
FORGET_BATCH: Final = 2000
"""Seconds between two looks at claims and keys, and the most rows of each that go at once."""

log = structlog.get_logger()


class Upkeep:
    """Runs beside every scheduler; each step is safe to do twice and by many."""

    def __init__(self, database: Database, clock: Clock, hints: Hints) -> None:
        self._database = database
        self._clock = clock
        self._hints = hints
        self._others = StepWatch(clock, patience=ANNOUNCED_WITHIN)
        self._partitions_at = float("-inf")
        self._forgot_at = float("-inf")
        self._parked_upto = workers.FIRST_QUEUE

    async def tick(self) -> bool:
        """Open and shut handler gates; now and then forget old rows; once an hour look after partitions."""
        fair_now = self._others.fair_now()
        opened = await workers.unpark_known(self._database, now=fair_now, limit=GATE_BATCH)
        parked, self._parked_upto = await workers.park_unknown(
            self._database, now=fair_now, limit=GATE_BATCH, after=self._parked_upto
        )
        for pool in set(opened):
            self._hints.publish(pool_topic(pool))
        for handler in set(parked):
            log.warning("handler.unknown", handler=handler, runs=parked.count(handler))
        if self._clock.monotonic() - self._partitions_at >= PARTITION_INTERVAL:
            await self._hourly()
            self._partitions_at = self._clock.monotonic()
        forgot_all = await self._forget()
        return not forgot_all or len(opened) >= GATE_BATCH or len(parked) >= GATE_BATCH

    async def pause(self) -> float:
        """Look once a second."""
        return INTERVAL

    async def _forget(self) -> bool:
        """Forget a batch of old claims and keys; False when there may be more."""
        if self._clock.monotonic() - self._forgot_at < FORGET_INTERVAL:
            return True
        now = self._clock.now()
        gone = (
            await claims.forget_claims(self._database, before=now - KEEP_CLAIMS, limit=FORGET_BATCH),
            await runs.forget_keys(self._database, before=now - KEEP_KEYS, limit=FORGET_BATCH),
        )
        if max(gone) >= FORGET_BATCH:
            return False
        self._forgot_at = self._clock.monotonic()
        return True

    async def _hourly(self) -> None:
        now = self._clock.now()
        made = await partitions.ensure_months(self._database, partitions.months_ahead(now))
        gone = await workers.forget_lapsed(self._database, before=now - FORGET_AFTER)
        if made or gone:
            log.info("upkeep.done", partitions_made=made, rows_forgotten=gone)
