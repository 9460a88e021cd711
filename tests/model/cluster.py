"""Rota under the model's eyes: real services on a real database, and everything that the tables show."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar
from uuid import UUID

import rota
from rota.assembly import SchedulerProcess
from rota.clock import ManualClock
from rota.domain.job import Job
from rota.domain.misfire import Misfire
from rota.settings import Settings
from rota.store.database import Database
from rota.testing import RotaKit
from tests.model.rules import Definition, Entry, Key, Policy
from tests.services.stories import START, fetch

T = TypeVar("T")

TICKS: Final = 200
ROUNDS: Final = 2
"""Looks of every scheduler after which the shares are settled."""

MISFIRES: Final[dict[Policy, Misfire]] = {
    "skip": rota.skip(),
    "fire_once": rota.fire_once(),
    "catch_up_3": rota.catch_up(3),
    "catch_up_2_within_a_minute": rota.catch_up(2, max_age=60),
}


@dataclass(frozen=True, slots=True)
class Seen:
    """What the tables show."""

    runs: dict[Key, tuple[str, int, bool | None, datetime | None, UUID | None]]
    attempts: dict[Key, dict[UUID, tuple[int, str]]]
    ledger: set[Entry]
    schedules: dict[str, tuple[datetime | None, datetime | None]]
    dead: set[Key]


class Cluster:
    """One example's cluster. Its database is shared and emptied, since a fresh one for each would take longer."""

    def __init__(self, runner: asyncio.Runner, dsn: str, database: Database) -> None:
        self._runner = runner
        self.kit = RotaKit(dsn=dsn, database=database, clock=ManualClock(START), settings=Settings(name="model"))
        self.schedulers: dict[str, SchedulerProcess] = {}
        self.run(self._empty())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, on the one loop that the database's connections belong to."""
        return self._runner.run(coroutine)

    async def _empty(self) -> None:
        tables = "job schedule run pending lease attempt dead skipped scheduler worker permit bucket saving"
        async with self.kit.database.transaction() as tx:
            for table in tables.split():
                await tx._raw.execute(f"DELETE FROM rota.{table}")  # noqa: S608 - words of this line
            await tx._raw.execute("UPDATE rota.shard SET owner = NULL, epoch = epoch + 1, expires_at = 'epoch'")

    def start_scheduler(self, name: str) -> None:
        self.schedulers[name] = self.kit.scheduler(name)

    async def look(self) -> set[int]:
        """Let every live scheduler do all that is to do; returns the shards that had an owner."""
        for _ in range(ROUNDS):
            for process in self.schedulers.values():
                await process.keeper.tick()
        owned = [set(process.owned.shards(now=self.kit.clock.now())) for process in self.schedulers.values()]
        covered = set[int]().union(*owned)
        assert sum(map(len, owned)) == len(covered), "a shard has two owners"
        for process in self.schedulers.values():
            for service in (process.upkeep, process.reaper, process.scheduler, process.limit_keeper):
                await self.exhaust(service)
        return covered

    async def exhaust(self, service: Any) -> None:
        for _ in range(TICKS):
            if not await service.tick():
                return
        raise AssertionError(f"{type(service).__name__} wanted more after {TICKS} ticks")

    async def wake_zombie(self, process: SchedulerProcess) -> tuple[set[int], set[int]]:
        """Let a stopped scheduler go on in mid-tick, believing in the shards that it had; returns (rightly, all)."""
        believed = process.keeper._epochs
        process.owned.hold(believed, expires_at=self.kit.clock.now() + timedelta(seconds=1))
        rows = await fetch(
            self.kit, "SELECT shard, epoch FROM rota.shard WHERE owner = $1", process.keeper.scheduler_id
        )
        await self.exhaust(process.scheduler)
        return {row["shard"] for row in rows if believed.get(row["shard"]) == row["epoch"]}, set(believed)

    async def seen(self) -> Seen:
        """Read everything that the model has an opinion on."""
        runs = await fetch(self.kit, _RUNS)
        attempts = await fetch(self.kit, _ATTEMPTS)
        seen_attempts: dict[Key, dict[UUID, tuple[int, str]]] = {}
        for row in attempts:
            seen_attempts.setdefault((row["job_id"], row["scheduled_for"]), {})[row["token"]] = (
                row["attempt"],
                row["outcome"],
            )
        return Seen(
            runs={
                (row["job_id"], row["scheduled_for"]): (
                    row["state"], row["attempt"], row["open"], row["available_at"], row["token"],
                )
                for row in runs
            },
            attempts=seen_attempts,
            ledger={Entry(*row) for row in await fetch(self.kit, _LEDGER)},
            schedules={row["job_id"]: (row["next_slot"], row["next_run_at"]) for row in await fetch(self.kit, _SLOTS)},
            dead={(row["job_id"], row["scheduled_for"]) for row in await fetch(self.kit, _DEAD)},
        )  # fmt: skip


def job_of(job_id: str, definition: Definition) -> Job:
    """Return the job that the model's definition stands for."""
    return Job(
        job_id=job_id,
        handler="h",
        schedule=rota.every(definition.every),
        misfire=MISFIRES[definition.policy],
        misfire_grace=definition.grace,
        max_attempts=definition.max_attempts,
        max_losses=definition.max_losses,
        pause_after=definition.pause_after,
        start_deadline=definition.start_deadline,
        retry=rota.retry(initial=definition.backoff, factor=2, cap=3600, jitter=0),
        lease_duration=definition.lease,
        priority=definition.priority,
        overlap=definition.overlap,
    )


_JOB = "j.job_id || repeat('+', j.generation) AS job_id"
_KEYS = "j.shard = x.shard AND j.job_uid = x.job_uid"
_RUNS = """
SELECT j.job_id || repeat('+', j.generation) AS job_id, x.scheduled_for, v.state,
       coalesce(l.attempt, p.attempt, x.attempt) AS attempt,
       p.gate IN ('open', 'limit') AS open, p.available_at, l.token
  FROM rota.run x JOIN rota.job j ON j.shard = x.shard AND j.job_uid = x.job_uid
  JOIN rota.job_run v ON v.shard = x.shard AND v.job_uid = x.job_uid AND v.scheduled_for = x.scheduled_for
  LEFT JOIN rota.pending p ON p.shard = x.shard AND p.job_uid = x.job_uid AND p.scheduled_for = x.scheduled_for
  LEFT JOIN rota.lease l ON l.shard = x.shard AND l.job_uid = x.job_uid AND l.scheduled_for = x.scheduled_for"""
_ATTEMPTS = f"SELECT {_JOB}, x.* FROM rota.attempt x JOIN rota.job j ON {_KEYS}"  # noqa: S608 - text of this module
_LEDGER = f"""SELECT {_JOB}, x.first_slot, x.last_slot, x.slots, x.reason
                FROM rota.skipped x JOIN rota.job j ON {_KEYS}"""  # noqa: S608 - text of this module
_SLOTS = f"SELECT {_JOB}, x.next_slot, x.next_run_at FROM rota.schedule x JOIN rota.job j ON {_KEYS}"  # noqa: S608 - text of this module
_DEAD = f"SELECT {_JOB}, x.scheduled_for FROM rota.dead x JOIN rota.job j ON {_KEYS}"  # noqa: S608 - text of this module
