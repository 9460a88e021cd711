"""A schedule in English words, for people who check that it says what they meant.

Pure text: the parsed expression goes in, a phrase without a full stop comes out ("at 02:00 every day").
"""

from collections.abc import Callable
from datetime import timedelta
from itertools import product
from typing import Final

from rota.domain.expression import BOUNDS, Expression, Field, FieldName, Term, TermKind

TIMES_SPELLED: Final = 6
"""The most times of day, or values of a field, that are listed one by one."""

NOTE_FIXED: Final = (
    "Where clocks change: a local time that is skipped fires at the change, one that comes twice fires the first time."
)
NOTE_ELAPSED: Final = (
    "Where clocks change: follows elapsed time, so it fires in both passes of a repeated hour and makes up nothing "
    "for a skipped one."
)
NOTE_NO_ZONE: Final = "Clock changes do not matter here."

_MONTHS: Final = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_WEEKDAYS: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_CYCLE: Final = {FieldName.SECOND: 60, FieldName.MINUTE: 60, FieldName.HOUR: 24}


def explain_cron(expression: Expression) -> str:
    """Return when the expression fires, such as "at 02:00 on Monday to Friday in March"."""
    time, daily = _time(expression)
    days = _days(expression)
    if not days:
        return f"{time} every day" if daily else time
    return f"{time} {days}"


def explain_interval(every: timedelta) -> str:
    """Return an interval in words, such as "every 1 h 30 min"."""
    rest = every // timedelta(milliseconds=1)
    parts = []
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"), (1, "ms")):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {unit}")
    return f"every {' '.join(parts)}"


def _time(expression: Expression) -> tuple[str, bool]:
    """The time of day, and whether it reads as one that wants a day after it."""
    second, minute, hour = expression.second, expression.minute, expression.hour
    on_the_minute = str(second) == "0"
    if spelled := _times_of_day(second, minute, hour):
        return f"at {spelled}", True
    if on_the_minute:
        if hour.any and str(minute) == "0":
            return "every hour, on the hour", False
        phrase = _clock(minute)
    elif minute.any:
        phrase = _clock(second) if _is_rate(second) else f"{_clock(second)} of every minute"
        if hour.any:
            return phrase, False
    else:
        phrase = f"{_clock(second)}, {_clock(minute)}"
    if hour.any:
        return phrase if phrase.startswith("every") else f"{phrase} of every hour", False
    return f"{phrase} {_hours(hour)}", False


def _times_of_day(second: Field, minute: Field, hour: Field) -> str:
    """The times one by one, if they are few and every field lists single values; else empty."""
    if not all(term.single for field in (second, minute, hour) for term in field.terms):
        return ""
    hours, minutes, seconds = (sorted({term.first for term in field.terms}) for field in (hour, minute, second))
    if len(hours) * len(minutes) * len(seconds) > TIMES_SPELLED:
        return ""
    full = seconds != [0]
    times = [f"{h:02}:{m:02}:{s:02}" if full else f"{h:02}:{m:02}" for h, m, s in product(hours, minutes, seconds)]
    return _list(times, "and")


def _is_rate(field: Field) -> bool:
    """A step that divides its cycle, so that it reads as "every n minutes" without a lie."""
    term = field.terms[0]
    return len(field.terms) == 1 and term.star and term.step < _CYCLE[field.name] and not _CYCLE[field.name] % term.step


def _clock(field: Field) -> str:
    """A minute or second field, such as "every 15 minutes" or "at minutes 5, 20 and 35"."""
    if _is_rate(field):
        step = field.terms[0].step
        return f"every {field.name}" if step == 1 else f"every {step} {field.name}s"
    if stepped := _stepped(field):
        return f"at {stepped}"
    numbers = _numbers(field)
    return f"at {field.name if numbers.isdigit() else f'{field.name}s'} {numbers}"


def _hours(hour: Field) -> str:
    if _is_rate(hour):
        return f"of every {_ordinal(hour.terms[0].step)} hour"
    if stepped := _stepped(hour):
        return f"of {stepped}"
    numbers = _numbers(hour)
    return f"of hour {numbers}" if numbers.isdigit() else f"of the hours {numbers}"


def _stepped(field: Field) -> str:
    """One long stepped term, such as "every 7th minute from 0" or "every 2nd hour from 1 to 23"; else empty."""
    term = field.terms[0]
    if len(field.terms) > 1 or term.step == 1 or len(term.values) <= TIMES_SPELLED:
        return ""
    until = "" if term.star else f" to {term.last}"
    return f"every {_ordinal(term.step)} {field.name} from {term.first}{until}"


