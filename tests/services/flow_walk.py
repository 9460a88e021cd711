"""A random walk through flow control: what happens to Rota happens to a model of limits, and both must agree."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import orjson

from rota.domain.attempt import Claim, Outcome, Report
from rota.domain.job import Job
from rota.domain.limit import Limit
from rota.domain.retry import RetryPolicy
from rota.services.dispatch import Dispatch
from rota.store.audit import SYSTEM
from rota.testing import RotaKit
from tests.services.flow import OPERATOR, Bucket, LimitModel, Under, claim, succeed
from tests.services.stories import fetch

_JOBS: Final[dict[str, dict[str, Any]]] = {
    "free": {},
    "capped": {"max_concurrency": 2, "priority": 7},
    "keyed": {"concurrency_key": "payload.customer", "key_concurrency": 1},
    "queued": {"overlap": "queue"},
    "light": {"limits": {"crm": 1}},
    "heavy": {"limits": {"crm": 3}, "priority": 4},
    "rated": {"limits": {"mail": 1}},
    "stamps": {"limits": {"mail": 2}, "tenant_id": "globex"},
    "both": {"limits": {"mail": 1, "crm": 2}, "max_concurrency": 2, "tenant_id": "globex"},
    "shared": {"limits": {"crm": 1}, "tenant_id": "globex", "concurrency_key": "payload.customer"},
    "elsewhere": {"limits": {"crm": 1, "mail": 1}, "pool": "other"},
    "unknown": {"limits": {"nobody": 5}},
}
JOBS: Final = [
    Job(
        job_id=name, handler="h", lease_duration=timedelta(seconds=3), max_losses=1000,
        retry=RetryPolicy(initial=timedelta(0), cap=timedelta(seconds=1)), **fields,
    )
    for name, fields in _JOBS.items()
]  # fmt: skip
POOLS: Final = ("default", "other")
LOOKS: Final = 40
"""The most looks of schedulers and workers, half a second apart, after which everything that can start has started."""
FIRST_LIMITS: Final = [
    Limit(name="crm", tenant_id=OPERATOR, permits=4),
    Limit(name="mail", tenant_id=OPERATOR, rate=5, burst=3),
    Limit(name="all", tenant_id=OPERATOR, kind="tenant", permits=6),
]


class Walk:
    """One random walk: what happens to Rota happens to the model of limits, and then both are held together."""

    def __init__(self, kit: RotaKit, seed: int) -> None:
        self.kit = kit
        self.dice = random.Random(seed)
        self.model = LimitModel()
        self.jobs = {(job.tenant_id, job.job_id): job for job in JOBS}
        self.dispatches = [Dispatch(kit.database, kit.clock) for _ in range(3)]
        self.held: dict[UUID, tuple[Claim, dict[str, Under]]] = {}
        self.over_cap: dict[str, int] = {}

    async def begin(self) -> None:
        await self.kit.put(*JOBS)
        for limit in FIRST_LIMITS:
            await self.put(limit)
        await self.kit.tick()

    async def step(self) -> None:
        steps = [
            self.trigger, self.trigger, self.claim, self.claim, self.claim, self.race, self.report, self.report,
            self.report, self.time_passes, self.time_passes, self.workers_are_lost, self.edit, self.look,
        ]  # fmt: skip
        await self.dice.choice(steps)()
        await self.holds()

    async def trigger(self) -> None:
        for job in self.dice.choices(JOBS, k=self.dice.randint(1, 6)):
            customer = {"customer": self.dice.choice(["ann", "bob"])} if self.dice.random() < 0.8 else {}
            await self.kit.on_demand.trigger(job.job_id, tenant_id=job.tenant_id, payload=customer)

    async def claim(self) -> None:
        pool = self.dice.choice(POOLS)
        limit = self.dice.choice([1, 2, 5, 50])
        claimed = await claim(self.kit, limit, by=self.dice.choice(self.dispatches), pool=pool)
        self.started(claimed)
        if not claimed:
            [row] = await fetch(
                self.kit, "SELECT count(*) AS runs FROM rota.pending WHERE gate = 'open' AND pool = $1", pool
            )
            assert row["runs"] == 0, "a claim that gives nothing has put aside whatever has to wait"

    async def race(self) -> None:
        """Fifty claim at once, each with a process of its own."""
        racers = [Dispatch(self.kit.database, self.kit.clock) for _ in range(self.dice.choice([5, 5, 5, 50]))]
        limit = self.dice.randint(1, 3)
        for claimed in await asyncio.gather(*(claim(self.kit, limit, by=racer) for racer in racers)):
            self.started(claimed)

    async def report(self) -> None:
        some = self.dice.sample(list(self.held.values()), k=min(len(self.held), self.dice.randint(1, 5)))
        outcomes = [Outcome.SUCCEEDED, Outcome.SUCCEEDED, Outcome.FAILED, Outcome.RELEASED, Outcome.SNOOZED]
        reports = [Report(key=each.key, outcome=self.dice.choice(outcomes), error="it failed") for each, _ in some]
        assert len(await self.kit.rota.completion.report(reports)) == len(some)

    async def time_passes(self) -> None:
        self.kit.clock.advance(self.dice.choice([0.01, 0.1, 0.2, 0.5]))

    async def workers_are_lost(self) -> None:
        await self.kit.advance(self.dice.choice([1, 4]))

    async def look(self) -> None:
        await self.kit.tick()

    async def edit(self) -> None:
        kind = self.dice.randrange(4)
        if kind == 0:
            await self.put(Limit(name="crm", tenant_id=OPERATOR, permits=self.dice.randrange(8)))
        elif kind == 1:
            rate, burst = self.dice.choice([(1, 1), (5, 3), (20, 10)])
            await self.put(
                Limit(name="mail", tenant_id=OPERATOR, rate=rate, burst=burst, permits=self.dice.choice([None, 3]))
            )
        elif ("default", "crm") in self.model.limits:
            await self.kit.rota.limits.delete("crm", tenant_id="default", actor=SYSTEM)
            self.model.delete("default", "crm")
        else:
            await self.put(Limit(name="crm", permits=self.dice.randint(1, 3), rate=50, burst=2))

    async def put(self, limit: Limit) -> None:
        await self.kit.rota.limits.put(limit, actor=SYSTEM)
        self.model.put(limit)

    def started(self, claimed: Sequence[Claim]) -> None:
        now = self.kit.clock.now()
        for each in claimed:
            under = self.model.over(self.jobs[each.tenant_id, each.job_id], each.payload)
            self.model.start(under, each.claimed_at)
            self.held[each.key.token] = each, under
            for key, limit in under.items():
                assert self.model.room(key, limit, each.claimed_at) > -1e-6, (
                    f"{each.job_id} started past {key} at {now}"
                )

    async def holds(self) -> None:
        """Hold the tables against the model."""
        leases = {
            row["token"]: row
            for row in await fetch(self.kit, "SELECT token, permit_keys, permit_slots FROM rota.lease")
        }
        for token in [token for token in self.held if token not in leases]:
            self.model.end(self.held.pop(token)[1])
        assert leases.keys() == self.held.keys()
        listed = set()
        for token, row in leases.items():
            keys = row["permit_keys"] or []
            expected = {key: limit.cost for key, limit in self.held[token][1].items() if limit.permits is not None}
            assert Counter(keys) == expected
            listed |= {(key, slot, token) for key, slot in zip(keys, row["permit_slots"] or [], strict=True)}
        permits = await fetch(self.kit, "SELECT limit_key, slot, token FROM rota.permit WHERE token IS NOT NULL")
        assert {(row["limit_key"], row["slot"], row["token"]) for row in permits} == listed, "no leak, none held twice"
        assert Counter(row["limit_key"] for row in permits) == +Counter(self.model.in_use)
        for row in await fetch(self.kit, "SELECT limit_key, tokens, refilled_at FROM rota.bucket"):
            assert row["tokens"] > -1e-6
            # One begins, as full as it may be by then, when its limit is first met, not when something first starts.
            self.model.buckets.setdefault(row["limit_key"], Bucket(row["tokens"], row["refilled_at"]))
        self.bursts_hold()

    def bursts_hold(self) -> None:
        """In no stretch of time more starts than the burst and what came in meanwhile."""
        for key, starts in self.model.starts.items():
            owner, name = key.split("/")[1:]
            limit = self.model.limits.get((owner, name))
            if limit is None or limit.rate is None or limit.burst is None:
                continue
            for first, (began, _) in enumerate(starts):
                total = 0
                for at, cost in starts[first:]:
                    total += cost
                    assert total <= limit.burst + limit.rate * (at - began).total_seconds() + 1e-6

    async def nobody_idles(self) -> None:
        """Let everybody claim until nobody gets anything; then something holds each run that waits.

        What waits for one limit and then for another is looked at once for each: not all is found at the first look.
        """
        idle: list[str] = []
        for _ in range(LOOKS):
            await self.kit.tick()
            await self.holds()  # leases may have lapsed meanwhile
            new = [each for pool in POOLS for each in await claim(self.kit, 200, pool=pool)]
            self.started(new)
            await self.holds()
            if not new and not (idle := await self.idle()):
                return
        raise AssertionError(f"these wait though nothing holds them back: {idle}")

    async def idle(self) -> list[str]:
        """Return the jobs of runs that wait though they could start.

        Only this holds a run: a limit without room for it, once what is saved for another is left alone; or a run that
        is held, of its tenant and pool and of better rank, and under one of its limits.
        """
        now = self.kit.clock.now()
        waiting = await fetch(
            self.kit,
            "SELECT j.tenant_id, j.job_id, coalesce(r.payload, j.payload) AS payload, p.pool, p.rank"
            "  FROM rota.pending p JOIN rota.job j USING (shard, job_uid)"
            "  JOIN rota.run r USING (shard, job_uid, scheduled_for) WHERE p.gate IN ('open', 'limit')"
            " ORDER BY p.rank",
        )
        savings = await fetch(
            self.kit, "SELECT limit_key, tenant_id, pool, cost FROM rota.saving WHERE saves AND until > $1", now
        )
        saved = {row["limit_key"]: row for row in savings}
        facts = []
        for row in waiting:
            under = self.model.over(self.jobs[row["tenant_id"], row["job_id"]], orjson.loads(row["payload"]))
            queue = (row["tenant_id"], row["pool"])
            is_full = any(
                self.model.room(key, limit, now) - (saved[key]["cost"] if _is_saved_from(saved.get(key), queue) else 0)
                < limit.cost
                for key, limit in under.items()
            )
            facts.append((row["rank"], not is_full, queue, set(under), row["job_id"]))
        held: list[tuple[tuple[str, str], set[str]]] = []
        idle = []
        # Of two of the same rank either is first.
        for _, fits, queue, keys, job_id in sorted(facts, key=lambda fact: fact[:2]):
            if fits and not any(of == queue and both & keys for of, both in held):
                idle.append(job_id)
            else:
                held.append((queue, keys))
        return idle

    async def end(self) -> None:
        """Give every limit some room, let workers come back, and see that every run ends."""
        await self.put(Limit(name="crm", tenant_id=OPERATOR, permits=3))
        await self.put(Limit(name="mail", tenant_id=OPERATOR, rate=20, burst=5))
        await succeed(self.kit, [each for each, _ in self.held.values()])
        await self.holds()
        for _ in range(200):
            await self.kit.advance(0.5)
            await self.holds()
            claimed = [each for pool in POOLS for each in await claim(self.kit, 50, pool=pool)]
            self.started(claimed)
            await succeed(self.kit, claimed)
            await self.holds()
            [row] = await fetch(self.kit, "SELECT count(*) AS runs FROM rota.pending")
            if row["runs"] == 0:
                return
        raise AssertionError("some runs wait for ever")


def _is_saved_from(saving: Any, queue: tuple[str, str]) -> bool:
    """Tell whether what is saved is for a run of another tenant or pool."""
    return saving is not None and queue != (saving["tenant_id"], saving["pool"])
