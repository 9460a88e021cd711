"""Loops that survive: killed connections, an empty pool, a primary that takes no writes, and bugs in a tick."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from rota.assembly import Rota, assemble
from rota.domain.job import Job
from rota.errors import DatabaseUnavailable
from rota.services.loop import BACKOFF_FIRST, BACKOFF_LIMIT, Loop, run_together
from rota.settings import Settings
from rota.store import database as database_module
from rota.store.database import Database, Lane
from rota.store.statements import upkeep
from rota.testing import RotaKit, TestCluster
from tests.services.stories import START, WatchedClock, administrator, every, kill_backends, outage

LOOPS = 6


@asynccontextmanager
async def stopping(coroutine: Any, stop: asyncio.Event) -> AsyncIterator["asyncio.Task[None]"]:
    """Run a loop beside the block, then stop it and see that it ends by itself."""
    task: asyncio.Task[None] = asyncio.ensure_future(coroutine)
    try:
        yield task
    finally:
        stop.set()
        async with asyncio.timeout(20):
            await task


class Flaky:
    """A service that does what the test says: each answer is `more` or an error."""

    def __init__(self, *answers: bool | Exception) -> None:
        self.answers = list(answers)
        self.ticks = 0

    async def tick(self) -> bool:
        self.ticks += 1
        answer = self.answers.pop(0) if self.answers else False
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def pause(self) -> float:
        return 1.0


async def test_health_is_the_last_tick_that_worked() -> None:
    """B09: a sweeper whose every tick fails is not healthy, however alive its loop is."""
    clock, stop = WatchedClock(), asyncio.Event()
    broken = Flaky(*(RuntimeError("boom") for _ in range(5)))
    loop = Loop("broken", broken, clock)
    async with stopping(loop.run(stop), stop):
        for failures in range(1, 6):
            await clock.until_begun(failures)
            assert (loop.failures, loop.last_success) == (failures, None)
            clock.advance(BACKOFF_LIMIT)
        await clock.until_begun(6)
        assert (loop.failures, loop.last_success) == (0, clock.now())
        broken.answers = [DatabaseUnavailable("gone")]
        clock.advance(1)
        await clock.until_begun(7)
        assert loop.failures == 1
        assert loop.last_success == clock.now() - timedelta(seconds=1), "as old as the last tick that worked"


async def test_a_loop_backs_off_up_to_its_limit_and_not_beyond() -> None:
    clock, stop = WatchedClock(), asyncio.Event()
    loop = Loop("broken", Flaky(*(DatabaseUnavailable("gone") for _ in range(30))), clock)
    async with stopping(loop.run(stop), stop):
        waits = []
        for failures in range(1, 31):
            await clock.until_begun(failures)
            wake = clock.next_wake()
            assert wake is not None
            waits.append((wake - clock.now()).total_seconds())
            clock.set(wake)
        await clock.until_begun(31)
        assert loop.failures == 0
    assert BACKOFF_FIRST / 2 <= waits[0] <= BACKOFF_FIRST
    assert all(BACKOFF_LIMIT / 2 <= wait <= BACKOFF_LIMIT for wait in waits[10:])


async def test_a_loop_ticks_on_without_a_wait_while_there_is_more() -> None:
    clock, stop = WatchedClock(), asyncio.Event()
    service = Flaky(True, True, True, False)
    async with stopping(Loop("busy", service, clock).run(stop), stop):
        await clock.until_begun(1)
        assert service.ticks == 4


async def test_a_wake_that_comes_during_a_tick_is_not_lost() -> None:
    clock, stop, wake = WatchedClock(), asyncio.Event(), asyncio.Event()

    class Waking(Flaky):
        async def tick(self) -> bool:
            if self.ticks == 0:
                wake.set()
            return await super().tick()

    service = Waking()
    async with stopping(Loop("woken", service, clock, wake=wake).run(stop), stop):
        await clock.until_begun(1)
        assert service.ticks == 2, "the first wait found the wake"
        stop.set()
        wake.set()


async def test_the_first_of_several_that_raises_ends_the_others() -> None:
    forever = asyncio.Event()

    async def waits() -> None:
        await forever.wait()

    async def fails() -> None:
        raise RuntimeError("boom")

    with pytest.raises(ExceptionGroup) as group:
        await run_together(waits(), fails())
    assert [str(error) for error in group.value.exceptions] == ["boom"]


@pytest.mark.parametrize("trouble", ["killed", "read-only"])
async def test_all_loops_of_a_scheduler_go_on_after_trouble_with_the_database(rota_kit: RotaKit, trouble: str) -> None:
    """B71: no loop ends, and each has a success after the trouble."""
    clock, stop = WatchedClock(), asyncio.Event()
    cluster = assemble(Settings(), dsn=rota_kit.dsn, database=rota_kit.database, clock=clock)
    await cluster.definitions.put([every("10s", lease_duration=timedelta(seconds=30))])
    process = cluster.scheduler_process("scheduler-1")
    loops = process.loops.values()

    async def step() -> None:
        clock.advance(2.5)
        await clock.until_asleep(LOOPS)

    async with stopping(process.run(stop), stop) as running:
        await clock.until_asleep(LOOPS)
        if trouble == "killed":
            async with administrator(rota_kit) as admin:
                assert await kill_backends(admin, rota_kit.dsn) > 0
        else:
            async with outage(rota_kit):
                for _ in range(3):
                    await step()
                assert [name for name, loop in process.loops.items() if not loop.failures] == []
                assert not running.done()
        back = clock.now()
        for _ in range(8):
            await step()
        assert [name for name, loop in process.loops.items() if loop.failures] == []
        assert all(loop.last_success is not None and loop.last_success > back for loop in loops)
        runs = await cluster.history.runs(tenant_id="default", job_id="tick")
        assert len(runs) >= 2, "20 s have passed since"
    assert process.owned.shards(now=clock.now()) == [], "the shards were given up on the way out"


@asynccontextmanager
async def narrow(cluster: TestCluster) -> AsyncIterator[tuple[Database, Rota]]:
    """Yield a cluster over a database with one connection per lane."""
    async with cluster.database() as dsn, await Database.connect(dsn, size=1, reserved=1) as database:
        for lane in Lane:
            await database.fetch(upkeep.backend, lane=lane)
        yield database, assemble(Settings(), dsn=dsn, database=database, clock=WatchedClock())


async def test_an_empty_pool_is_waited_out(rota_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """B73: whoever holds the connection for work delays the timer, and ends nothing."""
    async with narrow(rota_cluster) as (database, cluster):
        monkeypatch.setattr(database_module, "ACQUIRE_TIMEOUT", 0.05)
        clock, stop = cluster.clock, asyncio.Event()
        assert isinstance(clock, WatchedClock)
        await cluster.definitions.put([every("1s")])
        process = cluster.scheduler_process("scheduler-1")
        await process.keeper.tick()
        loop = Loop("scheduler", process.scheduler, clock)
        async with stopping(loop.run(stop), stop):
            await clock.until_begun(1)
            async with database.transaction():
                clock.advance(1)
                await clock.until_begun(2)
                assert loop.failures == 1
            clock.advance(1)
            await clock.until_begun(3)
            assert (loop.failures, loop.last_success) == (0, START + timedelta(seconds=2))
        assert len(await cluster.history.runs(tenant_id="default", job_id="tick")) == 2


async def test_renewals_and_reports_have_a_connection_of_their_own(
    rota_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B73: with every connection for work taken, leases are still renewed and ended."""
    async with narrow(rota_cluster) as (database, cluster):
        monkeypatch.setattr(database_module, "ACQUIRE_TIMEOUT", 0.05)
        kit = RotaKit(dsn=cluster.dsn, database=database, clock=WatchedClock(), settings=Settings())
        await kit.put(Job(job_id="tick", handler="h"))
        await kit.on_demand.trigger("tick", tenant_id="default")
        worker = kit.worker("w-1", handlers=["h"])
        work = await worker.claim_one()
        async with database.transaction():
            with pytest.raises(DatabaseUnavailable):
                await worker.claim()
            await work.renew()
            await work.succeed()
        await kit.check()


async def test_a_report_outlives_the_connection_that_it_was_sent_on(rota_kit: RotaKit) -> None:
    """B07: every connection is killed between the work and its report; the report is sent again by itself."""
    await rota_kit.put(Job(job_id="tick", handler="h"))
    await rota_kit.on_demand.trigger("tick", tenant_id="default")
    work = await rota_kit.worker("w-1", handlers=["h"]).claim_one()
    async with administrator(rota_kit) as admin:
        await kill_backends(admin, rota_kit.dsn)
    reporting = asyncio.ensure_future(work.succeed())
    for _ in range(100):
        await asyncio.wait({reporting}, timeout=0.05)
        if reporting.done():
            break
        rota_kit.clock.advance(0.01)
    await reporting
    [run] = await rota_kit.runs("tick")
    assert run.state == "succeeded"
