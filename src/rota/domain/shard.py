"""Who owns which shard: a fair share for every live scheduler, with as few moves as possible."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

SHARD_LEASE: Final = timedelta(seconds=10)
KEEP_INTERVAL: Final = SHARD_LEASE / 4
assert KEEP_INTERVAL * 2 < SHARD_LEASE, "a shard's lease must survive one lost renewal"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLease:
    """One shard as the table shows it; free when it has no owner or its lease has ended."""

    shard: int
    owner: str | None
    epoch: int
    expires_at: datetime

    def is_free(self, *, now: datetime) -> bool:
        """A lease ends at its expiry instant, not after it."""
        return self.owner is None or now >= self.expires_at


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlan:
    """What one scheduler does next: shards to give up, and free ones to take."""

    release: tuple[int, ...]
    acquire: tuple[int, ...]


def fair_share(shard_count: int, schedulers: Sequence[str], me: str) -> int:
    """Return how many shards `me` should own: shares differ by one at most, the first by name get the larger."""
    order = sorted({*schedulers, me})
    share, extra = divmod(shard_count, len(order))
    return share + (order.index(me) < extra)


def plan(
    shards: Sequence[ShardLease], *, me: str, held: Collection[int], schedulers: Sequence[str], now: datetime
) -> ShardPlan:
    """Decide which shards `me` releases and takes, given what it holds and every live scheduler's name.

    Only free shards are taken and only surplus ones released, so the shares settle within two rounds of everybody.
    """
    share = fair_share(len(shards), schedulers, me)
    mine = [lease.shard for lease in shards if lease.shard in held]
    if len(mine) > share:
        return ShardPlan(release=tuple(mine[share:]), acquire=())
    free = [lease.shard for lease in shards if lease.is_free(now=now) and lease.shard not in held]
    # Two schedulers that look at the same free shards start at different ones, and so seldom race for one.
    start = sum(me.encode()) % len(free) if free else 0
    return ShardPlan(release=(), acquire=tuple((free[start:] + free[:start])[: share - len(mine)]))
