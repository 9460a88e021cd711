"""PgQueuer, by its asyncpg driver, batches of 100."""

from datetime import timedelta
from typing import Any

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

from benchmarks.compare.inside.peer import DSN, batches, log_fired, log_waited, main, pause, stopwatch, timed


async def queries() -> Any:
    """Return its statements on a connection of their own."""
    return Queries(AsyncpgDriver(await asyncpg.connect(DSN)))


async def setup() -> None:
    """Install its schema."""
    await (await queries()).install()


async def one(count: str) -> None:
    """One job a call."""
    queue = await queries()
    await timed(int(count), (queue.enqueue("noop", b"", 0) for _ in range(int(count))))


async def many(count: str) -> None:
    """Lists of jobs."""
    queue = await queries()
    await timed(int(count), (queue.enqueue(["noop"] * size, [b""] * size, [0] * size) for size in batches(int(count))))


async def send(count: str, gap: str) -> None:
    """One job every so often."""
    queue = await queries()
    for _ in range(int(count)):
        await queue.enqueue("waited", str(stopwatch()).encode(), 0)
        await pause(float(gap))


async def noop(job: Any) -> None:
    """Do nothing."""


async def waited(job: Any) -> None:
    """Say how long the job waited."""
    log_waited(float(job.payload))


def recurring(name: str) -> Any:
    """Return a handler that says when it started: it is not told its slot."""

    async def fired(schedule: Any) -> None:
        log_fired(name)

    return fired


async def recur(count: str) -> None:
    """Work, with so many schedules of every second."""
    await work(int(count))


async def work(jobs: int = 0) -> None:
    """Run jobs for ever."""
    worker = PgQueuer(AsyncpgDriver(await asyncpg.connect(DSN)))
    worker.entrypoint("noop")(noop)
    worker.entrypoint("waited")(waited)
    for number in range(jobs):
        worker.schedule(f"every-{number}", "* * * * * *")(recurring(f"every-{number}"))
    await worker.run(batch_size=100, dequeue_timeout=timedelta(seconds=30))


if __name__ == "__main__":
    main({"setup": setup, "one": one, "many": many, "send": send, "work": work, "recur": recur}, uvloop.run)
