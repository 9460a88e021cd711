"""The timer: finds due slots in its shards, applies the misfire policy, and makes one run per slot. Tickless."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

import structlog

from rota.clock import Clock
from rota.domain import misfire as domain
from rota.domain.ids import run_id
from rota.domain.zones import UnknownZone, tzdata_version
from rota.errors import InvalidInput, Locked
from rota.services.aside import Aside
from rota.services.hints import CANCELS, Hints, pool_topic
from rota.services.next_slots import recompute_page
from rota.services.owned import OwnedShards
from rota.services.steps import admitted, new_run
from rota.store import due as store
from rota.store import freeze
from rota.store.database import Database
from rota.store.due import Advance, DueSchedule
from rota.store.partitions import through_attach

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

HELD_FIRST: Final = 0.1
HELD_LONGEST: Final = 1.0
"""Seconds for which a job is set aside whose rows somebody's open transaction holds: twice as long each time."""
TROUBLE_FIRST: Final = 1.0
TROUBLE_LONGEST: Final = 60.0
"""The same for one whose turn failed by something that may pass: a file, memory, an error of this program."""
REFUSALS: Final = 64
"""The most refusals that one look for the guilty rows of a batch takes; what is unknown by then waits for another."""
EACH: Final = 20
"""When at least so many rows are all refused, none is the guilty one: the trouble is the database's."""

_MILLISECOND: Final = timedelta(milliseconds=1)

T = TypeVar("T")
JobKey = tuple[int, int]

log = structlog.get_logger()


