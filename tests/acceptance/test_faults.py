"""Real processes die, stall and come back; the database restarts under load. Nothing is lost, or recorded twice."""

import os
import signal
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

import rota
from rota.domain.job import Job
from tests.acceptance.fleet import Fleet, fleet, ids

pytestmark = pytest.mark.acceptance


async def state_is(one: Fleet, job_id: str, state: str) -> bool:
    return [run.state for run in await one.rota.history.runs(tenant_id="default", job_id=job_id)] == [state]


async def test_a_killed_workers_run_is_taken_up_at_once_and_not_after_its_lease(tmp_path: Path) -> None:
    """B01: the lease is ten minutes, so only the heart can have given the run back."""
    async with fleet(tmp_path) as one:
        job = Job(
            job_id="long", handler="wait", payload={"folder": str(tmp_path)}, lease_duration=timedelta(minutes=10)
        )
        await one.rota.definitions.put([job])
        victim = await one.worker("victim")
        run_id = await one.rota.on_demand.trigger("long", tenant_id="default")

        await one.until_called("begin", 1, "the victim has begun the run")
        second = await one.worker("second")
        victim.kill()
        await victim.wait()

        await one.until_called("begin", 2, "the second worker has begun the run")
        (tmp_path / "go").touch()
        await one.until(lambda: state_is(one, "long", "succeeded"), "the run has succeeded")
        _, attempts = await one.rota.history.run(run_id)
        assert [(attempt.attempt, attempt.outcome, attempt.worker_id) for attempt in attempts] == [
            (1, "lost", "victim"),
            (2, "succeeded", "second"),
        ]
        assert "worker lost" in (attempts[0].error or "")
        assert second.returncode is None
        await one.conserved()


async def test_a_scheduler_killed_in_mid_herd_loses_no_slot_and_doubles_none(tmp_path: Path) -> None:
    async with fleet(tmp_path) as one:
        herd = 8000
        at = (one.rota.clock.now() + timedelta(seconds=12)).replace(microsecond=0)
        jobs = [Job(job_id=name, handler="none", schedule=rota.once(at)) for name in ids("herd", herd)]
        victim, _ = await one.scheduler("victim"), await one.scheduler("second")
        await one.rota.definitions.put(jobs)

        async def shared() -> bool:
            return await one.count("SELECT min(n) FROM (SELECT count(*) n FROM rota.shard GROUP BY owner) t") == 32

        await one.until(shared, "the schedulers have shared the shards")

        async def in_the_middle() -> bool:
            return await one.count("SELECT count(*) FROM rota.run") > 0

        await one.until(in_the_middle, "the herd has begun")
        victim.send_signal(signal.SIGKILL)
        await victim.wait()
        assert 0 < await one.count("SELECT count(*) FROM rota.run") < herd, "the herd was under way at the kill"

        async def all_made() -> bool:
            return await one.count("SELECT count(*) FROM rota.run") == herd

        await one.until(all_made, "every slot of the herd is a run")
        assert await one.count("SELECT count(DISTINCT job_uid) FROM rota.run") == herd
        assert await one.count("SELECT count(*) FROM rota.run WHERE created_at < scheduled_for") == 0
        await one.conserved()


async def test_a_worker_stopped_past_its_lease_wakes_and_is_refused(tmp_path: Path) -> None:
    async with fleet(tmp_path) as one:
        job = Job(
            job_id="stall", handler="wait", payload={"folder": str(tmp_path)}, lease_duration=timedelta(seconds=2)
        )
        await one.rota.definitions.put([job])
        await one.scheduler("scheduler")
        sleeper = await one.worker("sleeper")
        run_id = await one.rota.on_demand.trigger("stall", tenant_id="default")

        await one.until_called("begin", 1, "the sleeper has begun the run")
        sleeper.send_signal(signal.SIGSTOP)
        await one.worker("second")

        await one.until_called("begin", 2, "the run was reclaimed and begun again")
        (tmp_path / "go").touch()
        await one.until(lambda: state_is(one, "stall", "succeeded"), "the second attempt has succeeded")
        sleeper.send_signal(signal.SIGCONT)

        async def refused() -> bool:
            return any("lease.lost" in log.read_text() for log in tmp_path.glob("log-*-worker"))

        await one.until(refused, "the sleeper has learnt that its lease is lost")
        view, attempts = await one.rota.history.run(run_id)
        assert (view.state, view.attempt) == ("succeeded", 2)
        assert [(attempt.outcome, attempt.worker_id) for attempt in attempts] == [
            ("lost", "sleeper"),
            ("succeeded", "second"),
        ]
        assert sleeper.returncode is None
        await one.conserved()


