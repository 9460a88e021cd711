"""The desk: all that a worker says to the control plane, whatever lies between them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, runtime_checkable
from uuid import UUID

from rota.domain.attempt import Claim, LeaseKey, Report
from rota.domain.progress import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A worker process: its name, this very process's instance, and what it can run."""

    worker_id: str
    instance: UUID
    pool: str
    handlers: frozenset[str]
    concurrency: int
    tenant_id: str | None = None
    """The one tenant whose runs it takes; None: those of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """The answer to a renewal: every token asked for is in `renewed` or in `lost`.

    `cancelled` are those of `renewed` whose run somebody wants to end.
    """

    renewed: dict[UUID, datetime]
    lost: frozenset[UUID]
    cancelled: frozenset[UUID] = frozenset()


class Desk(Protocol):
    """Claim, renew, report: one conformance suite proves every implementation."""

    async def announce(
        self, worker: WorkerInfo, *, last_claim_at: datetime | None = None, claimed: int | None = None
    ) -> bool:
        """Say that the worker lives and which handlers it knows. Idempotent; repeated every few seconds.

        `last_claim_at` is when its last claim succeeded, or it was full; `claimed` counts the runs that it has claimed
        since its start. True asks it to claim no more.
        """
        ...

    async def claim(self, worker: WorkerInfo, *, limit: int) -> list[Claim]:
        """Take at most `limit` runs of the worker's pool whose handlers it knows, best rank first."""
        ...

    async def renew(self, keys: Sequence[LeaseKey], *, progress: Mapping[UUID, Progress] | None = None) -> Renewal:
        """Extend every lease that is still held under its token; note how far some of these runs are, by token."""
        ...

    async def report(self, reports: Sequence[Report]) -> frozenset[UUID]:
        """End attempts. Returns the tokens that were accepted; a token left out was lost, nothing of it is kept.

        Raises LeaseLocked, when all others are recorded, for those whose lease another transaction holds: report them
        again.
        """
        ...

    async def retire(self, worker: WorkerInfo) -> None:
        """Say that this process leaves."""
        ...

    async def wait_for_work(self, worker: WorkerInfo, *, timeout: float) -> None:
        """Return when there may be work for the worker's pool, at the latest after `timeout` seconds."""
        ...

    async def close(self) -> None:
        """Give back what the desk holds (connections)."""
        ...


@runtime_checkable
class HearsCancels(Protocol):
    """A desk that can say at once that runs are to be cancelled; from others it is heard with the next renewal."""

    async def wait_for_cancel(self) -> None:
        """Return when somebody has asked for the end of a run that runs, be it at this worker or another."""
        ...
