"""The three kinds of schedule: Cron in a zone, Interval on a grid, Once.

A slot is one instant that the rule names: an aware UTC datetime in whole milliseconds. `start` and `end` are part of
the rule: start <= slot <= end. Every search is bounded by what it returns, never by the length of time it looks over.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final, Literal

from rota.domain.cron import WallTimes, wall_times, warnings_of
from rota.domain.explain import NOTE_ELAPSED, NOTE_FIXED, NOTE_NO_ZONE, explain_cron, explain_interval
from rota.domain.expression import parse_expression
from rota.domain.instants import format_instant, slot_instant, utc_instant
from rota.domain.zones import latest_instant, next_instant, zone
from rota.errors import InvalidSchedule

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
SHORTEST_INTERVAL: Final = timedelta(seconds=1)

Dst = Literal["auto", "wall"]
"""`wall`: the fixed rule for every job. `auto`: the elapsed one for a job whose hour field starts with `*`."""

_LAST: Final = datetime.max.replace(tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_MILLISECOND: Final = timedelta(milliseconds=1)


class _Rule:
    """What the three kinds share: the questions, and how they follow from the next and the latest slot."""

    __slots__ = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader may take for something else, in short sentences."""
        return ()

    @property
    def dst_note(self) -> str:
        """One sentence on what happens where clocks change."""
        return NOTE_NO_ZONE

    def next_slot(self, after: datetime) -> datetime | None:
        """Return the first slot strictly after an aware instant; None: never again."""
        after, upto = self._window(utc_instant(after, "after"), _LAST)
        slot = self._next(after)
        return slot if slot is not None and slot <= upto else None

    def latest_slots(self, upto: datetime, *, after: datetime, count: int) -> list[datetime]:
        """Return the last `count` slots in (after, upto], ascending, at the cost of `count` searches."""
        after, upto = self._window(utc_instant(after, "after"), utc_instant(upto, "upto"))
        latest: list[datetime] = []
        while len(latest) < count and upto > after:
            slot = self._latest(upto)
            if slot is None or slot <= after:
                break
            latest.append(slot)
            upto = slot - _MICROSECOND  # slot > after, so this stays inside the calendar
        return latest[::-1]

    def count_slots(self, after: datetime, upto: datetime, *, limit: int) -> int:
        """Return min(limit, number of slots in (after, upto])."""
        after, upto = self._window(utc_instant(after, "after"), utc_instant(upto, "upto"))
        return self._count(after, upto, limit) if after < upto and limit > 0 else 0

    def _window(self, after: datetime, upto: datetime) -> tuple[datetime, datetime]:
        return after, upto

    def _next(self, after: datetime) -> datetime | None:
        raise NotImplementedError

    def _latest(self, upto: datetime) -> datetime | None:
        raise NotImplementedError

    def _count(self, after: datetime, upto: datetime, limit: int) -> int:
        count, slot = 0, self._next(after)
        while slot is not None and slot <= upto:
            count += 1
            slot = self._next(slot) if count < limit else None
        return count


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bounded(_Rule):
    """A rule between a first and a last instant, both inclusive; None: unbounded."""

    start: datetime | None = None
    end: datetime | None = None

    def _check_bounds(self) -> None:
        if self.start is not None:
            object.__setattr__(self, "start", utc_instant(self.start, "start"))
        if self.end is not None:
            object.__setattr__(self, "end", utc_instant(self.end, "end"))
        if self.start is not None and self.end is not None and self.end < self.start:
            raise InvalidSchedule("end", "lies before start", hint="give an end at or after the start")

    def _window(self, after: datetime, upto: datetime) -> tuple[datetime, datetime]:
        if self.start is not None and after < self.start:
            after = self.start - _MICROSECOND
        return after, upto if self.end is None else min(upto, self.end)

    def _bounds_in_words(self) -> str:
        words = f", from {format_instant(self.start)}" if self.start else ""
        return f"{words}, until {format_instant(self.end)}" if self.end else words


