"""A worker with no-op handlers in a process of its own: `python -m benchmarks.worker_process DSN CONCURRENCY`.

Says "ready", and works until its standard input closes; then it says the start delays (ms) of its runs as one JSON
array, in the order in which they started.
"""

import asyncio
import json
import sys
import uuid
from datetime import timedelta

import structlog
import uvloop

from rota.app import App
from rota.assembly import assemble
from rota.clock import DatabaseClock
from rota.settings import Settings
from rota.store.database import Database
from rota.worker.desk import WorkerInfo
from rota.worker.events import RunEvent
from rota.worker.heart import ProcessHeart
from rota.worker.worker import Worker

app = App()


@app.handler("noop")
async def noop() -> None:
    """Do nothing."""


async def work(dsn: str, concurrency: int) -> None:
    """Run until standard input closes."""
    async with await Database.connect(dsn) as database:
        clock = DatabaseClock()
        await database.measure(clock)
        rota = assemble(Settings(), dsn=dsn, database=database, clock=clock)
        stop = asyncio.Event()
        keeping = asyncio.create_task(rota.keep_going(stop))
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
        heart = ProcessHeart(dsn)
        worker = Worker(rota.desk(), app.handlers, info, clock, heart, on_event=note)
        loop = asyncio.get_running_loop()
        loop.add_reader(sys.stdin, worker.request_stop)
        running = asyncio.create_task(worker.run())
        print("ready", flush=True)
        await running
        stop.set()
        await keeping
        print(json.dumps([round(delay, 2) for delay in delays]), flush=True)


def main() -> None:
    """Work as the command line says."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    uvloop.run(work(sys.argv[1], int(sys.argv[2])))


main()
