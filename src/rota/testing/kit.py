"""The kit: every service on one manual clock, driven by ticks instead of loops, so that tests need no sleeps."""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from rota.app import App
from rota.assembly import SchedulerProcess, assemble
from rota.clock import ManualClock
from rota.domain.attempt import Claim, Outcome, Report
from rota.domain.job import Job
from rota.errors import LeaseLost
from rota.services.definitions import PutResult
from rota.settings import Settings
from rota.store.database import Database
from rota.store.runs import AttemptView, RunView
from rota.testing.handlers import run_handler
from rota.worker.desk import Desk, WorkerInfo

TICK_LIMIT: Final = 10_000
"""The most ticks that one settling may take: a service that always wants more is broken."""
STEP: Final = timedelta(seconds=5)
"""A long advance is walked in such steps, in which the scheduler keeps its shards as its loops would."""


class RotaKit:
    """One cluster of one scheduler and any number of workers, in one process.

    `advance` moves the clock and lets everything that is due happen; `clock.advance` alone lets time pass while nobody
    looks: an outage.
    """

    def __init__(self, *, dsn: str, database: Database, clock: ManualClock, settings: Settings) -> None:
        self.dsn = dsn
        self.database = database
        self.clock = clock
        self.rota = assemble(settings, dsn=dsn, database=database, clock=clock)
        self.definitions = self.rota.definitions
        self.on_demand = self.rota.on_demand
        self.history = self.rota.history
        self.process = self.scheduler("scheduler-1")

    def scheduler(self, scheduler_id: str) -> SchedulerProcess:
        """Return one more scheduler; tick its parts, or pass it to `tick`."""
        return self.rota.scheduler_process(scheduler_id)

    def worker(
        self, worker_id: str, *, handlers: Iterable[str], pool: str = "default", tenant_id: str | None = None
    ) -> "KitWorker":
        """Return a worker, of one tenant or of all, that claims and reports when the test says so."""
        return KitWorker(
            self.rota.desk(), worker_id=worker_id, handlers=frozenset(handlers), pool=pool, tenant_id=tenant_id
        )

    async def put(self, *jobs: Job | App) -> list[PutResult]:
        """Put jobs, or all jobs of apps."""
        flat: list[Job] = []
        for entry in jobs:
            flat += entry.jobs.values() if isinstance(entry, App) else [entry]
        return await self.definitions.put(flat)

    async def tick(self, process: SchedulerProcess | None = None) -> None:
        """Let a scheduler do all that is to do at this instant."""
        chosen = process or self.process
        await chosen.keeper.tick()
        for service in (chosen.upkeep, chosen.resumer, chosen.reaper, chosen.scheduler, chosen.limit_keeper):
            for _ in range(TICK_LIMIT):
                if not await service.tick():
                    break
            else:
                raise AssertionError(f"{type(service).__name__} wanted more after {TICK_LIMIT} ticks")

    async def advance(self, by: timedelta | float) -> datetime:
        """Let time pass while the scheduler looks: what comes due on the way happens on the way."""
        left = by if isinstance(by, timedelta) else timedelta(seconds=by)
        while left > timedelta(0):
            step = min(left, STEP)
            self.clock.advance(step)
            left -= step
            await self.tick()
        return self.clock.now()

    async def run_due(self, app: App, *, worker_id: str = "kit-worker", limit: int = 1000) -> list[Report]:
        """Run every run that is ready, with the app's own functions in this process; returns what was reported."""
        worker = self.worker(worker_id, handlers=app.handlers.names, pool=app.pool)
        reports: list[Report] = []
        while len(reports) < limit and (claimed := await worker.claim(limit=limit - len(reports))):
            for work in claimed:
                report = await run_handler(app.handlers.resolve(work.claim.handler), work.claim)
                await work.report(report.outcome, error=report.error, retry_after=report.retry_after)
                reports.append(report)
        return reports

    async def runs(self, job_id: str, *, tenant_id: str = "default") -> list[RunView]:
        """Return a job's runs, oldest slot first."""
        found = await self.history.runs(tenant_id=tenant_id, job_id=job_id, limit=1000)
        return found[::-1]

    async def attempts(self, run: RunView) -> list[AttemptView]:
        """Return a run's ended attempts, oldest first."""
        return (await self.history.run(run.run_id))[1]

    async def check(self) -> None:
        """Hold the cluster against the conservation law. Raises AssertionError with the breaches."""
        found = [
            finding
            for check in (
                await self.rota.doctor.conservation(),
                await self.rota.doctor.permits(),
                await self.rota.doctor.slots(limit=None),
            )
            for finding in check.findings
        ]
        assert not found, "the conservation law is broken: " + "; ".join(found)


@dataclass(slots=True)
class KitWorker:
    """A worker whose every step the test takes."""

    desk: Desk
    worker_id: str
    handlers: frozenset[str]
    pool: str
    tenant_id: str | None = None
    instance: uuid.UUID = field(default_factory=uuid.uuid4)

    @property
    def info(self) -> WorkerInfo:
        return WorkerInfo(
            worker_id=self.worker_id,
            instance=self.instance,
            pool=self.pool,
            handlers=self.handlers,
            concurrency=1000,
            tenant_id=self.tenant_id,
        )

    async def announce(self) -> bool:
        """Say that this worker lives; True when it is asked to drain."""
        return await self.desk.announce(self.info)

    async def claim(self, *, limit: int = 1) -> list["KitWork"]:
        """Claim at most `limit` runs."""
        return [KitWork(self.desk, claim) for claim in await self.desk.claim(self.info, limit=limit)]

    async def claim_one(self) -> "KitWork":
        """Claim one run. Raises AssertionError when there is none."""
        claimed = await self.claim(limit=1)
        assert claimed, f"there is no run for {self.worker_id} to claim"
        return claimed[0]


@dataclass(frozen=True, slots=True)
class KitWork:
    """One claimed run in a test's hands."""

    desk: Desk
    claim: Claim

    async def renew(self) -> datetime:
        """Extend the lease; returns its expiry. Raises LeaseLost."""
        renewal = await self.desk.renew([self.claim.key])
        if self.claim.key.token not in renewal.renewed:
            raise LeaseLost(self.claim.run_id)
        return renewal.renewed[self.claim.key.token]

    async def succeed(self, result: Any = None) -> None:
        """Report success, with a JSON result. Raises LeaseLost."""
        await self.report(Outcome.SUCCEEDED, result=result)

    async def fail(self, error: str = "it failed") -> None:
        """Report a failure. Raises LeaseLost."""
        await self.report(Outcome.FAILED, error=error)

    async def release(self) -> None:
        """Give the run back, as a worker that shuts down does. Raises LeaseLost."""
        await self.report(Outcome.RELEASED)

    async def report(
        self,
        outcome: Outcome,
        *,
        error: str | None = None,
        retry_after: timedelta | None = None,
        result: Any = None,
    ) -> None:
        """Report any outcome. Raises LeaseLost."""
        report = Report(key=self.claim.key, outcome=outcome, error=error, retry_after=retry_after, result=result)
        if self.claim.key.token not in await self.desk.report([report]):
            raise LeaseLost(self.claim.run_id)
