"""A worker in a process of its own: `python -m tests.worker.worker_main URL CONCURRENCY DRAIN_SECONDS`."""

import asyncio
import sys
from datetime import timedelta
from uuid import uuid4

from rota.clock import SystemClock
from rota.worker.desk import WorkerInfo
from rota.worker.heart import ProcessHeart
from rota.worker.worker import Worker, run_until_stopped
from tests.worker.fake_desk import open_fake_desk
from tests.worker.floor_app import TARGET, app


async def main(url: str, concurrency: str, drain_seconds: str) -> None:
    info = WorkerInfo(
        worker_id="w-other",
        instance=uuid4(),
        pool="default",
        handlers=app.handlers.names | {"shell"},
        concurrency=int(concurrency),
    )
    worker = Worker(
        await open_fake_desk(url),
        app.handlers,
        info,
        SystemClock(),
        ProcessHeart(url, opener="tests.worker.fake_desk:open_fake_desk"),
        drain_time=timedelta(seconds=float(drain_seconds)),
        target=TARGET,
        allow_shell=True,
    )
    await run_until_stopped(worker)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
