"""The hot statements through the services, in one process: what PostgreSQL and the driver cost without a worker."""

from datetime import timedelta

from benchmarks.harness import STOPWATCH, Bench, make_jobs, percentile
from rota.clock import ManualClock
from rota.domain.attempt import Outcome, Report

HANDLERS = frozenset({"noop"})


async def fill(b: Bench, count: int) -> None:
    """Queue `count` ready runs: one per job, made by the scheduler."""
    assert isinstance(b.clock, ManualClock)
    await make_jobs(b, count, next_run_at="$1::timestamptz + interval '1 second'")
    await b.settle()
    b.clock.advance(1)
    process = b.rota.scheduler_process("bench")
    await process.keeper.tick()
    while await process.scheduler.tick():
        pass


async def materialise(b: Bench) -> None:
    """Runs made per second with their schedules advanced, in batches of 1,000; and WAL bytes per run."""
    assert isinstance(b.clock, ManualClock)
    count = 50_000
    await make_jobs(b, count, next_run_at="$1::timestamptz + interval '1 second'")
    await b.settle()
    b.clock.advance(1)
    process = b.rota.scheduler_process("bench")
    await process.keeper.tick()
    before = await wal(b)
    started = STOPWATCH.monotonic()
    while await process.scheduler.tick():
        pass
    spent = STOPWATCH.monotonic() - started
    [row] = await b.execute("SELECT count(*) AS n FROM rota.pending")
    assert row["n"] == count, f"{row['n']} of {count} runs were made"
    b.say("rate", count / spent, "runs/s")
    b.say("wal", (await wal(b) - before) / count, "bytes/run")


async def drain(b: Bench) -> None:
    """Claim and complete 20,000 ready runs in batches of 100 with no worker in between; WAL of the whole lifecycle."""
    count = 20_000
    await fill(b, count)
    # Setup (the jobs themselves) is not part of a run's cost: measure from the scheduler's work on.
    setup = await wal(b)
    started = STOPWATCH.monotonic()
    done = 0
    while claimed := await b.rota.dispatch.claim(worker_id="w", pool="default", handlers=HANDLERS, limit=100):
        reports = [Report(key=claim.key, outcome=Outcome.SUCCEEDED) for claim in claimed]
        done += len(await b.rota.completion.report(reports))
    spent = STOPWATCH.monotonic() - started
    assert done == count
    b.say("rate", count / spent, "runs/s")
    b.say("wal", (await wal(b) - setup) / count, "bytes/run")


async def claim_latency(b: Bench) -> None:
    """Milliseconds of a claim of 1 and of 50 runs from a queue of 20,000."""
    await fill(b, 20_000)
    for size, turns in ((1, 2000), (50, 200)):
        times = []
        for _ in range(turns):
            started = STOPWATCH.monotonic()
            claimed = await b.rota.dispatch.claim(worker_id="w", pool="default", handlers=HANDLERS, limit=size)
            times.append((STOPWATCH.monotonic() - started) * 1000)
            assert len(claimed) == size
        b.say(f"batch_{size}_p50", percentile(times, 0.5), "ms")
        b.say(f"batch_{size}_p99", percentile(times, 0.99), "ms")


async def heartbeats(b: Bench) -> None:
    """What renewing 10,000 leases costs: seconds per round, share of a core at a round every 10 s, WAL, HOT share."""
    assert isinstance(b.clock, ManualClock)
    count = 10_000
    await fill(b, count)
    keys = []
    while claimed := await b.rota.dispatch.claim(worker_id="w", pool="default", handlers=HANDLERS, limit=500):
        keys += [claim.key for claim in claimed]
    await b.settle()
    before, rounds, spent = await wal(b), 12, 0.0
    for _ in range(rounds):
        b.clock.advance(timedelta(seconds=10))
        started = STOPWATCH.monotonic()
        for start in range(0, count, 1000):
            renewed = await b.rota.completion.renew(keys[start : start + 1000])
            assert len(renewed) == 1000
        spent += STOPWATCH.monotonic() - started
    b.say("round", spent / rounds * 1000, "ms")
    b.say("share_of_core", spent / rounds / 10 * 100, "%")
    b.say("wal", (await wal(b) - before) / rounds / count, "bytes/renewal")
    await b.flush_statistics()
    [row] = await b.execute(
        "SELECT n_tup_hot_upd::float / greatest(n_tup_upd, 1) AS hot FROM pg_stat_user_tables WHERE relname = 'lease'"
    )
    b.say("hot", row["hot"] * 100, "%")


async def wal(b: Bench) -> int:
    """Return the WAL position in bytes."""
    [row] = await b.execute("SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn)::bigint AS at")
    at: int = row["at"]
    return at
