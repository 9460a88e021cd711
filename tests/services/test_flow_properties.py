"""Flow control as laws: whatever happens in whatever order, caps hold, nobody starves, and nobody idles beside work.

Random walks over the real services, always the same ones; ROTA_WALKS asks for so many others, ROTA_WALK for one.
"""

import asyncio
import contextlib
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest
import pytest_asyncio

from rota.domain.admission import rank
from rota.domain.job import Job
from rota.domain.limit import Limit
from rota.errors import Conflict, RunFinished
from rota.services.dispatch import Dispatch
from rota.services.rounds import TURN_LENGTH
from rota.store.audit import SYSTEM
from rota.testing import Kits, RotaKit
from tests.services.flow import H, SelfMovingClock, claim, let_wait, succeed
from tests.services.flow_walk import Walk
from tests.services.stories import START, execute, fetch

POLL: Final = 0.1
"""Seconds after which a worker looks again if nobody told it to."""


@pytest_asyncio.fixture
async def flow_kit(rota_kits: Kits) -> AsyncIterator[RotaKit]:
    """A kit on a clock that needs no push while somebody waits for a token."""
    async with rota_kits.kit(clock=SelfMovingClock(START)) as kit:
        yield kit
        await kit.check()


# ranks ----------------------------------------------------------------------------------------------------------------


async def test_the_database_ranks_as_the_definition_does(rota_kit: RotaKit) -> None:
    dice = random.Random(4)
    ageings = {"default": 60_000, "never": 0, "slow": 86_400_000, "odd": 333}
    for pool, ageing in ageings.items():
        if pool != "default":
            await execute(rota_kit, "INSERT INTO rota.pool VALUES ($1, $2, NULL, 'epoch')", pool, ageing)
    instants = [datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_998, tzinfo=UTC)]
    instants += [START + timedelta(microseconds=n) for n in (1, 499, 500, 999, 1000, 1001, 999_499, 999_500, 999_999)]
    instants += [START + timedelta(microseconds=dice.randrange(10**15)) for _ in range(1000)]
    asked = [(at, dice.randrange(10), dice.choice(list(ageings))) for at in instants for _ in range(3)]
    rows = await fetch(
        rota_kit,
        "SELECT rota.rank_of(at, priority, pool) AS rank"
        " FROM unnest($1::timestamptz[], $2::integer[], $3::text[])"
        "   WITH ORDINALITY w (at, priority, pool, n) ORDER BY n",
        *map(list, zip(*asked, strict=True)),
    )  # fmt: skip
    expected = [
        rank(at, priority=priority, ageing=timedelta(milliseconds=ageings[pool])) for at, priority, pool in asked
    ]
    assert [row["rank"] for row in rows] == expected


async def test_of_two_runs_of_a_tenant_the_smaller_rank_goes_first_and_nobody_waits_longer_than_the_ageing(
    rota_kit: RotaKit,
) -> None:
    """B66, through the claim itself, with instants to the microsecond."""
    dice = random.Random(66)
    moments = [START - timedelta(microseconds=dice.randrange(1_200_000_000)) for _ in range(300)]
    priorities = [dice.randrange(10) for _ in moments]
    slots = await let_wait(rota_kit, Job(job_id="job", handler="h"), moments, priorities=priorities)
    arrived = dict(zip(slots, zip(moments, priorities, strict=True), strict=True))
    served = []
    while claimed := await claim(rota_kit, dice.randint(1, 40)):
        served += [arrived[each.key.scheduled_for] for each in claimed]
    assert len(served) == 300
    ranks = [rank(at, priority=priority) for at, priority in served]
    assert ranks == sorted(ranks)
    for place, (at, priority) in enumerate(served):
        for earlier, above in served[:place]:
            assert earlier <= at + timedelta(minutes=1) * (above - priority) + timedelta(milliseconds=1)


async def test_low_work_behind_a_stream_of_the_highest_priority_goes_when_it_has_aged(rota_kit: RotaKit) -> None:
    """B66: no plateau."""
    await let_wait(rota_kit, Job(job_id="low", handler="h", priority=0), [START])
    stream = [START + timedelta(seconds=second) for second in range(1, 700)]
    await let_wait(rota_kit, Job(job_id="high", handler="h", priority=9), stream)
    rota_kit.clock.advance(700)
    order = [each.job_id for _ in range(14) for each in await claim(rota_kit, 50)]
    assert order.index("low") in (539, 540), "behind what came within nine points of a minute each, and nothing else"


# caps -----------------------------------------------------------------------------------------------------------------


async def test_a_claim_that_waited_for_another_s_bucket_pays_into_what_that_left(rota_kit: RotaKit) -> None:
    await rota_kit.rota.limits.put(Limit(name="mail", rate=1, burst=5), actor=SYSTEM)
    await let_wait(rota_kit, Job(job_id="job", handler="h", limits={"mail": 1}), [START] * 6)
    [_] = await claim(rota_kit, 1)
    async with rota_kit.database.transaction() as tx:
        await tx._raw.execute("UPDATE rota.bucket SET tokens = 3")
        waits = asyncio.create_task(claim(rota_kit, 1))
        while not await tx._raw.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
            pass
    assert len(await waits) == 1
    [row] = await fetch(rota_kit, "SELECT tokens FROM rota.bucket")
    assert row["tokens"] == 2


