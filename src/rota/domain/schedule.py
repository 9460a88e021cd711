"""Schedules as people and programs give them: constructors, JSON, and the slots of an expression.

The kinds themselves (Cron, Interval, Once) and what they can answer are in `domain.rules`.
"""

import re
from datetime import datetime, timedelta
from typing import Any, Final

from rota.domain.duration import format_duration, parse_duration
from rota.domain.expression import LENGTH_LIMIT
from rota.domain.instants import format_instant, parse_instant
from rota.domain.rules import EPOCH, SHORTEST_INTERVAL, Cron, Dst, Interval, Once, Schedule
from rota.errors import InvalidInput, InvalidSchedule, NoFurtherSlot

__all__ = [
    "EPOCH",
    "SHORTEST_INTERVAL",
    "SLOTS_LIMIT",
    "Cron",
    "Dst",
    "Interval",
    "Once",
    "Schedule",
    "cron",
    "every",
    "format_instant",
    "may_name",
    "next_slots",
    "once",
    "parse_instant",
    "schedule_from_json",
    "schedule_to_json",
]

SLOTS_LIMIT: Final = 10_000
"""The most slots that one call of `next_slots` lists."""


def cron(
    expression: str,
    *,
    tz: str = "UTC",
    dst: Dst = "auto",
    seconds: bool = False,
    start: datetime | None = None,
    end: datetime | None = None,
) -> Cron | Interval:
    """Return the schedule of a cron expression or macro; `@every 1h30m` gives an interval on the grid of 1970.

    Raises InvalidSchedule that names the field.
    """
    length = _every_macro(expression)
    if length is None:
        return Cron(expression, tz=tz, dst=dst, seconds=seconds, start=start, end=end)
    # An interval knows no zone and no clock changes: whoever names one means something else.
    Cron("@hourly", tz=tz, dst=dst, seconds=seconds)
    for field, is_given in (("tz", tz != "UTC"), ("dst", dst != "auto"), ("seconds", seconds)):
        if is_given:
            raise InvalidSchedule(field, "has no bearing on @every, which counts elapsed time", hint="leave it out")
    return Interval(length, start=start, end=end)


def is_interval(expression: str) -> bool:
    """Whether an expression is `@every ...`. Raises InvalidSchedule for a length that is none."""
    return _every_macro(expression) is not None


def every(
    length: str | timedelta,
    *,
    anchor: datetime | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
) -> Interval:
    """Return an interval such as every("1h30m") or every(timedelta(minutes=5)); its anchor is 1970 unless given."""
    given = _length(length, "every") if isinstance(length, str) else length
    return Interval(given, anchor=EPOCH if anchor is None else anchor, start=start, end=end)


def once(at: datetime) -> Once:
    """Return the schedule of one slot, an aware instant in whole milliseconds."""
    return Once(at)


def next_slots(
    expression: str,
    *,
    tz: str = "UTC",
    after: datetime,
    count: int = 1,
    dst: Dst = "auto",
    seconds: bool = False,
    anchor: datetime | None = None,
) -> list[datetime]:
    """Return the next `count` slots strictly after an instant, fewer if the calendar ends in the year 9999.

    `anchor` belongs to `@every` alone. Raises InvalidSchedule that names the field; NoFurtherSlot if there is none.
    """
    if not isinstance(count, int) or not 1 <= count <= SLOTS_LIMIT:
        raise InvalidSchedule("count", f"must be a whole number from 1 to {SLOTS_LIMIT}")
    schedule = cron(expression) if is_interval(expression) else cron(expression, tz=tz, dst=dst, seconds=seconds)
    if anchor is not None:
        if not isinstance(schedule, Interval):
            raise InvalidSchedule("anchor", "only @every has an anchor", hint="leave it out")
        schedule = Interval(schedule.every, anchor=anchor)
    slots: list[datetime] = []
    slot = schedule.next_slot(after)
    while slot is not None:
        slots.append(slot)
        slot = schedule.next_slot(slot) if len(slots) < count else None
    if not slots:
        raise NoFurtherSlot("expression", f"has no slot after {format_instant(after)}", hint="give an earlier instant")
    return slots


def may_name(schedule: Schedule | None, instant: datetime) -> bool:
    """Tell whether a schedule may have a slot at an instant; False: it certainly has none.

    Of two milliseconds in a row one is none at least. SQL asks the same of `rota.may_name`.
    """
    match schedule:
        case None:
            return False
        case Cron():
            return instant.microsecond == 0
        case Interval():
            return (instant - schedule.anchor) % schedule.every == timedelta(0)
        case Once():
            return instant == schedule.at


def schedule_to_json(schedule: Schedule) -> dict[str, Any]:
    """Return a JSON object that `schedule_from_json` reads back as an equal schedule; absent bounds are left out."""
    match schedule:
        case Cron():
            keys = ("expression", "tz", "dst", "seconds")
            document: dict[str, Any] = {"kind": "cron", **{key: getattr(schedule, key) for key in keys}}
        case Interval():
            document = {"kind": "interval", "every": format_duration(schedule.every)}
            document["anchor"] = format_instant(schedule.anchor)
        case Once():
            return {"kind": "once", "at": format_instant(schedule.at)}
    bounds = {"start": schedule.start, "end": schedule.end}
    return document | {key: format_instant(bound) for key, bound in bounds.items() if bound is not None}


def schedule_from_json(document: object) -> Schedule:
    """Read a schedule: {"kind": "cron", "expression", "tz", "dst", "seconds", "start", "end"}, {"kind": "interval",
    "every", "anchor", "start", "end"} or {"kind": "once", "at"}; null is as good as absent.

    Raises InvalidSchedule that names the key, also for one that is unknown.
    """
    if not isinstance(document, dict):
        raise InvalidSchedule("schedule", "must be a JSON object with a kind")
    given = {key: value for key, value in document.items() if value is not None and key != "kind"}
    kind = document.get("kind")
    if not isinstance(kind, str) or kind not in _KEYS:
        raise InvalidSchedule("kind", "is missing or unknown", hint=f"give one of {', '.join(_KEYS)}")
    needed, optional = _KEYS[kind]
    for key in given:
        if key not in (needed, *optional):
            raise InvalidSchedule(str(key)[:LENGTH_LIMIT], f"is unknown in a schedule of kind {kind}")
    if needed not in given:
        raise InvalidSchedule(needed, "is missing")
    for key in given.keys() & {"start", "end", "anchor", "at"}:
        given[key] = parse_instant(given[key], field=key)
    if kind == "cron":
        return Cron(**given)
    return every(given.pop("every"), **given) if kind == "interval" else Once(**given)


_KEYS: Final = {
    "cron": ("expression", ("tz", "dst", "seconds", "start", "end")),
    "interval": ("every", ("anchor", "start", "end")),
    "once": ("at", ()),
}


def _every_macro(expression: str) -> timedelta | None:
    """The length of `@every 1h30m`; None for any other expression."""
    if not isinstance(expression, str) or len(expression) > LENGTH_LIMIT:
        return None
    match = re.fullmatch(r"[ \t]*@every[ \t]+([^ \t]+)[ \t]*", expression, re.ASCII | re.IGNORECASE)
    return _length(match[1], "expression") if match else None


def _length(text: str, field: str) -> timedelta:
    try:
        length = parse_duration(text, field=field)
    except InvalidInput as refusal:
        raise InvalidSchedule(field, refusal.reason, hint=refusal.hint) from None
    if length < SHORTEST_INTERVAL:
        raise InvalidSchedule(field, f"{text!r} is shorter than 1 s", hint="give 1 s or more")
    return length
