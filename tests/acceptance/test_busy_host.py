"""A worker on a tenth of a core, with leases of five seconds, loses nothing: nobody takes it for dead."""

import os
import signal
from datetime import timedelta
from pathlib import Path

import pytest

import rota
from rota.domain.job import Job
from tests.acceptance.fleet import fleet, ids
from tests.acceptance.squeeze import a_tenth_of_a_core, family

pytestmark = pytest.mark.acceptance

LEASE = timedelta(seconds=5)


async def test_a_worker_on_a_tenth_of_a_core_loses_nothing_even_when_its_heart_dies(tmp_path: Path) -> None:
    """The new heart needs longer to start than a lease lasts."""
    async with fleet(tmp_path) as one:
        payload = {"folder": str(tmp_path)}
        long = [Job(job_id=name, handler="wait", payload=payload, lease_duration=LEASE) for name in ids("long", 5)]
        short = [
            Job(job_id=name, handler="note", payload=payload, lease_duration=LEASE, schedule=rota.every("2s"))
            for name in ids("short", 3)
        ]
        await one.rota.definitions.put(long)
        await one.scheduler("scheduler")
        worker = await one.worker("slow")
        run_ids = [await one.rota.on_demand.trigger(job.job_id, tenant_id="default") for job in long]
        await one.until_called("begin", 5, "the long runs have begun")
        processes = family(worker.pid)
        with a_tenth_of_a_core(processes, f"rota-test-{worker.pid}"):
            await one.rota.definitions.put(short)
            os.kill(heart_among(processes), signal.SIGKILL)
            log = tmp_path / "log-1-worker"

            async def restarted() -> bool:
                return '"heart.restarted"' in log.read_text()

            await one.until(restarted, "another heart has started")
            seen = len(one.calls())
            await one.until_called("call", seen + 9, "the short runs go on")
            later = one.rota.clock.now() + 2 * LEASE

            async def renewed_since() -> bool:
                views = [(await one.rota.history.run(run_id))[0] for run_id in run_ids]
                return all(view.lease_expires_at is not None and view.lease_expires_at > later for view in views)

            await one.until(renewed_since, "the long runs' leases were renewed over several leases' time")
        for job in short:
            await one.rota.definitions.pause(job.job_id, tenant_id="default", reason="the test ends")
        (tmp_path / "go").touch()

        async def settled() -> bool:
            return await one.count("SELECT count(*) FROM rota.run WHERE outcome IS NULL") == 0

        await one.until(settled, "every run has ended")
        assert worker.returncode is None
        assert await one.count("SELECT count(*) FROM rota.attempt WHERE outcome <> 'succeeded'") == 0
        assert await one.count("SELECT count(*) FROM rota.dead") == 0
        assert log.read_text().count("heart.hangs") <= 4
        assert len(one.calls("begin")) == 5
        await one.conserved()


def heart_among(pids: list[int]) -> int:
    [heart] = [pid for pid in pids if b"heart_process" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return heart
