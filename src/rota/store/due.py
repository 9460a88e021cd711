"""The due stage: which schedules are due, and the statement that advances them and makes their runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

import asyncpg
import orjson

from rota.domain.instants import format_instant
from rota.domain.job import ONE_WAITS
from rota.domain.misfire import Misfire, Skipped, misfire_from_json
from rota.domain.schedule import Schedule, schedule_from_json
from rota.errors import InvalidInput, InvalidSchedule, RotaError
from rota.store.database import Database
from rota.store.statements import Statement
from rota.store.statements import due as sql

PATIENCE: Final = "100ms"
"""How long a shared statement waits for a row that somebody else's open transaction holds."""
BOTTOM: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""The floor of a scan that sees everything: no slot lies below it."""

NEVER: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""When a slot is due that a freeze has put off. Not infinity: to the driver that has no zone, and ends a scheduler."""

RULES_KEPT: Final = 65_536
"""Distinct schedules kept parsed: a herd shares its expression."""


class RowRefused(RotaError):
    """The database refuses what a statement writes: a constraint or a trigger stands against one of its rows."""

    code = "row-refused"


class DueSchedule(NamedTuple):
    """A schedule whose next slot is due, with its job's part in the decision: a row of `due_schedules`, as it comes.

    Rules are the text that is stored and durations milliseconds: rows are read by the hundred, and most of them share
    their rule.
    """

    shard: int
    job_uid: int
    due_at: datetime
    slot: datetime
    version: int
    schedule: str | None
    misfire: str
    grace_ms: int
    jitter_ms: int
    overlap: str
    start_deadline_ms: int | None
    priority: int
    pool: str
    handler: str
    """What a worker must know to run it: the name, or "http" for every HTTP target."""
    tenant_id: str
    frozen: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A run to make."""

    scheduled_for: datetime
    available_at: datetime
    deadline_at: datetime | None
    gate: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """One schedule's step: the runs to make, the slots to note as skipped, and the slot to wait for next."""

    due: DueSchedule
    runs: tuple[NewRun, ...]
    skipped: tuple[Skipped, ...]
    next_slot: datetime | None


class Materialised(NamedTuple):
    """How many schedules moved on and how many runs were made; fewer than asked means a lost race, not an error.

    `superseded` waiting runs gave way to newer slots; `replaced` that run were asked to.
    """

    advanced: int
    made: int
    superseded: int = 0
    replaced: int = 0


class Expired(NamedTuple):
    """A run that was not started in time."""

    shard: int
    job_uid: int
    scheduled_for: datetime
    reason: str


@lru_cache(RULES_KEPT)
def parse_schedule(text: str) -> Schedule:
    """Return a stored schedule. Raises InvalidInput for one that this program's rules or tz data refuse."""
    try:
        value = orjson.loads(text)
    except ValueError as error:
        raise InvalidSchedule("schedule", f"is not JSON: {error}") from error
    return schedule_from_json(value)


@lru_cache(1024)
def parse_misfire(text: str) -> Misfire:
    """Return a stored misfire policy. Raises InvalidInput."""
    try:
        return misfire_from_json(orjson.loads(text))
    except ValueError as error:
        raise InvalidInput("misfire", f"is not JSON: {error}") from error


async def due_schedules(
    database: Database, shards: Sequence[int], *, now: datetime, per_shard: int, floor: datetime = BOTTOM,
    aside: Sequence[int] = (),
) -> list[DueSchedule]:  # fmt: skip
    """Return what came due in these shards from `floor` on, at most `per_shard` of each; jobs in `aside` left out."""
    rows = await database.fetch(
        sql.due_schedules, shards=shards, now=now, per_shard=per_shard, floor=floor, aside=aside
    )  # fmt: skip
    return [DueSchedule._make(row) for row in rows]


async def next_due(
    database: Database, shards: Sequence[int], *, floor: datetime = BOTTOM, aside: Sequence[int] = (),
    runs_aside: Sequence[int] = (),
) -> datetime | None:  # fmt: skip
    """Return the earliest instant, from `floor` on, at which these shards need a scheduler.

    Slots of jobs in `aside` and waiting runs of those in `runs_aside` count for nothing.
    """
    [row] = await database.fetch(sql.next_due, shards=shards, floor=floor, aside=aside, runs_aside=runs_aside)
    at: datetime | None = row["at"]
    return at


