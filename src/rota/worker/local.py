"""The desk of a worker that reaches the database itself."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from rota.clock import Clock, DatabaseClock
from rota.domain.attempt import Claim, LeaseKey, Report
from rota.domain.progress import Progress
from rota.services.completion import Completion
from rota.services.dispatch import Dispatch
from rota.services.fleet import Fleet
from rota.services.hints import CANCELS, Hint, Hints, pool_topic
from rota.store.database import Database
from rota.worker.desk import Renewal, WorkerInfo


class LocalDesk:
    """Claims, renews and reports through the services, in this process."""

    def __init__(self, database: Database, clock: Clock, hints: Hints, *, owns_database: bool = False) -> None:
        self._database = database
        self._clock = clock
        self._hints = hints
        self._dispatch = Dispatch(database, clock)
        self._completion = Completion(database, clock, hints)
        self._fleet = Fleet(database, clock)
        self._ready: dict[str, Hint] = {}
        self._holds = 0
        self._cancels = hints.subscribe(CANCELS)
        self._owns_database = owns_database

    @classmethod
    async def connect(cls, dsn: str, *, size: int = 1, reserved: int = 1) -> "LocalDesk":
        """Open a desk with connections of its own: the heart's, which no handler and no claim can occupy."""
        database = await Database.connect(dsn, size=size, reserved=reserved, name="rota-heart")
        clock = DatabaseClock()
        await database.measure(clock)
        return cls(database, clock, Hints(database, clock), owns_database=True)

    async def announce(
        self, worker: WorkerInfo, *, last_claim_at: datetime | None = None, claimed: int | None = None
    ) -> bool:
        return await self._fleet.announce(
            instance=worker.instance,
            worker_id=worker.worker_id,
            pool=worker.pool,
            handlers=sorted(worker.handlers),
            concurrency=worker.concurrency,
            tenant_id=worker.tenant_id,
            last_claim_at=last_claim_at,
            claimed=claimed,
        )

    async def claim(self, worker: WorkerInfo, *, limit: int) -> list[Claim]:
        self._holds = self._hints.holds
        return await self._dispatch.claim(
            worker_id=worker.worker_id,
            pool=worker.pool,
            handlers=worker.handlers,
            limit=limit,
            tenant_id=worker.tenant_id,
        )

    async def renew(self, keys: Sequence[LeaseKey], *, progress: Mapping[UUID, Progress] | None = None) -> Renewal:
        if isinstance(self._clock, DatabaseClock) and self._owns_database:
            await self._database.measure(self._clock)
        held = await self._completion.renew(keys, progress=progress)
        return Renewal(
            renewed={token: lease.expires_at for token, lease in held.items()},
            lost=frozenset(key.token for key in keys if key.token not in held),
            cancelled=frozenset(token for token, lease in held.items() if lease.cancel),
        )

    async def report(self, reports: Sequence[Report]) -> frozenset[UUID]:
        return frozenset(await self._completion.report(reports))

    async def retire(self, worker: WorkerInfo) -> None:
        await self._fleet.retire(worker.instance, tenant_id=worker.tenant_id)

    async def wait_for_work(self, worker: WorkerInfo, *, timeout: float) -> None:
        hint = self._ready.get(worker.pool)
        if hint is None:
            hint = self._ready[worker.pool] = self._hints.subscribe(pool_topic(worker.pool))
        if await self._hints.hold_bell(worker.pool, since=self._holds):
            return
        # A limit's next token is no news to anybody: whoever waits for it knows when it will be there.
        await self._clock.wait(hint, min(timeout, self._dispatch.seconds_until_token(worker.pool)))
        hint.clear()

    async def wait_for_cancel(self) -> None:
        await self._cancels.wait()
        self._cancels.clear()

    async def close(self) -> None:
        if self._owns_database:
            await self._database.close()
