"""Looks after all runs that wait for limits, so that none depends on who freed a permit, or on one process's memory."""

from typing import Final

from rota.clock import Clock
from rota.services.hints import Hints
from rota.services.returning import BATCH, let_in
from rota.store import parking
from rota.store.database import Database

INTERVAL: Final = 0.5
"""Seconds between two looks."""


class LimitKeeper:
    """Runs beside every scheduler; a look is safe to take twice and by many.

    Each tick looks at a batch of limits, and the next one at those behind it.
    """

    def __init__(self, database: Database, clock: Clock, hints: Hints) -> None:
        self._database = database
        self._clock = clock
        self._hints = hints
        self._after = ""

    async def tick(self) -> bool:
        """Let runs in whose limits have room."""
        keys = await parking.parked_keys(self._database, after=self._after, limit=BATCH)
        await let_in(self._database, self._clock, self._hints, dict.fromkeys(keys, ""))
        self._after = keys[-1] if len(keys) == BATCH else ""
        return False

    async def pause(self) -> float:
        """Look twice a second; an edited limit is looked at once."""
        return INTERVAL
