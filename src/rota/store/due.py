"""The due stage: which schedules are due, and the statement that advances them and makes their runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, NamedTuple

import orjson

from rota.domain.instants import format_instant
from rota.domain.job import ONE_WAITS
from rota.domain.misfire import Misfire, Skipped, misfire_from_json
from rota.domain.schedule import Schedule, schedule_from_json
from rota.errors import InvalidInput, InvalidSchedule
from rota.store.database import Database
from rota.store.statements import due as sql

BOTTOM: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""The floor of a scan that sees everything: no slot lies below it."""

RULES_KEPT: Final = 65_536
"""Distinct schedules kept parsed: a herd shares its expression."""


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
    database: Database, shards: Sequence[int], *, now: datetime, per_shard: int, floor: datetime = BOTTOM
) -> list[DueSchedule]:
    """Return what came due in these shards from `floor` on, at most `per_shard` of each."""
    rows = await database.fetch(sql.due_schedules, shards=shards, now=now, per_shard=per_shard, floor=floor)
    return [DueSchedule._make(row) for row in rows]


async def next_due(database: Database, shards: Sequence[int], *, floor: datetime = BOTTOM) -> datetime | None:
    """Return the earliest instant, from `floor` on, at which these shards need a scheduler."""
    [row] = await database.fetch(sql.next_due, shards=shards, floor=floor)
    at: datetime | None = row["at"]
    return at


async def live_among(database: Database, jobs: Sequence[DueSchedule]) -> frozenset[tuple[int, int]]:
    """Return the (shard, job_uid) of those jobs that have a run waiting or running."""
    if not jobs:
        return frozenset()
    rows = await database.fetch(
        sql.live_among, shards=[job.shard for job in jobs], job_uids=[job.job_uid for job in jobs]
    )
    return frozenset((row["shard"], row["job_uid"]) for row in rows)


async def materialise(
    database: Database, advances: Sequence[Advance], *, owner: str, epochs: Mapping[int, int], now: datetime
) -> Materialised:
    """Advance the schedules and make their runs. Raises MissingPartition when a run's month has no partition yet."""
    runs = [(step.due, run) for step in advances for run in step.runs]
    skips = [(step.due, skip) for step in advances for skip in step.skipped]
    newest = newest_slots(advances)
    [row] = await database.fetch(
        sql.materialise_runs, now=now, owner=owner, owned_shards=list(epochs.keys()), epochs=list(epochs.values()),
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


async def quarantine(database: Database, refused: Sequence[tuple[DueSchedule, str]]) -> list[str]:
    """Take schedules that cannot be computed out of the scan, with the reason on their jobs; returns the job ids."""
    rows = await database.fetch(
        sql.quarantine_schedules,
        shards=[due.shard for due, _ in refused],
        job_uids=[due.job_uid for due, _ in refused],
        versions=[due.version for due, _ in refused], reasons=[reason for _, reason in refused],
    )  # fmt: skip
    return [row["job_id"] for row in rows]


async def open_due_gates(
    database: Database, shards: Sequence[int], *, now: datetime, per_shard: int, floor: datetime = BOTTOM
) -> list[str]:
    """Open the gate of runs whose time came from `floor` on; returns the pool of each."""
    rows = await database.fetch(sql.open_due_gates, shards=shards, now=now, per_shard=per_shard, floor=floor)
    return [row["pool"] for row in rows]


async def expire_runs(
    database: Database, shards: Sequence[int], *, now: datetime, per_shard: int, floor: datetime = BOTTOM
) -> list[Expired]:
    """End runs that had not begun when their start deadline passed, at `floor` or later; returns them."""
    rows = await database.fetch(sql.expire_runs, shards=shards, now=now, per_shard=per_shard, floor=floor)
    return [Expired._make(row) for row in rows]