def _numbers(field: Field) -> str:
    """A field's values as numbers, few of them one by one, such as "0 and 35" or "9 to 17"."""
    values = sorted({value for term in field.terms for value in term.values})
    if len(values) <= TIMES_SPELLED and not any(_is_run(term) for term in field.terms):
        return _list([str(value) for value in values], "and")
    return _list([_range(term, str, field.name) for term in field.terms], "and")


def _is_run(term: Term) -> bool:
    return term.step == 1 and term.last - term.first > 1


def _range(term: Term, word: Callable[[int], str], name: FieldName) -> str:
    """A VALUES term; `word` turns a value into its name."""
    if term.single:
        return word(term.first)
    low, high = BOUNDS[name]
    text = f"{word(term.first)} to {word(term.last)}"
    if term.step == 1:
        return text
    step = f"every {_ordinal(term.step)}"
    return f"{step} from {word(low)}" if (term.first, term.last) == (low, high) else f"{step} from {text}"


def _days(expression: Expression) -> str:
    """The date part; empty for every day."""
    month = "" if expression.month.any else _months(expression.month)
    if expression.weekday.any and expression.day.any:
        return f"every day in {month}" if month else ""
    if expression.weekday.any:
        day, only_day, only_month = expression.day, expression.day.terms[0], expression.month.terms[0]
        if len(day.terms) == 1 == len(expression.month.terms) and only_day.single and only_month.single:
            return f"on {only_day.first} {_month(only_month.first)}"
        dates = f"on {_day_words(day)}"
    elif expression.day.any:
        dates = f"on {_weekday_words(expression.weekday)}"
    else:
        joined = "if that is also" if expression.days_and else "or on"
        dates = f"on {_day_words(expression.day)} {joined} {_weekday_words(expression.weekday)}"
    return f"{dates}{',' if month and expression.both_days else ''} in {month}" if month else dates


def _day_words(day: Field) -> str:
    plain = Field(FieldName.DAY, tuple(t for t in day.terms if t.kind is TermKind.VALUES and not t.star))
    parts = []
    if plain.terms:
        numbers = _numbers(plain)
        parts.append(f"day {numbers}" if numbers.isdigit() else f"days {numbers}")
    for term in day.terms:
        if term.star:
            parts.append("any day" if term.step == 1 else f"every {_ordinal(term.step)} day from 1")
        elif term.kind is TermKind.LAST_DAY:
            days = "day" if term.before == 1 else "days"
            parts.append(f"{term.before} {days} before the last day" if term.before else "the last day")
        elif term.kind is TermKind.LAST_WEEKDAY:
            parts.append("the last weekday (Monday to Friday)")
        elif term.kind is TermKind.NEAREST_WEEKDAY:
            parts.append(f"the weekday nearest to day {term.first}")
    return f"{_list(parts, 'and')} of the month"


def _weekday_words(weekday: Field) -> str:
    parts = []
    for term in weekday.terms:
        if term.kind is TermKind.LAST_OF_MONTH:
            parts.append(f"the last {_weekday(term.first)} of the month")
        elif term.kind is TermKind.NTH:
            parts.append(f"the {_ordinal(term.nth)} {_weekday(term.first)} of the month")
        elif (term.star and term.step == 1) or len(term.values) >= 7:
            parts.append("any weekday from Sunday to Saturday")
        elif term.step > 1:
            parts.extend(dict.fromkeys(_weekday(value) for value in term.values))
        else:
            parts.append(_range(term, _weekday, FieldName.WEEKDAY))
    return _list(list(dict.fromkeys(parts)), "and")


def _months(month: Field) -> str:
    parts: list[str] = []
    for term in month.terms:
        if term.step > 1:
            parts.extend(_month(value) for value in term.values)
        else:
            parts.append(_range(term, _month, FieldName.MONTH))
    return _list(list(dict.fromkeys(parts)), "and")


def _month(value: int) -> str:
    return _MONTHS[value - 1]


def _weekday(value: int) -> str:
    return _WEEKDAYS[value]


def _ordinal(number: int) -> str:
    teen = 10 < number % 100 < 14
    return f"{number}{'th' if teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def _list(items: list[str], word: str) -> str:
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} {word} {items[-1]}"