async def test_postgresql_crashes_and_restarts_under_load_and_work_goes_on(tmp_path: Path) -> None:
    """B71: processes stay up, back off, and resume by themselves."""
    async with fleet(tmp_path) as one:
        payload = {"folder": str(tmp_path)}
        jobs = [
            Job(job_id=name, handler="note", schedule=rota.every("1s"), payload=payload) for name in ids("load", 40)
        ]
        await one.rota.definitions.put(jobs)
        processes = [await one.scheduler("s-1"), await one.scheduler("s-2")]
        processes += [await one.worker("w-1"), await one.worker("w-2")]

        await one.until_called("call", len(one.calls()) + 100, "the load runs")
        await one.server.restart("immediate")
        await one.until_called("call", len(one.calls()) + 100, "work has resumed after a crash")
        await one.server.restart("fast")
        await one.until_called("call", len(one.calls()) + 200, "work has resumed after a restart")
        async with one.rota.database.transaction() as tx:
            await tx._raw.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND datname = 'rota'"
            )
        await one.until_called("call", len(one.calls()) + 200, "work has resumed after every connection was killed")
        for job in jobs:
            await one.rota.definitions.pause(job.job_id, tenant_id="default", reason="the test ends")

        async def settled() -> bool:
            return await one.count("SELECT count(*) FROM rota.run WHERE outcome IS NULL") == 0

        await one.until(settled, "every run has ended")
        assert [process.returncode for process in processes] == [None] * 4
        assert await one.count("SELECT count(*) FROM rota.run WHERE outcome <> 'succeeded'") == 0
        twice = await one.count(
            "SELECT count(*) FROM (SELECT FROM rota.attempt WHERE outcome = 'succeeded'"
            " GROUP BY shard, job_uid, scheduled_for HAVING count(*) > 1) t"
        )
        assert twice == 0, "a run was recorded as succeeded twice"
        calls = Counter((job_id, slot, attempt) for _, job_id, slot, attempt, _ in one.calls())
        assert max(calls.values()) == 1, "the same attempt was started twice"
        await one.conserved()


async def test_sigterm_lets_a_run_finish_and_renewals_go_on_until_then(tmp_path: Path) -> None:
    """B18: the drain is longer than the lease, and nobody else takes the run meanwhile."""
    async with fleet(tmp_path) as one:
        job = Job(
            job_id="drain", handler="wait", payload={"folder": str(tmp_path)}, lease_duration=timedelta(seconds=1)
        )
        await one.rota.definitions.put([job])
        await one.scheduler("scheduler")
        leaving = await one.worker("leaving", "--drain", "60")
        run_id = await one.rota.on_demand.trigger("drain", tenant_id="default")

        await one.until_called("begin", 1, "the run has begun")
        first_claim = (await one.rota.history.run(run_id))[0].lease_expires_at
        assert first_claim is not None
        leaving.send_signal(signal.SIGTERM)

        async def several_leases_later() -> bool:
            expires_at = (await one.rota.history.run(run_id))[0].lease_expires_at
            return expires_at is not None and expires_at > first_claim + timedelta(seconds=4)

        await one.until(several_leases_later, "the lease was renewed over several leases' time")
        (tmp_path / "go").touch()
        await one.until(lambda: state_is(one, "drain", "succeeded"), "the run has succeeded")
        assert await leaving.wait() == 0
        assert [attempt.outcome for attempt in (await one.rota.history.run(run_id))[1]] == ["succeeded"]
        await one.conserved()


async def test_a_second_sigterm_gives_the_runs_back_uncharged_and_leaves_at_once(tmp_path: Path) -> None:
    """B46."""
    async with fleet(tmp_path) as one:
        job = Job(
            job_id="leave", handler="wait", payload={"folder": str(tmp_path)}, lease_duration=timedelta(minutes=10)
        )
        await one.rota.definitions.put([job])
        leaving = await one.worker("leaving", "--drain", "600")
        run_id = await one.rota.on_demand.trigger("leave", tenant_id="default")

        await one.until_called("begin", 1, "the run has begun")
        os.kill(leaving.pid, signal.SIGTERM)

        async def drains() -> bool:
            return any("worker.drains" in log.read_text() for log in tmp_path.glob("log-*-worker"))

        await one.until(drains, "the worker drains")
        os.kill(leaving.pid, signal.SIGTERM)
        await leaving.wait()
        await one.until(lambda: state_is(one, "leave", "pending"), "the run waits again")
        view, attempts = await one.rota.history.run(run_id)
        assert (view.attempt, [attempt.outcome for attempt in attempts]) == (0, ["released"])
        await one.conserved()
