"""The wall times of a cron expression: naive local times, searched forward and backward with cronsim.

Nothing here knows of zones or clock changes: `domain.zones` maps wall times to instants. The library walks a calendar;
what a field may say is decided in `domain.expression`.
"""

from calendar import monthrange
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from typing import Final

from cronsim import CronSim, CronSimError

from rota.domain.expression import PARSED_KEPT, Expression, Field, FieldName, Term, TermKind, parse_expression
from rota.errors import InvalidSchedule

# The days of a year depend on its first weekday and on whether it is a leap year; 2000 to 2027 hold all 14 kinds.
# So an expression without a match in the 50 years that cronsim searches from here has none in any year. The rarest
# that has one (29 February on one weekday) comes again within 40 years, also over 2100.
_PROBE: Final = datetime(2000, 1, 1)

NEVER: Final = "no such date ever comes"
"""What a refusal says of days that no calendar has."""

_DAY: Final = timedelta(days=1)
_LONGEST_MONTH: Final = {4: 30, 6: 30, 9: 30, 11: 30, 2: 29}


class WallTimes(CronSim):
    """The wall times that one expression names, as an ordered set; whole seconds, years 1 to 9999.

    Searches work on a copy, so one object serves all threads. cronsim's own handling of zones is never reached.
    """

    def __init__(self, expression: Expression) -> None:
        self.every_hour = expression.hour.leads_with_star
        self.nearest = frozenset(t.first for t in expression.day.terms if t.kind is TermKind.NEAREST_WEEKDAY)
        self.from_end = frozenset(t.before for t in expression.day.terms if t.before)
        fields = (expression.second, expression.minute, expression.hour)
        times = " ".join(map(str, fields))
        # cronsim knows neither `15W` nor `L-3`; its `L` holds their place, and is taken out again below.
        days = ",".join("L" if t.before or t.kind is TermKind.NEAREST_WEEKDAY else str(t) for t in expression.day.terms)
        super().__init__(f"{times} {days} {expression.month} {expression.weekday}", _PROBE)
        has_last = any(t.kind is TermKind.LAST_DAY and not t.before for t in expression.day.terms)
        if (self.nearest or self.from_end) and not has_last:
            self.days.discard(self.LAST)
        # Many expressions share their fields: thousands of parsed ones then share the sets, too.
        self.seconds = _shared(frozenset(self.seconds))
        self.minutes = _shared(frozenset(self.minutes))
        self.hours = _shared(frozenset(self.hours))
        self.days = _shared(frozenset(self.days))
        self.months = _shared(frozenset(self.months))

    def match_dom(self, d: date) -> bool:
        """Whether the day-of-month field names the date."""
        return (
            super().match_dom(d)
            or (bool(self.nearest) and d.day in self._nearest_weekdays(d.year, d.month))
            or (bool(self.from_end) and monthrange(d.year, d.month)[1] - d.day in self.from_end)
        )

    # cronsim walks to the next hour in steps of one, which is half the cost of a daily expression: here it jumps.

    def advance_hour(self) -> bool:
        """Move to the next hour that the expression names, or to the next day; False if this hour is one."""
        if self.dt.hour in self.hours:
            return False
        later = [hour for hour in self.hours if hour > self.dt.hour]
        midnight = datetime.combine(self.dt, time())
        self.dt = midnight.replace(hour=min(later)) if later else midnight + _DAY
        return True

    def reverse_hour(self) -> bool:
        """Move to the previous hour that the expression names, or to the day before; False if this hour is one."""
        if self.dt.hour in self.hours:
            return False
        earlier = [hour for hour in self.hours if hour < self.dt.hour]
        last_second = datetime.combine(self.dt, time(23, 59, 59))
        self.dt = last_second.replace(hour=max(earlier)) if earlier else last_second - _DAY
        return True

    def first(self, start: datetime) -> datetime | None:
        """Return the earliest wall time at or after `start` (naive, whole seconds); None if there is none."""
        walk = self._at(start)
        try:
            walk.advance()
        except (StopIteration, OverflowError):
            return None
        return walk.dt

    def last(self, start: datetime) -> datetime | None:
        """Return the latest wall time at or before `start` (naive, whole seconds); None if there is none."""
        walk = self._at(start)
        walk.tick_direction = -1
        try:
            walk.reverse()
        except (StopIteration, OverflowError):
            return None
        return walk.dt

    def _at(self, start: datetime) -> "WallTimes":
        # Parsing, or copy.copy, would cost more than the whole search.
        walk = WallTimes.__new__(WallTimes)
        walk.__dict__.update(self.__dict__)
        walk.dt = start
        return walk

    def _nearest_weekdays(self, year: int, month: int) -> set[int]:
        """The days that `nW` terms name in a month: Saturday gives way to Friday, Sunday to Monday, never outside."""
        first_weekday, length = monthrange(year, month)
        found = set()
        for day in self.nearest:
            weekday = (first_weekday + day - 1) % 7
            if day > length:
                continue
            if weekday == 5:
                found.add(day - 1 if day > 1 else day + 2)
            elif weekday == 6:
                found.add(day + 1 if day < length else day - 2)
            else:
                found.add(day)
        return found


