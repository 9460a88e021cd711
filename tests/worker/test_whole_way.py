"""From a handler to the database and back, through a real heart: progress is seen, a cancellation is heard."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from uuid import UUID, uuid4

import pytest

import rota
from rota.assembly import Rota, assemble
from rota.clock import DatabaseClock, SystemClock
from rota.domain.job import Job
from rota.settings import Settings
from rota.store.database import Database
from rota.store.runs import RunView
from rota.testing import RotaKit
from rota.worker.desk import WorkerInfo
from rota.worker.handlers import HandlerRegistry
from rota.worker.heart import ProcessHeart
from rota.worker.worker import Worker

PATIENCE = 60.0
"""Seconds; less than the third of a lease after which a renewal would come anyway."""


@pytest.fixture
async def cluster(rota_kit: RotaKit) -> AsyncIterator[Rota]:
    """The kit's database under a clock that goes."""
    async with await Database.connect(rota_kit.dsn) as database:
        clock = DatabaseClock()
        await database.measure(clock)
        yield assemble(Settings(), dsn=rota_kit.dsn, database=database, clock=clock)


@contextlib.asynccontextmanager
async def at_work(cluster: Rota, registry: HandlerRegistry) -> AsyncIterator[None]:
    info = WorkerInfo(worker_id="w-1", instance=uuid4(), pool="default", handlers=registry.names, concurrency=2)
    worker = Worker(cluster.desk(), registry, info, cluster.clock, ProcessHeart(cluster.dsn))
    working = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.request_stop()
        worker.request_stop()
        await working


async def once(cluster: Rota, run_id: UUID, holds: Callable[[RunView], bool]) -> RunView:
    """Return the run once it is so."""
    while True:
        run, _ = await cluster.history.run(run_id)
        if holds(run):
            return run
        await SystemClock().sleep(0.02)


async def test_progress_is_seen_and_a_cancellation_is_heard_long_before_the_next_renewal(cluster: Rota) -> None:
    heard = asyncio.Event()

    async def work(run: rota.Run) -> None:
        run.progress(0.5, "half of it")
        await run.cancelled.wait_async()
        heard.set()

    registry = HandlerRegistry()
    registry.register("work", work)
    await cluster.definitions.put([Job(job_id="job", handler="work")])
    run_id = await cluster.on_demand.trigger("job", tenant_id="default")
    async with at_work(cluster, registry), asyncio.timeout(PATIENCE):
        run = await once(cluster, run_id, lambda run: run.progress is not None)
        assert (run.state, run.progress, run.progress_note) == ("running", 0.5, "half of it")
        await cluster.on_demand.cancel(run_id)
        await heard.wait()
        run = await once(cluster, run_id, lambda run: run.state != "running")
        assert (run.state, run.reason) == ("cancelled", "cancelled on request")
