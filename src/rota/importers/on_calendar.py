"""systemd's calendar expressions (systemd.time(7)) as cron fields that name the same local times.

`DAYS DATE TIME ZONE`, each of them optional: weekdays and date must both hold; a field is a list of `*`, values, ranges
`a..b` and repetitions `a/n`. What cron cannot say is refused rather than said nearly.
"""

import re
from dataclasses import dataclass
from typing import Final

from rota.domain.expression import BOUNDS, FieldName
from rota.domain.zones import zone_keys
from rota.errors import InvalidInput
from rota.importers.result import excerpt

SHORTHANDS: Final = {
    "minutely": "*-*-* *:*:00",
    "hourly": "*-*-* *:00:00",
    "daily": "*-*-* 00:00:00",
    "weekly": "Mon *-*-* 00:00:00",
    "monthly": "*-*-01 00:00:00",
    "quarterly": "*-01,04,07,10-01 00:00:00",
    "semiannually": "*-01,07-01 00:00:00",
    "semi-annually": "*-01,07-01 00:00:00",
    "biannually": "*-01,07-01 00:00:00",
    "bi-annually": "*-01,07-01 00:00:00",
    "yearly": "*-01-01 00:00:00",
    "annually": "*-01-01 00:00:00",
}
LENGTH_LIMIT: Final = 512

_DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_WEEKDAYS: Final = re.compile(r"[A-Za-z]+(?:(?:\.\.|-)[A-Za-z]+)?(?:,[A-Za-z]+(?:(?:\.\.|-)[A-Za-z]+)?)*,?")
_ITEM: Final = re.compile(r"(?:(\*)|(\d{1,4})(?:\.\.(\d{1,4}))?)(?:/(\d{1,4}))?", re.ASCII)
_WEEKS: Final = {(1, 7): 1, (8, 14): 2, (15, 21): 3, (22, 28): 4}
"""The days of a month in which a weekday comes for the nth time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalendarTimes:
    """Cron fields, with a leading second unless that is 0, and the zone if the expression names one."""

    expression: str
    seconds: bool
    zone: str | None


def read_on_calendar(text: str) -> CalendarTimes:
    """Return the cron fields that name the same times. Raises InvalidInput, field OnCalendar, for all else."""
    if len(text) > LENGTH_LIMIT:
        raise _refused(f"has {len(text)} characters, more than {LENGTH_LIMIT}")
    parts = text.split()
    zone = parts.pop() if parts and parts[-1] in zone_keys() else None
    if len(parts) == 1 and parts[0].lower() in SHORTHANDS:
        parts = SHORTHANDS[parts[0].lower()].split()
    weekdays = _weekdays(parts.pop(0)) if parts and _WEEKDAYS.fullmatch(parts[0]) else "*"
    date = parts.pop(0) if parts and _is_date(parts[0]) else "*-*-*"
    time = parts.pop(0) if parts else "00:00:00"
    if not text.split() or parts or ":" not in time:
        raise _refused(f"{excerpt(text)} is not understood", "write it as systemd-analyze calendar shows it")
    month, day = _date(date)
    hour, minute, second = _time(time)
    day, weekdays = _both(day, weekdays, text)
    fields = f"{minute} {hour} {day} {month} {weekdays}"
    return CalendarTimes(expression=fields if second == "0" else f"{second} {fields}", seconds=second != "0", zone=zone)


def _is_date(part: str) -> bool:
    return ":" not in part and ("-" in part or "~" in part)


def _date(text: str) -> tuple[str, str]:
    """Return the month's and the day's field."""
    head, mark, last = text.rpartition("~") if "~" in text else text.rpartition("-")
    year, _, month = head.rpartition("-")
    if year not in ("", "*"):
        raise _refused(f"names the year {excerpt(year)}", "a job with one slot is `rota job put JOB --at INSTANT`")
    if mark == "-":
        return _field(FieldName.MONTH, month), _field(FieldName.DAY, last)
    # `~1` is the month's last day, `~3` the third from its end.
    if not re.fullmatch(r"[0-9]{1,2}", last) or not 1 <= int(last) <= 31:
        raise _refused(
            f"{excerpt(text)}: of days from the month's end only one is converted", "in cron '0 0 L-2 * *' is ~3"
        )
    return _field(FieldName.MONTH, month), "L" if int(last) == 1 else f"L-{int(last) - 1}"


def _time(text: str) -> tuple[str, str, str]:
    """Return the fields of hour, minute and second."""
    parts = text.split(":")
    if len(parts) not in (2, 3):
        raise _refused(f"the time {excerpt(text)} is not understood")
    hour, minute, second = (*parts, "0") if len(parts) == 2 else parts
    if "." in second.replace("..", ""):
        raise _refused(f"{excerpt(text)} names a part of a second", "slots are whole seconds in cron")
    return _field(FieldName.HOUR, hour), _field(FieldName.MINUTE, minute), _field(FieldName.SECOND, second)


def _weekdays(text: str) -> str:
    """Return the weekdays as numbers, 1 to 7, ranges folded."""
    found: set[int] = set()
    for item in text.rstrip(",").split(","):
        first, _, last = item.replace("..", "-").partition("-")
        low, high = _weekday(first), _weekday(last or first)
        # A range may wrap around the week's end.
        found |= {(number - 1) % 7 + 1 for number in range(low, high + 1 if low <= high else high + 8)}
    return "*" if len(found) == 7 else _folded(sorted(found))


def _weekday(word: str) -> int:
    for number, name in enumerate(_DAYS, start=1):
        if word.lower() in (name, name[:3]):
            return number
    raise _refused(f"{excerpt(word)} is no day of the week")


def _folded(numbers: list[int]) -> str:
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def _field(name: FieldName, text: str) -> str:
    return ",".join(_item(name, item) for item in text.split(","))


def _item(name: FieldName, text: str) -> str:
    low, high = BOUNDS[name]
    match = _ITEM.fullmatch(text)
    if match is None:
        raise _refused(f"{name} {excerpt(text)} is not understood")
    first, step = low if match[1] else int(match[2]), int(match[4] or 0)
    last = int(match[3]) if match[3] else high if step or match[1] else first
    if not low <= first <= last <= high or (match[4] and not step):
        raise _refused(f"{name} {excerpt(text)} is outside {low} to {high}")
    if step > 1 or (step and not match[1]):
        # Not `*/n`: an hour that begins with `*` follows elapsed time where clocks change, and these are local hours.
        return f"*/{step}" if name is not FieldName.HOUR and (first, last) == (low, high) else f"{first}-{last}/{step}"
    if match[1]:
        return "*"
    return str(first) if first == last else f"{first}-{last}"


def _both(day: str, weekdays: str, text: str) -> tuple[str, str]:
    """Return fields of which both must hold: cron takes either, unless one begins with `*`."""
    if day == "*" or weekdays == "*" or day.startswith("*/"):
        return day, weekdays
    span = re.fullmatch(r"(\d+)-(\d+)", day)
    week = _WEEKS.get((int(span[1]), int(span[2]))) if span else None
    if week is None:
        raise _refused(
            f"{excerpt(text)}: a weekday and a date must both hold there, while cron takes a day that matches either",
            "give the dates in cron, and test the weekday in the command",
        )
    numbers = [
        number
        for part in weekdays.split(",")
        for number in range(int(part.partition("-")[0]), int(part.rpartition("-")[2]) + 1)
    ]
    return "*", ",".join(f"{number}#{week}" for number in numbers)


def _refused(reason: str, hint: str | None = None) -> InvalidInput:
    return InvalidInput("OnCalendar", reason, hint=hint)