async def test_a_run_whose_row_moves_as_it_is_claimed_is_not_started_twice(rota_kit: RotaKit) -> None:
    """Whoever changes its priority at that instant makes a new version of the row that the claim has locked."""
    await let_wait(rota_kit, Job(job_id="job", handler="h"), [START] * 400)
    runs = [run.run_id for run in await rota_kit.runs("job")]

    async def reprioritise() -> None:
        for number, run in enumerate(runs):
            with contextlib.suppress(Conflict, RunFinished):
                await rota_kit.on_demand.reprioritise(run, number % 10, tenant_id="default", actor=SYSTEM)

    async def take() -> None:
        mine = Dispatch(rota_kit.database, rota_kit.clock)
        while await claim(rota_kit, 4, by=mine):
            pass

    await asyncio.gather(reprioritise(), reprioritise(), take(), take())
    [row] = await fetch(
        rota_kit, "SELECT count(*) AS twice FROM rota.pending JOIN rota.lease USING (shard, job_uid, scheduled_for)"
    )
    assert row["twice"] == 0


async def test_racing_claimers_do_not_exceed_a_cap_that_was_lowered(rota_kit: RotaKit) -> None:
    """Those who hold what lies above the cap count, whoever else counts them at the same moment."""
    await rota_kit.rota.limits.put(Limit(name="crm", permits=8, rate=1000, burst=1000), actor=SYSTEM)
    await let_wait(rota_kit, Job(job_id="job", handler="h", limits={"crm": 1}), [START] * 40)
    held = await claim(rota_kit, 8)
    await rota_kit.rota.limits.put(Limit(name="crm", permits=4, rate=1000, burst=1000), actor=SYSTEM)
    rows = await fetch(rota_kit, "SELECT token FROM rota.permit WHERE slot IN (1, 2, 4, 6, 8)")
    low = {row["token"] for row in rows}
    await succeed(rota_kit, [each for each in held if each.key.token in low])  # 3, 5 and 7 are held: one is left
    async with rota_kit.database.transaction() as tx:
        await tx._raw.execute("SELECT FROM rota.bucket FOR UPDATE")
        racing = [claim(rota_kit, 4, by=Dispatch(rota_kit.database, rota_kit.clock)) for _ in range(4)]
        racers = asyncio.gather(*racing)
        while await tx._raw.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted") < 2:
            pass
    new = [each for some in await racers for each in some]
    [row] = await fetch(rota_kit, "SELECT count(*) AS held FROM rota.permit WHERE token IS NOT NULL")
    assert row["held"] <= 4
    await succeed(rota_kit, new + [each for each in held if each.key.token not in low])
    await rota_kit.tick()
    assert len(await claim(rota_kit, 9)) == 4


async def test_runs_of_a_pool_without_workers_keep_no_limit_from_those_of_another(rota_kit: RotaKit) -> None:
    await rota_kit.rota.limits.put(Limit(name="crm", permits=2), actor=SYSTEM)
    await let_wait(rota_kit, Job(job_id="gone", handler="h", limits={"crm": 1}, pool="gone"), [START] * 8)
    held = await claim(rota_kit, 4, pool="gone")
    await rota_kit.worker("w", handlers=H).announce()
    await let_wait(rota_kit, Job(job_id="here", handler="h", limits={"crm": 1}), [START] * 4)
    assert await claim(rota_kit, 4) == []
    await succeed(rota_kit, held)
    done = 0
    for _ in range(4):
        await rota_kit.advance(1)
        claimed = await claim(rota_kit, 4)
        done += len(claimed)
        await succeed(rota_kit, claimed)
    assert done == 4


WALKS: Final = int(os.environ.get("ROTA_WALKS", "0"))
ONE: Final = os.environ.get("ROTA_WALK")
SEEDS: Final = [int(ONE)] if ONE else [random.Random().randrange(10**9) for _ in range(WALKS)] or [1, 2]
STEPS: Final = 70


@pytest.mark.parametrize("seed", SEEDS)
async def test_whatever_happens_caps_hold_nothing_leaks_and_everything_ends(flow_kit: RotaKit, seed: int) -> None:
    """B62, B64: permits, keys, rates, shared and shadowed limits, racing claimers, losses, and edits."""
    walk = Walk(flow_kit, seed)
    await walk.begin()
    for number in range(STEPS):
        await walk.step()
        if number % 10 == 9:
            await walk.nobody_idles()
    await walk.end()


