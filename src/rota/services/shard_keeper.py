"""Keeps this scheduler's fair share of the shards, by leases with epochs."""

from collections.abc import Callable
from datetime import datetime
from typing import Final

import structlog

from rota.clock import MEASURE_INTERVAL, Clock, StepWatch
from rota.domain import shard as domain
from rota.services.owned import OwnedShards
from rota.store import shards
from rota.store.database import Database

log = structlog.get_logger()

PAUSE: Final = domain.KEEP_INTERVAL.total_seconds()


class ShardKeeper:
    """One scheduler's hand on its shards. Shares settle within two leases of a join or a death.

    `last_tick` tells when the scheduler's timer last succeeded, which its health is read from.
    """

    def __init__(
        self, database: Database, clock: Clock, owned: OwnedShards, *, scheduler_id: str, version: str, tzdata: str,
        last_tick: Callable[[], datetime | None] = lambda: None,
    ) -> None:  # fmt: skip
        self.scheduler_id = scheduler_id
        self._database = database
        self._clock = clock
        self._owned = owned
        self._version = version
        self._tzdata = tzdata
        self._last_tick = last_tick
        self._others = StepWatch(clock, patience=domain.SHARD_LEASE.total_seconds() + MEASURE_INTERVAL)
        self._epochs: dict[int, int] = {}
        self._is_new = True

    async def tick(self) -> bool:
        """Renew what is ours, give surplus up, take what is free and our share. Never more at once."""
        now = self._clock.now()
        fair_now = self._others.fair_now()
        expires_at = now + domain.SHARD_LEASE
        await shards.beat(
            self._database,
            self.scheduler_id,
            now=now,
            expires_at=expires_at,
            version=self._version,
            tzdata=self._tzdata,
            last_tick_at=self._last_tick(),
        )
        self._hold(await self._keep(expires_at=expires_at), expires_at=expires_at)
        plan = domain.plan(
            await shards.all_shards(self._database),
            me=self.scheduler_id,
            held=self._epochs.keys(),
            schedulers=await shards.live_schedulers(self._database, now=fair_now),
            now=fair_now,
        )
        surplus = {shard: self._epochs[shard] for shard in plan.release}
        released = await shards.release(self._database, self.scheduler_id, surplus, now=now)
        self._hold({s: epoch for s, epoch in self._epochs.items() if s not in released}, expires_at=expires_at)
        taken = await shards.acquire(
            self._database, self.scheduler_id, plan.acquire, now=fair_now, expires_at=expires_at
        )
        self._hold(self._epochs | taken, expires_at=expires_at)
        if taken or released:
            log.info("shards.moved", scheduler=self.scheduler_id, taken=sorted(taken), released=sorted(released))
        return False

    def _hold(self, epochs: dict[int, int], *, expires_at: datetime) -> None:
        """Believe each write as soon as it is answered: trouble with a later one must not cost what this one gave."""
        self._epochs = epochs
        self._owned.hold(epochs, expires_at=expires_at)

    async def _keep(self, *, expires_at: datetime) -> dict[int, int]:
        """Extend what is ours; at the first tick that is what a predecessor of our name left behind."""
        if self._is_new:
            adopted = await shards.adopt(self._database, self.scheduler_id, expires_at=expires_at)
            self._is_new = False
            return adopted
        kept = await shards.renew(self._database, self.scheduler_id, self._epochs, expires_at=expires_at)
        if lost := self._epochs.keys() - kept.keys():
            log.warning("shards.lost", scheduler=self.scheduler_id, shards=sorted(lost))
        return kept

    async def pause(self) -> float:
        """Look again after a quarter of a lease."""
        return PAUSE

    async def leave(self) -> None:
        """Give all shards up and say goodbye, so that nobody waits for our lease to end."""
        now = self._clock.now()
        self._owned.hold({}, expires_at=now)
        await shards.release(self._database, self.scheduler_id, self._epochs, now=now)
        await shards.forget(self._database, self.scheduler_id)
        self._epochs = {}
