"""What makes a cluster ready: the age of the last success of its schedulers and workers, not that something runs."""

from datetime import datetime
from typing import Final

from rota.services.fleet import Health
from rota.wire.work import HealthDocument

TICK_AGE_LIMIT: Final = 10.0
"""Seconds within which some scheduler must have ticked successfully."""
CLAIM_AGE_LIMIT: Final = 30.0
"""Seconds within which a claim must have succeeded, where workers live."""

SILENT_DATABASE: Final = HealthDocument(
    ready=False, problems=("the database does not answer",), tick_age=None, claim_age=None
)


def judged(health: Health, *, now: datetime) -> HealthDocument:
    """Return what these successes mean."""
    tick_age, claim_age = ages(health, now=now)
    problems = []
    if tick_age is None or tick_age >= TICK_AGE_LIMIT:
        problems.append(f"no scheduler has ticked within {TICK_AGE_LIMIT:g} s")
    if health.workers and (claim_age is None or claim_age >= CLAIM_AGE_LIMIT):
        problems.append(f"no worker has claimed within {CLAIM_AGE_LIMIT:g} s")
    return HealthDocument(ready=not problems, problems=tuple(problems), tick_age=tick_age, claim_age=claim_age)


def ages(health: Health, *, now: datetime) -> tuple[float | None, float | None]:
    """Return the seconds since the last successful tick and claim; None where there was none."""

    def age(at: datetime | None) -> float | None:
        # Another process's clock may be a little ahead of this one's.
        return None if at is None else max(0.0, (now - at).total_seconds())

    return age(health.tick_at), age(health.claim_at)