class Scheduler:
    """One scheduler's due loop over the shards it owns.

    Whatever is wrong with one job costs the others nothing. A job whose own rule cannot be computed, or whose rows the
    database refuses, is quarantined with the reason; one that somebody's open transaction holds, or whose turn failed
    by something that may pass, is set aside in memory and tried again.
    """

    def __init__(
        self, database: Database, clock: Clock, owned: OwnedShards, hints: Hints, *, scheduler_id: str
    ) -> None:
        self.scheduler_id = scheduler_id
        self._database = database
        self._clock = clock
        self._owned = owned
        self._hints = hints
        self._latest = datetime.min.replace(tzinfo=UTC)
        self._doubtful: dict[int, _Doubt] = {}
        self._moved_meanwhile = False
        self._floor = _Floor()
        self.aside = Aside()
        self.runs_aside = Aside()

    async def tick(self) -> bool:
        """Make the runs of one batch of due slots, open gates whose time has come, and end runs that became useless.

        Each of the three has its turn, whatever becomes of the others; what was wrong is raised at the end.
        """
        now = self._clock.now()
        epochs = self._owned.epochs(now=now)
        if not epochs:
            return False
        shards = sorted(epochs)
        turns = _Turns()
        recomputing = await turns.take(self._recompute_after_step(shards, now=now))
        monotonic = self._clock.monotonic()
        if self.aside.has_back(monotonic=monotonic) or self.runs_aside.has_back(monotonic=monotonic):
            self._floor.drop()
        # Everything up to here is made or seen when this tick ends well; until then the next one starts from below.
        floor = self._floor.take(shards, monotonic=monotonic)
        scan = _Scan(shards=shards, now=now, per_shard=max(1, SCAN_BATCH // len(shards)), floor=floor)
        made = await turns.take(self._make_due(scan))
        opened = await turns.take(self._open_gates(scan))
        ended = await turns.take(self._expire(scan))
        self.runs_aside.forget_back(monotonic=monotonic)
        if turns.trouble is not None:
            raise turns.trouble
        more = bool(made or opened or ended)
        if not more and not self._moved_meanwhile:
            self._floor.rise(now)
        return more or bool(recomputing)

    async def pause(self) -> float:
        """Return the seconds until the next slot, gate or start deadline of ours, at most IDLE."""
        now, monotonic = self._clock.now(), self._clock.monotonic()
        shards = self._owned.shards(now=now)
        at = await store.next_due(
            self._database, shards, floor=self._floor.now, aside=self.aside.out(monotonic=monotonic),
            runs_aside=self.runs_aside.out(monotonic=monotonic),
        ) if shards else None  # fmt: skip
        due = [] if at is None else [(at - self._clock.now()).total_seconds()]
        back = [aside.next_at(monotonic=monotonic) for aside in (self.aside, self.runs_aside)]
        waits = due + [until - monotonic for until in back if until is not None]
        # A millisecond on top: the event loop's timers are coarser than the clock, and an early look finds nothing.
        return min([IDLE, *(max(0.001, wait + 0.001) for wait in waits)])

    async def _recompute_after_step(self, shards: Sequence[int], *, now: datetime) -> bool:
        """Take a page of one shard's schedules back to this instant, if the clock was set back since their computation.

        True means: more are to be taken back at once.
        """
        if self._latest - now > SET_BACK:
            log.warning("clock.set_back", scheduler=self.scheduler_id, by=str(self._latest - now))
            self._doubtful = {shard: _Doubt() for shard in shards}
            self._latest = now
            self._floor.drop()
        self._latest = max(self._latest, now)
        self._doubtful = {shard: doubt for shard, doubt in self._doubtful.items() if shard in shards}
        monotonic = self._clock.monotonic()
        ready = sorted(shard for shard, doubt in self._doubtful.items() if doubt.until <= monotonic)
        if not ready:
            return False
        shard, *others = ready
        before = self._doubtful[shard]
        # What cannot be computed for now is tried again a little later, from the shard's beginning.
        self._doubtful[shard] = _Doubt(until=monotonic + TROUBLE_FIRST)
        page = await recompute_page(self._database, shard, after=before.after, now=now)
        left = before.left + page.left
        if page.after is not None:
            self._doubtful[shard] = _Doubt(after=page.after, left=left)
        elif not left:
            del self._doubtful[shard]
        return bool(others) or page.after is not None

    # due slots --------------------------------------------------------------------------------------------------------

    async def _make_due(self, scan: "_Scan") -> bool:
        """Make the runs of one batch of due slots; True when there may be more."""
        monotonic = self._clock.monotonic()
        due = await store.due_schedules(
            self._database, scan.shards, now=scan.now, per_shard=scan.per_shard, floor=scan.floor,
            aside=self.aside.out(monotonic=monotonic),
        )  # fmt: skip
        self._floor.found(job.due_at for job in due)
        self._moved_meanwhile = False
        await self._put_off([job for job in due if job.frozen])
        bounded = await self._make([job for job in due if not job.frozen], now=scan.now)
        # Those that are still in trouble were set aside anew; the others have had their turn.
        self.aside.forget_back(monotonic=monotonic)
        # A shard that filled its part of a scan may hold more.
        return bounded or _fullest(due) >= scan.per_shard

    async def _put_off(self, frozen: Sequence[DueSchedule]) -> None:
        """Put frozen schedules out of sight until their freeze ends; what somebody holds is looked at later."""
        if not frozen:
            return
        done = await freeze.defer(self._database, frozen)
        for job in frozen:
            if job.job_uid not in done:
                self._set_aside(job, "it is frozen, and its schedule is held by another transaction")
        log.info("schedules.frozen", scheduler=self.scheduler_id, schedules=len(done))

    async def _make(self, due: Sequence[DueSchedule], *, now: datetime) -> bool:
        """Decide and write, slice by slice: what is decided is soon written, and nobody waits for a long decision.

        True means: a decision stopped at its bound with slots still due.
        """
        live = await store.live_among(self._database, [job for job in due if job.overlap == "skip"], now=now)
        steps = _Steps(now)
        refused: list[tuple[DueSchedule, InvalidInput]] = []
        bounded = False
        batch: list[Advance] = []
        runs, began = 0, self._clock.monotonic()
        # In the order of their keys, so that statements lock alike.
        for job in sorted(due, key=lambda job: (job.shard, job.job_uid)):
            try:
                step = steps.of(job, busy=(job.shard, job.job_uid) in live)
            except InvalidInput as error:
                refused.append((job, error))
                continue
            except Exception as error:
                # No word about the rule: a file that cannot be read just now, memory, an error of this program.
                self._set_aside(job, f"it cannot be computed for now: {error!r}")
                continue
            bounded |= step.next_slot is not None and step.next_slot <= now
            if batch and (runs + len(step.runs) > WRITE_BATCH or self._clock.monotonic() - began > DECIDE_SLICE):
                await self._write_whole(batch, now=now)
                batch, runs, began = [], 0, self._clock.monotonic()
            batch.append(step)
            runs += len(step.runs)
        if batch:
            await self._write_whole(batch, now=now)
        if refused:
            await self._refuse(refused, now=now)
        return bounded

    async def _write_whole(self, batch: Sequence[Advance], *, now: datetime) -> None:
        """Make a batch's runs in one statement, or, where one of them stands against it, those of the others."""
        batch = await self._without_held(batch, [step for step in batch if self.aside.knows(step.due.job_uid)])
        if not batch:
            return
        try:
            await self._write(batch, now=now)
        except Locked:
            await self._write_apart(await self._without_held(batch, batch), now=now)
        except store.RowRefused:
            await self._write_apart(batch, now=now)

    async def _without_held(self, batch: Sequence[Advance], suspects: Sequence[Advance]) -> list[Advance]:
        """Return the batch without those suspects that somebody holds; they are set aside."""
        held = await store.held_slots(self._database, suspects) if suspects else frozenset()
        for step in suspects:
            if step.due.job_uid in held:
                self._hold_back(step.due)
        return [step for step in batch if step.due.job_uid not in held]

    async def _write_apart(self, batch: Sequence[Advance], *, now: datetime) -> None:
        """Write a batch in parts that are halved until what stands against it is alone."""
        parts, refused, refusals = [batch] if batch else [], list[tuple[DueSchedule, str]](), 0
        while parts:
            part = parts.pop()
            if refusals >= REFUSALS:
                for step in part:
                    self._hold_back(step.due)
                continue
            try:
                await self._write(part, now=now)
            except (Locked, store.RowRefused) as error:
                refusals += 1
                if len(part) > 1:
                    half = len(part) // 2
                    parts += [part[half:], part[:half]]
                elif isinstance(error, Locked):
                    self._hold_back(part[0].due)
                else:
                    refused.append((part[0].due, f"its slot cannot be written: {error}"))
        if EACH <= len(refused) == len(batch):
            for job, reason in refused:
                self._set_aside(job, reason)
        elif refused:
            await self._quarantine(refused)

    async def _write(self, batch: Sequence[Advance], *, now: datetime) -> None:
        """Make a batch's runs. Raises Locked, RowRefused: nothing of it is written then."""
        epochs = self._owned.epochs(now=self._clock.now())
        result = await through_attach(
            lambda: store.materialise(self._database, batch, owner=self.scheduler_id, epochs=epochs, now=now)
        )
        if result.advanced < len(batch):
            log.info("schedules.moved_meanwhile", scheduler=self.scheduler_id, lost=len(batch) - result.advanced)
            self._moved_meanwhile = True
        if result.superseded:
            log.info("runs.superseded", scheduler=self.scheduler_id, runs=result.superseded)
        if replaced := result.replaced + await store.ask_replaced(self._database, batch, now=now):
            log.info("runs.replaced", scheduler=self.scheduler_id, runs=replaced)
            self._hints.publish(CANCELS)
        if result.made:
            for pool in {step.due.pool for step in batch if step.runs}:
                self._hints.publish(pool_topic(pool))

    async def _refuse(self, refused: Sequence[tuple[DueSchedule, InvalidInput]], *, now: datetime) -> None:
        """Quarantine jobs whose rules cannot be computed, unless it is this host that does not know their zones."""
        behind = any(isinstance(error, UnknownZone) for _, error in refused) and await self._is_behind(now=now)
        guilty: list[tuple[DueSchedule, str]] = []
        for job, error in refused:
            if behind and isinstance(error, UnknownZone):
                self._set_aside(job, f"another host has newer tz data than this one: {error}")
            else:
                guilty.append((job, f"the schedule cannot be computed: {error}"))
        if guilty:
            await self._quarantine(guilty)

    async def _is_behind(self, *, now: datetime) -> bool:
        newest = await store.newest_tzdata(self._database, now=now)
        return newest is not None and newest > tzdata_version()

    async def _quarantine(self, guilty: Sequence[tuple[DueSchedule, str]]) -> None:
        try:
            done = await store.quarantine(self._database, guilty)
        except store.RowRefused as error:
            if len(guilty) > 1:
                for one in guilty:
                    await self._quarantine([one])
                return
            [(job, reason)] = guilty
            self._set_aside(job, f"{reason}; and it cannot be quarantined: {error}")
            return
        for job, reason in guilty:
            if job.job_uid in done:
                log.error("job.quarantined", job_id=done[job.job_uid], reason=reason)
            else:
                self._hold_back(job)

    def _hold_back(self, job: DueSchedule) -> None:
        """Set a job aside whose rows somebody holds."""
        reason = "an open transaction holds its slot, its schedule or the job itself"
        self._put_aside(job, reason, first=HELD_FIRST, longest=HELD_LONGEST)

    def _set_aside(self, job: DueSchedule, reason: str) -> None:
        """Set a job aside whose turn failed by something that may pass."""
        self._put_aside(job, reason, first=TROUBLE_FIRST, longest=TROUBLE_LONGEST)

    def _put_aside(self, job: DueSchedule, reason: str, *, first: float, longest: float) -> None:
        monotonic = self._clock.monotonic()
        if self.aside.put(job.job_uid, reason, first=first, longest=longest, monotonic=monotonic):
            log.warning(
                "job.set_aside", job_uid=job.job_uid, tenant_id=job.tenant_id, slot=str(job.slot), reason=reason
            )

    # gates and start deadlines ----------------------------------------------------------------------------------------

    async def _open_gates(self, scan: "_Scan") -> bool:
        """Let runs through whose time has come; True when there may be more."""
        opened, full = await self._over_runs(scan, store.open_due_gates, store.due_gates)
        for pool in set(opened):
            self._hints.publish(pool_topic(pool))
        return full

    async def _expire(self, scan: "_Scan") -> bool:
        """End runs whose start deadline passed; True when there may be more."""
        expired, full = await self._over_runs(scan, store.expire_runs, store.late_runs)
        for run in expired:
            log.info("run.expired", run_id=str(run_id(run.job_uid, run.scheduled_for)), reason=run.reason)
        return full

    async def _over_runs(
        self, scan: "_Scan", write: Callable[..., Awaitable[list[T]]], look: Callable[..., Awaitable[list[JobKey]]]
    ) -> tuple[list[T], bool]:
        """Do a statement over waiting runs; where one of them stands against it, job by job, as `look` finds them.

        Returns what was done, and whether there may be more.
        """
        monotonic = self._clock.monotonic()
        span: dict[str, Any] = {"now": scan.now, "per_shard": scan.per_shard, "floor": scan.floor}
        aside = self.runs_aside.out(monotonic=monotonic)
        try:
            done = await write(self._database, scan.shards, aside=aside, only=None, **span)
            return done, len(done) >= scan.per_shard
        except (Locked, store.RowRefused):
            found = await look(self._database, scan.shards, aside=aside, **span)
        done = list[T]()
        for shard, uid in found:
            try:
                done += await write(self._database, [shard], aside=(), only=uid, **span)
            except (Locked, store.RowRefused) as error:
                if isinstance(error, Locked):
                    reason, first, longest = "an open transaction holds its runs", HELD_FIRST, HELD_LONGEST
                else:
                    reason, first, longest = f"the database refuses it: {error}", TROUBLE_FIRST, TROUBLE_LONGEST
                if self.runs_aside.put(uid, reason, first=first, longest=longest, monotonic=monotonic):
                    log.warning("runs.set_aside", job_uid=uid, reason=reason)
        return done, bool(done)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Doubt:
    """A shard whose next slots were computed by another time: from when on, and from where, it is computed anew."""

    until: float = float("-inf")
    after: int | None = None
    left: int = 0
    """How many of the pages before could not be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scan:
    """What one tick looks at."""

    shards: list[int]
    now: datetime
    per_shard: int
    floor: datetime


@dataclass(slots=True)
class _Turns:
    """The parts of one tick: one that fails takes nobody's turn. The first trouble is kept."""

    trouble: Exception | None = None

    async def take(self, part: Awaitable[T]) -> T | None:
        try:
            return await part
        except Exception as error:
            self.trouble = self.trouble or error
            return None


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


class _Steps:
    """The steps of schedules that are due at one instant. What a herd has in common is decided once."""

    def __init__(self, now: datetime) -> None:
        self._now = now
        self._decided: dict[tuple[Any, ...], domain.Due] = {}
        self._steps: dict[tuple[Any, ...], Advance] = {}

    def of(self, job: DueSchedule, *, busy: bool) -> Advance:
        """Return one schedule's step. Raises InvalidInput, and what reading a zone does."""
        rule = (job.schedule, job.misfire, job.slot, job.grace_ms)
        alike = (rule, job.overlap, job.start_deadline_ms, busy)
        like = self._steps.get(alike)
        if like is not None and not job.jitter_ms:
            return Advance(due=job, runs=like.runs, skipped=like.skipped, next_slot=like.next_slot)
        if rule not in self._decided:
            self._decided[rule] = _decide_rule(job, now=self._now)
        step = _advance(job, self._decided[rule], now=self._now, busy=busy)
        if not job.jitter_ms:
            self._steps[alike] = step
        return step


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
