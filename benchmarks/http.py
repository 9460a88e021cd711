"""Benchmarks over HTTP: an API process, clients and workers that have a token and no database credentials."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

from benchmarks.fleet import LIMIT, drained, hold_leases, queue_ready, worker_processes
from benchmarks.harness import STOPWATCH, Bench, make_jobs, note
from rota.client import Client
from rota.domain.attempt import LeaseKey
from rota.domain.job import Job
from rota.domain.schedule import every
from rota.errors import RotaError
from rota.wire.access import SCOPES

TICK = os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def api_process(b: Bench) -> AsyncIterator[tuple[str, str, int]]:
    """Yield the address, a token of every scope, and the process id of a running `rota api`."""
    _, token = await b.rota.access.create_token(
        tenant_id="default", scopes=SCOPES, name="bench", expires_at=None, actor="bench"
    )
    # Nobody counts calls here: the rate that the quota allows is not what is measured.
    await b.rota.access.put_tenant(
        "default", max_jobs=None, max_payload_bytes=None, calls_per_second=1e6, actor="bench"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rota.cli", "api", "--port", str(port), "--log-level", "error",
        env={**os.environ, "ROTA_DATABASE_URL": b.rota.dsn},
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        await _answers(url, token)
        yield url, token, process.pid
    finally:
        process.terminate()
        await process.wait()


async def _answers(url: str, token: str) -> None:
    started = STOPWATCH.monotonic()
    async with Client(url, token) as client:
        while True:
            try:
                await client.stats()
                return
            except RotaError:
                assert STOPWATCH.monotonic() - started < LIMIT, "the API does not answer"
                await STOPWATCH.sleep(0.1)


async def rest_drain(b: Bench) -> None:
    """Runs per second that 1 and 2 worker processes drain over HTTP from 10,000 ready ones, full history."""
    count = 10_000
    for workers in (1, 2):
        await b.execute("TRUNCATE rota.job, rota.schedule, rota.run, rota.pending, rota.lease, rota.attempt")
        await queue_ready(b, count)
        async with (
            api_process(b) as (url, token, _),
            worker_processes(b, workers, concurrency=500, address=url, token=token) as processes,
        ):
            started = STOPWATCH.monotonic()
            await b.execute("UPDATE rota.pending SET pool = 'default'")
            await drained(b)
            spent = STOPWATCH.monotonic() - started
            delays = [await process.stop() for process in processes]
        assert sum(map(len, delays)) == count, f"{sum(map(len, delays))} of {count} runs were started"
        b.say(f"workers_{workers}", count / spent, "runs/s")


async def rest_heartbeats(b: Bench) -> None:
    """What 1,000 heartbeats a second cost as one batch over HTTP: share of a core of the API, and of PostgreSQL."""
    count, rounds = 1000, 30
    await make_jobs(b, count, next_run_at="$1::timestamptz + interval '30 days'")
    keys = await hold_leases(b, count)
    await b.settle()
    async with api_process(b) as (url, token, pid), Client(url, token) as client:
        await client.renew([_lease(key) for key in keys], worker_id="other")
        api, database = _cpu(pid), _cpu_of_database(b)
        for _ in range(rounds):
            answer = await client.renew([_lease(key) for key in keys], worker_id="other")
            assert len(answer.renewed) == count, f"{len(answer.lost)} leases were lost"
        b.say("api", (_cpu(pid) - api) / rounds * 100, "% of a core")
        b.say("database", (_cpu_of_database(b) - database) / rounds * 100, "% of a core")


async def register(b: Bench) -> None:
    """Jobs per second registered by POST /v1/jobs:batch in batches of 1,000, two at a time: 100,000 or BENCH_JOBS."""
    count, batch = int(os.environ.get("BENCH_JOBS", "100000")), 1000
    async with api_process(b) as (url, token, _), Client(url, token) as client:
        started = STOPWATCH.monotonic()
        ahead = iter(range(0, count, batch))

        async def put() -> None:
            for first in ahead:
                await client.put_jobs([_job(i) for i in range(first, first + batch)])

        await asyncio.gather(put(), put())
        spent = STOPWATCH.monotonic() - started
    note(f"register: a million at this rate take {spent / count * 1e6:.0f} s")
    b.say("rate", count / spent, "jobs/s")


def _job(number: int) -> Job:
    return Job(job_id=f"report-{number}", handler="report", schedule=every("5m"), payload={"customer": number})


def _lease(key: LeaseKey) -> tuple[UUID, UUID]:
    return key.run_id, key.token


def _cpu(pid: int) -> float:
    """Return the processor seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def _cpu_of_database(b: Bench) -> float:
    """Return the processor seconds of the server's processes; those that ended have told their parent."""
    assert b.server.pid is not None, "the benchmark's server runs"
    children = Path(f"/proc/{b.server.pid}/task/{b.server.pid}/children").read_text().split()
    return sum(_cpu(int(pid)) for pid in children)
