"""The desk: all that a worker says to the control plane, whatever lies between them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from rota.domain.attempt import Claim, LeaseKey, Report


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

    async def announce(self, worker: WorkerInfo, *, last_claim_at: datetime | None = None) -> bool:
        """Say that the worker lives and which handlers it knows. Idempotent; repeated every few seconds.

        `last_claim_at` is when its last claim succeeded, or it was full. True asks it to claim no more.
        """
        ...

    async def claim(self, worker: WorkerInfo, *, limit: int) -> list[Claim]:
        """Take at most `limit` runs of the worker's pool whose handlers it knows, best rank first."""
        ...

    async def renew(self, keys: Sequence[LeaseKey]) -> Renewal:
        """Extend every lease that is still held under its token."""
        ...

    async def report(self, reports: Sequence[Report]) -> frozenset[UUID]:
        """End attempts. Returns the tokens that were accepted; a token left out was lost, nothing of it is kept."""
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
