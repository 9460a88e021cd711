"""Why is it not running? Finds the first gate that holds a run or a job, by the rows that the claim goes by."""

from datetime import datetime
from typing import Final
from uuid import UUID

from rota.clock import Clock
from rota.domain import reasons
from rota.domain.ids import slot_of
from rota.domain.job import JobName
from rota.domain.run import Gate
from rota.domain.why import Cause, Held, Reason, Waiting
from rota.errors import Conflict, NotFound
from rota.services.turns import TURN_WAIT, Turns
from rota.store import aside, freeze, jobs
from rota.store import why as store
from rota.store.database import Database, Lane
from rota.store.jobs import StoredJob
from rota.store.requests import SlotKey
from rota.store.why import RunLook

AHEAD_LIMIT: Final = 10_000
"""Runs ahead are counted up to here."""
TENANTS_LIMIT: Final = 1000
HOLDERS_SHOWN: Final = 10
LEASES_LIMIT: Final = 100_000
"""The most leases that are looked at for the holders of a limit."""

__all__ = ["Reason", "Why"]


class Why:
    """Answers for one tenant: other tenants' runs do not exist here, and are only counted where they hold a limit."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database.on(Lane.READS)
        self._clock = clock
        self._turns = Turns(patience=TURN_WAIT)

    async def run(self, run_id: UUID, *, tenant_id: str) -> Reason:
        """Return the first gate that holds a run, or that it runs or has ended. Raises NotFound, InvalidInput."""
        key = SlotKey(*slot_of(run_id))
        async with self._turns.of(tenant_id):
            look = await store.run(self._database, key, tenant_id=tenant_id, now=self._clock.now())
            if look is None:
                raise NotFound(f"there is no run {run_id}", hint="`rota run list` shows recent runs")
            return await self._of(look, key, tenant_id=tenant_id)

    async def job(self, job_id: str, *, tenant_id: str) -> Reason:
        """Return why a job makes no run: a pause, a fault, a schedule that is over; else why its oldest waiting run
        waits, and if none does, its next slot. Raises NotFound.
        """
        stored = await self._stored(job_id, tenant_id)
        if stored.quarantined:
            return reasons.quarantined(stored.quarantined.rstrip("."))
        if stored.paused_at is not None:
            return reasons.paused(
                since=stored.paused_at, reason=stored.pause_reason, resume_at=stored.resume_at,
                aside=await self._aside("resume", stored.job_uid, stored.resume_at),
            )  # fmt: skip
        now = self._clock.now()
        if stored.next_slot is not None and (why := await self._aside("slot", stored.job_uid, stored.next_run_at)):
            return reasons.slot_aside(stored.next_slot, due_at=stored.next_run_at or stored.next_slot, aside=why)
        waiting, schedulers = await store.oldest_waiting(self._database, stored.job_uid, now=now)
        if waiting is not None:
            key = SlotKey(stored.job_uid, waiting)
            async with self._turns.of(tenant_id):
                look = await store.run(self._database, key, tenant_id=tenant_id, now=now)
                if look is not None and look.waiting is not None:
                    return await self._of(look, key, tenant_id=tenant_id)
        if stored.job is None:
            return reasons.quarantined(f"its definition cannot be read, {stored.problem}")
        if stored.job.schedule is None:
            return reasons.on_demand()
        if stored.next_slot is None:
            return reasons.no_further_slot()
        if frozen := await self._frozen(tenant_id):
            return frozen
        return reasons.next_slot(
            stored.next_slot, due_at=stored.next_run_at or stored.next_slot, jitter=stored.job.jitter,
            schedulers=schedulers, now=now,
        )  # fmt: skip

    async def _of(self, look: RunLook, key: SlotKey, *, tenant_id: str) -> Reason:
        """Go through the gates in the order in which the claim would meet them."""
        if look.outcome is not None:
            return reasons.finished(look.run_id, state=look.outcome, at=look.finished_at, reason=look.reason)
        if (lease := look.lease) is not None:
            return reasons.running(
                look.run_id, worker_id=lease.worker_id, since=lease.claimed_at, until=lease.expires_at,
                cancel_requested_at=lease.cancel_requested_at, set_apart=lease.set_apart,
                aside=await self._aside("leases", key.job_uid, lease.expires_at),
            )  # fmt: skip
        waiting, now = look.waiting, self._clock.now()
        if waiting is None or look.rank is None:
            raise Conflict(f"run {look.run_id} neither waits nor runs nor has ended", hint="`rota doctor` tells more")
        time_gone = waiting.available_at if waiting.gate == Gate.TIME else None
        why = await self._aside("runs", key.job_uid, waiting.deadline_at, time_gone)
        return (
            reasons.past_deadline(waiting, now=now, aside=why)
            or await self._frozen(tenant_id, run_id=look.run_id)
            or reasons.before_its_time(waiting, schedulers=look.schedulers, now=now, aside=why)
            or reasons.on_upstream(waiting)
            or await self._on_limits(waiting, key, tenant_id=tenant_id, now=now)
            or await self._in_queue(waiting, look.rank, tenant_id=tenant_id, now=now)
        )

    async def _aside(self, what: aside.What, uid: int, *dues: datetime | None) -> str | None:
        """Return why schedulers leave this of a job out; None: they do not, or none of these instants has come."""
        now = self._clock.now()
        if not any(due is not None and due <= now for due in dues):
            return None
        view = (await aside.of_job(self._database, uid, now=now)).get(what)
        return None if view is None else view.reason

    async def _frozen(self, tenant_id: str, *, run_id: UUID | None = None) -> Reason | None:
        held = await freeze.holding(self._database, tenant_id, limit=1)
        if not held:
            return None
        return reasons.frozen(
            since=held[0].frozen_at, reason=held[0].reason, everywhere=held[0].tenant_id == "*", run_id=run_id
        )  # fmt: skip

    async def _on_limits(self, waiting: Waiting, key: SlotKey, *, tenant_id: str, now: datetime) -> Reason | None:
        """Return the first limit without room. What nobody can run never gets as far as its limits."""
        if waiting.gate == "handler":
            return None
        looks = reasons.in_turn(waiting, await store.limits(self._database, key, most=AHEAD_LIMIT, now=now))
        for look in looks:
            if (lacks := look.full()) is None:
                continue
            held = Held()
            if lacks is Cause.PERMITS:
                held = await store.holders(
                    self._database, look.limit_key, tenant_id=tenant_id, shown=HOLDERS_SHOWN, most=LEASES_LIMIT
                )
            return reasons.on_limit(waiting, look, held, now=now)
        return reasons.behind_others(waiting, looks)

    async def _in_queue(self, waiting: Waiting, rank: int, *, tenant_id: str, now: datetime) -> Reason:
        workers = await store.workers(self._database, waiting.handler, tenant_id=tenant_id, now=now)
        if (reason := reasons.without_worker(waiting, workers)) is not None:
            return reason
        queue = await store.queue(
            self._database, pool=waiting.pool, tenant_id=tenant_id, rank=rank, most=AHEAD_LIMIT,
            most_tenants=TENANTS_LIMIT, now=now,
        )  # fmt: skip
        return reasons.queued(waiting, queue, workers)

    async def _stored(self, job_id: str, tenant_id: str) -> StoredJob:
        stored = await jobs.find(self._database, JobName(tenant_id, job_id))
        if stored is None:
            raise NotFound(f"there is no job {job_id!r}", hint="`rota job list` shows the jobs of this tenant")
        return stored
