"""Which rule made a slot: what people ask where clocks change. The rules themselves are in `domain.zones`."""

from datetime import datetime
from typing import Literal

from rota.domain.cron import wall_times
from rota.domain.rules import Cron, Schedule
from rota.domain.zones import shift_at, zone

SlotRule = Literal["named", "gap", "fold"]
"""`named`: the schedule names this very time. `gap`: it names one that the local clock skips, so the slot stands at the
change. `fold`: the local clock shows the named time twice, and this is one of the two."""


def slot_rule(schedule: Schedule, slot: datetime) -> SlotRule:
    """Return the rule that made one of a schedule's slots; an instant that is no slot has no meaningful answer."""
    if not isinstance(schedule, Cron):
        return "named"
    where = zone(schedule.tz)
    try:
        wall = slot.astimezone(where).replace(tzinfo=None, fold=0)
        if wall_times(schedule.expression, seconds=schedule.seconds).first(wall) != wall:
            return "gap"
        return "fold" if shift_at(wall, where) else "named"
    except OverflowError:
        # The last hours of the year 9999, which some zones would show as the year 10000: no clock changes there.
        return "named"


def local_time(slot: datetime, tz: str) -> str:
    """Return the slot as a wall clock in an IANA zone shows it, in ISO 8601 with its offset."""
    try:
        return slot.astimezone(zone(tz)).isoformat()
    except OverflowError:
        return slot.isoformat()


def zone_of(schedule: Schedule | None) -> str:
    """Return the zone in which people read a schedule's slots."""
    return schedule.tz if isinstance(schedule, Cron) else "UTC"