# rates ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "burst", "seconds", "workers"), [(10, 1, 10, 1), (50, 10, 10, 2), (200, 40, 2, 1), (3.3, 1, 10, 3)]
)
async def test_a_rate_holds_to_five_per_cent_and_its_burst_is_never_exceeded(
    flow_kit: RotaKit, rate: float, burst: int, seconds: int, workers: int
) -> None:
    """Workers that look as `LocalDesk.wait_for_work` lets them: ten times a second, and when a token is due."""
    await flow_kit.rota.limits.put(Limit(name="mail", rate=rate, burst=burst), actor=SYSTEM)
    job = Job(job_id="job", handler="h", limits={"mail": 1}, lease_duration=timedelta(hours=1))
    await let_wait(flow_kit, job, [START] * int(burst + 1.2 * rate * seconds))
    processes = [Dispatch(flow_kit.database, flow_kit.clock) for _ in range(workers)]
    starts: list[float] = []
    while flow_kit.clock.monotonic() <= seconds:
        for process in processes:
            claimed = await claim(flow_kit, 100, by=process)
            starts += [(each.claimed_at - START).total_seconds() for each in claimed]
        soonest = min(process.seconds_until_token("default") for process in processes)
        flow_kit.clock.advance(min(POLL, soonest))
    assert len([at for at in starts if at > 0]) == pytest.approx(rate * seconds, rel=0.05, abs=1)
    for first, began in enumerate(starts):
        for number, at in enumerate(starts[first:], 1):
            assert number <= burst + rate * (at - began) + 1e-6


# shares ---------------------------------------------------------------------------------------------------------------


async def weighted(kit: RotaKit, weights: Sequence[int], *, runs: int) -> dict[str, int]:
    """Let so many runs of each tenant wait; returns tenant -> weight."""
    tenants = {f"t-{number:03}": weight for number, weight in enumerate(weights)}
    for tenant_id, weight in tenants.items():
        if weight > 1:
            await kit.rota.access.put_tenant(
                tenant_id, max_jobs=None, max_payload_bytes=None, calls_per_second=None, weight=weight, actor=SYSTEM
            )
        await let_wait(kit, Job(job_id="job", handler="h", tenant_id=tenant_id), [START] * runs)
    return tenants


@pytest.mark.parametrize(
    ("weights", "limits"),
    [([1, 1, 1], [1]), ([1, 2, 5], [1, 3]), ([1] * 6, [20, 7]), ([1, 1, 3, 2], [50, 1, 9]), ([1] * 30, [100, 40, 1])],
)
async def test_between_two_runs_of_a_tenant_that_waits_every_other_gets_a_turn_s_worth_at_most(
    rota_kit: RotaKit, weights: list[int], limits: list[int]
) -> None:
    dice = random.Random(len(weights))
    tenants = await weighted(rota_kit, weights, runs=120)
    served: list[str] = []
    while len(served) < 40 * sum(weights) // max(weights) and len(served) < 1500:
        limit = dice.choice(limits)
        new = [each.tenant_id for each in await claim(rota_kit, limit)]
        assert len(new) == limit, "nobody idles"
        served += new
    counts = Counter(served)
    assert max(counts.values()) < 120, "all had runs waiting all the time"
    turn = min(TURN_LENGTH, max(limits))
    since: dict[str, Counter[str]] = {tenant: Counter() for tenant in tenants}
    for tenant in served:
        for other, gap in since.items():
            if other != tenant:
                gap[tenant] += 1
                assert gap[tenant] <= 2 * turn * tenants[tenant], f"{other} waits while {tenant} has {gap}"
        since[tenant].clear()
    for tenant, weight in tenants.items():
        share = len(served) * weight / sum(weights)
        assert abs(counts[tenant] - share) <= 2 * turn * weight + 1


async def test_a_tenant_with_little_waits_one_round_beside_one_with_a_backlog(rota_kit: RotaKit) -> None:
    """Ten a second beside a thousand that wait: what arrived before a claim goes with it."""
    await let_wait(rota_kit, Job(job_id="job", handler="h", tenant_id="huge"), [START] * 1000)
    await rota_kit.put(Job(job_id="job", handler="h", tenant_id="small"))
    process = Dispatch(rota_kit.database, rota_kit.clock)
    for _ in range(20):
        rota_kit.clock.advance(0.1)
        await rota_kit.on_demand.trigger("job", tenant_id="small")
        claimed = [each.tenant_id for each in await claim(rota_kit, 20, by=process)]
        assert Counter(claimed) == {"huge": 19, "small": 1}


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_claim_is_never_short_while_runs_are_ready(rota_kit: RotaKit, seed: int) -> None:
    """Whoever has how many, in whatever order they come and with whatever priorities."""
    dice = random.Random(seed)
    names = [f"t-{number:02}" for number in range(12)]
    await rota_kit.put(*(Job(job_id="job", handler="h", tenant_id=name) for name in names))
    ready = 0
    for step in range(25):
        for _ in range(dice.choice([0, 0, 1, 2])):
            tenant = dice.choice(names)
            job = Job(job_id=f"job-{step}-{dice.random()}", handler="h", tenant_id=tenant)
            runs = dice.choice([1, 2, 9, 80])
            priorities = [dice.randrange(10) for _ in range(runs)]
            await let_wait(rota_kit, job, [rota_kit.clock.now()] * runs, priorities=priorities)
            ready += runs
        limit = dice.choice([1, 3, 8, 30, 100])
        claimed = await claim(rota_kit, limit)
        assert len(claimed) == min(limit, ready)
        ready -= len(claimed)
        rota_kit.clock.advance(0.01)
