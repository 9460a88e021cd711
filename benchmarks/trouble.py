"""What trouble costs: a transaction that pins old rows, and a restart of PostgreSQL."""

import asyncio

import asyncpg

from benchmarks.fleet import worker_processes
from benchmarks.harness import STOPWATCH, Bench, make_jobs, note
from benchmarks.services import HANDLERS
from rota.clock import ManualClock
from rota.domain.attempt import Outcome, Report
from rota.errors import DatabaseUnavailable

PINNED_ROUNDS = 12


async def pinned(b: Bench) -> None:
    """Rate kept while a transaction stays open and no dead row can go: the last round against the first one.

    Each of 12 rounds makes and drains 10,000 runs, so the last works over the dead rows of 110,000 others.
    """
    assert isinstance(b.clock, ManualClock)
    count = 10_000
    await make_jobs(
        b, count, next_run_at="$1::timestamptz + interval '1 second'", schedule='{"kind": "interval", "every": "1s"}'
    )
    await b.settle()
    process = b.rota.scheduler_process("bench")
    old = await asyncpg.connect(b.rota.dsn)
    await old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    await old.fetch("SELECT count(*) FROM rota.pending")
    rates = []
    for _ in range(PINNED_ROUNDS):
        b.clock.advance(1)
        await process.keeper.tick()
        started = STOPWATCH.monotonic()
        while await process.scheduler.tick():
            pass
        done = 0
        while claimed := await b.rota.dispatch.claim(worker_id="w", pool="default", handlers=HANDLERS, limit=100):
            done += len(await b.rota.completion.report([Report(key=c.key, outcome=Outcome.SUCCEEDED) for c in claimed]))
        assert done == count
        rates.append(count / (STOPWATCH.monotonic() - started))
    await old.close()
    note("pinned: " + ", ".join(f"{rate:.0f}" for rate in rates) + " runs/s")
    b.say("first", rates[0], "runs/s")
    b.say("kept", min(rates[-3:]) / max(rates[:3]) * 100, "%")


async def restart(b: Bench) -> None:
    """Seconds from the moment that a crashed PostgreSQL answers again until a run is carried out."""
    await make_jobs(
        b, 200, next_run_at="date_trunc('second', $1::timestamptz) + interval '3 s'",
        schedule='{"kind": "interval", "every": "1s"}',
    )  # fmt: skip
    process = b.rota.scheduler_process("bench")
    stop = asyncio.Event()
    waits = []
    async with worker_processes(b, 1, concurrency=100) as workers:
        running = asyncio.gather(process.run(stop), b.rota.keep_going(stop))
        for _ in range(5):
            await STOPWATCH.sleep(4)
            await b.server.restart("immediate")
            answered, before = STOPWATCH.monotonic(), None
            while True:
                try:
                    [row] = await b.execute("SELECT count(*) AS n FROM rota.attempt")
                    before = row["n"] if before is None else before
                    if row["n"] > before:
                        break
                except DatabaseUnavailable:
                    pass
                await STOPWATCH.sleep(0.01)
            waits.append(STOPWATCH.monotonic() - answered)
        await workers[0].stop()
        stop.set()
        await running
    b.say("resumed_worst", max(waits), "s")
    b.say("resumed_mean", sum(waits) / len(waits), "s")
