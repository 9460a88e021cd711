"""How attempts end beside somebody's open transaction, and beside a run that cannot be ended: each by itself."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rota.domain.attempt import Outcome, Report
from rota.domain.job import Job
from rota.domain.progress import Progress
from rota.domain.run import RunState
from rota.errors import LeaseLocked
from rota.testing import RotaKit
from rota.testing.kit import KitWork
from tests.services.stories import SECOND, states
from tests.store.stage import outsider

LONG = 10.0
"""Seconds that tell an answer from a wait for somebody else's transaction, on however busy a machine."""


async def running(kit: RotaKit, *job_ids: str, **changes: Any) -> list[KitWork]:
    """Return claims on a run of each of these jobs, which are made."""
    await kit.put(*(Job(job_id=job_id, handler="h", **changes) for job_id in job_ids))
    for job_id in job_ids:
        await kit.on_demand.trigger(job_id, tenant_id="default")
    works = await kit.worker("w", handlers=["h"]).claim(limit=len(job_ids))
    return sorted(works, key=lambda work: job_ids.index(work.claim.job_id))


@asynccontextmanager
async def completing(kit: RotaKit, work: KitWork) -> AsyncIterator[Any]:
    """Let a handler's own transaction complete the run, and stay open."""
    async with outsider(kit.dsn) as other:
        await other.execute("BEGIN")
        await other.fetchval("SELECT rota.complete($1, $2)", work.claim.run_id, work.claim.key.token)
        yield other


def report_of(work: KitWork, outcome: Outcome = Outcome.SUCCEEDED) -> Report:
    return Report(key=work.claim.key, outcome=outcome, error="out of time" if outcome is Outcome.TIMED_OUT else None)


@pytest.mark.parametrize("outcome", [Outcome.TIMED_OUT, Outcome.SUCCEEDED, Outcome.CANCELLED])
async def test_a_report_on_a_run_that_an_open_transaction_completes_keeps_no_others(
    rota_kit: RotaKit, outcome: Outcome
) -> None:
    first, *others = await running(rota_kit, "a", "b", "c", max_attempts=1)
    async with completing(rota_kit, first), asyncio.timeout(LONG):
        with pytest.raises(LeaseLocked) as locked:
            await rota_kit.rota.completion.report([report_of(first, outcome), *map(report_of, others)])
        assert locked.value.locked == {first.claim.key.token}
        assert locked.value.accepted == {work.claim.key.token for work in others}
        assert await states(rota_kit, "b") == ["succeeded"]
        await first.renew()


@pytest.mark.parametrize("ends_with", ["COMMIT", "ROLLBACK"])
async def test_when_that_transaction_has_ended_the_report_is_decided_by_how_it_ended(
    rota_kit: RotaKit, ends_with: str
) -> None:
    [work] = await running(rota_kit, "a", max_attempts=1)
    report = report_of(work, Outcome.TIMED_OUT)
    async with completing(rota_kit, work) as other:
        with pytest.raises(LeaseLocked):
            await rota_kit.rota.completion.report([report])
        await other.execute(ends_with)
    told = await rota_kit.rota.completion.report([report])
    if ends_with == "COMMIT":
        assert told == {}
        assert await states(rota_kit, "a") == ["succeeded"]
    else:
        assert told == {work.claim.key.token: RunState.DEAD}


async def test_a_run_whose_job_is_being_edited_comes_back_when_the_edit_is_done(rota_kit: RotaKit) -> None:
    """The edit's sweep over the waiting runs could not see it; others of the batch need not wait for that."""
    edited, other_job = await running(rota_kit, "a", "b")
    async with outsider(rota_kit.dsn) as editor, asyncio.timeout(LONG):
        await editor.execute("BEGIN")
        await editor.execute("UPDATE rota.job SET pool = 'elsewhere' WHERE job_id = 'a'")
        with pytest.raises(LeaseLocked) as locked:
            await rota_kit.rota.completion.report(
                [report_of(edited, Outcome.RELEASED), report_of(other_job, Outcome.RELEASED)]
            )
        assert locked.value.accepted == {other_job.claim.key.token}
        await editor.execute("COMMIT")
    await edited.release()
    [run] = await rota_kit.runs("a")
    assert (run.state, run.pool) == ("pending", "elsewhere")


async def test_lapsed_leases_are_taken_back_beside_one_that_is_being_completed(rota_kit: RotaKit) -> None:
    first, _ = await running(rota_kit, "a", "b", lease_duration=5 * SECOND)
    async with completing(rota_kit, first), asyncio.timeout(LONG):
        await rota_kit.advance(6)
        assert (await states(rota_kit, "a"), await states(rota_kit, "b")) == (["running"], ["pending"])


async def test_progress_of_a_locked_run_is_passed_over_and_noted_later(rota_kit: RotaKit) -> None:
    [work] = await running(rota_kit, "a")
    completion, key = rota_kit.rota.completion, work.claim.key
    async with completing(rota_kit, work), asyncio.timeout(LONG):
        await completion.note_progress(key, 0.5, "half")
        assert key.token in await completion.renew([key], progress={key.token: Progress(0.5, "half")})
    await completion.note_progress(key, 0.75, None)
    [run] = await rota_kit.runs("a")
    assert run.progress == 0.75