async def live_among(database: Database, jobs: Sequence[DueSchedule], *, now: datetime) -> frozenset[tuple[int, int]]:
    """Return the (shard, job_uid) of those jobs of which a run lives: it runs, or waits and its slot has come."""
    if not jobs:
        return frozenset()
    rows = await database.fetch(
        sql.live_among, shards=[job.shard for job in jobs], job_uids=[job.job_uid for job in jobs], now=now
    )
    return frozenset((row["shard"], row["job_uid"]) for row in rows)


async def materialise(
    database: Database, advances: Sequence[Advance], *, owner: str, epochs: Mapping[int, int], now: datetime
) -> Materialised:
    """Advance the schedules and make their runs, all of them or none.

    Raises Locked when somebody's open transaction holds one for longer than PATIENCE, RowRefused when the database
    refuses one, and MissingPartition when a run's month has got a partition of its own at this very moment.
    """
    runs = [(step.due, run) for step in advances for run in step.runs]
    skips = [(step.due, skip) for step in advances for skip in step.skipped]
    newest = newest_slots(advances)
    [row] = await _shared(
        database, sql.materialise_runs, patience=PATIENCE, now=now, owner=owner, owned_shards=list(epochs.keys()),
        epochs=list(epochs.values()),
        shards=[step.due.shard for step in advances], job_uids=[step.due.job_uid for step in advances],
        due_ats=[step.due.due_at for step in advances], versions=[step.due.version for step in advances],
        then_slots=[step.next_slot for step in advances],
        run_shards=[due.shard for due, _ in runs], run_job_uids=[due.job_uid for due, _ in runs],
        run_slots=[run.scheduled_for for _, run in runs], run_available_ats=[run.available_at for _, run in runs],
        run_deadlines=[run.deadline_at for _, run in runs], run_gates=[run.gate for _, run in runs],
        run_pools=[due.pool for due, _ in runs], run_handlers=[due.handler for due, _ in runs],
        run_tenants=[due.tenant_id for due, _ in runs], run_priorities=[due.priority for due, _ in runs],
        skip_shards=[due.shard for due, _ in skips], skip_job_uids=[due.job_uid for due, _ in skips],
        skip_firsts=[skip.first for _, skip in skips], skip_lasts=[skip.last for _, skip in skips],
        skip_counts=[skip.slots for _, skip in skips], skip_reasons=[skip.reason for _, skip in skips],
        skip_policies=[due.misfire for due, _ in skips],
        newest_shards=[due.shard for due, _ in newest], newest_job_uids=[due.job_uid for due, _ in newest],
        newest_slots=[slot for _, slot in newest], newest_replaces=[due.overlap == "replace" for due, _ in newest],
        newest_reasons=[superseded_by(slot) for _, slot in newest],
    )  # fmt: skip
    return Materialised._make(row)


async def ask_replaced(database: Database, advances: Sequence[Advance], *, now: datetime) -> int:
    """Ask once more for the end of runs that these steps' slots replace; returns how many were not asked yet."""
    newest = [(due, slot) for due, slot in newest_slots(advances) if due.overlap == "replace"]
    if not newest:
        return 0
    rows = await database.fetch(
        sql.ask_replaced, now=now, shards=[due.shard for due, _ in newest], job_uids=[due.job_uid for due, _ in newest],
        slots=[slot for _, slot in newest],
    )  # fmt: skip
    return len(rows)


def newest_slots(advances: Sequence[Advance]) -> list[tuple[DueSchedule, datetime]]:
    """Return the slots to make of jobs that let only the newest one wait."""
    return [(step.due, step.runs[-1].scheduled_for) for step in advances if step.runs and step.due.overlap in ONE_WAITS]


def superseded_by(slot: datetime) -> str:
    """Return the reason of a run that a newer slot's run superseded."""
    return f"superseded by the slot {format_instant(slot)}"


