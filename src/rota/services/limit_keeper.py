"""Looks after limits: runs that wait come back, whoever freed a permit, and rows that nobody uses are forgotten."""

from datetime import timedelta
from typing import Final

import structlog

from rota.clock import Clock
from rota.services.hints import Hints
from rota.services.returning import BATCH, let_in_returned
from rota.store import limits, parking
from rota.store.database import Database

INTERVAL: Final = 0.5
"""Seconds between two looks."""
LIMITS_REMEMBERED: Final = 10_000
"""Of how many limits it is remembered whose turn was the last, and whom nobody takes."""

LOOKS_AT_ONCE: Final = 10
"""The most looks without a pause."""
FORGET_INTERVAL: Final = 10.0
"""Seconds between two looks for rows that nobody uses."""
FORGET_KEYS: Final = 500
FORGET_BATCH: Final = 5000
"""Of how many limits one look forgets rows, and how many rows at most."""
KEEP_IDLE: Final = timedelta(hours=1)
"""How long the rows of a limit are kept that nobody uses."""

log = structlog.get_logger()


class LimitKeeper:
    """Runs beside every scheduler; a look is safe to take twice and by many.

    Each tick looks at a batch of limits, and the next one at those behind it. Where a limit still has room for those
    that the last look let in, whoever could run them is busy with something else: they hold up the others no longer.
    """

    def __init__(self, database: Database, clock: Clock, hints: Hints) -> None:
        self._database = database
        self._clock = clock
        self._hints = hints
        self._after = ""
        self._idle: dict[str, int] = {}
        self._afters: dict[str, str] = {}
        self._looks = 0
        self._forgot_at = float("-inf")
        self._forgot_permits = ""
        self._forgot_buckets = ""

    async def tick(self) -> bool:
        """Let runs in whose limits have room; now and then forget rows that nobody uses."""
        if self._clock.monotonic() - self._forgot_at >= FORGET_INTERVAL:
            self._forgot_at = self._clock.monotonic()
            await self._forget()
        keys = await parking.parked_keys(self._database, after=self._after, limit=BATCH)
        afters = {key: self._afters.get(key, "") for key in keys}
        returned = await let_in_returned(self._database, self._clock, self._hints, afters, idle=self._idle)
        for key in keys:
            self._idle.pop(key, None)
        self._idle |= {limit.limit_key: limit.there for limit in returned if limit.has_room and limit.there}
        self._afters |= {limit.limit_key: limit.after for limit in returned if limit.after is not None}
        self._after = keys[-1] if len(keys) == BATCH else ""
        if not self._after and max(len(self._idle), len(self._afters)) > LIMITS_REMEMBERED:
            self._idle.clear()
            self._afters.clear()
        # Where there was room for many, the next batch need not wait, nor those whom one look did not reach.
        has_more = bool(self._after) and sum(limit.runs > 0 for limit in returned) > BATCH // 10
        has_more = has_more or any(limit.has_more for limit in returned)
        self._looks = self._looks + 1 if has_more else 0
        return has_more and self._looks % LOOKS_AT_ONCE != 0

    async def _forget(self) -> None:
        """Go on through permits and buckets where the last look ended."""
        now = self._clock.now()
        permits, self._forgot_permits = await limits.forget_idle_permits(
            self._database, after=self._forgot_permits, idle_since=now - KEEP_IDLE, limit=FORGET_KEYS, most=FORGET_BATCH
        )
        buckets, self._forgot_buckets = await limits.forget_idle_buckets(
            self._database, after=self._forgot_buckets, idle_since=now - KEEP_IDLE, now=now, limit=FORGET_KEYS
        )
        if permits or buckets:
            log.info("limits.forgotten", permits=permits, buckets=buckets)

    async def pause(self) -> float:
        """Look twice a second; an edited limit is looked at once."""
        return INTERVAL
