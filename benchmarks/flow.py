"""What flow control costs: limits, fair shares and parked runs, each against the same work without them.

Ratios are of the same process and database; repetitions take turns, so that what ails the machine ails all of them.
BENCH_RUNS, BENCH_ROUNDS and BENCH_PARKED make them smaller or larger.
"""

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from benchmarks.fleet import LIMIT, worker_processes
from benchmarks.harness import STOPWATCH, Bench, bench, make_jobs, note, percentile
from benchmarks.services import HANDLERS
from rota.clock import ManualClock
from rota.domain.attempt import Outcome, Report
from rota.domain.ids import job_uid
from rota.domain.job import Job
from rota.domain.limit import BURST_LIMIT, FASTEST_RATE, Limit

RUNS: Final = int(os.environ.get("BENCH_RUNS", "20000"))
ROUNDS: Final = int(os.environ.get("BENCH_ROUNDS", "5"))
PARKED: Final = int(os.environ.get("BENCH_PARKED", "100000"))
BATCH: Final = 100
WARM_UP: Final = 10
"""Claims that are not counted: their connection plans the statement anew."""
SECONDS: Final = 20.0
"""How long the small tenant of `fair_delay` sends, at most."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """Jobs of so many tenants, under limits; claimed by `batch` and completed before the next claim."""

    tenants: int = 1
    costs: Mapping[str, int] = field(default_factory=dict)
    limit: Limit | None = None
    batch: int = BATCH


# None of these limits binds, but the last.
WORKS: Final = {
    "unlimited": Work(),
    "limit_per_tenant_100": Work(tenants=100, limit=Limit(name="all", tenant_id="*", kind="tenant", permits=1000)),
    "global_permits": Work(costs={"all": 1}, limit=Limit(name="all", tenant_id="*", permits=1000)),
    "global_rate": Work(
        costs={"all": 1}, limit=Limit(name="all", tenant_id="*", rate=FASTEST_RATE, burst=BURST_LIMIT)
    ),
    "fair_100": Work(tenants=100),
    "fair_10000": Work(tenants=10_000),
    "binding_permits": Work(costs={"all": 1}, limit=Limit(name="all", tenant_id="*", permits=BATCH), batch=2 * BATCH),
}  # fmt: skip


async def flow(b: Bench) -> None:
    """Lifecycle rate (materialise, claim, complete) under limits and fair shares, as a share of the unlimited one.

    Each figure is of a fresh database, whose first slots are not counted: they make its plans, and the limit's rows.
    """
    rates: dict[str, list[float]] = {name: [] for name in WORKS}
    for round_ in range(ROUNDS):
        for name, work in WORKS.items():
            async with bench(name, manual=True) as fresh:
                rates[name].append(await lifecycle_rate(fresh, work))
        note(f"flow: round {round_ + 1}: " + ", ".join(f"{name} {each[-1]:,.0f}/s" for name, each in rates.items()))
    for name, each in rates.items():
        b.say(name, median(each), "runs/s")
        shares = [rate / base for rate, base in zip(each, rates["unlimited"], strict=True)]
        b.say(f"{name}_share", median(shares) * 100, "%")


async def lifecycle_rate(b: Bench, work: Work) -> float:
    """Return how many runs a second are made, claimed and completed."""
    assert isinstance(b.clock, ManualClock)
    if work.limit is not None:
        await b.rota.limits.put(work.limit, actor="bench")
    await make_jobs(b, RUNS, next_run_at="$1::timestamptz + interval '1 second'")
    await spread(b, work)
    await b.settle()
    b.clock.advance(1)
    await slots_done(b, work)
    b.clock.advance(300)
    return await slots_done(b, work)


async def slots_done(b: Bench, work: Work) -> float:
    """Make, claim and complete the runs of the slots that are due; returns how many a second."""
    process = b.rota.scheduler_process("bench")
    await process.keeper.tick()
    started, done = STOPWATCH.monotonic(), 0
    while await process.scheduler.tick():
        pass
    while claimed := await b.rota.dispatch.claim(worker_id="w", pool="default", handlers=HANDLERS, limit=work.batch):
        reports = [Report(key=claim.key, outcome=Outcome.SUCCEEDED) for claim in claimed]
        done += len(await b.rota.completion.report(reports))
    spent = STOPWATCH.monotonic() - started
    assert done == RUNS, f"{done} of {RUNS} runs were done"
    return RUNS / spent


async def parked(b: Bench) -> None:
    """Claim p99 of other jobs while 100,000 runs wait for one limit, against the same without them."""
    sizes = ((1, RUNS // 20), (50, RUNS // 100))
    worst: dict[tuple[bool, int], list[float]] = {(has, size): [] for has in (False, True) for size, _ in sizes}
    looks = []
    for _ in range(ROUNDS):
        for has_parked in (False, True):
            await clear(b)
            await queue(b, sum(size * (WARM_UP + turns) for size, turns in sizes), Work())
            if has_parked:
                await park(b, PARKED)
            await b.settle()
            for size, turns in sizes:
                worst[has_parked, size].append(percentile(await claim_times(b, size, turns), 0.99))
            if has_parked:
                started = STOPWATCH.monotonic()
                await b.rota.scheduler_process("bench").limit_keeper.tick()
                looks.append((STOPWATCH.monotonic() - started) * 1000)
    for size, _ in sizes:
        empty, full = worst[False, size], worst[True, size]
        b.say(f"batch_{size}_p99_empty", median(empty), "ms")
        b.say(f"batch_{size}_p99", median(full), "ms")
        b.say(f"batch_{size}_ratio", median(full) / median(empty), "x")
    b.say("keeper_look", median(looks), "ms")


async def fair_cost(b: Bench) -> None:
    """Milliseconds of a claim of 100 where 1, 100 and 10,000 tenants have runs waiting, and the ratio to one tenant."""
    middles: dict[int, list[float]] = {tenants: [] for tenants in (1, 100, 10_000)}
    for _ in range(ROUNDS):
        for tenants, each in middles.items():
            await clear(b)
            await queue(b, RUNS + WARM_UP * BATCH, Work(tenants=tenants))
            await b.settle()
            each.append(median(await claim_times(b, BATCH, RUNS // BATCH // 2)))
    for tenants, each in middles.items():
        b.say(f"tenants_{tenants}", median(each), "ms")
        b.say(f"tenants_{tenants}_ratio", median(each) / median(middles[1]), "x")


async def fair_delay(b: Bench) -> None:
    """Start delay of a tenant's ten runs a second beside another's 100,000 that wait, at full load.

    From trigger to lease, with one worker process of 200 slots and no-op handlers, on the database's own clock.
    """
    await queue(b, PARKED, Work(), pool="later")
    await b.settle()
    await b.rota.definitions.put([Job(job_id="small", handler="noop", tenant_id="small")])
    stop = asyncio.Event()
    keeping = asyncio.create_task(b.rota.keep_going(stop))
    async with worker_processes(b, 1, concurrency=200) as [worker]:
        await b.execute("UPDATE rota.pending SET pool = 'default'")
        started = STOPWATCH.monotonic()
        sent, left = 0, PARKED
        while left and STOPWATCH.monotonic() - started < SECONDS:
            await b.rota.on_demand.trigger("small", tenant_id="small")
            sent += 1
            await STOPWATCH.sleep(max(0.0, started + sent / 10 - STOPWATCH.monotonic()))
            [row] = await b.execute(
                "SELECT count(*) AS n FROM (SELECT FROM rota.pending WHERE tenant_id <> 'small' LIMIT 1000) w"
            )
            left = row["n"] // 1000  # the last thousand are no full load any more
        delays = await started_within(b, sent)
        await worker.stop()
    stop.set()
    await keeping
    note(f"fair_delay: {sent} runs of the small tenant")
    b.say("p50", percentile(delays, 0.5), "ms")
    b.say("p99", percentile(delays, 0.99), "ms")
    b.say("max", max(delays), "ms")


async def started_within(b: Bench, sent: int) -> list[float]:
    """Return the delays in ms of the small tenant's runs, once all have ended."""
    began = STOPWATCH.monotonic()
    while STOPWATCH.monotonic() - began < LIMIT:
        rows = await b.execute(
            "SELECT extract(epoch FROM a.claimed_at - r.created_at)::float8 * 1000 AS ms"
            "  FROM rota.attempt a JOIN rota.run r USING (shard, job_uid, scheduled_for)"
            "  JOIN rota.job j USING (shard, job_uid) WHERE j.tenant_id = 'small'"
        )
        if len(rows) == sent:
            return [row["ms"] for row in rows]
        await STOPWATCH.sleep(0.1)
    raise AssertionError("the small tenant's runs did not end")


