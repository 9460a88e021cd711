"""The timer: finds due slots in its shards, applies the misfire policy, and makes one run per slot. Tickless."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog

from rota.clock import Clock
from rota.domain import misfire as domain
from rota.domain.ids import run_id
from rota.services.hints import CANCELS, Hints, pool_topic
from rota.services.next_slots import recompute_shard
from rota.services.owned import OwnedShards
from rota.services.steps import admitted, new_run
from rota.store import due as store
from rota.store.database import Database
from rota.store.due import Advance, DueSchedule
from rota.store.partitions import with_partitions

SCAN_BATCH: Final = 512
"""About how many due schedules one tick reads; every shard gets an equal part of it."""
WRITE_BATCH: Final = 1000
"""The most runs that one statement makes, unless a single schedule's catch-up alone makes more."""
DECIDE_SLICE: Final = 0.05
"""Seconds of deciding after which what is decided is written: the shard keeper and the others get their turn."""
FULL_SCAN_INTERVAL: Final = 1.0
"""Seconds after which a tick looks below its floor again: a resumed job's slot, or a late commit, lies there."""
SET_BACK: Final = timedelta(seconds=5)
"""A clock that reads this much less than before was set back: slots computed by the later time are computed anew."""
IDLE: Final = 1.0
"""Seconds after which a scheduler looks again even when nothing is known to come due."""

_MILLISECOND: Final = timedelta(milliseconds=1)

log = structlog.get_logger()


