"""The text of a cron expression, read into fields and refused with the field and the value named.

Five fields as in Vixie cron (minute, hour, day-of-month, month, day-of-week), or six with a leading second when asked
for. A field is a list of terms: `*`, `7`, `1-5`, each with an optional `/step` (`5/15` reads as `5-59/15`; a step of
weekdays ends at 6); in day-of-month also `L` (last day), `L-3` (three days before it), `LW` (last weekday), `15W`
(weekday nearest to the 15th, within its month); in day-of-week also `5L` (last Friday) and `5#3` (third Friday).
Names are three letters, in any case. Only ASCII digits.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final, NoReturn

from rota.errors import InvalidSchedule

LENGTH_LIMIT: Final = 512
"""The most characters of an expression; the longest useful one, every value listed, has about 400."""

PARSED_KEPT: Final = 8192
"""Distinct expressions whose parsed form is kept in memory."""

MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

LAST_DAY_BEFORE: Final = 30
"""The most days before a month's last that `L-n` can name."""

_MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_QUOTED: Final = 40

_FOREIGN: Final = {
    "?": (
        "? is not cron",
        "write * for any day; where ? comes from, in Quartz and AWS, days count from 1 = Sunday: write their names",
    ),
    "~": ("~ picks a time by chance, and a slot must be the same on every node", "give one time, and the job a jitter"),
    "%": ("% belongs to a crontab's command, not to its schedule", "give the five fields only"),
}


class FieldName(StrEnum):
    """The fields in their order; the value is the word that messages use."""

    SECOND = "second"
    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day-of-month"
    MONTH = "month"
    WEEKDAY = "day-of-week"


BOUNDS: Final = {
    FieldName.SECOND: (0, 59),
    FieldName.MINUTE: (0, 59),
    FieldName.HOUR: (0, 23),
    FieldName.DAY: (1, 31),
    FieldName.MONTH: (1, 12),
    FieldName.WEEKDAY: (0, 7),  # 0 and 7 are both Sunday
}


