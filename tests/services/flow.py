"""What the proofs of flow control share: a clock that nobody needs to push, work in bulk, and an independent model."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import inf
from typing import Any, Final

from rota.clock import ManualClock
from rota.domain.attempt import Claim, Outcome, Report
from rota.domain.ids import job_uid, shard_of
from rota.domain.job import Job
from rota.domain.limit import Limit
from rota.services.dispatch import Dispatch
from rota.testing import RotaKit
from tests.services.stories import START, execute

OPERATOR: Final = "*"
H: Final = frozenset({"h"})


class SelfMovingClock(ManualClock):
    """A manual clock on which whoever sleeps moves the time himself: for stories in which one thing goes on."""

    async def sleep(self, seconds: float) -> None:
        if seconds > 0:
            self.advance(seconds)


async def let_wait(
    kit: RotaKit, job: Job, available_ats: Sequence[datetime], *, priorities: Sequence[int] | None = None
) -> list[datetime]:
    """Put the job and let a run of it wait for each instant, in one statement; returns their slots, in this order."""
    await kit.put(job)
    # Slots are what tells runs of one job apart; when they may begin is another matter.
    slots = [START + timedelta(seconds=n) for n in range(len(available_ats))]
    values = shard_of(job_uid(*job.name)), job_uid(*job.name), slots
    await execute(
        kit,
        "INSERT INTO rota.run (shard, job_uid, scheduled_for, created_at, origin)"
        " SELECT $1, $2, slot, $4, 'manual' FROM unnest($3::timestamptz[]) slot",
        *values, kit.clock.now(),
    )  # fmt: skip
    await execute(
        kit,
        "INSERT INTO rota.pending (shard, job_uid, scheduled_for, rank, available_at, attempt, gate, pool, handler,"
        " tenant_id, priority)"
        " SELECT $1, $2, slot, rota.rank_of(at, priority, $6), at, 0, 'open', $6, 'h', $7, priority"
        " FROM unnest($3::timestamptz[], $4::timestamptz[], $5::integer[]) w (slot, at, priority)",
        *values, available_ats, priorities or [job.priority] * len(slots), job.pool, job.tenant_id,
    )  # fmt: skip
    return slots


async def claim(kit: RotaKit, limit: int, *, by: Dispatch | None = None, pool: str = "default") -> list[Claim]:
    return await (by or kit.rota.dispatch).claim(worker_id="w", pool=pool, handlers=H, limit=limit)


async def succeed(kit: RotaKit, claims: Sequence[Claim]) -> None:
    reports = [Report(key=each.key, outcome=Outcome.SUCCEEDED) for each in claims]
    assert len(await kit.rota.completion.report(reports)) == len(claims)


@dataclass(frozen=True, slots=True)
class Under:
    """A limit that a run is under, and what the run takes of it."""

    cost: int
    permits: int | None
    rate: float | None
    burst: int | None


@dataclass(slots=True)
class Bucket:
    tokens: float
    at: datetime

    def filled(self, limit: Under, now: datetime) -> float:
        assert limit.rate is not None
        assert limit.burst is not None
        return min(limit.burst, self.tokens + limit.rate * (now - self.at).total_seconds())


@dataclass(slots=True)
class LimitModel:
    """The rules of limits in plain Python: which limits a run is under, and what is in use and left of each."""

    limits: dict[tuple[str, str], Limit] = field(default_factory=dict)
    in_use: dict[str, int] = field(default_factory=dict)
    buckets: dict[str, Bucket] = field(default_factory=dict)
    starts: dict[str, list[tuple[datetime, int]]] = field(default_factory=dict)

    def put(self, limit: Limit) -> None:
        self.limits[limit.tenant_id, limit.name] = limit
        self.starts = {key: [] for key in self.starts}

    def delete(self, tenant_id: str, name: str) -> None:
        limit = self.limits.pop((tenant_id, name))
        for key in [key for key in self.buckets if key.endswith(f"/{limit.name}")]:
            del self.buckets[key]
        self.starts = {key: [] for key in self.starts}

    def over(self, job: Job, payload: Mapping[str, Any]) -> dict[str, Under]:
        """Return key -> limit for a run of the job."""
        found: dict[str, Under] = {}
        one_at_a_time = job.overlap in ("queue", "queue_one", "replace")
        if one_at_a_time or job.max_concurrency is not None:
            found[f"job/{job_uid(*job.name)}"] = Under(1, 1 if one_at_a_time else job.max_concurrency, None, None)
        if job.concurrency_key is not None and (value := payload.get(job.concurrency_key.removeprefix("payload."))):
            digest = hashlib.md5(str(value).encode(), usedforsecurity=False).hexdigest()
            found[f"key/{job_uid(*job.name)}/{digest}"] = Under(1, job.key_concurrency, None, None)
        for name, weight in job.limits.items():
            limit = self.limits.get((job.tenant_id, name)) or self.limits.get((OPERATOR, name))
            if limit is not None and limit.kind == "downstream":
                found[f"downstream/{limit.tenant_id}/{name}"] = under_limit(limit, weight)
        for (owner, name), limit in self.limits.items():
            is_shadowed = owner == OPERATOR and (job.tenant_id, name) in self.limits
            if limit.kind == "tenant" and owner in (job.tenant_id, OPERATOR) and not is_shadowed:
                found[f"tenant/{job.tenant_id}/{name}"] = under_limit(limit, 1)
        return found

    def start(self, under: Mapping[str, Under], now: datetime) -> None:
        """Take what a run costs; there may be less than that: the caller sees by `room` and `in_use`."""
        for key, limit in under.items():
            if limit.permits is not None:
                self.in_use[key] = self.in_use.get(key, 0) + limit.cost
            if limit.rate is not None:
                self.buckets[key] = Bucket(self._tokens(key, limit, now) - limit.cost, now)
                self.starts.setdefault(key, []).append((now, limit.cost))

    def end(self, under: Mapping[str, Under]) -> None:
        """Give the permits back that a run holds."""
        for key, limit in under.items():
            if limit.permits is not None:
                self.in_use[key] -= limit.cost

    def room(self, key: str, limit: Under, now: datetime) -> float:
        """Return how much of a limit is left."""
        free = inf if limit.permits is None else limit.permits - self.in_use.get(key, 0)
        return min(free, inf if limit.rate is None else self._tokens(key, limit, now))

    def _tokens(self, key: str, limit: Under, now: datetime) -> float:
        bucket = self.buckets.get(key)
        return float(limit.burst or 0) if bucket is None else bucket.filled(limit, now)


def under_limit(limit: Limit, weight: int) -> Under:
    """Return the limit as a run is under it that costs so much."""
    cost = min(weight, max(limit.permits, 1) if limit.permits is not None else weight, limit.burst or weight)
    return Under(cost, limit.permits, limit.rate, limit.burst)
