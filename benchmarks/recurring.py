"""Recurring work as users have it, on the database's own clock: many jobs each second, and many on one minute."""

import asyncio
from datetime import datetime, timedelta

from benchmarks.fleet import LIMIT, worker_processes
from benchmarks.harness import STOPWATCH, Bench, make_jobs, note, percentile

EVERY_SECOND = '{"kind": "interval", "every": "1s"}'
ONCE_AN_HOUR = '{"kind": "interval", "every": "1h"}'


async def every_second(b: Bench) -> None:
    """1,000 jobs every second for 60 s, one scheduler and one worker process: share fired, start delay."""
    jobs, seconds = 1000, 60
    first = _in(b, 5)
    await make_jobs(b, jobs, next_run_at=f"'{first.isoformat()}'::timestamptz", schedule=EVERY_SECOND)
    await b.settle()
    delays = await _run(b, until=first + timedelta(seconds=seconds))
    due = jobs * seconds
    note(f"every_second: {len(delays)} starts, {due} slots came due")
    b.say("fired", min(1.0, len(delays) / due) * 100, "%")
    b.say("p50", percentile(delays, 0.5), "ms")
    b.say("p99", percentile(delays, 0.99), "ms")


async def one_minute(b: Bench) -> None:
    """10,000 jobs on one instant: seconds until the last no-op handler has started."""
    jobs = 10_000
    at = _in(b, 5)
    await make_jobs(b, jobs, next_run_at=f"'{at.isoformat()}'::timestamptz", schedule=ONCE_AN_HOUR)
    await b.settle()
    delays = await _run(b, until=at + timedelta(seconds=1), runs=jobs)
    assert len(delays) == jobs, f"{len(delays)} of {jobs} runs were started"
    b.say("all_started", max(delays) / 1000, "s")
    b.say("p50", percentile(delays, 0.5) / 1000, "s")


def _in(b: Bench, seconds: float) -> datetime:
    return (b.clock.now() + timedelta(seconds=seconds + 1)).replace(microsecond=0)


async def _run(b: Bench, *, until: datetime, runs: int = 0) -> list[float]:
    """Run a scheduler here and a worker process until an instant, and until so many runs have ended."""
    process = b.rota.scheduler_process("bench")
    stop = asyncio.Event()
    async with worker_processes(b, 1, concurrency=500) as [worker]:
        running = asyncio.gather(process.run(stop), b.rota.keep_going(stop))
        await STOPWATCH.sleep((until - b.clock.now()).total_seconds())
        started = STOPWATCH.monotonic()
        while runs and STOPWATCH.monotonic() - started < LIMIT:
            [row] = await b.execute("SELECT count(*) AS n FROM rota.run WHERE outcome IS NOT NULL")
            if row["n"] >= runs:
                break
            await STOPWATCH.sleep(0.05)
        delays = await worker.stop()
        stop.set()
        await running
    return delays
