"""Waiting longer after each failure: exponential, bounded, with jitter so that a fleet does not return in step."""

import random
from dataclasses import dataclass
from typing import Final

LONGEST_BACKOFF: Final = 2.0
"""Seconds. A database that comes back is used again within this time."""


@dataclass(slots=True, kw_only=True)
class Backoff:
    """Counts failures in a row; `next()` is how long to wait after one more, in seconds."""

    first: float = 0.05
    failures: int = 0

    def next(self) -> float:
        longest: float = min(LONGEST_BACKOFF, self.first * 2 ** min(self.failures, 16))
        self.failures += 1
        return longest * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        self.failures = 0
