"""In which order waiting runs are admitted: priority with ageing, as one number that an index keeps in order."""

from datetime import datetime, timedelta
from typing import Final

from rota.domain.ids import to_milliseconds

AGEING: Final = timedelta(seconds=60)
"""How long a run must wait to overtake one that is a priority point above it and arrives now."""


def rank(available_at: datetime, *, priority: int, ageing: timedelta = AGEING) -> int:
    """Return the run's rank in ms; smaller goes first.

    All waiting runs age at the same pace, so the order between two of them never changes and needs no upkeep:
    a run waits behind work that arrives later only while that arrived less than ageing * (priority gap) later.
    """
    milliseconds = to_milliseconds(available_at.replace(microsecond=available_at.microsecond // 1000 * 1000))
    return milliseconds - priority * (ageing // timedelta(milliseconds=1))
