"""What a worker tells its surroundings: events for a live view, and counts."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

from rota.domain.attempt import Claim, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """An attempt has started (`outcome` is None) or ended, as the desk recorded it.

    `outcome` is `lost` if the desk did not take the report: somebody else owns the run by now. Instants are the worker
    clock's; `started_at` is None if the handler never began.
    """

    claim: Claim
    started_at: datetime | None
    outcome: Outcome | None = None
    ended_at: datetime | None = None
    error: str | None = None


@dataclass(slots=True, kw_only=True)
class WorkerStats:
    """Counts since the worker's start. `lingering` are threads past their time, which keep their slots."""

    claimed: int = 0
    running: int = 0
    lingering: int = 0
    unreported: int = 0
    ended: Counter[Outcome] = field(default_factory=Counter)

    @property
    def succeeded(self) -> int:
        return self.ended[Outcome.SUCCEEDED]

    @property
    def failed(self) -> int:
        return self.ended[Outcome.FAILED]
