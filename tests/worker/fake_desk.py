"""A desk in memory: a small honest model of runs, leases and tokens, and a way to reach it from other processes.

`FakeDesk.serve(path)` answers on a Unix socket; `open_fake_desk("fake:///path")` is a desk over it, for a heart or a
worker in a process of its own.
"""

import asyncio
import contextlib
import pickle
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from rota.clock import Clock, SystemClock
from rota.domain.attempt import CLAIM_LIMIT, Claim, LeaseKey, Outcome, Report
from rota.domain.http_target import handler_key
from rota.domain.ids import job_uid, shard_of
from rota.domain.progress import Progress
from rota.errors import DatabaseUnavailable
from rota.worker.desk import Renewal, WorkerInfo

SLOT = datetime.fromisoformat("2026-01-01T00:00:00+00:00")
UNCHARGED = (Outcome.RELEASED, Outcome.SNOOZED)
MAX_LOSSES = 5
PATIENCE = 60.0


@dataclass(slots=True, kw_only=True)
class FakeLease:
    token: UUID
    worker_id: str
    expires_at: datetime
    renewals: int = 0
    is_cancelled: bool = False
    progress: list[Progress] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class FakeAttempt:
    attempt: int
    worker_id: str
    outcome: Outcome
    error: str | None
    result: Any = None
    progress: list[Progress] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class FakeRun:
    job_id: str
    handler: str
    payload: dict[str, Any]
    timeout: timedelta
    lease_duration: timedelta
    max_attempts: int
    available_at: datetime
    pool: str = "default"
    state: str = "pending"
    charged: int = 0
    losses: int = 0
    claims: int = 0
    lease: FakeLease | None = None
    attempts: list[FakeAttempt] = field(default_factory=list)

    def key(self, token: UUID) -> LeaseKey:
        uid = job_uid("default", self.job_id)
        return LeaseKey(shard_of(uid), uid, SLOT, token)

    @property
    def outcomes(self) -> list[Outcome]:
        return [attempt.outcome for attempt in self.attempts]

    @property
    def last(self) -> FakeAttempt:
        return self.attempts[-1]


