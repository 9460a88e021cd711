"""A list of Airflow DAGs (CSV with a heading line) as jobs: their schedules, not their code.

Columns: schedule_interval, start_date, timezone, catchup, retries, retry_delay, max_active_runs, and optionally
dag_id; others are kept in the payload. Every cell is text, also one that begins with "=". A worker must register a
handler with each job's name.

Airflow's words in Rota's: catchup true is catch_up (bounded, and never further back than the import), false is
fire_once; retries count the tries after the first; max_active_runs 1 is overlap "queue", and more is max_concurrency;
@once fires at start_date. Airflow 2 starts a run at the end of the interval that it is named after, so its first run
comes one slot later than here.
"""

import csv
import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Final

from rota.domain.job import CONCURRENCY_LIMIT, Job
from rota.domain.misfire import CATCH_UP_LIMIT, CatchUp, FireOnce, Misfire
from rota.domain.retry import RetryPolicy
from rota.domain.schedule import Schedule, cron, every, once
from rota.domain.zones import zone
from rota.errors import InvalidInput
from rota.importers.result import Harvest, ImportResult, excerpt

RETRY_DELAY: Final = timedelta(minutes=5)
"""Airflow's own default."""

_COLUMNS: Final = frozenset({"schedule_interval", "start_date"})
_PRESETS: Final = {"@quarterly": "0 0 1 */3 *"}
_UNITS: Final = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_DURATION: Final = re.compile(r"([0-9]{1,9}[dhms])+")
_TIMEDELTA: Final = re.compile(r"(?:datetime\.)?timedelta\((weeks|days|hours|minutes|seconds)=([0-9]{1,9})\)")
_MOVING: Final = re.compile(r"\b(now|utcnow|today|days_ago|yesterday)\b *\(|\bnow\b")


def read_airflow(data: bytes, *, file: str, now: datetime, tz: str | None = None) -> ImportResult:
    """Read DAG lines. `tz` is the zone of lines without one; a one-shot before `now` is warned of.

    Lines are refused one by one; no bytes raise. Raises InvalidSchedule only for a `tz` that is no zone.
    """
    harvest = Harvest(file)
    tz = harvest.default_zone(tz)
    table: _Table | None = None
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        try:
            cells = _cells(raw.removesuffix(b"\r"))
            if cells is None:
                continue
            if table is None:
                table = _Table(harvest=harvest, columns=_heading(cells), tz=tz, now=now)
            else:
                table.read(number, cells)
        except InvalidInput as error:
            harvest.refuse(number, str(error))
            if table is None:
                break
    return harvest.result()


def is_heading(text: str) -> bool:
    """Whether a line is the heading of such a list."""
    return set(text.strip().replace('"', "").replace(" ", "").split(",")) >= _COLUMNS


