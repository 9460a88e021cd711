"""The desk of a worker that reaches the database itself."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final
from uuid import UUID

from rota.clock import Clock, DatabaseClock
from rota.domain.attempt import Claim, LeaseKey, Report
from rota.domain.zones import tzdata_version
from rota.services.completion import Completion
from rota.services.dispatch import Dispatch
from rota.services.hints import Hint, Hints, pool_topic
from rota.store import workers
from rota.store.database import Database
from rota.version import VERSION
from rota.worker.desk import Renewal, WorkerInfo

ANNOUNCED_FOR: Final = timedelta(seconds=15)
"""How long a worker counts as live after it said so: three announcements."""


class LocalDesk:
    """Claims, renews and reports through the services, in this process."""

    def __init__(self, database: Database, clock: Clock, hints: Hints, *, owns_database: bool = False) -> None:
        self._database = database
        self._clock = clock
        self._hints = hints
        self._dispatch = Dispatch(database, clock)
        self._completion = Completion(database, clock, hints)
        self._ready: dict[str, Hint] = {}
        self._owns_database = owns_database

    @classmethod
    async def connect(cls, dsn: str, *, size: int = 1, reserved: int = 1) -> "LocalDesk":
        """Open a desk with connections of its own: the heart's, which no handler and no claim can occupy."""
        database = await Database.connect(dsn, size=size, reserved=reserved, name="rota-heart")
        clock = DatabaseClock()
        await database.measure(clock)
        return cls(database, clock, Hints(database, clock), owns_database=True)

    async def announce(self, worker: WorkerInfo) -> None:
        now = self._clock.now()
        await workers.announce(
            self._database,
            instance=worker.instance,
            worker_id=worker.worker_id,
            pool=worker.pool,
            handlers=sorted(worker.handlers),
            concurrency=worker.concurrency,
            now=now,
            expires_at=now + ANNOUNCED_FOR,
            version=VERSION,
            tzdata=tzdata_version(),
        )

    async def claim(self, worker: WorkerInfo, *, limit: int) -> list[Claim]:
        return await self._dispatch.claim(
            worker_id=worker.worker_id, pool=worker.pool, handlers=worker.handlers, limit=limit
        )

    async def renew(self, keys: Sequence[LeaseKey]) -> Renewal:
        if isinstance(self._clock, DatabaseClock) and self._owns_database:
            await self._database.measure(self._clock)
        renewed = await self._completion.renew(keys)
        return Renewal(renewed=renewed, lost=frozenset(key.token for key in keys if key.token not in renewed))

    async def report(self, reports: Sequence[Report]) -> frozenset[UUID]:
        return await self._completion.report(reports)

    async def retire(self, worker: WorkerInfo) -> None:
        await workers.retire(self._database, worker.instance)

    async def wait_for_work(self, worker: WorkerInfo, *, timeout: float) -> None:
        hint = self._ready.get(worker.pool)
        if hint is None:
            hint = self._ready[worker.pool] = self._hints.subscribe(pool_topic(worker.pool))
        await self._clock.wait(hint, timeout)
        hint.clear()

    async def close(self) -> None:
        if self._owns_database:
            await self._database.close()
