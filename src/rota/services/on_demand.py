"""What people ask of runs: one now or at a given slot, dead letters sent back, runs cancelled."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final
from uuid import UUID

import structlog

from rota.clock import Clock
from rota.domain.ids import run_id, slot_of
from rota.domain.instants import format_instant
from rota.domain.job import PRIORITIES, JobName, check_whole
from rota.domain.run import Gate, RunState
from rota.domain.run_filter import RunFilter
from rota.errors import CommitUnknown, Conflict, InvalidInput, NotFound, RunFinished, SlotTaken
from rota.services.hints import CANCELS, SCHEDULES, Hints, pool_topic
from rota.services.many_runs import AskedRun, ManyMade, ManyRuns
from rota.services.patience import Patience
from rota.services.quota import Quotas
from rota.services.run_request import Question, Requested, Wanted, answer, check_reach, unknown_job
from rota.services.shedding import Shedding
from rota.services.turns import TURN_WAIT, Turns
from rota.store import jobs, requests, runs
from rota.store.audit import SYSTEM
from rota.store.database import Database, Lane, repeat
from rota.store.partitions import through_attach
from rota.store.requests import KeyedRequest, Replay, ReplayedRun, SlotKey

REPLAY_BATCH: Final = 1000
REPLAY_LIMIT: Final = 10_000
"""The most dead letters that one call sends back."""
SLOWEST_RATE: Final = 0.001
"""The fewest runs a second at which dead letters are spaced."""
FASTEST_RATE: Final = 10_000.0
LOOKS: Final = 5
"""How often something that changes just then is looked at again."""

_EVER: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FOREVER: Final = datetime.max.replace(tzinfo=UTC)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """How many dead letters wait again, whether the limit left some out, and when the last of them may start."""

    replayed: int
    more: bool
    last_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """`state` is cancelled for a run that waited. A running one is `requested`: its worker is told at its renewal."""

    state: RunState
    requested: bool


class OnDemand:
    """Trigger, replay and cancel. Each change is in the audit log under its actor."""

    def __init__(self, database: Database, clock: Clock, hints: Hints) -> None:
        self._database = database.on(Lane.CALLS)
        self._wide = database.on(Lane.READS)
        self._clock = clock
        self._hints = hints
        self._quotas = Quotas(database, clock)
        self._turns = Turns(patience=TURN_WAIT)
        self._patience = Patience()
        self._shedding = Shedding(database, clock)
        self._many = ManyRuns(database, clock, hints, quotas=self._quotas, shedding=self._shedding)

    async def trigger(
        self, job_id: str, *, tenant_id: str, scheduled_for: datetime | None = None,
        payload: Mapping[str, Any] | None = None, actor: str = SYSTEM,
    ) -> UUID:  # fmt: skip
        """Make one run of a job and return its id; see `request`."""
        made = await self.request(
            job_id, tenant_id=tenant_id, scheduled_for=scheduled_for, payload=payload, actor=actor
        )  # fmt: skip
        return made.run_id

    async def request(
        self, job_id: str, *, tenant_id: str, scheduled_for: datetime | None = None,
        payload: Mapping[str, Any] | None = None, idempotency_key: str | None = None, actor: str = SYSTEM,
    ) -> Requested:  # fmt: skip
        """Make one run of a job, now or at a slot of the caller's within twenty years. A paused job can be triggered.

        A run at an instant that the schedule names *is* that slot: the scheduler finds it taken and goes on. The same
        request under the same key gives the same run, for a day at least and however many ask at once.

        Raises NotFound, InvalidInput, TooLarge, SlotTaken when the job has a run at this instant already, KeyReused for
        a key that stands for another request, and Shed while the job's pool is too deep with runs of this tenant.
        """
        question = Question.checked(
            tenant_id=tenant_id, job_id=job_id, scheduled_for=scheduled_for, payload=payload, key=idempotency_key
        )
        if payload is not None:
            await self._quotas.check_payload_quota(payload, tenant_id=tenant_id)
        now = self._clock.now()
        if question.slot is not None:
            check_reach(question.slot, now=now)
        stored = await jobs.find(self._database, JobName(tenant_id, job_id))
        if stored is None:
            # The job may be gone since; a request that is repeated still gets its answer.
            if question.keyed is not None and (before := await self._made_before(question.keyed)):
                return before
            raise unknown_job(job_id)
        if (job := stored.job) is None:
            raise NotFound(f"job {job_id!r} cannot be read: {stored.problem}", hint="put it again")
        if refusal := await self._shedding.refusal(job.pool, tenant_id=tenant_id):
            # What was made once is told again: it adds nothing to the pool.
            if question.keyed is not None and (before := await self._made_before(question.keyed)):
                return before
            raise refusal
        wanted = Wanted(
            question=question, job=job, job_uid=stored.job_uid, next_slot=stored.next_slot, actor=actor, now=now
        )
        keyed = question.keyed
        if keyed is not None:
            return await self._patience.ask(
                lambda: self._request_once(wanted, keyed), what=f"the Idempotency-Key {keyed.key!r}",
                turn=(tenant_id, keyed.key),
            )  # fmt: skip
        if question.slot is None:
            return await self._patience.ask(lambda: self._request_new(wanted), what=f"job {job_id!r}")
        return await self._patience.ask(
            lambda: self._request_new(wanted), what=f"the slot {format_instant(question.slot)} of job {job_id!r}",
            turn=(stored.job_uid, question.slot),
        )  # fmt: skip

    async def request_many(self, asked: Sequence[AskedRun], *, tenant_id: str, actor: str = SYSTEM) -> list[ManyMade]:
        """Make many runs, of one job or of several, in one transaction; see `ManyRuns.request`."""
        return await self._many.request(asked, tenant_id=tenant_id, actor=actor)

    async def _request_new(self, wanted: Wanted) -> Requested:
        """Make the run at the first slot that is free."""
        for slot in wanted.slots:
            if await self._make(wanted, slot):
                return Requested(run_id=wanted.run_id(slot), scheduled_for=slot, created=True)
        raise await self._refusal(wanted)

    async def _make(self, wanted: Wanted, slot: datetime) -> bool:
        """Make the run of a slot; False when it is taken, or the job is deleted meanwhile."""
        try:
            pool = await through_attach(lambda: wanted.make(self._database, slot))
        except CommitUnknown:
            # The slot tells: if the run stands there and was made at this very instant, it is ours.
            key = SlotKey(wanted.job_uid, slot)
            view = await repeat(lambda: runs.get(self._database, key), clock=self._clock)
            if view is None or view.created_at != wanted.now:
                raise
            pool = wanted.job.pool
        if pool is not None:
            self._tell(pool, later=wanted.waits(slot))
        return pool is not None

    async def _request_once(self, wanted: Wanted, keyed: KeyedRequest) -> Requested:
        """Make the run and its key in one transaction, or return the run for which the key stands."""
        for _ in range(LOOKS):
            try:
                slot = await through_attach(lambda: self._make_keyed(wanted, keyed))
            except CommitUnknown:
                # The key tells. If it is not there now, the caller asks again and finds out.
                found = await repeat(lambda: requests.find_key(self._database, keyed), clock=self._clock)
                if found is None:
                    raise
                return answer(found, keyed, created=found.created_at == wanted.now)
            except _NothingFree:
                raise await self._refusal(wanted) from None
            if slot is not None:
                self._tell(wanted.job.pool, later=wanted.waits(slot))
                return Requested(run_id=wanted.run_id(slot), scheduled_for=slot, created=True)
            if before := await self._made_before(keyed):
                return before
            # Forgotten between two looks: it is free now.
        raise Conflict("the Idempotency-Key is made and forgotten at once", hint="ask again")

    async def _make_keyed(self, wanted: Wanted, keyed: KeyedRequest) -> datetime | None:
        """Hold the key and make the run; returns its slot, or None when the key stands for a run already."""
        first, *_ = wanted.slots
        async with self._database.transaction() as tx:
            # The key comes first: whoever asks for the same waits here until this transaction has ended.
            if not await requests.hold_key(tx, keyed, run_id=wanted.run_id(first), now=wanted.now):
                return None
            for slot in wanted.slots:
                if await wanted.make(tx, slot) is not None:
                    if slot != first:
                        await requests.point_key(tx, keyed, run_id=wanted.run_id(slot))
                    return slot
            raise _NothingFree  # which takes the key back

    async def _made_before(self, keyed: KeyedRequest) -> Requested | None:
        found = await requests.find_key(self._database, keyed)
        return None if found is None else answer(found, keyed, created=False)

    async def _refusal(self, wanted: Wanted) -> NotFound | SlotTaken:
        """Return why no run was made: the job is gone meanwhile, or its slot is taken."""
        if await jobs.get(self._database, wanted.job_uid) is None:
            return unknown_job(wanted.job.job_id)
        slot = wanted.slots[0]
        return SlotTaken(
            f"job {wanted.job.job_id!r} has a run at {slot.isoformat()} already: {wanted.run_id(slot)}"
        )  # fmt: skip

    async def replay(
        self, run_ids: Sequence[UUID], *, tenant_id: str | None = None, actor: str = SYSTEM
    ) -> frozenset[UUID]:
        """Send dead letters back to the queue; returns those that were dead until now. Nothing is replayed twice.

        With a tenant, runs of others are no dead letters. The attempts that a run has had stay counted, so a replay is
        one more attempt: a run that fails again is buried again. Raises InvalidInput for an id that is not a run's.
        """
        now = self._clock.now()
        keys = dict.fromkeys(SlotKey(*slot_of(run)) for run in run_ids)
        letters = [Replay(key=key, available_at=now) for key in keys]
        back = await self._replay(letters, tenant_id=tenant_id, actor=actor, now=now)
        return frozenset(run_id(run.key.job_uid, run.key.scheduled_for) for run in back)

    async def replay_matching(
        self, where: RunFilter, *, tenant_id: str, rate: float | None = None, limit: int = 1000, actor: str = SYSTEM
    ) -> Replayed:
        """Send back the dead letters that a filter means, the longest dead first, at most `limit`.

        With a `rate` they may start that many a second, the first one now. Letters of deleted jobs stay where they are.
        Raises InvalidInput.
        """
        if where.state not in ("", RunState.DEAD):
            raise InvalidInput("state", f"runs that are {where.state} are not sent back", hint="leave it out")
        check_whole("limit", limit, 1, REPLAY_LIMIT)
        pace = timedelta(0) if rate is None else _pace(rate)
        async with self._turns.of(tenant_id):
            found = await requests.matching_dead(
                self._wide, where, tenant_id=tenant_id, since=where.since or _EVER, until=where.until or _FOREVER,
                limit=limit + 1,
            )  # fmt: skip
        now = self._clock.now()
        letters = [Replay(key=key, available_at=now + pace * turn) for turn, key in enumerate(found[:limit])]
        back = await self._replay(letters, tenant_id=tenant_id, actor=actor, now=now)
        last_at = max((run.available_at for run in back), default=None)
        return Replayed(replayed=len(back), more=len(found) > limit, last_at=last_at)

    async def _replay(
        self, letters: Sequence[Replay], *, tenant_id: str | None, actor: str, now: datetime
    ) -> list[ReplayedRun]:
        back: list[ReplayedRun] = []
        for start in range(0, len(letters), REPLAY_BATCH):
            batch = letters[start : start + REPLAY_BATCH]
            back += await self._patience.ask(
                partial(requests.replay, self._database, batch, tenant_id=tenant_id, actor=actor, now=now),
                what="one of these dead letters, or its job,",
            )  # fmt: skip
        for pool, later in {(run.pool, run.gate == Gate.TIME) for run in back}:
            self._tell(pool, later=later)
        log.info("dead.replayed", asked=len(letters), replayed=len(back), actor=actor)
        return back

    async def cancel(self, run_id: UUID, *, tenant_id: str | None = None, actor: str = SYSTEM) -> Cancelled:
        """Cancel a run that waits, at once; ask the worker of one that runs to stop. To ask again changes nothing.

        Raises NotFound, for another tenant's run too, RunFinished, and InvalidInput for an id that is not a run's.
        """
        return await self._patience.ask(
            lambda: self._cancel(run_id, tenant_id=tenant_id, actor=actor), what=f"run {run_id}", turn=run_id
        )

    async def _cancel(self, run_id: UUID, *, tenant_id: str | None, actor: str) -> Cancelled:
        key = SlotKey(*slot_of(run_id))
        now = self._clock.now()
        reason = f"cancelled by {actor}"
        for _ in range(LOOKS):
            try:
                look = await requests.cancel(
                    self._database, key, tenant_id=tenant_id, actor=actor, reason=reason, now=now
                )  # fmt: skip
            except CommitUnknown:
                view = await repeat(lambda: runs.get(self._database, key), clock=self._clock)
                if view is None or (view.finished_at, view.reason) != (now, reason):
                    raise
                look = requests.CancelLook(outcome=None, is_cancelled=True, is_asked=False)
            if look is None:
                raise NotFound(f"there is no run {run_id}", hint="`rota run list` shows recent runs")
            if look.is_cancelled or look.is_asked:
                log.info("run.cancelled", run_id=str(run_id), at_once=look.is_cancelled, actor=actor)
                if look.is_asked:
                    self._hints.publish(CANCELS)
                state = RunState.CANCELLED if look.is_cancelled else RunState.RUNNING
                return Cancelled(state=state, requested=look.is_asked)
            if look.outcome is not None:
                raise RunFinished(f"run {run_id} is {look.outcome} already", hint="there is nothing to cancel")
            # Claimed or put back at this very moment: the next look sees where it is.
        raise Conflict(f"run {run_id} moves too quickly to be cancelled", hint="ask again")

    async def reprioritise(
        self, run_id: UUID, priority: int, *, tenant_id: str | None = None, actor: str = SYSTEM
    ) -> bool:
        """Give a run that waits another priority; False when it has this one already.

        It takes the place among its tenant's runs that it would have, had it been made with it: what it has waited
        counts. Raises NotFound, for another tenant's run too, Conflict for a run that runs, RunFinished, InvalidInput.
        """
        check_whole("priority", priority, PRIORITIES.start, PRIORITIES.stop - 1)
        return await self._patience.ask(
            lambda: self._reprioritise(run_id, priority, tenant_id=tenant_id, actor=actor), what=f"run {run_id}",
            turn=run_id,
        )  # fmt: skip

    async def _reprioritise(self, run_id: UUID, priority: int, *, tenant_id: str | None, actor: str) -> bool:
        key = SlotKey(*slot_of(run_id))
        now = self._clock.now()
        for _ in range(LOOKS):
            # Repeated after a lost answer, it finds the priority as wanted: nothing is noted twice.
            look = await repeat(
                lambda: requests.reprioritise(
                    self._database, key, priority=priority, tenant_id=tenant_id, actor=actor, now=now
                ),
                clock=self._clock,
            )
            if look is None:
                raise NotFound(f"there is no run {run_id}", hint="`rota run list` shows recent runs")
            if look.is_moved:
                log.info("run.reprioritised", run_id=str(run_id), priority=priority, was=look.was, actor=actor)
            if look.is_moved or look.was == priority:
                return look.is_moved
            if look.outcome is not None:
                raise RunFinished(f"run {run_id} is {look.outcome} already", hint="priority orders runs that wait")
            if look.is_running:
                raise Conflict(f"run {run_id} runs already", hint="priority orders runs that wait")
            # Claimed or put back at this very moment: the next look sees where it is.
        raise Conflict(f"run {run_id} moves too quickly to be given a priority", hint="ask again")

    def _tell(self, pool: str, *, later: bool) -> None:
        self._hints.publish(SCHEDULES if later else pool_topic(pool))


class _NothingFree(Exception):
    """No slot of a request is free, or its job is gone."""


def _pace(rate: float) -> timedelta:
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not SLOWEST_RATE <= rate <= FASTEST_RATE:
        hint = f"give a number from {SLOWEST_RATE:g} to {FASTEST_RATE:g}"
        raise InvalidInput("rate", f"{rate!r} is not a number of runs a second", hint=hint)
    return timedelta(seconds=1 / rate)
