"""Time zones, and the rule that turns wall times into instants where clocks change.

Zones come from the `tzdata` package that the lock names, never from the host: two hosts with different tz data would
make different slots for one job. Two rules (docs: a job's `dst`):

*fixed*    a wall time that is skipped fires once, at the change; one that comes twice fires the first time. In one
           sentence: at the first instant at which the local clock shows the wall time or a later one.
*elapsed*  every instant at which the local clock shows the wall time: both passes of a repeated hour, nothing at a
           skipped one.

Instants are aware UTC datetimes; walls are naive datetimes in whole seconds. In all zones of tzdata two changes lie
days apart, so a wall time is near at most one of them.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from difflib import get_close_matches
from functools import lru_cache
from importlib import resources
from typing import Final, NoReturn, Protocol
from zoneinfo import ZoneInfo

from rota.errors import InvalidSchedule

SKIPPED_LIMIT: Final = 1_000
"""Clock changes that one search may meet, each with a wall time of the schedule in its gap, before it gives up."""

_SECOND: Final = timedelta(seconds=1)
_FIRST: Final = datetime.min.replace(tzinfo=UTC)
_LAST: Final = datetime.max.replace(tzinfo=UTC)
_KEY_LIMIT: Final = 64


class UnknownZone(InvalidSchedule):
    """A zone that the tz data of this host does not name; newer tz data may."""


class Walls(Protocol):
    """An ordered set of wall times."""

    def first(self, start: datetime) -> datetime | None: ...
    def last(self, start: datetime) -> datetime | None: ...


def tzdata_version() -> str:
    """Return the IANA release of the zones in use, such as "2026a"."""
    with (resources.files("tzdata") / "zoneinfo" / "tzdata.zi").open(encoding="ascii") as source:
        return source.readline().removeprefix("# version ").strip()


@lru_cache(maxsize=1)
def zone_keys() -> frozenset[str]:
    """Return every key that `zone` accepts: the canonical names and the links of the tzdata package."""
    return frozenset((resources.files("tzdata") / "zones").read_text(encoding="ascii").split())


@lru_cache(maxsize=1024)
def zone(key: str) -> tzinfo:
    """Return the zone of an IANA key, matched exactly. Raises InvalidSchedule with field "tz"."""
    if key not in zone_keys():
        _refuse(key)
    if key == "UTC":
        return UTC
    file = resources.files("tzdata") / "zoneinfo"
    for part in key.split("/"):
        file = file / part
    with file.open("rb") as source:
        return ZoneInfo.from_file(source, key=key)


def _refuse(key: str) -> NoReturn:
    hint = "give an IANA name such as Europe/Berlin, or UTC"
    if not key:
        raise InvalidSchedule("tz", "is empty", hint=hint)
    if len(key) > _KEY_LIMIT:
        raise InvalidSchedule("tz", f"has {len(key)} characters, no zone's name is that long", hint=hint)
    if re.fullmatch(r"(?:UTC|GMT|Z)?\s*[+-]\s*[0-9]{1,2}(?::?[0-9]{2})?", key, re.ASCII | re.IGNORECASE):
        raise InvalidSchedule("tz", f"{key!r} is an offset, not a zone", hint=hint)
    if re.fullmatch(r"[A-Z]{2,5}", key):
        hint = "abbreviations mean several zones: give an IANA name such as America/Los_Angeles"
    lower = {known.lower(): known for known in sorted(zone_keys())}
    if close := get_close_matches(key.lower(), lower, n=1, cutoff=0.8):
        hint = f"did you mean {lower[close[0]]}?"
    raise UnknownZone("tz", f"{key!r} is not a zone of tzdata {tzdata_version()}", hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """A change of local time. The walls bottom <= wall < top are skipped by it, or come twice."""

    instant: datetime
    bottom: datetime
    top: datetime
    skips: bool


def shift_at(wall: datetime, where: tzinfo) -> Shift | None:
    """Return the change that skips or repeats a wall time; None for a wall time that comes just once."""
    before, after = _offset(wall, where, fold=0), _offset(wall, where, fold=1)
    if before == after:
        return None
    # PEP 495: fold=0 reads with the offset before the change and fold=1 with the one after it. So the change lies
    # between the two readings, and its second is found by bisection.
    start = (wall - max(before, after)).replace(tzinfo=UTC)
    low, high = 0, int(abs(after - before) / _SECOND)
    while high - low > 1:
        middle = (low + high) // 2
        if (start + middle * _SECOND).astimezone(where).utcoffset() == after:
            high = middle
        else:
            low = middle
    instant = start + high * _SECOND
    at = instant.replace(tzinfo=None)
    bottom, top = at + min(before, after), at + max(before, after)
    return Shift(instant=instant, bottom=bottom, top=top, skips=after > before)


def next_instant(walls: Walls, where: tzinfo, after: datetime, *, elapsed: bool) -> datetime | None:
    """Return the first instant strictly after `after`; None when there is none until the year 9999."""
    local = _local(after, where)
    wall = local.replace(microsecond=0, tzinfo=None, fold=0)
    try:
        if where is UTC:
            found = walls.first(wall + _SECOND)
            return found and found.replace(tzinfo=UTC)
        return (_next_elapsed if elapsed else _next_fixed)(walls, where, wall, local.fold)
    except OverflowError:
        return None


def latest_instant(walls: Walls, where: tzinfo, upto: datetime, *, elapsed: bool) -> datetime | None:
    """Return the last instant at or before `upto`; None when there is none since the year 1."""
    local = _local(upto, where)
    wall = local.replace(microsecond=0, tzinfo=None, fold=0)
    try:
        if where is UTC:
            found = walls.last(wall)
            return found and found.replace(tzinfo=UTC)
        return (_latest_elapsed if elapsed else _latest_fixed)(walls, where, wall, local.fold)
    except OverflowError:
        return None


def _next_fixed(walls: Walls, where: tzinfo, wall: datetime, fold: int) -> datetime | None:
    start = wall + _SECOND
    if fold and (repeated := shift_at(wall, where)):
        start = repeated.top  # the second pass: what lies below has fired in the first
    found = walls.first(start)
    return found and _first_time(found, where)


def _latest_fixed(walls: Walls, where: tzinfo, wall: datetime, fold: int) -> datetime | None:
    start = wall
    if fold and (repeated := shift_at(wall, where)):
        start = repeated.top - _SECOND
    found = walls.last(start)
    return found and _first_time(found, where)


def _first_time(wall: datetime, where: tzinfo) -> datetime:
    """The first instant at which the local clock shows the wall time or a later one."""
    shift = shift_at(wall, where)
    return shift.instant if shift and shift.skips else _instant(wall, where)


def _next_elapsed(walls: Walls, where: tzinfo, wall: datetime, fold: int) -> datetime | None:
    found = walls.first(wall + _SECOND)
    if repeated := shift_at(wall, where):
        if found and found < repeated.top:
            return _instant(found, where, fold=fold)
        again = None if fold else walls.first(repeated.bottom)
        if again and again < repeated.top:
            return _instant(again, where, fold=1)
    for _ in range(SKIPPED_LIMIT):
        shift = shift_at(found, where) if found else None
        if not (shift and shift.skips):
            break
        found = walls.first(shift.top)
    else:
        return None
    return found and _instant(found, where)


def _latest_elapsed(walls: Walls, where: tzinfo, wall: datetime, fold: int) -> datetime | None:
    found = walls.last(wall)
    if repeated := shift_at(wall, where):
        if found and found >= repeated.bottom:
            return _instant(found, where, fold=fold)
        found = walls.last(repeated.top - _SECOND) if fold else found
        if found and found >= repeated.bottom:
            return _instant(found, where)
    for _ in range(SKIPPED_LIMIT):
        shift = shift_at(found, where) if found else None
        if not (shift and shift.skips):
            break
        found = walls.last(shift.bottom - _SECOND)
    else:
        return None
    # A repeated wall time that lies behind has had both of its passes: the second is the later one.
    return found and _instant(found, where, fold=1)


def _instant(wall: datetime, where: tzinfo, *, fold: int = 0) -> datetime:
    return (wall - _offset(wall, where, fold=fold)).replace(tzinfo=UTC)


def _offset(wall: datetime, where: tzinfo, *, fold: int) -> timedelta:
    offset = wall.replace(tzinfo=where, fold=fold).utcoffset()
    assert offset is not None, "a zone always knows its offset"
    return offset


def _local(instant: datetime, where: tzinfo) -> datetime:
    """The local clock at an instant; at the ends of the calendar, the last time that it can show."""
    try:
        return instant.astimezone(where)
    except OverflowError:
        return (_LAST if instant.year > 5000 else _FIRST).replace(tzinfo=where)
