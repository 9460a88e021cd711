"""Runs that somebody cancels: at once while they wait, through their worker while they run."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from rota.domain.job import Job
from rota.domain.run import RunState
from rota.errors import InvalidInput, NotFound, RunFinished
from rota.services.on_demand import Cancelled
from rota.testing import RotaKit
from tests.services.stories import START, TEN_SECONDS, fetch
from tests.store.stage import outsider, uncommitted, until_waiting_for

AT_ONCE = Cancelled(state=RunState.CANCELLED, requested=False)
ASKED_FOR = Cancelled(state=RunState.RUNNING, requested=True)


async def waiting(kit: RotaKit, **changes: Any) -> UUID:
    await kit.put(Job(job_id="job", handler="h"))
    return await kit.on_demand.trigger("job", tenant_id="default", **changes)


async def audited(kit: RotaKit, run: UUID) -> list[tuple[str, str]]:
    rows = await fetch(kit, "SELECT action, actor FROM rota.audit WHERE subject = $1 ORDER BY at, action", str(run))
    return [(row["action"], row["actor"]) for row in rows if row["action"] != "run.triggered"]


@pytest.mark.parametrize("later", [False, True])
async def test_a_run_that_waits_is_cancelled_at_once(rota_kit: RotaKit, later: bool) -> None:
    run = await waiting(rota_kit, scheduled_for=START + TEN_SECONDS if later else None)
    assert await rota_kit.on_demand.cancel(run, tenant_id="default", actor="token:abc") == AT_ONCE
    view, _ = await rota_kit.history.run(run)
    assert (view.state, view.reason, view.finished_at) == ("cancelled", "cancelled by token:abc", START)
    assert await rota_kit.worker("w", handlers=["h"]).claim() == []
    with pytest.raises(RunFinished, match="cancelled"):
        await rota_kit.on_demand.cancel(run, tenant_id="default")
    assert await audited(rota_kit, run) == [("run.cancelled", "token:abc")]


async def test_the_end_of_a_run_that_runs_is_asked_for_once(rota_kit: RotaKit) -> None:
    run = await waiting(rota_kit)
    work = await rota_kit.worker("w", handlers=["h"]).claim_one()
    asked_at = rota_kit.clock.advance(1)
    assert await rota_kit.on_demand.cancel(run, tenant_id="default", actor="dev") == ASKED_FOR
    rota_kit.clock.advance(1)
    assert await rota_kit.on_demand.cancel(run, tenant_id="default", actor="dev") == ASKED_FOR
    view, _ = await rota_kit.history.run(run)
    assert (view.state, view.cancel_requested_at) == ("running", asked_at)
    assert await audited(rota_kit, run) == [("run.cancel_requested", "dev")]
    await work.succeed()
    assert (await rota_kit.history.run(run))[0].state == "succeeded"
    with pytest.raises(RunFinished, match="succeeded"):
        await rota_kit.on_demand.cancel(run, tenant_id="default")


async def test_runs_of_others_and_of_nobody_are_not_found(rota_kit: RotaKit) -> None:
    run = await waiting(rota_kit)
    unknown = UUID(int=run.int ^ 1)
    for run_id, tenant_id in ((run, "other"), (unknown, "default"), (unknown, None)):
        with pytest.raises(NotFound):
            await rota_kit.on_demand.cancel(run_id, tenant_id=tenant_id)
    with pytest.raises(InvalidInput):
        await rota_kit.on_demand.cancel(UUID(int=7), tenant_id="default")
    assert (await rota_kit.history.run(run))[0].state == "pending"
    assert await audited(rota_kit, run) == []
    assert await rota_kit.on_demand.cancel(run) == AT_ONCE


async def test_a_run_that_is_claimed_at_this_very_moment_is_asked_to_end(rota_kit: RotaKit) -> None:
    """The cancel waits for the claim's row, finds it gone, and looks again."""
    run = await waiting(rota_kit)
    claim = (
        "DELETE FROM rota.pending",
        "INSERT INTO rota.lease (shard, job_uid, scheduled_for, token, claimed_at, expires_at, lease_ms, attempt,"
        " worker_id, priority) SELECT shard, job_uid, scheduled_for, gen_random_uuid(), '2026-01-01Z',"
        " '2026-01-01 00:01Z', 60000, 1, 'w', 5 FROM rota.run",
    )
    async with uncommitted(rota_kit.dsn, *claim) as other:
        cancelling = asyncio.ensure_future(rota_kit.on_demand.cancel(run, tenant_id="default"))
        await until_waiting_for(other)
        await other.execute("COMMIT")
        assert await cancelling == ASKED_FOR


async def test_a_run_that_ends_at_this_very_moment_has_ended(rota_kit: RotaKit) -> None:
    run = await waiting(rota_kit)
    await rota_kit.worker("w", handlers=["h"]).claim_one()
    end = (
        "DELETE FROM rota.lease",
        "UPDATE rota.run SET outcome = 'succeeded', finished_at = '2026-01-01Z', attempt = 1",
    )
    async with uncommitted(rota_kit.dsn, *end) as other:
        cancelling = asyncio.ensure_future(rota_kit.on_demand.cancel(run, tenant_id="default"))
        await until_waiting_for(other)
        await other.execute("COMMIT")
        with pytest.raises(RunFinished):
            await cancelling


async def test_many_that_claim_and_cancel_at_once_leave_every_run_in_one_place(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="job", handler="h"))
    runs = [await rota_kit.on_demand.trigger("job", tenant_id="default") for _ in range(20)]
    worker = rota_kit.worker("w", handlers=["h"])
    answers = await asyncio.gather(
        *(rota_kit.on_demand.cancel(run, tenant_id="default") for run in runs),
        *(worker.claim(limit=3) for _ in range(4)),
    )
    cancelled = [answer for answer in answers if isinstance(answer, Cancelled)]
    claimed = [work for answer in answers if isinstance(answer, list) for work in answer]
    assert sum(answer == ASKED_FOR for answer in cancelled) <= len(claimed)
    assert sum(answer == AT_ONCE for answer in cancelled) + len(claimed) == 20
    async with outsider(rota_kit.dsn) as other:
        assert await other.fetchval("SELECT count(*) FROM rota.lease") == len(claimed)
    for work in claimed:
        await work.succeed()
