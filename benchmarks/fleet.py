"""Whole processes: a scheduler here, workers with their hearts beside it, on the database's own clock."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from benchmarks.harness import STOPWATCH, Bench, make_jobs, note, percentile
from benchmarks.scale import MILLION
from benchmarks.services import wal
from rota.domain.attempt import LeaseKey
from rota.domain.job import Job
from rota.services.on_demand import OnDemand

LIMIT = 300.0
"""Seconds after which a benchmark that does not end is broken."""


class WorkerProcess:
    """One worker process of the benchmark."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ready(self) -> None:
        """Return when it says so."""
        assert self._process.stdout is not None
        assert await self._process.stdout.readline() == b"ready\n"

    async def stop(self) -> list[float]:
        """Let it leave; returns the start delays of its runs in ms."""
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        delays: list[float] = json.loads(await self._process.stdout.readline())
        await self._process.wait()
        return delays


@asynccontextmanager
async def worker_processes(
    b: Bench, count: int, *, concurrency: int, address: str | None = None, token: str | None = None
) -> AsyncIterator[list[WorkerProcess]]:
    """Yield worker processes that have said "ready": of the database, or of the API at an address."""
    environment = {**os.environ, **({} if token is None else {"BENCH_TOKEN": token})}
    started = []
    for _ in range(count):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.worker_process", address or b.rota.dsn, str(concurrency),
            env=environment,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 26,
        )  # fmt: skip
        started.append(WorkerProcess(process))
    try:
        await asyncio.gather(*(worker.ready() for worker in started))
        yield started
    finally:
        for worker in started:
            if worker._process.returncode is None:
                worker._process.terminate()
                await worker._process.wait()


async def queue_ready(b: Bench, count: int) -> None:
    """Queue runs by SQL behind a gate that `open_gates` opens at once, so that workers start from a full queue."""
    await make_jobs(b, count, next_run_at="$1::timestamptz + interval '30 days'")
    await b.execute(
        "INSERT INTO rota.run (shard, job_uid, scheduled_for, created_at, origin)"
        " SELECT shard, job_uid, date_trunc('milliseconds', $1::timestamptz), $1, 'schedule' FROM rota.job",
        b.clock.now(),
    )
    await b.execute(
        "INSERT INTO rota.pending (shard, job_uid, scheduled_for, rank, available_at, attempt, gate, pool, handler,"
        " tenant_id, priority)"
        " SELECT shard, job_uid, scheduled_for, (extract(epoch FROM scheduled_for) * 1000)::bigint, scheduled_for, 0,"
        " 'open', 'later', 'noop', 'default', 5 FROM rota.run"
    )
    await b.settle()


async def drained(b: Bench) -> None:
    """Return when no run waits or runs any more."""
    started = STOPWATCH.monotonic()
    while STOPWATCH.monotonic() - started < LIMIT:
        [row] = await b.execute("SELECT EXISTS (SELECT FROM rota.pending) OR EXISTS (SELECT FROM rota.lease) AS busy")
        if not row["busy"]:
            return
        await STOPWATCH.sleep(0.01)
    raise AssertionError("the queue was not drained in time")


async def drain_workers(b: Bench) -> None:
    """Runs per second that 1 and 2 worker processes drain from 20,000 ready ones: no-op handlers, full history."""
    count = 20_000
    for workers in (1, 2):
        await b.execute("TRUNCATE rota.job, rota.schedule, rota.run, rota.pending, rota.lease, rota.attempt")
        await queue_ready(b, count)
        async with worker_processes(b, workers, concurrency=500) as processes:
            started = STOPWATCH.monotonic()
            await b.execute("UPDATE rota.pending SET pool = 'default'")
            await drained(b)
            spent = STOPWATCH.monotonic() - started
            delays = [await process.stop() for process in processes]
        assert sum(map(len, delays)) == count, f"{sum(map(len, delays))} of {count} runs were started"
        b.say(f"workers_{workers}", count / spent, "runs/s")


async def lifecycle(b: Bench) -> None:
    """Whole lifecycle per second: slots of 20,000 jobs materialised, claimed, run by a no-op handler, completed."""
    count = 20_000
    await make_jobs(b, count, next_run_at="$1::timestamptz + interval '30 days'")
    await b.settle()
    process = b.rota.scheduler_process("bench")
    stop = asyncio.Event()
    async with worker_processes(b, 1, concurrency=500) as workers:
        before = await wal(b)
        started = STOPWATCH.monotonic()
        await b.execute(
            "UPDATE rota.schedule SET next_run_at = $1, next_slot = $1", b.clock.now().replace(microsecond=0)
        )
        preparing = STOPWATCH.monotonic() - started
        made_by_setup = await wal(b) - before
        started = STOPWATCH.monotonic()
        running = asyncio.gather(process.run(stop), b.rota.keep_going(stop))
        while True:
            [row] = await b.execute("SELECT count(*) AS n FROM rota.run WHERE outcome IS NOT NULL")
            if row["n"] == count:
                break
            assert STOPWATCH.monotonic() - started < LIMIT
            await STOPWATCH.sleep(0.02)
        spent = STOPWATCH.monotonic() - started
        written = await wal(b) - before - made_by_setup
        await workers[0].stop()
        stop.set()
        await running
    note(f"lifecycle: {preparing:.2f} s of setup are left out")
    b.say("rate", count / spent, "runs/s")
    b.say("wal", written / count, "bytes/run")


