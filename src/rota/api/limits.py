"""How many calls a tenant makes a second, in this process: a bucket of tokens for each, and one more for its workers.

What is said about runs in hand, renewals and completions, has a bucket of its own: a tenant whose other calls have used
up their rate does not lose its leases over it.
"""

import math
from dataclasses import dataclass
from typing import Final

from rota.api.recent import Recent
from rota.clock import Clock
from rota.errors import TooManyCalls
from rota.services.access import Access

CALLS_PER_SECOND: Final = 1000.0
"""The rate of a tenant without a quota of its own, unless the installation chose another."""
BURST: Final = 2.0
"""How many seconds' worth of calls may come at once."""
TENANTS_KEPT: Final = 10_000


class CallLimits:
    """Lets calls in at each tenant's rate. With several API processes a tenant has the sum."""

    def __init__(self, access: Access, clock: Clock, *, calls_per_second: float = CALLS_PER_SECOND) -> None:
        self._access = access
        self._clock = clock
        self._usual = calls_per_second
        self._buckets: Recent[tuple[str, bool], _Bucket] = Recent(2 * TENANTS_KEPT)

    async def admit(self, tenant_id: str, *, in_hand: bool = False) -> None:
        """Take note of one call; `in_hand`: about runs that a worker holds.

        Raises TooManyCalls, DatabaseUnavailable.
        """
        quota = await self._access.quotas(tenant_id)
        rate = self._usual if quota is None or quota.calls_per_second is None else quota.calls_per_second
        key = tenant_id, in_hand
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = _Bucket(level=math.inf, at=self._clock.monotonic())
            self._buckets.put(key, bucket)
        wait = bucket.take(self._clock.monotonic(), rate=rate)
        if wait > 0:
            raise TooManyCalls(
                f"tenant {tenant_id!r} has made more than {rate:g} calls a second",
                retry_after=round(wait, 3),
                hint="wait, and send what can be sent together in one call",
            )


@dataclass(slots=True)
class _Bucket:
    """Tokens that refill up to BURST seconds' worth; there is always room for one."""

    level: float
    at: float

    def take(self, now: float, *, rate: float) -> float:
        """Take a token; returns 0.0, or the seconds until there is one."""
        refilled = self.level + max(0.0, now - self.at) * rate
        self.level, self.at = min(refilled, max(1.0, rate * BURST)), now
        if self.level < 1.0:
            return (1.0 - self.level) / rate
        self.level -= 1.0
        return 0.0
