"""The fleet: worker processes that say they live, who owns which shard, and how much there is to do."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import structlog

from rota.clock import Clock
from rota.domain.shard import ShardLease
from rota.domain.zones import tzdata_version
from rota.errors import Conflict, NotFound
from rota.services.patience import Patience
from rota.services.turns import Turns
from rota.store import audit, fleet, flow, shards, workers
from rota.store.audit import SYSTEM, Change
from rota.store.database import Database, Lane
from rota.store.fleet import Depth, Health, Stats
from rota.store.flow import Flow
from rota.store.workers import LiveWorker
from rota.version import VERSION

__all__ = ["ANNOUNCED_FOR", "Depth", "Fleet", "Flow", "Health", "LiveWorker", "ShardLease", "Stats"]

ANNOUNCED_FOR: Final = timedelta(seconds=15)
"""How long a worker counts as live after it said so: three announcements."""

COUNT_LIMIT: Final = 1_000_000
"""No count goes beyond this, so that a look at any cluster is over soon."""

NOBODY: Final = "*"
"""The tenant under which the log keeps what was done to a worker that serves all tenants."""

log = structlog.get_logger()


class Fleet:
    """What the processes of a cluster say of themselves, and what people ask about them."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._calls = database.on(Lane.CALLS)
        self._patience = Patience()
        self._clock = clock
        self._turns = Turns()

    async def announce(
        self, *, instance: UUID, worker_id: str, pool: str, handlers: Sequence[str], concurrency: int,
        tenant_id: str | None = None, last_claim_at: datetime | None = None, claimed: int | None = None,
    ) -> bool:  # fmt: skip
        """Say that a worker process lives, for ANNOUNCED_FOR. True asks it to drain: to claim no more.

        `last_claim_at` is when a claim of its last succeeded, or it was full; `claimed` how many runs it has claimed
        since its start, from which its claim rate is worked out; None: no news. Raises Conflict when the instance is
        another worker's.
        """
        now = self._clock.now()
        drains = await workers.announce(
            self._database, instance=instance, worker_id=worker_id, pool=pool, handlers=sorted(handlers),
            concurrency=concurrency, now=now, expires_at=now + ANNOUNCED_FOR, version=VERSION,
            tzdata=tzdata_version(), tenant_id=tenant_id, last_claim_at=last_claim_at,
            claimed=claimed,
        )  # fmt: skip
        if drains is None:
            raise Conflict(f"instance {instance} is another worker's", hint="choose a random UUID for every process")
        return drains

    async def retire(self, instance: UUID, *, tenant_id: str | None = None) -> bool:
        """Forget a process that leaves; False when it was gone."""
        return await workers.retire(self._database, instance, tenant_id=tenant_id)

    async def workers(self, *, tenant_id: str | None) -> list[LiveWorker]:
        """Return the live workers that serve this tenant alone; None: all live workers."""
        return await workers.live(self._calls, now=self._clock.now(), tenant_id=tenant_id)

    async def drain(self, worker_id: str, *, tenant_id: str | None, actor: str = SYSTEM) -> list[LiveWorker]:
        """Let every live process of a worker claim no more; returns them. Raises NotFound.

        They are told at their next announcement, finish what they run, and claim again under a new instance only.
        """
        drained = await self._patience.ask(
            lambda: self._drain(worker_id, tenant_id=tenant_id, actor=actor), what=f"worker {worker_id!r}",
            turn=worker_id,
        )  # fmt: skip
        log.info("worker.drained", worker_id=worker_id, processes=len(drained), actor=actor)
        return drained

    async def _drain(self, worker_id: str, *, tenant_id: str | None, actor: str) -> list[LiveWorker]:
        now = self._clock.now()
        async with self._calls.transaction() as tx:
            drained = await workers.drain(tx, worker_id, tenant_id=tenant_id, now=now)
            if not drained:
                raise NotFound(f"no worker {worker_id!r} is live", hint="`rota workers list` shows those that are")
            changes = [
                Change(tenant_id=owner, action="worker.drained", subject=worker_id, after={"draining": True})
                for owner in sorted({worker.tenant_id or NOBODY for worker in drained})
            ]
            await audit.note(tx, changes, actor=actor, now=now)
        return drained

    async def shards(self) -> list[ShardLease]:
        """Return every shard with its owner."""
        return await shards.all_shards(self._calls)

    async def stats(self, *, tenant_id: str | None) -> Stats:
        """Return how much there is of a tenant's, or of all; counts stop at COUNT_LIMIT."""
        async with self._turns.of(tenant_id or NOBODY):
            return await fleet.stats(self._database, tenant_id=tenant_id, now=self._clock.now(), most=COUNT_LIMIT)

    async def flow(self, *, limits: int) -> Flow:
        """Return what waits behind which gate, and how full the fullest `limits` are, over all tenants."""
        async with self._turns.of(NOBODY):
            return await flow.look(self._database, now=self._clock.now(), most=COUNT_LIMIT, shown=limits)

    async def health(self) -> Health:
        """Return when the fleet's timers and claims last succeeded."""
        return await fleet.health(self._database, now=self._clock.now())