async def claim_times(b: Bench, size: int, turns: int) -> list[float]:
    """Return what so many claims of a size took, in ms; WARM_UP more go before them."""
    times = []
    for _ in range(WARM_UP + turns):
        started = STOPWATCH.monotonic()
        claimed = await b.rota.dispatch.claim(worker_id="w", pool="default", handlers=HANDLERS, limit=size)
        times.append((STOPWATCH.monotonic() - started) * 1000)
        assert len(claimed) == size
    return times[WARM_UP:]


async def clear(b: Bench) -> None:
    """Empty every table that a round fills; permits and buckets stay, as they do where limits are in use."""
    await b.execute("TRUNCATE rota.job, rota.schedule, rota.run, rota.pending, rota.lease, rota.attempt, rota.limits")
    await b.execute("UPDATE rota.permit SET token = NULL WHERE token IS NOT NULL")


async def queue(b: Bench, count: int, work: Work, *, pool: str = "default") -> None:
    """Let so many runs wait, one of each job."""
    await make_jobs(b, count, next_run_at="$1::timestamptz + interval '30 days'")
    await spread(b, work)
    await b.execute(
        "INSERT INTO rota.run (shard, job_uid, scheduled_for, created_at, origin)"
        " SELECT shard, job_uid, date_trunc('milliseconds', $1::timestamptz), $1, 'schedule' FROM rota.job",
        b.clock.now(),
    )
    await b.execute(
        "INSERT INTO rota.pending (shard, job_uid, scheduled_for, rank, available_at, attempt, gate, pool, handler,"
        " tenant_id, priority)"
        " SELECT r.shard, r.job_uid, r.scheduled_for, rota.rank_of(r.scheduled_for, 5, 'default'), r.scheduled_for, 0,"
        " 'open', $1, 'noop', j.tenant_id, 5 FROM rota.run r JOIN rota.job j USING (shard, job_uid)",
        pool,
    )