async def held_slots(database: Database, advances: Sequence[Advance]) -> frozenset[int]:
    """Return the uids of those jobs whose slots cannot be made now, since an open transaction holds them."""
    # One that makes no run is asked for all the same: its schedule may be held.
    wanted = [(step.due, run.scheduled_for) for step in advances for run in step.runs]
    wanted += [(step.due, step.due.slot) for step in advances if not step.runs]
    rows = await database.fetch(
        sql.held_slots, shards=[due.shard for due, _ in wanted], job_uids=[due.job_uid for due, _ in wanted],
        slots=[slot for _, slot in wanted],
    )  # fmt: skip
    return frozenset(row["job_uid"] for row in rows)


async def quarantine(database: Database, refused: Sequence[tuple[DueSchedule, str]]) -> dict[int, str]:
    """Take schedules that cannot be computed or written out of the scan, with the reason on their jobs.

    Returns the job ids by uid. One left out was edited meanwhile, or its rows are held: it comes again. Raises
    RowRefused when not even that can be written of one of them: nothing is written then.
    """
    rows = await _shared(
        database, sql.quarantine_schedules,
        shards=[due.shard for due, _ in refused],
        job_uids=[due.job_uid for due, _ in refused],
        versions=[due.version for due, _ in refused], reasons=[reason for _, reason in refused],
    )  # fmt: skip
    return {row["job_uid"]: row["job_id"] for row in rows}


async def newest_tzdata(database: Database, *, now: datetime) -> str | None:
    """Return the newest IANA release that a live scheduler or worker has; None when nobody lives."""
    [row] = await database.fetch(sql.newest_tzdata, now=now)
    version: str | None = row["tzdata"]
    return version


async def open_due_gates(
    database: Database, shards: Sequence[int], *, now: datetime, per_shard: int, floor: datetime = BOTTOM,
    aside: Sequence[int] = (), only: int | None = None,
) -> list[str]:  # fmt: skip
    """Open the gate of runs whose time came from `floor` on; returns the pool of each. Raises Locked, RowRefused.

    Jobs in `aside` are left out; `only` is the one job that is meant.
    """
    rows = await _shared(
        database, sql.open_due_gates, shards=shards, now=now, per_shard=per_shard, floor=floor, aside=aside, only=only
    )  # fmt: skip
    return [row["pool"] for row in rows]


async def expire_runs(
    database: Database, shards: Sequence[int], *, now: datetime, per_shard: int, floor: datetime = BOTTOM,
    aside: Sequence[int] = (), only: int | None = None,
) -> list[Expired]:  # fmt: skip
    """End runs that had not begun when their start deadline passed, at `floor` or later; returns them.

    Jobs in `aside` are left out; `only` is the one job that is meant. Raises Locked, RowRefused.
    """
    rows = await _shared(
        database, sql.expire_runs, shards=shards, now=now, per_shard=per_shard, floor=floor, aside=aside, only=only,
        patience=PATIENCE,
    )  # fmt: skip
    return [Expired._make(row) for row in rows]


async def due_gates(
    database: Database, shards: Sequence[int], *, now: datetime, per_shard: int, floor: datetime,
    aside: Sequence[int],
) -> list[tuple[int, int]]:  # fmt: skip
    """Return the (shard, job_uid) that `open_due_gates` would touch."""
    rows = await database.fetch(sql.due_gates, shards=shards, now=now, per_shard=per_shard, floor=floor, aside=aside)
    return [(row["shard"], row["job_uid"]) for row in rows]


async def late_runs(
    database: Database, shards: Sequence[int], *, now: datetime, per_shard: int, floor: datetime,
    aside: Sequence[int],
) -> list[tuple[int, int]]:  # fmt: skip
    """Return the (shard, job_uid) that `expire_runs` would touch."""
    rows = await database.fetch(sql.late_runs, shards=shards, now=now, per_shard=per_shard, floor=floor, aside=aside)
    return [(row["shard"], row["job_uid"]) for row in rows]


_OF_A_ROW: Final = frozenset({"22", "23", "44", "P0"})
"""Classes of SQLSTATE that a row's own values cause: data, constraints, views' checks, and what triggers raise."""


async def _shared(database: Database, statement: Statement, **values: Any) -> list[Any]:
    """Run a statement for many rows; an error that one of them causes is told apart from those of the whole."""
    try:
        return await database.fetch(statement, **values)
    except asyncpg.PostgresError as error:
        if (error.sqlstate or "")[:2] in _OF_A_ROW:
            raise RowRefused(error.args[0]) from error
        raise