async def pickup(b: Bench) -> None:
    """Milliseconds from the trigger of a run to the start of its handler, on an idle system, worker beside it."""
    await b.rota.definitions.put([Job(job_id=f"job-{i}", handler="noop") for i in range(300)])
    stop = asyncio.Event()
    keeping = asyncio.create_task(b.rota.keep_going(stop))
    demand: OnDemand = b.rota.on_demand
    async with worker_processes(b, 1, concurrency=20) as workers:
        await STOPWATCH.sleep(1.5)
        for i in range(300):
            await demand.trigger(f"job-{i}", tenant_id="default")
            await STOPWATCH.sleep(0.06 if i % 3 else 0.09)
        delays = await workers[0].stop()
    stop.set()
    await keeping
    b.say("p50", percentile(delays, 0.5), "ms")
    b.say("p99", percentile(delays, 0.99), "ms")


async def start_delay(b: Bench) -> None:
    """Start delay at 300 runs/s with 1M jobs and 10,000 live leases that are renewed every 10 s, for 60 s."""
    note("start_delay: making 1M jobs ...")
    # Spread over 3,333 s, on a grid of its own for each job's second.
    await make_jobs(
        b,
        MILLION,
        next_run_at="date_trunc('second', $1::timestamptz) + interval '60 s' + (i * 10 / 3) * interval '1 ms'",
    )
    await b.execute(
        """UPDATE rota.job j SET schedule = jsonb_build_object('kind', 'interval', 'every', '1h', 'anchor',
             to_char(s.next_slot AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'))
             FROM rota.schedule s WHERE s.shard = j.shard AND s.job_uid = j.job_uid"""
    )
    keys = await hold_leases(b, 10_000)
    await b.settle()
    process = b.rota.scheduler_process("bench")
    stop = asyncio.Event()
    async with worker_processes(b, 1, concurrency=200) as workers:
        beginning = b.clock.now()
        running = asyncio.gather(process.run(stop), b.rota.keep_going(stop), keep_renewing(b, keys, stop))
        [row] = await b.execute("SELECT min(next_run_at) AS at FROM rota.schedule")
        await STOPWATCH.sleep(max(0.0, (row["at"] - b.clock.now()).total_seconds()) + 60)
        delays = await workers[0].stop()
        stop.set()
        await running
    note(f"start_delay: {len(delays)} runs in {(b.clock.now() - beginning).total_seconds():.0f} s")
    tail = delays[len(delays) // 12 :]
    b.say("runs", len(delays) / 60, "runs/s")
    b.say("p50", percentile(tail, 0.5), "ms")
    b.say("p99", percentile(tail, 0.99), "ms")
    b.say("max", max(tail), "ms")


async def hold_leases(b: Bench, count: int) -> list[LeaseKey]:
    """Insert runs that somebody else is running."""
    rows = await b.execute(
        """WITH held AS (SELECT shard, job_uid FROM rota.job ORDER BY job_uid LIMIT $2),
             made AS (INSERT INTO rota.run (shard, job_uid, scheduled_for, created_at, origin)
               SELECT shard, job_uid, date_trunc('hour', $1::timestamptz), $1, 'manual' FROM held RETURNING *)
           INSERT INTO rota.lease (shard, job_uid, scheduled_for, token, claimed_at, expires_at, lease_ms, attempt,
             worker_id, priority)
           SELECT shard, job_uid, scheduled_for, gen_random_uuid(), $1, $1::timestamptz + interval '10 min', 600000, 1,
             'other', 5
             FROM made RETURNING shard, job_uid, scheduled_for, token""",
        b.clock.now(), count,
    )  # fmt: skip
    return [LeaseKey(row["shard"], row["job_uid"], row["scheduled_for"], row["token"]) for row in rows]


async def keep_renewing(b: Bench, keys: Sequence[LeaseKey], stop: asyncio.Event) -> None:
    """Renew all leases every 10 s, spread over that time as a fleet would."""
    while not stop.is_set():
        for start in range(0, len(keys), 1000):
            await b.rota.completion.renew(keys[start : start + 1000])
            if await STOPWATCH.wait(stop, 10 / (len(keys) / 1000)):
                return