@lru_cache(maxsize=4096)
def _shared(values: frozenset[int]) -> set[int]:
    return set(values)


@lru_cache(maxsize=PARSED_KEPT)
def wall_times(text: str, *, seconds: bool = False) -> WallTimes:
    """Return the wall times of an expression, parsed once.

    Raises InvalidSchedule (field "expression") for what `parse_expression` refuses, and for days that never come.
    """
    expression = parse_expression(text, seconds=seconds)
    try:
        walls = WallTimes(expression)
        possible = walls.first(_PROBE) is not None
    except CronSimError:
        # The syntax has been checked, so cronsim complains of a day that none of the months has.
        possible = False
    if not possible:
        days = f"day-of-month {expression.day}, month {expression.month}, day-of-week {expression.weekday}"
        raise InvalidSchedule("expression", f"{NEVER}: {days}", hint="correct the day or the month")
    return walls


def warnings_of(expression: Expression) -> tuple[str, ...]:
    """Return what a reader may take for something else, in short sentences: both day fields, steps, missing days."""
    found = []
    if expression.both_days:
        rule = "a day must match both (AND), since one of them starts with *"
        if not expression.days_and:
            rule = "a day that matches either is taken (OR)"
        found.append(f"day-of-month and day-of-week are both given: {rule}")
    for field in (
        expression.second,
        expression.minute,
        expression.hour,
        expression.day,
        expression.month,
        expression.weekday,
    ):
        found.extend(_step_warnings(field))
    months = {value for term in expression.month.terms for value in term.values}
    for term in expression.day.terms:
        if term.single or term.kind is TermKind.NEAREST_WEEKDAY:
            found.extend(_day_warnings(term.first, months))
    return tuple(dict.fromkeys(found))


_CYCLES: Final = {
    FieldName.SECOND: (60, "minute"),
    FieldName.MINUTE: (60, "hour"),
    FieldName.HOUR: (24, "day"),
    FieldName.MONTH: (12, "year"),
    FieldName.WEEKDAY: (7, "week"),
}


def _step_warnings(field: Field) -> list[str]:
    return [text for term in field.terms if term.step > 1 and (text := _step_warning(field.name, term)) is not None]


def _step_warning(name: FieldName, term: Term) -> str | None:
    if not term.star:
        alone = f"{name} {term.first}/{term.step}: the step reaches no other {name}, so only {term.first} matches"
        return alone if term.single else None
    if name is FieldName.DAY:
        return f"{name} {term} restarts with every month"
    length, cycle = _CYCLES[name]
    if term.step >= length:
        return f"{name} {term}: the step is not shorter than the {cycle}, so only {name} {term.first} matches"
    if length % term.step:
        return f"{name} {term} restarts every {cycle}: {term.step} does not divide {length}"
    return None


def _day_warnings(day: int, months: set[int]) -> list[str]:
    if all(day <= _LONGEST_MONTH.get(month, 31) for month in months) and not (day == 29 and 2 in months):
        return []
    if day == 29 and months == {2}:
        return ["29 February comes in leap years only"]
    without = "all of the months" if all(day > _LONGEST_MONTH.get(month, 31) for month in months) else "some months"
    without = "February of most years" if day == 29 else without
    return [f"day {day} is missing in {without}: nothing fires there"]
