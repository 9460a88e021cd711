"""Housekeeping that nobody waits for: partitions made ahead, the handler gate, rows that nobody asks for any more."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import structlog

from rota.clock import Clock, StepWatch
from rota.services.aside import Noticeboard
from rota.services.hints import Hints, pool_topic
from rota.store import aside, claims, partitions, runs, workers
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

RETRY_FIRST: Final = 5.0
RETRY_LONGEST: Final = 300.0
"""Seconds after which a task that failed is tried again: twice as many each time."""

log = structlog.get_logger()


class Upkeep:
    """Runs beside every scheduler; each step is safe to do twice and by many.

    Each task has a time of its own: one that fails is tried again later, each time twice as late, and costs the others
    nothing.
    """

    def __init__(
        self, database: Database, clock: Clock, hints: Hints, *, noticeboard: Noticeboard | None = None
    ) -> None:
        self._database = database
        self._clock = clock
        self._hints = hints
        self._others = StepWatch(clock, patience=ANNOUNCED_WITHIN)
        self._fair_now = clock.now()
        self._parked_upto = workers.FIRST_QUEUE
        self._tasks = (
            _Task("unpark", self._unpark, every=0.0),
            _Task("park", self._park, every=0.0),
            _Task("partitions", self._make_partitions, every=PARTITION_INTERVAL),
            _Task("workers", self._forget_workers, every=PARTITION_INTERVAL),
            _Task("claims", self._forget_claims, every=FORGET_INTERVAL),
            _Task("keys", self._forget_keys, every=FORGET_INTERVAL),
            _Task("notices", self._forget_notices, every=PARTITION_INTERVAL),
            *([_Task("noticeboard", noticeboard.update, every=0.0, is_proof=False)] if noticeboard is not None else []),
        )

    async def tick(self) -> bool:
        """Do what is due: open and shut handler gates; now and then forget old rows; once an hour make partitions.

        Raises the first trouble when nothing that was due could be done.
        """
        self._fair_now = self._others.fair_now()
        more, done, troubles = False, 0, list[Exception]()
        for task in self._tasks:
            if not task.is_due(monotonic=self._clock.monotonic()):
                continue
            try:
                has_more = await task.do()
            except Exception as error:
                troubles.append(error)
                wait = task.failed(monotonic=self._clock.monotonic())
                log.warning("upkeep.failed", task=task.name, failures=task.failures, again_in=wait, error=repr(error))
            else:
                done += task.is_proof
                more |= has_more
                task.succeeded(has_more=has_more, monotonic=self._clock.monotonic())
        if troubles and not done:
            raise troubles[0]
        return more

    async def pause(self) -> float:
        """Look once a second."""
        return INTERVAL

    async def _unpark(self) -> bool:
        opened = await workers.unpark_known(self._database, now=self._fair_now, limit=GATE_BATCH)
        for pool in set(opened):
            self._hints.publish(pool_topic(pool))
        return len(opened) >= GATE_BATCH

    async def _park(self) -> bool:
        parked, self._parked_upto = await workers.park_unknown(
            self._database, now=self._fair_now, limit=GATE_BATCH, after=self._parked_upto
        )
        for handler in set(parked):
            log.warning("handler.unknown", handler=handler, runs=parked.count(handler))
        return len(parked) >= GATE_BATCH

    async def _make_partitions(self) -> bool:
        made = await partitions.ensure_months(self._database, partitions.months_ahead(self._clock.now()))
        if made:
            log.info("upkeep.partitions", made=made)
        return False

    async def _forget_workers(self) -> bool:
        before = self._clock.now() - FORGET_AFTER
        gone = await workers.forget_lapsed(self._database, before=before, limit=FORGET_BATCH)
        if gone:
            log.info("upkeep.workers", forgotten=gone)
        return gone >= FORGET_BATCH

    async def _forget_claims(self) -> bool:
        before = self._clock.now() - KEEP_CLAIMS
        return await claims.forget_claims(self._database, before=before, limit=FORGET_BATCH) >= FORGET_BATCH

    async def _forget_notices(self) -> bool:
        return await aside.forget_untrue(self._database, limit=FORGET_BATCH) >= FORGET_BATCH

    async def _forget_keys(self) -> bool:
        before = self._clock.now() - KEEP_KEYS
        return await runs.forget_keys(self._database, before=before, limit=FORGET_BATCH) >= FORGET_BATCH


@dataclass(slots=True)
class _Task:
    """One piece of upkeep and when it is due; `do` returns whether there may be more of it at once.

    Its success is proof that the database answers, unless it asks only where there is news.
    """

    name: str
    do: Callable[[], Awaitable[bool]]
    every: float
    is_proof: bool = True
    due_at: float = float("-inf")
    failures: int = 0

    def is_due(self, *, monotonic: float) -> bool:
        return self.due_at <= monotonic

    def succeeded(self, *, has_more: bool, monotonic: float) -> None:
        self.failures = 0
        self.due_at = monotonic if has_more else monotonic + self.every

    def failed(self, *, monotonic: float) -> float:
        """Put the task off; returns for how many seconds."""
        self.failures += 1
        wait = min(RETRY_LONGEST, RETRY_FIRST * 2.0 ** min(self.failures - 1, 10))
        self.due_at = monotonic + wait
        return wait