@dataclass(frozen=True, slots=True)
class Cron(_Bounded):
    """Wall times of a cron expression (or a macro such as `@daily`) in an IANA zone.

    Raises InvalidSchedule that names `expression`, `tz`, `dst`, `seconds`, `start` or `end`.
    """

    expression: str
    tz: str = "UTC"
    dst: Dst = "auto"
    seconds: bool = False

    def __post_init__(self) -> None:
        for field in ("expression", "tz"):
            if not isinstance(getattr(self, field), str):
                raise InvalidSchedule(field, "must be text")
        if not isinstance(self.seconds, bool):
            raise InvalidSchedule("seconds", "must be true or false")
        if self.dst not in ("auto", "wall"):
            raise InvalidSchedule("dst", f"{self.dst!r} is unknown", hint='give "auto" or "wall"')
        self._walls, self._zone  # noqa: B018 - refuses what cannot be read
        self._check_bounds()

    @property
    def warnings(self) -> tuple[str, ...]:
        return warnings_of(parse_expression(self.expression, seconds=self.seconds))

    @property
    def dst_note(self) -> str:
        if self._zone is UTC:
            return NOTE_NO_ZONE
        return NOTE_ELAPSED if self._elapsed else NOTE_FIXED

    def describe(self) -> str:
        """Return the schedule in words, such as "at 02:00 every day, Europe/Berlin time"."""
        where = "UTC" if self._zone is UTC else f"{self.tz} time"
        words = explain_cron(parse_expression(self.expression, seconds=self.seconds))
        return f"{words}, {where}{self._bounds_in_words()}"

    @property
    def _walls(self) -> WallTimes:
        return wall_times(self.expression, seconds=self.seconds)

    @property
    def _zone(self) -> tzinfo:
        return zone(self.tz)

    @property
    def _elapsed(self) -> bool:
        return self.dst == "auto" and self._walls.every_hour

    def _next(self, after: datetime) -> datetime | None:
        walls = self._walls
        return next_instant(walls, self._zone, after, elapsed=self.dst == "auto" and walls.every_hour)

    def _latest(self, upto: datetime) -> datetime | None:
        walls = self._walls
        return latest_instant(walls, self._zone, upto, elapsed=self.dst == "auto" and walls.every_hour)


@dataclass(frozen=True, slots=True)
class Interval(_Bounded):
    """Slots at anchor + n x every, for every whole n, also before the anchor. Elapsed time: no zone, no drift.

    `every` is at least a second, in whole milliseconds, as is the anchor.
    """

    every: timedelta
    anchor: datetime = EPOCH

    def __post_init__(self) -> None:
        if not isinstance(self.every, timedelta):
            raise InvalidSchedule("every", "must be a timedelta", hint='or use rota.every("1h30m")')
        if self.every < SHORTEST_INTERVAL:
            raise InvalidSchedule("every", "is shorter than 1 s", hint="give 1 s or more")
        if self.every % _MILLISECOND:
            raise InvalidSchedule("every", "has a part finer than a millisecond", hint="slots are whole milliseconds")
        object.__setattr__(self, "anchor", slot_instant(self.anchor, "anchor"))
        self._check_bounds()

    def describe(self) -> str:
        """Return the schedule in words, such as "every 1 h 30 min, on the grid of 1970-01-01T00:00:00Z"."""
        return f"{explain_interval(self.every)}, on the grid of {format_instant(self.anchor)}{self._bounds_in_words()}"

    def _next(self, after: datetime) -> datetime | None:
        try:
            return self.anchor + ((after - self.anchor) // self.every + 1) * self.every
        except OverflowError:
            return None

    def _latest(self, upto: datetime) -> datetime | None:
        try:
            return self.anchor + (upto - self.anchor) // self.every * self.every
        except OverflowError:
            return None

    def _count(self, after: datetime, upto: datetime, limit: int) -> int:
        return min(limit, (upto - self.anchor) // self.every - (after - self.anchor) // self.every)


@dataclass(frozen=True, slots=True)
class Once(_Rule):
    """One slot, an aware instant in whole milliseconds."""

    at: datetime

    def __post_init__(self) -> None:
        object.__setattr__(self, "at", slot_instant(self.at, "at"))

    def describe(self) -> str:
        """Return the schedule in words, such as "once, at 2026-01-01T00:00:00Z"."""
        return f"once, at {format_instant(self.at)}"

    def _next(self, after: datetime) -> datetime | None:
        return self.at if after < self.at else None

    def _latest(self, upto: datetime) -> datetime | None:
        return self.at if self.at <= upto else None


Schedule = Cron | Interval | Once
