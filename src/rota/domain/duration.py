"""Lengths of time as people write them: "1h30m", "500ms", "7d"."""

import re
from datetime import timedelta
from typing import Final

from rota.errors import InvalidInput

LENGTH_LIMIT: Final = 64
"""The most characters of a length of time."""

_SIZES: Final = {
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}
_PATTERN: Final = re.compile("".join(rf"(?:(?P<{unit}>[0-9]+){unit}(?![a-z]))?" for unit in _SIZES))


def parse_duration(text: str, *, field: str) -> timedelta:
    """Read whole numbers with the units d, h, m, s, ms, the larger first, such as "1h30m".

    Raises InvalidInput that names `field`.
    """
    hint = 'write whole numbers with d, h, m, s, ms, the larger unit first: "1h30m"'
    if not isinstance(text, str):
        raise InvalidInput(field, "must be text", hint=hint)
    match = _PATTERN.fullmatch(text) if 0 < len(text) <= LENGTH_LIMIT else None
    if match is None:
        shown = text if len(text) <= LENGTH_LIMIT else f"{text[:LENGTH_LIMIT]}…"
        raise InvalidInput(field, f"{shown!r} is not a length of time", hint=hint)
    try:
        return sum((int(count) * _SIZES[unit] for unit, count in match.groupdict().items() if count), timedelta())
    except OverflowError:
        raise InvalidInput(field, f"{text!r} is longer than a calendar", hint="give a shorter one") from None


def format_duration(length: timedelta) -> str:
    """Write a length of whole milliseconds, zero or more, so that `parse_duration` reads it back: "1h30m"."""
    rest, parts = length, []
    for unit, size in _SIZES.items():
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def duration_words(length: timedelta) -> str:
    """Write any length for people; what `format_duration` cannot write is told in seconds."""
    if length < timedelta() or length % timedelta(milliseconds=1):
        return f"{length.total_seconds():.6f}".rstrip("0").rstrip(".") + "s"
    return format_duration(length)
