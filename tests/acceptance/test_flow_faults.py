"""Workers that hold permits are killed again and again: the cap is never exceeded, and all of it stays usable.

A few rounds by default; ROTA_KILLS=200 kills so many.
"""

import asyncio
import math
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from rota.domain.job import Job
from rota.domain.limit import Limit
from rota.domain.retry import RetryPolicy
from rota.store.audit import SYSTEM
from tests.acceptance.fleet import STOPWATCH, Fleet, fleet

pytestmark = pytest.mark.acceptance

PERMITS: Final = 4
WORKERS: Final = 3
KILLS: Final = int(os.environ.get("ROTA_KILLS", "9"))
RUNS: Final = 12

HELD: Final = "SELECT count(*) FROM rota.lease WHERE permit_keys @> '{downstream/default/crm}'"
IN_USE: Final = "SELECT count(*) FROM rota.permit WHERE token IS NOT NULL"
LEAKED: Final = """
SELECT count(*) FROM rota.permit p
 WHERE token IS NOT NULL AND NOT EXISTS (SELECT FROM rota.lease l WHERE l.token = p.token)"""


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def kill(worker: asyncio.subprocess.Process, *, with_heart: bool) -> None:
    """Kill a worker; without its heart nobody says so, and its leases have to run out."""
    for pid in children(worker.pid) if with_heart else []:
        os.kill(pid, signal.SIGKILL)
    worker.kill()
    await worker.wait()


@asynccontextmanager
async def watched(one: Fleet) -> AsyncIterator[list[int]]:
    """Look all the time how many leases and how many permits the limit has; yields the highest of each."""
    most = [0, 0]

    async def look() -> None:
        while True:
            for number, question in enumerate((HELD, IN_USE)):
                most[number] = max(most[number], await one.count(question))
            await STOPWATCH.sleep(0.005)

    looking = asyncio.create_task(look())
    try:
        yield most
        assert not looking.done(), looking.result()
    finally:
        looking.cancel()


async def test_permits_of_killed_workers_come_back_and_are_never_given_twice(tmp_path: Path) -> None:
    """B62, with real processes: some hearts die with their workers, some tell of their death."""
    async with fleet(tmp_path) as one:
        await one.rota.limits.put(Limit(name="crm", permits=PERMITS), actor=SYSTEM)
        job = Job(
            job_id="hold", handler="wait", payload={"folder": str(tmp_path)}, limits={"crm": 1},
            lease_duration=timedelta(seconds=1), max_losses=1000, max_attempts=1000,
            retry=RetryPolicy(initial=timedelta(0), cap=timedelta(0)),
        )  # fmt: skip
        await one.rota.definitions.put([job])
        for _ in range(RUNS):
            await one.rota.on_demand.trigger("hold", tenant_id="default")

        async def all_in_use() -> bool:
            return await one.count(HELD) == PERMITS

        async with watched(one) as most:
            await one.scheduler("scheduler")
            for number in range(math.ceil(KILLS / WORKERS)):
                workers = await asyncio.gather(
                    *(one.worker(f"w-{number}-{place}", "--concurrency", "3") for place in range(WORKERS))
                )
                await one.until(all_in_use, "the cap is used to the full")
                await asyncio.gather(
                    *(kill(worker, with_heart=place != number % WORKERS) for place, worker in enumerate(workers))
                )
            await one.worker("last", "--concurrency", str(RUNS))
            await one.until(all_in_use, "the cap is used to the full after all that")
            (tmp_path / "go").touch()

            async def ended() -> bool:
                return await one.count("SELECT count(*) FROM rota.run WHERE outcome = 'succeeded'") == RUNS

            await one.until(ended, "every run has ended")
            assert most == [PERMITS, PERMITS], "never more leases, nor more permits in use, than the limit has"
        assert await one.count(IN_USE) == 0
        assert await one.count(LEAKED) == 0
        await one.conserved()