class TermKind(StrEnum):
    """What a term of a field means."""

    VALUES = "values"
    LAST_DAY = "last day"
    LAST_WEEKDAY = "last weekday"
    NEAREST_WEEKDAY = "nearest weekday"
    NTH = "nth"
    LAST_OF_MONTH = "last of month"


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One item of a field's list. VALUES means first..last in steps; the day kinds use `first` and `nth`."""

    kind: TermKind = TermKind.VALUES
    first: int = 0
    last: int = 0
    step: int = 1
    star: bool = False
    nth: int = 0
    before: int = 0  # the end of the month, in days

    def __str__(self) -> str:
        """The term in digits, with nothing left to interpret."""
        base = "*" if self.star else str(self.first) if self.first == self.last else f"{self.first}-{self.last}"
        match self.kind:
            case TermKind.LAST_DAY:
                return f"L-{self.before}" if self.before else "L"
            case TermKind.LAST_WEEKDAY:
                return "LW"
            case TermKind.NEAREST_WEEKDAY:
                return f"{self.first}W"
            case TermKind.LAST_OF_MONTH:
                return f"{self.first}L"
            case TermKind.NTH:
                return f"{self.first}#{self.nth}"
            case TermKind.VALUES:
                # `5-5/10` is 5 alone; cronsim would read it as `5/10`, so a single value never carries its step.
                stepped = self.step > 1 and (self.star or self.first != self.last)
                return f"{base}/{self.step}" if stepped else base

    @property
    def single(self) -> bool:
        return self.kind is TermKind.VALUES and self.first == self.last

    @property
    def values(self) -> range:
        """The numbers that a VALUES term names."""
        return range(self.first, self.last + 1, self.step)


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its name and its terms, at least one."""

    name: FieldName
    terms: tuple[Term, ...]

    def __str__(self) -> str:
        return ",".join(map(str, self.terms))

    @property
    def leads_with_star(self) -> bool:
        return self.terms[0].star

    @property
    def any(self) -> bool:
        """A plain `*`: the field restricts nothing."""
        return len(self.terms) == 1 and self.terms[0].star and self.terms[0].step == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """A cron expression whose every field is well formed. `second` is 0 where none was given."""

    second: Field
    minute: Field
    hour: Field
    day: Field
    month: Field
    weekday: Field

    @property
    def both_days(self) -> bool:
        return not self.day.any and not self.weekday.any

    @property
    def days_and(self) -> bool:
        """Both day fields must match, as soon as one starts with `*`; otherwise either is enough (Vixie cron)."""
        return self.day.leads_with_star or self.weekday.leads_with_star


@lru_cache(maxsize=PARSED_KEPT)
def parse_expression(text: str, *, seconds: bool = False) -> Expression:
    """Read a cron expression or a macro such as `@daily`; with `seconds` its first of six fields is the second.

    Raises InvalidSchedule with field "expression". Whether any day matches is not looked at: see `cron.wall_times`.
    """
    _check_characters(text)
    text = text.strip(" \t")
    if text.startswith("@"):
        text, seconds = _macro(text), False
    parts = re.split(r"[ \t]+", text) if text else []
    if len(parts) != (6 if seconds else 5):
        _refuse_count(parts, seconds=seconds)
    names = tuple(FieldName) if seconds else tuple(FieldName)[1:]
    fields = [
        Field(name, tuple(_term(name, item) for item in part.split(",")))
        for name, part in zip(names, parts, strict=True)
    ]
    if not seconds:
        fields.insert(0, Field(FieldName.SECOND, (Term(first=0, last=0),)))
    second, minute, hour, day, month, weekday = fields
    return Expression(second=second, minute=minute, hour=hour, day=day, month=month, weekday=weekday)


def _refuse(reason: str, hint: str | None = None) -> NoReturn:
    raise InvalidSchedule("expression", reason, hint=hint)


def _quote(text: str) -> str:
    return f'"{text}"' if len(text) <= _QUOTED else f'"{text[:_QUOTED]}…"'


def _check_characters(text: str) -> None:
    if not text.strip(" \t"):
        _refuse("is empty", 'give five fields such as "0 2 * * *"')
    if len(text) > LENGTH_LIMIT:
        _refuse(f"has {len(text)} characters, more than {LENGTH_LIMIT}", "use ranges and steps, or split the job")
    for place, character in enumerate(text, start=1):
        if character != "\t" and not " " <= character <= "~":
            found = f"character {place}, U+{ord(character):04X}, has no place here"
            _refuse(found, "use ASCII digits, letters and * , - / # @ only")


def _macro(text: str) -> str:
    word = text.lower()
    if word in MACROS:
        return MACROS[word]
    if word == "@reboot":
        _refuse("@reboot has no meaning for a fleet: no one machine's start is the job's start", "give a time")
    if re.match(r"@every\b", word):
        _refuse("@every is an interval, not a cron expression", 'write @every 1h30m, or use rota.every("1h30m")')
    _refuse(f"unknown macro {_quote(text)}", f"known are {', '.join(MACROS)} and @every 1h30m")


def _refuse_count(parts: list[str], *, seconds: bool) -> NoReturn:
    wanted = "six fields (second minute hour day-of-month month day-of-week)"
    if not seconds:
        wanted = "five fields (minute hour day-of-month month day-of-week)"
    hint = None
    if parts[0].upper().startswith(("TZ=", "CRON_TZ=")):
        hint = "give the zone as tz, not in the expression"
    elif any(part.startswith(",") or part.endswith(",") for part in parts):
        hint = "a list has no blanks inside: 5,10"
    elif len(parts) == 6 and not seconds:
        hint = (
            "a leading field of seconds must be asked for (seconds=True, on the command line --seconds);"
            " a user or a year has no place here"
        )
    _refuse(f"needs {wanted}, has {len(parts)}", hint)


def _term(name: FieldName, text: str) -> Term:
    """Read one item of a list."""
    for mark, (reason, hint) in _FOREIGN.items():
        if mark in text:
            _refuse(f"{name} {_quote(text)}: {reason}", hint)
    upper = text.upper()
    if upper == "H" or upper.startswith(("H/", "H(")):
        _refuse(f"{name} {_quote(text)}: H is not supported", "give one time, and the job a jitter to spread its runs")
    if not text:
        _refuse(f"{name} has an empty item in its list", "remove the extra comma")
    special = _day_term(upper) if name is FieldName.DAY else _weekday_term(upper) if name is FieldName.WEEKDAY else None
    return special or _values_term(name, text)


def _values_term(name: FieldName, text: str) -> Term:
    low, high = BOUNDS[name]
    base, slash, step_text = text.partition("/")
    step = 1
    if slash:
        if not _is_number(step_text):
            _refuse(f"{name} {_quote(text)}: the step is not a number")
        step = int(step_text)
        if step == 0:
            _refuse(f"{name} {_quote(text)}: the step is 0", "a step is 1 or more")
    if base == "*":
        return Term(first=low, last=high, step=step, star=True)
    first_text, dash, last_text = base.partition("-")
    first = _value(name, first_text, within=text)
    # A Sunday behind Saturday would be the week's first day again: steps of days end at 6, as in Kubernetes.
    end = max(first, 6) if name is FieldName.WEEKDAY else high
    last = _value(name, last_text, within=text) if dash else end if slash else first
    if last < first:
        _refuse(f"{name} {_quote(text)}: the range ends before it starts", _unwrapped(name, first, last))
    return Term(first=first, last=last, step=step)


def _unwrapped(name: FieldName, first: int, last: int) -> str:
    if name is FieldName.WEEKDAY and last == 0:
        return f"Sunday is also 7: {first}-7"
    low, high = BOUNDS[name]
    high = 6 if name is FieldName.WEEKDAY else high
    return f"write {first}-{high},{low}-{last} to wrap"


def _value(name: FieldName, text: str, *, within: str) -> int:
    low, high = BOUNDS[name]
    symbols = _MONTHS if name is FieldName.MONTH else _DAYS if name is FieldName.WEEKDAY else ()
    if text.upper() in symbols:
        return symbols.index(text.upper()) + low
    if not _is_number(text):
        hint = f"names have three letters: {symbols[1].lower()}" if symbols else "give a number, *, a range or a step"
        _refuse(f"{name} {_quote(within)} is not understood", hint)
    value = int(text)
    if not low <= value <= high:
        _refuse(f"{name} {_quote(text)} is outside {low}-{high}")
    return value


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _day_term(text: str) -> Term | None:
    if text == "L":
        return Term(kind=TermKind.LAST_DAY)
    if text.startswith("L-") and _is_number(text[2:]):
        before = int(text[2:])
        if not 1 <= before <= LAST_DAY_BEFORE:
            _refuse(
                f"day-of-month {_quote(text)}: L- is followed by 1 to {LAST_DAY_BEFORE}", "L is the last day itself"
            )
        return Term(kind=TermKind.LAST_DAY, before=before)
    if text == "LW":
        return Term(kind=TermKind.LAST_WEEKDAY)
    if text.endswith("W") and _is_number(text[:-1]):
        return Term(kind=TermKind.NEAREST_WEEKDAY, first=_value(FieldName.DAY, text[:-1], within=text))
    return None


def _weekday_term(text: str) -> Term | None:
    if text == "L":
        _refuse(
            'day-of-week "L" could be Saturday or a last day', "write 6 for Saturday, 5L for the month's last Friday"
        )
    if text.endswith("L"):
        return Term(kind=TermKind.LAST_OF_MONTH, first=_value(FieldName.WEEKDAY, text[:-1], within=text))
    if "#" in text:
        day, _, nth = text.partition("#")
        if nth not in {"1", "2", "3", "4", "5"}:
            _refuse(f"day-of-week {_quote(text)}: # is followed by 1 to 5", "5#3 is the month's third Friday")
        return Term(kind=TermKind.NTH, first=_value(FieldName.WEEKDAY, day, within=text), nth=int(nth))
    return None
