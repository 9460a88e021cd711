"""When a failed run is tried again: exponential backoff with a cap and seeded jitter."""

from dataclasses import dataclass
from datetime import timedelta
from hashlib import blake2b
from math import log
from typing import Any, Final

from rota.domain.duration import duration_words
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
        for name in ("initial", "cap"):
            if not isinstance(value := getattr(self, name), timedelta):
                raise InvalidInput(f"retry.{name}", f"must be a timedelta, not {value!r}")
        for name in ("factor", "jitter"):
            _check_number(f"retry.{name}", getattr(self, name))
        if not timedelta(0) <= self.initial <= DELAY_LIMIT:
            raise InvalidInput(
                "retry.initial", f"must be from 0s to {duration_words(DELAY_LIMIT)}, not {duration_words(self.initial)}"
            )
        if not self.initial <= self.cap <= DELAY_LIMIT:
            raise InvalidInput(
                "retry.cap",
                f"must be from retry.initial to {duration_words(DELAY_LIMIT)}, not {duration_words(self.cap)}",
            )
        if not 1.0 <= self.factor <= 100.0:
            raise InvalidInput("retry.factor", f"must be from 1 to 100, not {self.factor}")
        if not 0.0 <= self.jitter <= 1.0:
            raise InvalidInput("retry.jitter", f"must be a share from 0 to 1, not {self.jitter}")

    def delay_after(self, attempt: int, *, seed: bytes) -> timedelta:
        """Return the wait after the given failed attempt (1 is the first); the same seed gives the same wait."""
        assert attempt >= 1, "attempts are counted from 1"
        full = self._seconds_after(attempt)
        share = int.from_bytes(blake2b(seed, digest_size=8).digest()) / _SEED_SPAN
        return timedelta(seconds=full * (1.0 - self.jitter * share))

    def _seconds_after(self, attempt: int) -> float:
        """Return the wait without its jitter; the power is computed only where it stays below the cap."""
        initial, cap = self.initial.total_seconds(), self.cap.total_seconds()
        if initial == 0.0 or self.factor == 1.0:
            return initial
        # A whole number's power would have thousands of digits, and a fraction's no end.
        if (attempt - 1) * log(self.factor) > log(cap / initial) + 1.0:
            return cap
        return min(cap, initial * float(self.factor) ** (attempt - 1))

    def to_json(self) -> dict[str, Any]:
        """Return the policy in seconds."""
        return {
            "initial": self.initial.total_seconds(),
            "factor": self.factor,
            "cap": self.cap.total_seconds(),
            "jitter": self.jitter,
        }

    @classmethod
    def from_json(cls, value: Any) -> "RetryPolicy":
        """Read what `to_json` gave; a field that is left out has its default. Raises InvalidInput naming the field."""
        if not isinstance(value, dict):
            raise InvalidInput("retry", f"must be an object, not {value!r}", hint=_FIELDS)
        for name, part in value.items():
            if name not in ("initial", "factor", "cap", "jitter"):
                raise InvalidInput(f"retry.{name}", "is not a field of a retry policy", hint=_FIELDS)
            _check_number(f"retry.{name}", part)
        parts = cls().to_json() | value
        return cls(
            initial=_seconds("retry.initial", parts["initial"]),
            factor=parts["factor"],
            cap=_seconds("retry.cap", parts["cap"]),
            jitter=parts["jitter"],
        )


_FIELDS: Final = 'such as {"initial": 10, "factor": 2, "cap": 3600, "jitter": 0.2}'


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(name, f"must be a number, not {value!r}")


def _seconds(name: str, value: float) -> timedelta:
    try:
        return timedelta(seconds=value)
    except (OverflowError, ValueError):
        raise InvalidInput(name, f"{value!r} is out of bounds") from None