class Scheduler:
    """One scheduler's due loop over the shards it owns."""

    def __init__(
        self, database: Database, clock: Clock, owned: OwnedShards, hints: Hints, *, scheduler_id: str
    ) -> None:
        self.scheduler_id = scheduler_id
        self._database = database
        self._clock = clock
        self._owned = owned
        self._hints = hints
        self._latest = datetime.min.replace(tzinfo=UTC)
        self._doubtful: set[int] = set()
        self._floor = _Floor()

    async def tick(self) -> bool:
        """Make the runs of one batch of due slots, open gates whose time has come, and end runs that became useless."""
        now = self._clock.now()
        epochs = self._owned.epochs(now=now)
        if not epochs:
            return False
        shards = sorted(epochs)
        await self._recompute_after_step(shards, now=now)
        # Everything up to here is made or seen when this tick ends well; until then the next one starts from below.
        floor = self._floor.take(shards, monotonic=self._clock.monotonic())
        part = max(1, SCAN_BATCH // len(shards))
        due = await store.due_schedules(self._database, shards, now=now, per_shard=part, floor=floor)
        self._floor.found(job.due_at for job in due)
        made = await self._make(due, now=now)
        opened = await store.open_due_gates(self._database, shards, now=now, per_shard=part, floor=floor)
        for pool in set(opened):
            self._hints.publish(pool_topic(pool))
        expired = await store.expire_runs(self._database, shards, now=now, per_shard=part, floor=floor)
        for run in expired:
            log.info("run.expired", run_id=str(run_id(run.job_uid, run.scheduled_for)), reason=run.reason)
        # A shard that filled its part of a scan may hold more.
        more = made.bounded or max(_fullest(due), len(opened), len(expired)) >= part
        if made.whole and not more:
            self._floor.rise(now)
        return more or bool(self._doubtful)

    async def pause(self) -> float:
        """Return the seconds until the next slot, gate or start deadline of ours, at most IDLE."""
        now = self._clock.now()
        shards = self._owned.shards(now=now)
        at = await store.next_due(self._database, shards, floor=self._floor.now) if shards else None
        if at is None:
            return IDLE
        # A millisecond on top: the event loop's timers are coarser than the clock, and an early look finds nothing.
        return min(IDLE, max(0.001, (at - self._clock.now()).total_seconds() + 0.001))

    async def _recompute_after_step(self, shards: Sequence[int], *, now: datetime) -> None:
        """Take one shard's schedules back to this instant, if the clock was set back since they were computed."""
        if self._latest - now > SET_BACK:
            log.warning("clock.set_back", scheduler=self.scheduler_id, by=str(self._latest - now))
            self._doubtful = set(shards)
            self._latest = now
            self._floor.drop()
        self._latest = max(self._latest, now)
        self._doubtful &= set(shards)
        if self._doubtful:
            shard = min(self._doubtful)
            await recompute_shard(self._database, shard, now=now)
            self._doubtful.discard(shard)

    async def _make(self, due: Sequence[DueSchedule], *, now: datetime) -> "_Made":
        """Decide and write, slice by slice: what is decided is soon written, and nobody waits for a long decision."""
        live = await store.live_among(self._database, [job for job in due if job.overlap == "skip"])
        decided: dict[tuple[str | None, str, datetime, int], domain.Due] = {}
        refused: list[tuple[DueSchedule, str]] = []
        made = _Made()
        batch: list[Advance] = []
        runs, began = 0, self._clock.monotonic()
        # In the order of their keys, so that statements lock alike.
        for job in sorted(due, key=lambda job: (job.shard, job.job_uid)):
            rule = (job.schedule, job.misfire, job.slot, job.grace_ms)
            try:
                if rule not in decided:
                    decided[rule] = _decide_rule(job, now=now)
            except Exception as error:
                # Whatever one job's rule does to this program, the others go on.
                refused.append((job, f"the schedule cannot be computed: {error}"))
                continue
            step = _advance(job, decided[rule], now=now, busy=(job.shard, job.job_uid) in live)
            made.bounded |= step.next_slot is not None and step.next_slot <= now
            if batch and (runs + len(step.runs) > WRITE_BATCH or self._clock.monotonic() - began > DECIDE_SLICE):
                made.whole &= await self._write(batch, now=now)
                batch, runs, began = [], 0, self._clock.monotonic()
            batch.append(step)
            runs += len(step.runs)
        if batch:
            made.whole &= await self._write(batch, now=now)
        if refused:
            for job_id in await store.quarantine(self._database, refused):
                log.error("job.quarantined", job_id=job_id)
        return made

    async def _write(self, batch: Sequence[Advance], *, now: datetime) -> bool:
        """Make a batch's runs; False when some of its schedules were edited or advanced by others meanwhile."""
        epochs = self._owned.epochs(now=self._clock.now())
        slots = [run.scheduled_for for step in batch for run in step.runs]
        result = await with_partitions(
            self._database,
            slots,
            lambda: store.materialise(self._database, batch, owner=self.scheduler_id, epochs=epochs, now=now),
        )
        if result.advanced < len(batch):
            log.info("schedules.moved_meanwhile", scheduler=self.scheduler_id, lost=len(batch) - result.advanced)
        if result.superseded:
            log.info("runs.superseded", scheduler=self.scheduler_id, runs=result.superseded)
        if replaced := result.replaced + await store.ask_replaced(self._database, batch, now=now):
            log.info("runs.replaced", scheduler=self.scheduler_id, runs=replaced)
            self._hints.publish(CANCELS)
        if result.made:
            for pool in {step.due.pool for step in batch if step.runs}:
                self._hints.publish(pool_topic(pool))
        return result.advanced == len(batch)


@dataclass(slots=True)
class _Made:
    """How far a tick got: was every step written, and did a decision stop at its bound with slots still due?"""

    whole: bool = True
    bounded: bool = False


class _Floor:
    """From which instant on a scan looks: all that came due before was made, but for what comes in below it later."""

    def __init__(self) -> None:
        self.now = store.BOTTOM
        self._shards: list[int] = []
        self._looked_below_at = float("-inf")

    def take(self, shards: list[int], *, monotonic: float) -> datetime:
        """Return the floor of this scan: the bottom once in FULL_SCAN_INTERVAL, and for other shards than before."""
        if shards != self._shards:
            self._shards = shards
            self.drop()
        if monotonic - self._looked_below_at < FULL_SCAN_INTERVAL:
            return self.now
        # One look: the ticks that follow it start from the floor again, unless it found something.
        self._looked_below_at = monotonic
        return store.BOTTOM

    def found(self, due_ats: Iterable[datetime]) -> None:
        """Take note of what a scan found: something below the floor may not be alone there."""
        if any(due_at < self.now for due_at in due_ats):
            self.drop()

    def rise(self, now: datetime) -> None:
        """A scan up to `now` saw and made everything."""
        self.now = now

    def drop(self) -> None:
        """Look at everything at the next scan."""
        self.now = store.BOTTOM


def _decide_rule(job: DueSchedule, *, now: datetime) -> domain.Due:
    return domain.decide(
        store.parse_schedule(job.schedule or "null"),
        store.parse_misfire(job.misfire),
        slot=job.slot,
        now=now,
        grace=_MILLISECOND * job.grace_ms,
    )


def _advance(job: DueSchedule, decision: domain.Due, *, now: datetime, busy: bool) -> Advance:
    """Return the schedule's step: the decision, less what the overlap policy and the start deadline take away."""
    deadline = None if job.start_deadline_ms is None else _MILLISECOND * job.start_deadline_ms
    run, skipped = admitted(decision, overlap=job.overlap, start_deadline=deadline, busy=busy, now=now)
    jitter = _MILLISECOND * job.jitter_ms
    runs = [new_run(job.job_uid, slot, jitter=jitter, start_deadline=deadline, now=now) for slot in run]
    return Advance(due=job, runs=tuple(runs), skipped=tuple(skipped), next_slot=decision.next_slot)


def _fullest(due: Sequence[DueSchedule]) -> int:
    counts: dict[int, int] = {}
    for job in due:
        counts[job.shard] = counts.get(job.shard, 0) + 1
    return max(counts.values(), default=0)
