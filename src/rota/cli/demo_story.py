"""The mission's story, told on a real database with a clock that only the story moves.

Every line is one step: something is done through the services, read back from the database, and compared with what
Rota promises. The numbers in a line are the measured ones. The story ends at the first line that is not so, since what
follows would build on it.
"""

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from rota.app import catch_up, fire_once, retry
from rota.assembly import Rota
from rota.clock import ManualClock
from rota.domain.attempt import Claim, Outcome, Report
from rota.domain.job import DEFAULT_POOL, DEFAULT_TENANT, Job
from rota.domain.run import RunState
from rota.domain.schedule import every, next_slots, once
from rota.services.loop import Ticker
from rota.store.runs import RunView
from rota.worker.desk import WorkerInfo

START: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""The story's t = 0."""
BEFORE: Final = timedelta(seconds=10)
"""How long before t = 0 the first jobs are put: a new job never fires slots of the past."""
LEASE: Final = timedelta(seconds=30)
REAPED_AFTER: Final = LEASE + timedelta(seconds=1)
BACKOFF: Final = timedelta(seconds=10)
OUTAGE: Final = timedelta(seconds=350)
RHYTHM: Final = "10s"
SLOTS_IN_OUTAGE: Final = 35
CAUGHT_UP: Final = 3
UPSTREAM: Final = "upstream 500"
PRIORITIES: Final = {"invoices": 9, "report": 5, "cleanup": 1}
TICK_LIMIT: Final = 100
"""The most ticks that one service may want at one instant of this small story."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One line: at `t` seconds, what was measured, whether it is as promised, and what was promised."""

    t: float
    text: str
    ok: bool
    promised: str
    facts: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return {"t", "text", "ok", "promised"} and the measured facts by name."""
        return {"t": self.t, "text": self.text, "ok": self.ok, "promised": self.promised, **self.facts}


class Story:
    """One telling. `rota` is a fresh cluster on `clock`, which stands at `START - BEFORE`."""

    def __init__(self, rota: Rota, clock: ManualClock) -> None:
        self._rota = rota
        self._clock = clock
        self._desk = rota.desk()
        self._scheduler = rota.scheduler_process("demo-scheduler")
        self._alive: dict[str, WorkerInfo] = {}
        self._stalled: Claim | None = None
        self._outage_began = START

    async def tell(self) -> AsyncIterator[Step]:
        """Yield the steps, up to and including the first that is not as promised."""
        for chapter in (
            self._three_are_due,
            self._the_same_tick_again,
            self._claims_in_order_of_priority,
            self._a_worker_dies,
            self._the_reaper_requeues,
            self._the_dead_worker_is_refused,
            self._a_third_worker_finishes,
            self._a_failing_job_is_buried,
            self._an_outage_is_caught_up,
            self._an_outage_fires_once,
            self._nothing_was_lost,
        ):
            step = await chapter()
            yield step
            if not step.ok:
                return

    async def _three_are_due(self) -> Step:
        await self._rota.definitions.put(
            [
                Job(job_id=name, handler="demo", schedule=once(START), priority=priority, lease_duration=LEASE)
                for name, priority in PRIORITIES.items()
            ]
        )
        self._clock.advance(BEFORE)
        stored = [await self._rota.definitions.get(name, tenant_id=DEFAULT_TENANT) for name in PRIORITIES]
        due = sum(job.next_slot is not None and job.next_slot <= self._clock.now() for job in stored)
        await self._tick()
        made = len(await self._runs())
        return self._step(
            f"{due} jobs are due, and {made} runs are made",
            promised="3 jobs are due, and 3 runs are made",
            ok=(due, made) == (3, 3),
            jobs_due=due,
            runs_made=made,
        )

    async def _the_same_tick_again(self) -> Step:
        before = len(await self._runs())
        await self._tick()
        made = len(await self._runs()) - before
        return self._step(
            f"the same tick again makes {made or 'none'}",
            promised="the same tick again makes none",
            ok=made == 0,
            runs_made=made,
        )

    async def _claims_in_order_of_priority(self) -> Step:
        claims = [claim for _ in range(2) if (claim := await self._claim("worker-1")) is not None]
        await self._desk.report([Report(key=claim.key, outcome=Outcome.SUCCEEDED) for claim in claims])
        runs = [(await self._rota.history.run(claim.run_id))[0] for claim in claims]
        priorities = [run.priority for run in runs]
        completed = sum(run.state == RunState.SUCCEEDED for run in runs)
        order = " before ".join(map(str, priorities))
        return self._step(
            f"worker-1 claims twice and gets priority {order}; it completes {completed}",
            promised="worker-1 claims twice and gets priority 9 before 5; it completes 2",
            ok=priorities == [9, 5] and completed == 2,
            priorities=priorities,
            completed=completed,
        )

    async def _a_worker_dies(self) -> Step:
        self._stalled = claim = await self._claim("worker-2")
        del self._alive["worker-2"]
        run = None if claim is None else (await self._rota.history.run(claim.run_id))[0]
        promised = f"worker-2 claims the third under a lease of {_seconds(LEASE)} and dies"
        if claim is None or run is None or run.lease_expires_at is None:
            return self._step("worker-2 finds nothing to claim", promised=promised, ok=False)
        lease = run.lease_expires_at - self._clock.now()
        return self._step(
            f"worker-2 claims {run.job_id} (attempt {run.attempt}) under a lease of {_seconds(lease)} and dies",
            promised=promised,
            ok=(run.state, run.attempt, run.job_id, lease) == (RunState.RUNNING, 1, "cleanup", LEASE),
            job_id=run.job_id,
            attempt=run.attempt,
            lease_seconds=lease.total_seconds(),
        )

    async def _the_reaper_requeues(self) -> Step:
        self._clock.advance(REAPED_AFTER)
        await self._tick()
        run, attempts = await self._rota.history.run(self._stalled_claim.run_id)
        outcomes = [attempt.outcome for attempt in attempts]
        following = run.attempt + 1
        text = (
            f"{_seconds(REAPED_AFTER)} later the reaper requeues it as attempt {following}"
            if run.state == RunState.PENDING
            else f"{_seconds(REAPED_AFTER)} later the run is {run.state} in attempt {run.attempt}: nobody reaped it"
        )
        return self._step(
            text,
            promised=f"{_seconds(REAPED_AFTER)} later the reaper requeues it as attempt 2",
            ok=(run.state, following, outcomes) == (RunState.PENDING, 2, [Outcome.LOST]),
            state=run.state,
            next_attempt=following,
            outcomes=outcomes,
        )

    async def _the_dead_worker_is_refused(self) -> Step:
        stale = self._stalled_claim
        accepted = await self._desk.report([Report(key=stale.key, outcome=Outcome.SUCCEEDED)])
        run, attempts = await self._rota.history.run(stale.run_id)
        refused = stale.key.token not in accepted
        return self._step(
            f"the dead worker wakes, completes, and is {'refused' if refused else 'accepted'}: the run is {run.state}",
            promised="the dead worker wakes, completes, and is refused: the run is pending",
            ok=refused and run.state == RunState.PENDING and len(attempts) == 1,
            refused=refused,
            state=run.state,
        )

    async def _a_third_worker_finishes(self) -> Step:
        promised = "worker-3 finishes it in attempt 2"
        claim = await self._claim("worker-3")
        if claim is None:
            return self._step("worker-3 finds nothing to claim", promised=promised, ok=False)
        await self._desk.report([Report(key=claim.key, outcome=Outcome.SUCCEEDED)])
        run, attempts = await self._rota.history.run(claim.run_id)
        outcomes = [attempt.outcome for attempt in attempts]
        return self._step(
            f"worker-3 finishes it in attempt {run.attempt}: the run is {run.state}",
            promised=promised,
            ok=(
                claim.run_id == self._stalled_claim.run_id
                and (run.state, run.attempt) == (RunState.SUCCEEDED, 2)
                and outcomes == [Outcome.LOST, Outcome.SUCCEEDED]
            ),
            attempt=run.attempt,
            state=run.state,
            outcomes=outcomes,
        )

    async def _a_failing_job_is_buried(self) -> Step:
        policy = retry(initial=BACKOFF, jitter=0)
        await self._rota.definitions.put([Job(job_id="charge", handler="demo", max_attempts=2, retry=policy)])
        await self._rota.on_demand.trigger("charge", tenant_id=DEFAULT_TENANT)
        failed = 0
        for _ in range(2):
            claim = await self._claim("worker-3")
            if claim is not None:
                failed += len(await self._desk.report([Report(key=claim.key, outcome=Outcome.FAILED, error=UPSTREAM)]))
            self._clock.advance(BACKOFF)
            await self._tick()
        letters = await self._rota.history.dead_letters(tenant_id=DEFAULT_TENANT)
        errors = [letter.error for letter in letters]
        return self._step(
            f"charge (max_attempts 2) fails {failed} times; {len(letters)} dead letter: {errors[0] if errors else '–'}",
            promised=f"charge (max_attempts 2) fails 2 times; 1 dead letter: {UPSTREAM}",
            ok=failed == 2 and errors == [UPSTREAM] and letters[0].job_id == "charge" and letters[0].attempt == 2,
            failures=failed,
            dead_letters=len(letters),
            error=errors[0] if errors else None,
        )

    async def _an_outage_is_caught_up(self) -> Step:
        schedule = every(RHYTHM)
        await self._rota.definitions.put(
            [
                Job(job_id="backfill", handler="demo", schedule=schedule, misfire=catch_up(CAUGHT_UP)),
                Job(job_id="refresh", handler="demo", schedule=schedule, misfire=fire_once()),
            ]
        )
        self._outage_began = self._clock.now()
        self._clock.advance(OUTAGE)
        await self._tick()
        made = sorted(run.scheduled_for for run in await self._runs("backfill"))
        exact = made == self._missed_slots()[-CAUGHT_UP:]
        passed = len(made) + await self._skipped("backfill")
        which = f"exactly the last {len(made)}" if exact else f"{len(made)}"
        return self._step(
            f"after {_seconds(OUTAGE)} of outage catch_up({CAUGHT_UP}) backfills {which} of {passed} slots",
            promised=f"after 350 s of outage catch_up(3) backfills exactly the last 3 of {SLOTS_IN_OUTAGE} slots",
            ok=exact and len(made) == CAUGHT_UP and passed == SLOTS_IN_OUTAGE,
            slots_passed=passed,
            runs_made=len(made),
            slots=[self._t(slot) for slot in made],
        )

    async def _an_outage_fires_once(self) -> Step:
        made = [run.scheduled_for for run in await self._runs("refresh")]
        passed = len(made) + await self._skipped("refresh")
        return self._step(
            f"and fire_once makes {len(made)} run, not {passed}",
            promised=f"and fire_once makes 1 run, not {SLOTS_IN_OUTAGE}",
            ok=made == self._missed_slots()[-1:] and passed == SLOTS_IN_OUTAGE,
            slots_passed=passed,
            runs_made=len(made),
            slots=[self._t(slot) for slot in made],
        )

    async def _nothing_was_lost(self) -> Step:
        law, slots = await self._rota.doctor.conservation(), await self._rota.doctor.slots(limit=None)
        breaches = [*law.findings, *slots.findings]
        counts: dict[str, int] = {}
        for run in await self._runs():
            counts[run.state] = counts.get(run.state, 0) + 1
        audited = slots.facts["schedules"]
        held = "holds" if not breaches else f"is broken: {'; '.join(breaches)}"
        in_states = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
        return self._step(
            f"the conservation law {held} ({sum(counts.values())} runs: {in_states}; {audited} schedules audited)",
            promised="the conservation law holds",
            ok=not breaches and audited > 0,
            breaches=breaches,
            runs=counts,
            schedules_audited=audited,
        )

    @property
    def _stalled_claim(self) -> Claim:
        assert self._stalled is not None, "the story goes on only when worker-2 has claimed"
        return self._stalled

    async def _tick(self) -> None:
        """Let the control plane do all that is to do at this instant, once, in the order of a run's life."""
        await self._scheduler.keeper.tick()
        for worker in self._alive.values():
            await self._desk.announce(worker)
        services: tuple[Ticker, ...] = (self._scheduler.upkeep, self._scheduler.reaper, self._scheduler.scheduler)
        for service in services:
            for _ in range(TICK_LIMIT):
                if not await service.tick():
                    break

    async def _claim(self, worker_id: str) -> Claim | None:
        if worker_id not in self._alive:
            self._alive[worker_id] = WorkerInfo(
                worker_id=worker_id,
                instance=uuid.uuid4(),
                pool=DEFAULT_POOL,
                handlers=frozenset({"demo"}),
                concurrency=1,
            )
        claims = await self._desk.claim(self._alive[worker_id], limit=1)
        return claims[0] if claims else None

    async def _runs(self, job_id: str | None = None) -> list[RunView]:
        return await self._rota.history.runs(tenant_id=DEFAULT_TENANT, job_id=job_id, limit=1000)

    async def _skipped(self, job_id: str) -> int:
        return sum(entry.slots or 0 for entry in await self._rota.history.skipped(job_id, tenant_id=DEFAULT_TENANT))

    def _missed_slots(self) -> list[datetime]:
        """The slots of the outage, counted forwards one by one: the scheduler counts backwards from its end."""
        named = next_slots(f"@every {RHYTHM}", after=self._outage_began, count=2 * SLOTS_IN_OUTAGE)
        return [slot for slot in named if slot <= self._clock.now()]

    def _t(self, instant: datetime) -> float:
        return (instant - START).total_seconds()

    def _step(self, text: str, *, promised: str, ok: bool, **facts: Any) -> Step:
        return Step(t=self._t(self._clock.now()), text=text, ok=ok, promised=promised, facts=facts)


def _seconds(length: timedelta) -> str:
    return f"{length.total_seconds():g} s"