async def spread(b: Bench, work: Work) -> None:
    """Give the jobs to tenants in turn, under what the work says."""
    await b.execute("UPDATE rota.job SET limits = $1::jsonb", json.dumps(dict(work.costs)))
    if work.tenants > 1:
        await b.execute("UPDATE rota.job SET tenant_id = 'tenant-' || substr(job_id, 5)::int % $1::int", work.tenants)


async def park(b: Bench, count: int) -> None:
    """Let so many runs of a job wait for a limit whose only permit is in use."""
    await b.rota.limits.put(Limit(name="busy", permits=1), actor="bench")
    job = Job(job_id="parked", handler="noop", limits={"busy": 1})
    await b.rota.definitions.put([job])
    await b.rota.on_demand.trigger("parked", tenant_id="default")
    await b.execute(
        "INSERT INTO rota.permit VALUES ('downstream/default/busy', 1, gen_random_uuid())"
        " ON CONFLICT (limit_key, slot) DO UPDATE SET token = excluded.token"
    )
    await b.execute(
        "WITH one AS (DELETE FROM rota.pending WHERE job_uid = $1 RETURNING *),"
        " made AS (INSERT INTO rota.run (shard, job_uid, scheduled_for, created_at, origin)"
        "   SELECT shard, job_uid, scheduled_for + n * interval '1 ms', $3, 'manual'"
        "     FROM one, generate_series(1, $2::integer) n RETURNING shard, job_uid, scheduled_for)"
        " INSERT INTO rota.pending (shard, job_uid, scheduled_for, rank, available_at, attempt, gate, limit_key, pool,"
        "   handler, tenant_id, priority)"
        " SELECT shard, job_uid, scheduled_for, rota.rank_of(scheduled_for, 5, 'default'), scheduled_for, 0, 'limit',"
        "   'downstream/default/busy', 'default', 'noop', 'default', 5 FROM made",
        job_uid(*job.name), count, b.clock.now(),
    )  # fmt: skip
