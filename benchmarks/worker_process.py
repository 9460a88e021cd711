"""A worker with no-op handlers in a process of its own: `python -m benchmarks.worker_process ADDRESS CONCURRENCY`.

The address is a database's, or with a token in BENCH_TOKEN an API's.

Says "ready", and works until its standard input closes; then it says the start delays (ms) of its runs as one JSON
array, in the order in which they started.
"""

import asyncio
import json
import os
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import structlog
import uvloop

from rota.app import App
from rota.assembly import assemble
from rota.client import Client
from rota.clock import Clock, DatabaseClock
from rota.settings import Settings
from rota.store.database import Database
from rota.worker.desk import Desk, WorkerInfo
from rota.worker.events import RunEvent
from rota.worker.heart import ProcessHeart
from rota.worker.rest import RestDesk
from rota.worker.worker import Worker

app = App()


@app.handler("noop")
async def noop() -> None:
    """Do nothing."""


@asynccontextmanager
async def desk_at(address: str, token: str | None) -> AsyncIterator[tuple[Desk, Clock]]:
    """Yield a desk and its clock: an API's when there is a token, else a database's."""
    if token is not None:
        async with Client(address, token) as client:
            await client.me()
            yield RestDesk(client), client.server_clock
        return
    async with await Database.connect(address) as database:
        clock = DatabaseClock()
        await database.measure(clock)
        rota = assemble(Settings(), dsn=address, database=database, clock=clock)
        stop = asyncio.Event()
        keeping = asyncio.create_task(rota.keep_going(stop))
        yield rota.desk(), clock
        stop.set()
        await keeping


async def work(address: str, concurrency: int, token: str | None) -> None:
    """Run until standard input closes."""
    async with desk_at(address, token) as (desk, clock):
        delays: list[float] = []

        def note(event: RunEvent) -> None:
            if event.outcome is None and event.started_at is not None:
                delays.append((event.started_at - event.claim.key.scheduled_for) / timedelta(milliseconds=1))

        info = WorkerInfo(
            worker_id="bench",
            instance=uuid.uuid4(),
            pool="default",
            handlers=app.handlers.names,
            concurrency=concurrency,
        )
        worker = Worker(desk, app.handlers, info, clock, ProcessHeart(address, token=token), on_event=note)
        loop = asyncio.get_running_loop()
        loop.add_reader(sys.stdin, worker.request_stop)
        running = asyncio.create_task(worker.run())
        print("ready", flush=True)
        await running
        print(json.dumps([round(delay, 2) for delay in delays]), flush=True)


def main() -> None:
    """Work as the command line says."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    uvloop.run(work(sys.argv[1], int(sys.argv[2]), os.environ.get("BENCH_TOKEN")))


main()
