"""The due scan at a million jobs, a herd, and the start delay under load."""

from benchmarks.harness import STOPWATCH, Bench, make_jobs, note, percentile
from rota.clock import ManualClock
from rota.services.scheduler import SCAN_BATCH
from rota.store import due

MILLION = 1_000_000
WARM_UP = 50
"""Scans that are not counted: they read the tables into memory."""


async def due_scan(b: Bench) -> None:
    """Milliseconds of one due scan (1,024 rows over 64 shards) and of the look ahead, at 1M schedules, 100k due."""
    assert isinstance(b.clock, ManualClock)
    note("due_scan: making 1M jobs ...")
    await make_jobs(b, MILLION, next_run_at="$1::timestamptz + (i % 3000) * interval '1 second'")
    await b.settle()
    b.clock.advance(300)
    shards = list(range(64))
    for measure, now in (("few_due", b.clock.now().replace(year=2025)), ("100k_due", b.clock.now())):
        times = []
        for _ in range(WARM_UP + 500):
            started = STOPWATCH.monotonic()
            await due.due_schedules(b.rota.database, shards, now=now, per_shard=SCAN_BATCH // 64)
            times.append((STOPWATCH.monotonic() - started) * 1000)
        del times[:WARM_UP]
        b.say(f"{measure}_p50", percentile(times, 0.5), "ms")
        b.say(f"{measure}_p99", percentile(times, 0.99), "ms")
    times = []
    for _ in range(300):
        started = STOPWATCH.monotonic()
        await due.next_due(b.rota.database, shards)
        times.append((STOPWATCH.monotonic() - started) * 1000)
    b.say("next_due_p99", percentile(times, 0.99), "ms")


async def herd(b: Bench) -> None:
    """Seconds to make all runs of 100,000 jobs that come due in one second, among 1M jobs."""
    assert isinstance(b.clock, ManualClock)
    note("herd: making 1M jobs ...")
    await make_jobs(
        b, MILLION, next_run_at="$1::timestamptz + CASE WHEN i % 10 = 0 THEN interval '1 s' ELSE interval '1 hour' END"
    )
    await b.settle()
    b.clock.advance(1)
    process = b.rota.scheduler_process("bench")
    await process.keeper.tick()
    started = STOPWATCH.monotonic()
    while await process.scheduler.tick():
        pass
    spent = STOPWATCH.monotonic() - started
    [row] = await b.execute("SELECT count(*) AS n FROM rota.pending")
    assert row["n"] == MILLION // 10
    b.say("seconds", spent, "s")
    b.say("rate", MILLION / 10 / spent, "runs/s")
