"""systemd timers as jobs: one for each OnCalendar, and one for OnUnitActiveSec; the unit's name is the handler.

What a timer starts stands in another unit, so a worker must register a handler of its name. A timer that is not
persistent makes nothing up, as misfire `skip`; its random delay becomes jitter; it never starts a unit that runs still,
as overlap `skip`.
"""

import os
import re
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import blake2b
from typing import Final

from rota.domain.duration import format_duration
from rota.domain.job import Job
from rota.domain.misfire import FireOnce, Misfire, Skip
from rota.domain.schedule import Schedule, cron, every
from rota.errors import InvalidInput
from rota.importers.on_calendar import read_on_calendar
from rota.importers.result import Harvest, ImportResult, excerpt

TIMEOUT: Final = timedelta(days=1)

_DIRECTIVE: Final = re.compile(
    r"[ \t]*(On[A-Za-z]*(?:Sec|Calendar|Change)|Persistent|RandomizedDelaySec|AccuracySec|Unit)[ \t]*=(.*)"
)
_TIMERS: Final = frozenset({"OnCalendar", "OnUnitActiveSec"})
_SPAN: Final = re.compile(r"[ \t]*(\d{1,9}(?:\.\d{1,6})?)[ \t]*([A-Za-z]*)", re.ASCII)
_UNITS: Final = {
    **dict.fromkeys(("", "s", "sec", "second", "seconds"), timedelta(seconds=1)),
    **dict.fromkeys(("ms", "msec"), timedelta(milliseconds=1)),
    **dict.fromkeys(("m", "min", "minute", "minutes"), timedelta(minutes=1)),
    **dict.fromkeys(("h", "hr", "hour", "hours"), timedelta(hours=1)),
    **dict.fromkeys(("d", "day", "days"), timedelta(days=1)),
    **dict.fromkeys(("w", "week", "weeks"), timedelta(weeks=1)),
}
_TRUE: Final = frozenset({"1", "yes", "y", "true", "t", "on"})


def read_directive(text: str) -> tuple[str, str] | None:
    """Return a timer's directive and its value; None for any other line."""
    match = _DIRECTIVE.fullmatch(text)
    return None if match is None else (match[1], match[2].strip())


def read_systemd(data: bytes, *, file: str, tz: str | None = None) -> ImportResult:
    """Read a timer. `tz` is the zone of what names none. Lines are refused one by one; no bytes raise.

    Raises InvalidSchedule only for a `tz` that is no zone.
    """
    harvest = Harvest(file)
    tz = harvest.default_zone(tz)
    timer = _Timer(harvest=harvest, unit=_unit_of(file), tz=tz)
    for number, raw in enumerate(data.split(b"\n"), start=1):
        directive = read_directive(raw.removesuffix(b"\r").decode("utf-8", errors="replace"))
        if directive is not None:
            timer.read(number, *directive)
    timer.finish()
    return harvest.result()


@dataclass(slots=True)
class _Timer:
    """A timer's settings hold for all of its lines, also for those above them: jobs are made at the end."""

    harvest: Harvest
    unit: str
    tz: str
    misfire: Misfire = field(default_factory=Skip)
    jitter: timedelta = timedelta(0)
    times: list[tuple[int, str, str]] = field(default_factory=list)

    def read(self, number: int, name: str, value: str) -> None:
        try:
            self._read(number, name, value)
        except InvalidInput as error:
            self.harvest.refuse(number, str(error))

    def _read(self, number: int, name: str, value: str) -> None:
        match name:
            case "Unit":
                self.unit = _unit_of(value)
            case "Persistent":
                self.misfire = FireOnce() if value.lower() in _TRUE else Skip()
            case "RandomizedDelaySec":
                self.jitter = _span(name, value)
            case "AccuracySec":
                self.harvest.warn(number, f"AccuracySec={value[:60]} is left out: Rota fires at the slot")
            case _ if not value:
                # An empty one takes back those above it.
                self.times = [entry for entry in self.times if entry[1] != name]
            case _ if name in _TIMERS:
                self.times.append((number, name, value))
            case _:
                raise InvalidInput(
                    name, "counts from a start of the machine, a unit or the clock's change, which no fleet has",
                    hint=_interval_hint(value),
                )  # fmt: skip

    def finish(self) -> None:
        """Make the jobs."""
        for number, name, value in self.times:
            try:
                self._add(number, name, value)
            except InvalidInput as error:
                self.harvest.refuse(number, str(error))

    def _add(self, number: int, name: str, value: str) -> None:
        schedule = self._schedule(number, name, value)
        digest = blake2b(f"{name}={value}".encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
        job = Job(
            job_id=f"{self.unit}-{digest}", handler=self.unit, schedule=schedule, misfire=self.misfire,
            jitter=self.jitter, overlap="skip", timeout=TIMEOUT, labels={"imported-from": "systemd"},
            description=f"{name}={value}"[:200],
        )  # fmt: skip
        self.harvest.add(job, line=number)
        self.harvest.warn_once(
            "handler", number,
            f"a worker must register the handler {excerpt(self.unit)}, or give the job the handler shell and the"
            " unit's ExecStart as its command",
        )  # fmt: skip
        for warning in schedule.warnings:
            self.harvest.warn(number, warning)

    def _schedule(self, number: int, name: str, value: str) -> Schedule:
        if name != "OnCalendar":
            self.harvest.warn(
                number, f"{name} counts from the unit's last start; the job counts on a grid, whatever its runs take"
            )
            return every(_span(name, value))
        times = read_on_calendar(value)
        if times.zone is None:
            self.harvest.warn_once("zone", number, f"no zone is named: times are read in {self.tz} (say --tz)")
        return cron(times.expression, tz=times.zone or self.tz, seconds=times.seconds)


def _span(name: str, value: str) -> timedelta:
    """Read a span of time such as `1h 30min`; a bare number counts seconds. Raises InvalidInput."""
    place, total = 0, timedelta(0)
    while place < len(value.rstrip()):
        match = _SPAN.match(value, place)
        if match is None or match[2] not in _UNITS:
            raise InvalidInput(name, f"{excerpt(value)} is no span of time in weeks, days, hours, minutes or seconds")
        total += float(match[1]) * _UNITS[match[2]]
        place = match.end()
    return timedelta(milliseconds=round(total / timedelta(milliseconds=1)))


def _interval_hint(value: str) -> str:
    try:
        length = _span("span", value)
        every(length)
    except (InvalidInput, OverflowError):
        return "write an interval, such as '@every 1h'"
    return f"write an interval, such as '@every {format_duration(length)}'"


def _unit_of(name: str) -> str:
    """Return a unit's name without its kind, in letters that any handler's name may have."""
    base = os.path.basename(name.rstrip("/"))
    base = base.removesuffix(".timer").removesuffix(".service")
    return "-".join(re.findall(r"[A-Za-z0-9_.@]+", base))[:100].strip("-.") or "timer"
