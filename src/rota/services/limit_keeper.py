"""Looks after all runs that wait for limits, so that none depends on who freed a permit, or on one process's memory."""

from typing import Final

from rota.clock import Clock
from rota.services.hints import Hints
from rota.services.returning import BATCH, let_in_returned
from rota.store import parking
from rota.store.database import Database

INTERVAL: Final = 0.5
"""Seconds between two looks."""
LIMITS_REMEMBERED: Final = 10_000
"""Of how many limits it is remembered whose turn was the last, and whom nobody takes."""

LOOKS_AT_ONCE: Final = 10
"""The most looks without a pause."""


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

    async def tick(self) -> bool:
        """Let runs in whose limits have room."""
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

    async def pause(self) -> float:
        """Look twice a second; an edited limit is looked at once."""
        return INTERVAL
