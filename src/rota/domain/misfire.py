"""What becomes of slots that passed while nobody looked.

A slot is late, not missed, while its age is at most the job's grace (30 s by default). Only when the oldest due slot
is older than the grace does the policy speak; until then every due slot becomes a run. The policy then judges all
slots that are due at that moment, so one rule serves a late tick, a resume and a restart.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from rota.domain.duration import duration_words
from rota.domain.schedule import Schedule
from rota.errors import InvalidInput

DEFAULT_GRACE: Final = timedelta(seconds=30)
CATCH_UP_LIMIT: Final = 1000
"""The most slots that one catch-up may make."""

MAX_AGE_LIMIT: Final = timedelta(days=11_000)
"""The greatest `max_age` of a catch-up: some 30 years, so that no instant is computed before the calendar's start."""

LATE_LIMIT: Final = 1000
"""The most slots within the grace that one decision turns into runs; more follow at the next tick."""

COUNT_LIMIT: Final = 1000
"""Skipped slots are counted up to this many; a longer range is recorded without a count."""


@dataclass(frozen=True, slots=True)
class Skip:
    """Missed slots make no run; those within the grace still do."""


@dataclass(frozen=True, slots=True)
class FireOnce:
    """All missed slots collapse into one run, at the latest of them."""


@dataclass(frozen=True, slots=True)
class CatchUp:
    """The latest `limit` missed slots that are not older than `max_age` each make a run, oldest first."""

    limit: int
    max_age: timedelta = timedelta(days=31)

    def __post_init__(self) -> None:
        if isinstance(self.limit, bool) or not isinstance(self.limit, int) or not 1 <= self.limit <= CATCH_UP_LIMIT:
            raise InvalidInput("misfire.limit", f"must be a whole number from 1 to {CATCH_UP_LIMIT}, not {self.limit}")
        if not isinstance(self.max_age, timedelta):
            raise InvalidInput("misfire.max_age", f"must be a timedelta, not {self.max_age!r}")
        if not timedelta(0) < self.max_age <= MAX_AGE_LIMIT:
            raise InvalidInput(
                "misfire.max_age",
                f"must be more than 0, at most {duration_words(MAX_AGE_LIMIT)}, not {duration_words(self.max_age)}",
            )


Misfire = Skip | FireOnce | CatchUp


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A range of slots that made no run, from its first to its last; `slots` is None past COUNT_LIMIT."""

    first: datetime
    last: datetime
    slots: int | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """The decision on a job's due slots: the slots to run, those skipped, and the next slot to wait for."""

    run: tuple[datetime, ...]
    skipped: tuple[Skipped, ...]
    next_slot: datetime | None


def decide(schedule: Schedule, misfire: Misfire, *, slot: datetime, now: datetime, grace: timedelta) -> Due:
    """Decide what becomes of every slot from `slot`, which is due, up to `now`.

    Costs are bounded by CATCH_UP_LIMIT, LATE_LIMIT and COUNT_LIMIT, never by how long nobody looked.
    """
    assert slot <= now, "a slot that is not due has no decision"
    before = slot - timedelta(milliseconds=1)
    next_slot = schedule.next_slot(slot)
    if now - slot <= grace:
        return _all_late(schedule, slot=slot, next_slot=next_slot, now=now)
    match misfire:
        case Skip():
            kept = schedule.latest_slots(now, after=max(before, now - grace - _TICK), count=LATE_LIMIT)
        case FireOnce():
            kept = schedule.latest_slots(now, after=before, count=1)
        case CatchUp():
            kept = schedule.latest_slots(now, after=max(before, now - misfire.max_age - _TICK), count=misfire.limit)
    # A schedule edited by hand can leave a stored slot that its rule does not name: it is skipped like the others.
    skipped = _range_before(schedule, first=slot, kept=kept, now=now)
    return Due(run=tuple(kept), skipped=skipped, next_slot=schedule.next_slot(now))


_TICK = timedelta(microseconds=1)


def _all_late(schedule: Schedule, *, slot: datetime, next_slot: datetime | None, now: datetime) -> Due:
    run = [slot]
    while next_slot is not None and next_slot <= now and len(run) < LATE_LIMIT:
        run.append(next_slot)
        next_slot = schedule.next_slot(next_slot)
    return Due(run=tuple(run), skipped=(), next_slot=next_slot)


def _range_before(schedule: Schedule, *, first: datetime, kept: list[datetime], now: datetime) -> tuple[Skipped, ...]:
    """Return the skipped range from `first` up to the first slot that is kept, if there is one."""
    if kept and kept[0] <= first:
        return ()
    upto = kept[0] - timedelta(milliseconds=1) if kept else now
    last = max(schedule.latest_slots(upto, after=first, count=1), default=first)
    slots = 1 + schedule.count_slots(first, last, limit=COUNT_LIMIT)
    return (Skipped(first=first, last=last, slots=slots if slots <= COUNT_LIMIT else None, reason="misfire"),)


def misfire_to_json(misfire: Misfire) -> dict[str, Any]:
    """Return the policy as JSON; ages in seconds."""
    match misfire:
        case Skip():
            return {"policy": "skip"}
        case FireOnce():
            return {"policy": "fire_once"}
        case CatchUp(limit, max_age):
            return {"policy": "catch_up", "limit": limit, "max_age": max_age.total_seconds()}


def misfire_from_json(value: Any) -> Misfire:
    """Read what `misfire_to_json` gave, or a policy's bare name. Raises InvalidInput naming the field."""
    parts = {"policy": value} if isinstance(value, str) else value
    if not isinstance(parts, dict):
        raise InvalidInput("misfire", "must be a policy's name or an object", hint=_POLICIES)
    rest = {key: part for key, part in parts.items() if key != "policy"}
    match parts.get("policy"):
        case "skip" if not rest:
            return Skip()
        case "fire_once" if not rest:
            return FireOnce()
        case "catch_up" if rest.keys() <= {"limit", "max_age"} and "limit" in rest:
            age = rest.get("max_age")
            if age is None:
                return CatchUp(rest["limit"])
            if isinstance(age, bool) or not isinstance(age, int | float) or not 0 < age < 1e9:
                raise InvalidInput("misfire.max_age", f"must be seconds, more than 0, not {age!r}")
            return CatchUp(rest["limit"], timedelta(seconds=age))
        case _:
            raise InvalidInput("misfire", f"{value!r} is not a policy", hint=_POLICIES)


_POLICIES = 'use "skip", "fire_once" or {"policy": "catch_up", "limit": 7, "max_age": 604800}'
