"""When a failed run is tried again: exponential backoff with a cap and seeded jitter."""

from dataclasses import dataclass
from datetime import timedelta
from hashlib import blake2b
from typing import Any, Final

from rota.errors import InvalidInput

DELAY_LIMIT: Final = timedelta(days=30)
_SEED_SPAN: Final = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The nth retry waits min(cap, initial * factor**(n-1)), shortened by up to `jitter` of itself.

    Jitter takes away and never adds, so the cap is a promise. It spreads a herd that failed together
    ("Exponential Backoff And Jitter", AWS Architecture Blog, 2015; there as "equal jitter" with jitter 0.5).
    """

    initial: timedelta = timedelta(seconds=10)
    factor: float = 2.0
    cap: timedelta = timedelta(hours=1)
    jitter: float = 0.2

    def __post_init__(self) -> None:
        if not timedelta(0) <= self.initial <= DELAY_LIMIT:
            raise InvalidInput("retry.initial", f"must be from 0 to {DELAY_LIMIT}, not {self.initial}")
        if not self.initial <= self.cap <= DELAY_LIMIT:
            raise InvalidInput("retry.cap", f"must be from retry.initial to {DELAY_LIMIT}, not {self.cap}")
        if not 1.0 <= self.factor <= 100.0:
            raise InvalidInput("retry.factor", f"must be from 1 to 100, not {self.factor}")
        if not 0.0 <= self.jitter <= 1.0:
            raise InvalidInput("retry.jitter", f"must be a share from 0 to 1, not {self.jitter}")

    def delay_after(self, attempt: int, *, seed: bytes) -> timedelta:
        """Return the wait after the given failed attempt (1 is the first); the same seed gives the same wait."""
        assert attempt >= 1, "attempts are counted from 1"
        # Past 2**64 the cap has long been reached; the bound keeps the power a finite float.
        grown = self.initial.total_seconds() * self.factor ** min(attempt - 1, 64 if self.factor > 1 else 0)
        full = min(self.cap.total_seconds(), grown)
        share = int.from_bytes(blake2b(seed, digest_size=8).digest()) / _SEED_SPAN
        return timedelta(seconds=full * (1.0 - self.jitter * share))

    def to_json(self) -> dict[str, Any]:
        """Return the policy in seconds."""
        return {
            "initial": self.initial.total_seconds(),
            "factor": self.factor,
            "cap": self.cap.total_seconds(),
            "jitter": self.jitter,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "RetryPolicy":
        """Read what `to_json` gave. Raises InvalidInput."""
        try:
            return cls(
                initial=timedelta(seconds=value["initial"]),
                factor=float(value["factor"]),
                cap=timedelta(seconds=value["cap"]),
                jitter=float(value["jitter"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InvalidInput("retry", f"cannot be read: {error!r}") from error
