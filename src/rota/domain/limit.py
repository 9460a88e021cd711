"""A limit: how many runs may run at once, and how many may start a second; of a downstream that jobs name, or of all
runs of a tenant."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, get_args

from rota.domain.job import DEFAULT_TENANT, check_limit_name, check_name, check_whole
from rota.errors import InvalidInput

LimitKind = Literal["downstream", "tenant"]
"""Of what jobs name in their `limits`, or of every run of a tenant."""

SLOWEST_RATE: Final = 0.00001
"""The fewest tokens a second: about one a day."""
FASTEST_RATE: Final = 1e6
BURST_LIMIT: Final = 1_000_000
PERMITS_LIMIT: Final = 100_000
BURST_SECONDS: Final = 0.2
"""How long a rate is saved up while nobody asks, where no burst is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limit as somebody puts it. Raises InvalidInput that names the field.

    `rate` is in tokens a second, and `burst` how many are saved up at most; a run takes what it costs as it starts.
    `permits` are held while runs run; with none at all nothing starts. Of both, a run needs both.
    """

    name: str
    tenant_id: str = DEFAULT_TENANT
    kind: LimitKind = "downstream"
    rate: float | None = None
    burst: int | None = None
    permits: int | None = None

    def __post_init__(self) -> None:
        check_limit_name("name", self.name)
        check_name("tenant_id", self.tenant_id)
        if self.kind not in get_args(LimitKind):
            raise InvalidInput("kind", f"{self.kind!r} is no kind", hint=f"use one of {', '.join(get_args(LimitKind))}")
        if self.rate is None and self.permits is None:
            raise InvalidInput("rate", "is missing, and so is permits", hint="give at least one of them")
        if self.permits is not None:
            check_whole("permits", self.permits, 0, PERMITS_LIMIT)
        if self.rate is not None:
            object.__setattr__(self, "rate", _rate(self.rate))
            object.__setattr__(self, "burst", _burst(self.rate, self.burst))
        elif self.burst is not None:
            raise InvalidInput("burst", "is given without a rate", hint="give a rate too, or leave it out")

    @property
    def key(self) -> str | None:
        """The key of its permits and tokens, as `rota.limits_on` says it; None where each tenant has one of its own."""
        if self.kind == "tenant":
            return None if self.tenant_id == "*" else f"tenant/{self.tenant_id}/{self.name}"
        return f"downstream/{self.tenant_id}/{self.name}"

    def to_json(self) -> dict[str, Any]:
        """Return the limit as JSON."""
        return {spec.name: getattr(self, spec.name) for spec in fields(self)}

    @classmethod
    def from_json(cls, value: Any) -> "Limit":
        """Read a limit. Raises InvalidInput naming the field that is missing, unknown or out of bounds."""
        if not isinstance(value, Mapping):
            raise InvalidInput("limit", "must be an object", hint='such as {"name": "crm", "permits": 20}')
        known = [spec.name for spec in fields(cls)]
        for name in value:
            if name not in known:
                raise InvalidInput(str(name), "is not a field of a limit", hint=f"known are {', '.join(known)}")
        if "name" not in value:
            raise InvalidInput("name", "is missing")
        return cls(**value)


def _rate(rate: object) -> float:
    if isinstance(rate, int | float) and not isinstance(rate, bool) and SLOWEST_RATE <= rate <= FASTEST_RATE:
        return float(rate)
    hint = f"give tokens a second, from {SLOWEST_RATE:g} to {FASTEST_RATE:g}"
    raise InvalidInput("rate", f"{rate!r} is no rate", hint=hint)


def _burst(rate: float, burst: int | None) -> int:
    if burst is None:
        return max(1, math.ceil(rate * BURST_SECONDS))
    check_whole("burst", burst, 1, BURST_LIMIT)
    return burst