class FakeDesk:
    """The control plane as far as a worker sees it. `is_away`: every call fails, as without a database."""

    def __init__(self, clock: Clock | None = None, *, lease: timedelta = timedelta(seconds=60)) -> None:
        self.clock = clock or SystemClock()
        self.lease_duration = lease
        self.runs: list[FakeRun] = []
        self.is_away = False
        self.refuses: Callable[[Report], bool] = lambda _: False
        self.calls: Counter[str] = Counter()
        self.accepted: list[Report] = []
        self.refused: list[Report] = []
        self.announced: dict[UUID, WorkerInfo] = {}
        self.last_claim_at: datetime | None = None
        self.claimed: int | None = None
        self.drains = False
        self._changed = asyncio.Event()

    def add(
        self,
        handler: str,
        payload: dict[str, Any] | None = None,
        *,
        timeout: float = 3600,
        lease: timedelta | None = None,
        max_attempts: int = 3,
    ) -> FakeRun:
        """Make a pending run."""
        run = FakeRun(
            job_id=f"job-{len(self.runs)}",
            handler=handler,
            payload=payload or {},
            timeout=timedelta(seconds=timeout),
            lease_duration=lease or self.lease_duration,
            max_attempts=max_attempts,
            available_at=self.clock.now(),
        )
        self.runs.append(run)
        self._changed.set()
        return run

    async def until(self, holds: Callable[[], object], *, within: float = PATIENCE) -> None:
        """Return when the condition holds. Fails if that takes too long."""
        end = SystemClock().monotonic() + within
        while not holds():
            assert SystemClock().monotonic() < end, "what the test waits for has not happened"
            self._changed.clear()
            await SystemClock().wait(self._changed, 0.02)

    def reap(self) -> None:
        """End expired leases."""
        now = self.clock.now()
        for run in self.runs:
            if run.lease is not None and run.lease.expires_at <= now:
                self._settle(run, Outcome.LOST, "lease expired", None)

    # The desk

    async def announce(
        self, worker: WorkerInfo, *, last_claim_at: datetime | None = None, claimed: int | None = None
    ) -> bool:
        self._enter("announce")
        self.claimed = claimed
        self.announced[worker.instance] = worker
        self.last_claim_at = last_claim_at
        return self.drains

    async def claim(self, worker: WorkerInfo, *, limit: int) -> list[Claim]:
        self._enter("claim")
        now = self.clock.now()
        claims: list[Claim] = []
        for run in self.runs:
            if len(claims) == min(limit, CLAIM_LIMIT):
                break
            if run.state != "pending" or run.available_at > now:
                continue
            if handler_key(run.handler) not in worker.handlers:
                continue
            run.state = "running"
            run.claims += 1
            run.lease = FakeLease(token=uuid4(), worker_id=worker.worker_id, expires_at=now + run.lease_duration)
            claims.append(
                Claim(
                    key=run.key(run.lease.token),
                    tenant_id="default",
                    job_id=run.job_id,
                    handler=run.handler,
                    payload=run.payload,
                    attempt=run.charged + 1,
                    max_attempts=run.max_attempts,
                    claimed_at=now,
                    expires_at=run.lease.expires_at,
                    lease_duration=run.lease_duration,
                    timeout=run.timeout,
                    losses=run.losses,
                )
            )
        return claims

    async def renew(self, keys: Sequence[LeaseKey], *, progress: Mapping[UUID, Progress] | None = None) -> Renewal:
        self._enter("renew")
        renewed = {}
        for run in self._held(keys):
            assert run.lease is not None
            run.lease.renewals += 1
            if progress and run.lease.token in progress:
                run.lease.progress.append(progress[run.lease.token])
            run.lease.expires_at = self.clock.now() + run.lease_duration
            renewed[run.lease.token] = run.lease.expires_at
        cancelled = frozenset(run.lease.token for run in self._held(keys) if run.lease and run.lease.is_cancelled)
        lost = frozenset(key.token for key in keys if key.token not in renewed)
        return Renewal(renewed=renewed, lost=lost, cancelled=cancelled)

    async def report(self, reports: Sequence[Report]) -> frozenset[UUID]:
        self._enter("report")
        if any(self.refuses(report) for report in reports):
            raise ValueError("this batch has a report that cannot be recorded")
        accepted = set()
        for report in reports:
            held = self._held([report.key])
            if held:
                self._settle(held[0], report.outcome, report.error, report.retry_after, took_worker=report.took_worker)
                held[0].last.result = report.result
                accepted.add(report.key.token)
                self.accepted.append(report)
            else:
                self.refused.append(report)
        return frozenset(accepted)

    async def retire(self, worker: WorkerInfo) -> None:
        self._enter("retire")
        self.announced.pop(worker.instance, None)

    async def wait_for_work(self, worker: WorkerInfo, *, timeout: float) -> None:
        self._enter("wait_for_work")
        await self.clock.wait(self._changed, timeout)
        self._changed.clear()

    async def close(self) -> None:
        pass

    # The model

    def _enter(self, call: str) -> None:
        self.calls[call] += 1
        self._changed.set()
        if self.is_away:
            raise DatabaseUnavailable("the fake database is away")
        self.reap()

    def _held(self, keys: Sequence[LeaseKey]) -> list[FakeRun]:
        tokens = {key.token for key in keys}
        return [run for run in self.runs if run.lease is not None and run.lease.token in tokens]

    def _settle(
        self, run: FakeRun, outcome: Outcome, error: str | None, retry_after: timedelta | None, *,
        took_worker: bool = False,
    ) -> None:  # fmt: skip
        assert run.lease is not None
        attempt = FakeAttempt(
            attempt=run.charged + 1, worker_id=run.lease.worker_id, outcome=outcome, error=error,
            progress=run.lease.progress,
        )  # fmt: skip
        run.attempts.append(attempt)
        run.lease = None
        run.charged += (outcome not in UNCHARGED) + took_worker
        run.losses += outcome is Outcome.LOST or took_worker
        run.available_at = self.clock.now() + (retry_after or timedelta(0))
        if outcome is Outcome.SUCCEEDED:
            run.state = "succeeded"
        elif outcome is Outcome.CANCELLED:
            run.state = "cancelled"
        elif outcome is Outcome.GAVE_UP or run.charged - run.losses >= run.max_attempts or run.losses >= MAX_LOSSES:
            run.state = "dead"
        else:
            run.state = "pending"
        self._changed.set()

    @contextlib.asynccontextmanager
    async def serve(self, path: Path) -> AsyncIterator[str]:
        """Answer on a Unix socket; yields the URL to open it with."""

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                name, arguments, named = pickle.loads(await reader.read())  # noqa: S301 - our own test processes
                try:
                    result = (True, await getattr(self, name)(*arguments, **named))
                except Exception as error:
                    result = (False, error)
                writer.write(pickle.dumps(result))
                await writer.drain()
            writer.close()

        server = await asyncio.start_unix_server(answer, path)
        try:
            yield f"fake://{path}"
        finally:
            server.close()


class RemoteDesk:
    """A FakeDesk in another process: one connection for each call."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def announce(
        self, worker: WorkerInfo, *, last_claim_at: datetime | None = None, claimed: int | None = None
    ) -> bool:
        drains: bool = await self._call("announce", worker, last_claim_at=last_claim_at, claimed=claimed)
        return drains

    async def claim(self, worker: WorkerInfo, *, limit: int) -> list[Claim]:
        claims: list[Claim] = await self._call("claim", worker, limit=limit)
        return claims

    async def renew(self, keys: Sequence[LeaseKey], *, progress: Mapping[UUID, Progress] | None = None) -> Renewal:
        renewal: Renewal = await self._call("renew", keys, progress=progress)
        return renewal

    async def report(self, reports: Sequence[Report]) -> frozenset[UUID]:
        accepted: frozenset[UUID] = await self._call("report", reports)
        return accepted

    async def retire(self, worker: WorkerInfo) -> None:
        await self._call("retire", worker)

    async def wait_for_work(self, worker: WorkerInfo, *, timeout: float) -> None:
        await self._call("wait_for_work", worker, timeout=timeout)

    async def close(self) -> None:
        pass

    async def _call(self, name: str, *arguments: object, **named: object) -> Any:
        reader, writer = await asyncio.open_unix_connection(self._path)
        try:
            writer.write(pickle.dumps((name, arguments, named)))
            writer.write_eof()
            done, result = pickle.loads(await reader.read())  # noqa: S301 - our own test processes
        finally:
            writer.close()
        if not done:
            raise result
        return result


async def open_fake_desk(url: str) -> RemoteDesk:
    """Open a served FakeDesk by its URL."""
    return RemoteDesk(url.removeprefix("fake://"))
