"""Instants at the edge of the domain: aware datetimes made UTC, and their text."""

import re
from datetime import UTC, datetime

from rota.errors import InvalidInput, InvalidSchedule


def format_instant(instant: datetime) -> str:
    """Return an aware instant as ISO 8601 in UTC, such as 2026-01-01T00:00:00Z."""
    return instant.astimezone(UTC).isoformat().removesuffix("+00:00") + "Z"


def parse_instant(text: object, *, field: str) -> datetime:
    """Read an ISO 8601 date and time with `Z` or an offset; a bare local time is refused by name of the field."""
    hint = "give one such as 2026-01-01T00:00:00Z"
    if not isinstance(text, str) or not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.]+(?:Z|[+-][0-9:]+)?", text):
        raise InvalidSchedule(field, "is not an instant", hint=hint)
    try:
        return utc_instant(datetime.fromisoformat(text), field)
    except (ValueError, OverflowError):
        raise InvalidSchedule(field, f"{text[:40]!r} is not an instant", hint=hint) from None


def utc_instant(instant: datetime, field: str) -> datetime:
    if not isinstance(instant, datetime):
        raise InvalidSchedule(
            field, "must be a datetime", hint="give an aware instant, such as datetime(..., tzinfo=UTC)"
        )
    if instant.tzinfo is UTC:
        return instant
    if instant.utcoffset() is None:
        raise InvalidSchedule(field, "has no zone", hint="give an aware instant, such as datetime(..., tzinfo=UTC)")
    try:
        return instant.astimezone(UTC)
    except OverflowError:
        raise InvalidSchedule(field, "lies outside the years 1 to 9999") from None


def slot_instant(instant: datetime, field: str) -> datetime:
    given = utc_instant(instant, field)
    if given.microsecond % 1000:
        raise InvalidSchedule(field, "has a part finer than a millisecond", hint="slots are whole milliseconds")
    return given


def future_instant(instant: object, field: str, *, now: datetime) -> datetime:
    """Return an aware instant in UTC. Raises InvalidInput for one that is naive, or does not lie after `now`."""
    if not isinstance(instant, datetime) or instant.utcoffset() is None:
        raise InvalidInput(field, "must be an instant with a zone", hint="give one such as 2026-01-01T00:00:00Z")
    try:
        given = instant.astimezone(UTC)
    except OverflowError:
        raise InvalidInput(field, "lies outside the years 1 to 9999") from None
    if given <= now:
        raise InvalidInput(field, f"{format_instant(given)} does not lie in the future", hint="give a later instant")
    return given