def _cells(raw: bytes) -> list[str] | None:
    """Split a line; None for a blank one and for a comment. A cell does not go on in the next line."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidInput("line", "is not UTF-8") from None
    if not text.strip() or text.lstrip().startswith("#"):
        return None
    if "\x00" in text:
        raise InvalidInput("line", "holds a NUL byte")
    try:
        return [cell.strip() for cell in next(csv.reader([text], strict=True))]
    except (csv.Error, StopIteration) as error:
        raise InvalidInput("line", f"is not CSV: {error}") from error


def _heading(cells: list[str]) -> tuple[str, ...]:
    if not set(cells) >= _COLUMNS or len(set(cells)) != len(cells):
        raise InvalidInput("heading", f"must name each column once, with {' and '.join(sorted(_COLUMNS))} among them")
    return tuple(cells)


@dataclass(slots=True)
class _Table:
    harvest: Harvest
    columns: tuple[str, ...]
    tz: str
    now: datetime
    seen: Counter[tuple[str, ...]] = field(default_factory=Counter)

    def read(self, number: int, cells: list[str]) -> None:
        """Read one line. Raises InvalidInput, naming the column."""
        if len(cells) != len(self.columns):
            raise InvalidInput("line", f"has {len(cells)} cells, and the heading {len(self.columns)}")
        row = dict(zip(self.columns, cells, strict=True))
        zone_name = row.get("timezone") or self.tz
        self.harvest.check_zone(zone_name)
        start = _start(row["start_date"], zone_name)
        schedule = _schedule(row["schedule_interval"], zone_name, start)
        retries = _whole(row, "retries") or 0
        at_once = _at_once(_whole(row, "max_active_runs"))
        delay = _duration(row["retry_delay"], "retry_delay") if row.get("retry_delay") else RETRY_DELAY
        job_id = row.get("dag_id") or self.name_of(tuple(cells), row["schedule_interval"])
        job = Job(
            job_id=job_id,
            handler=job_id,
            schedule=schedule,
            payload={"dag": {column: cell for column, cell in row.items() if cell}},
            max_attempts=retries + 1,
            retry=RetryPolicy(initial=delay, factor=1.0, cap=delay, jitter=0.0),
            misfire=_misfire(row.get("catchup", "")),
            overlap="queue" if at_once == 1 else "allow",
            max_concurrency=at_once if at_once != 1 else None,
            labels={"imported-from": "airflow"},
        )
        self.seen[tuple(cells)] += 1
        self.harvest.add(job, line=number)
        self.caution(number, row, schedule)

    def name_of(self, cells: tuple[str, ...], expression: str) -> str:
        """Return a name that stays the same wherever in the file the line stands."""
        key = "\0".join((*cells, str(self.seen[cells])))
        words = "-".join(re.findall(r"[a-z0-9]+", expression.lower()))[:40]
        return "-".join(filter(None, ("dag", words, blake2b(key.encode(), digest_size=5).hexdigest())))

    def caution(self, number: int, row: dict[str, str], schedule: Schedule | None) -> None:
        warn, warn_once = self.harvest.warn, self.harvest.warn_once
        warn_once(
            "handler", number, "Rota does not run DAG files: a worker must register a handler with each job's name"
        )
        if not row.get("timezone"):
            warn_once("zone", number, f"no timezone is given: times are read in {self.tz}")
        if schedule is None:
            warn(number, "the schedule is None: the job only runs when somebody asks for it")
        elif schedule.next_slot(self.now) is None:
            warn(number, "the schedule has no slot after now: the job is imported, and will not fire")
        if not row.get("catchup"):
            warn_once("catchup", number, "catchup is not given and read as false, Airflow 3's default")
        elif row["catchup"].lower() == "true":
            bound = f"at most {CATCH_UP_LIMIT} slots and 31 days, and none before the import"
            warn_once("catching", number, f"catchup is bounded in Rota: {bound}")
        for warning in () if schedule is None else schedule.warnings:
            warn(number, warning)


def _start(text: str, zone_name: str) -> datetime:
    if _MOVING.search(text):
        hint = "give a fixed date"
        reason = f"{excerpt(text)} moves with the clock, and a DAG whose start moves never fires in Airflow"
        raise InvalidInput("start_date", reason, hint=hint)
    where = zone(zone_name)
    try:
        local = datetime.fromisoformat(text)
        return (local if local.tzinfo else local.replace(tzinfo=where)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidInput("start_date", f"{excerpt(text)} is no date", hint="such as 2024-01-31") from None


def _schedule(text: str, zone_name: str, start: datetime) -> Schedule | None:
    if text == "None":
        return None
    if text == "@once":
        return once(start)
    if _TIMEDELTA.fullmatch(text):
        return every(_duration(text, "schedule_interval"), anchor=start, start=start)
    if text == "@continuous":
        raise InvalidInput("schedule_interval", "@continuous has no slots", hint="give an interval")
    try:
        return cron(_PRESETS.get(text, text), tz=zone_name, start=start)
    except InvalidInput as error:
        named = "schedule_interval" if error.field == "expression" else error.field
        raise InvalidInput(named, error.reason, hint=error.hint) from error


def _duration(text: str, name: str) -> timedelta:
    """Read "2m", "1h30m", bare seconds or "timedelta(minutes=2)"."""
    try:
        if match := _TIMEDELTA.fullmatch(text):
            return timedelta(**{match[1]: int(match[2])})
        if re.fullmatch(r"[0-9]{1,9}", text):
            return timedelta(seconds=int(text))
        if _DURATION.fullmatch(text):
            parts = re.findall(r"([0-9]+)([dhms])", text)
            return sum((timedelta(**{_UNITS[unit]: int(count)}) for count, unit in parts), timedelta(0))
    except OverflowError:
        pass
    raise InvalidInput(name, f"{excerpt(text)} is no duration", hint='such as "2m", "1h30m" or seconds')


def _whole(row: dict[str, str], name: str) -> int | None:
    text = row.get(name, "")
    if text and not re.fullmatch(r"[0-9]{1,6}", text):
        raise InvalidInput(name, f"must be a whole number from 0, not {excerpt(text)}")
    return int(text) if text else None


def _misfire(catchup: str) -> Misfire:
    match catchup.lower():
        case "true":
            return CatchUp(CATCH_UP_LIMIT)
        case "false" | "":
            return FireOnce()
    raise InvalidInput("catchup", f"must be true or false, not {excerpt(catchup)}")


def _at_once(max_active_runs: int | None) -> int | None:
    if max_active_runs == 0:
        raise InvalidInput("max_active_runs", "0 would never run", hint="give 1 or more")
    return None if max_active_runs is None else min(max_active_runs, CONCURRENCY_LIMIT)
