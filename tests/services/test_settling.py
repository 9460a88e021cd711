"""How attempts end beside somebody's open transaction, and beside a run that cannot be ended: each by itself."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

import rota
from rota.domain.attempt import Ended, Outcome, Report
from rota.domain.job import Job
from rota.domain.progress import Progress
from rota.domain.retry import RetryPolicy
from rota.domain.run import RunState
from rota.errors import InvalidInput, LeaseLocked
from rota.services import settling
from rota.services.reaper import HOLD_TIME
from rota.testing import RotaKit
from rota.testing.kit import KitWork
from tests.services.stories import SECOND, execute, states
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
        # Whoever goes on finds it ended: a server notices only later that a connection is gone.
        await other.execute("ROLLBACK")


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


# runs that cannot be ended --------------------------------------------------------------------------------------------


class Unknowable(RetryPolicy):
    """A policy under which this program's arithmetic fails."""

    def delay_after(self, attempt: int, *, seed: bytes) -> timedelta:
        raise OverflowError("the wait is beyond all bounds")


def ended(work: KitWork, *, retry: RetryPolicy) -> Ended:
    return Ended(
        key=work.claim.key, outcome=Outcome.FAILED, error="upstream 500", retry_after=None, attempt=1, losses=0,
        available_at=work.claim.claimed_at, max_attempts=3, max_losses=5, retry=retry, pool="default", orphaned=False,
    )  # fmt: skip


async def told_of(kit: RotaKit, work: KitWork) -> tuple[str, str, str]:
    """Return what is told of a run that was set apart: as it is shown, by `why`, and by the doctor."""
    run, _ = await kit.history.run(work.claim.run_id)
    why = await kit.rota.why.run(work.claim.run_id, tenant_id="default")
    [finding] = [finding for check in await kit.rota.doctor.examine() if check.name == "quarantine"
                 for finding in check.findings]  # fmt: skip
    return run.reason or "", why.text, finding


async def test_a_run_whose_future_cannot_be_computed_is_buried_and_the_others_go_on(rota_kit: RotaKit) -> None:
    bad, good = await running(rota_kit, "a", "b")
    now = rota_kit.clock.now()
    verdicts = settling.decided([ended(bad, retry=Unknowable()), ended(good, retry=RetryPolicy())], now=now)
    await settling.write(rota_kit.database, verdicts, now=now)
    assert (await states(rota_kit, "a"), await states(rota_kit, "b")) == (["dead"], ["pending"])
    [attempt] = await rota_kit.attempts((await rota_kit.runs("a"))[0])
    assert (attempt.outcome, attempt.error) == ("failed", "upstream 500")
    for told in await told_of(rota_kit, bad):
        assert "set apart: its future cannot be computed: OverflowError" in told


@pytest.mark.parametrize("factor", [50, 50.0, 100])
async def test_a_steep_backoff_at_a_late_attempt_waits_the_cap(rota_kit: RotaKit, factor: float) -> None:
    steep = rota.retry(initial=10, factor=factor, cap=3600, jitter=0)
    await running(rota_kit, "a", "b", retry=steep, max_attempts=500, lease_duration=5 * SECOND)
    await execute(rota_kit, "UPDATE rota.lease SET attempt = 250, losses = 2")
    await rota_kit.advance(6)
    assert (await states(rota_kit, "a"), await states(rota_kit, "b")) == (["pending"], ["pending"])
    [run] = await rota_kit.runs("a")
    assert run.available_at is not None
    assert run.available_at <= rota_kit.clock.now() + 3600 * SECOND


async def test_a_lapsed_lease_whose_end_cannot_be_written_is_buried_and_the_others_go_on(rota_kit: RotaKit) -> None:
    bad, *_ = await running(rota_kit, "a", "b", "c", lease_duration=5 * SECOND)
    await execute(rota_kit, "UPDATE rota.lease SET losses = 2147483647 WHERE token = $1", bad.claim.key.token)
    await rota_kit.advance(6)
    assert [await states(rota_kit, job_id) for job_id in "abc"] == [["dead"], ["pending"], ["pending"]]
    for told in await told_of(rota_kit, bad):
        assert "set apart: its end cannot be written: DataError" in told
    await rota_kit.check()


async def leave_a_stale_letter(kit: RotaKit, work: KitWork) -> None:
    """Do what only damage does: a dead letter of a run that runs, so that it can be buried no more."""
    key = work.claim.key
    await execute(
        kit, "INSERT INTO rota.dead (shard, job_uid, scheduled_for, tenant_id, died_at) VALUES ($1, $2, $3, '', $4)",
        key.shard, key.job_uid, key.scheduled_for, kit.clock.now(),
    )  # fmt: skip


async def test_what_cannot_even_be_buried_is_held_with_the_reason_and_tried_again(rota_kit: RotaKit) -> None:
    bad, _ = await running(rota_kit, "a", "b", lease_duration=5 * SECOND, max_losses=1)
    await leave_a_stale_letter(rota_kit, bad)
    await rota_kit.advance(6)
    assert (await states(rota_kit, "a"), await states(rota_kit, "b")) == (["running"], ["dead"])
    for told in await told_of(rota_kit, bad):
        assert "set apart: its end cannot be written: UniqueViolationError" in told
    await execute(rota_kit, "DELETE FROM rota.dead WHERE tenant_id = ''")
    await rota_kit.advance(HOLD_TIME)
    assert await states(rota_kit, "a") == ["dead"]
    await rota_kit.check()


async def test_a_lease_that_its_worker_renews_after_all_is_set_apart_no_longer(rota_kit: RotaKit) -> None:
    bad, *_ = await running(rota_kit, "a", lease_duration=5 * SECOND, max_losses=1)
    await leave_a_stale_letter(rota_kit, bad)
    await rota_kit.advance(6)
    assert all("set apart" in told for told in await told_of(rota_kit, bad))
    assert await rota_kit.rota.completion.renew([bad.claim.key])
    run, _ = await rota_kit.history.run(bad.claim.run_id)
    assert run.reason is None
    assert "set apart" not in (await rota_kit.rota.why.run(bad.claim.run_id, tenant_id="default")).text
    await execute(rota_kit, "DELETE FROM rota.dead")


async def test_a_report_that_cannot_be_written_is_refused_by_itself(rota_kit: RotaKit) -> None:
    bad, *others = await running(rota_kit, "a", "b", "c", "d")
    await leave_a_stale_letter(rota_kit, bad)
    reports = [report_of(bad, Outcome.GAVE_UP), *map(report_of, others)]
    with pytest.raises(asyncpg.UniqueViolationError):
        await rota_kit.rota.completion.report(reports)
    assert [await states(rota_kit, job_id) for job_id in "abcd"] == [["running"], *[["succeeded"]] * 3]
    await execute(rota_kit, "DELETE FROM rota.dead")


async def test_a_result_that_cannot_be_kept_is_refused_by_itself(rota_kit: RotaKit) -> None:
    bad, good = await running(rota_kit, "a", "b")
    with pytest.raises(InvalidInput):
        await rota_kit.rota.completion.report([replace(report_of(bad), result={1, 2}), report_of(good)])
    assert (await states(rota_kit, "a"), await states(rota_kit, "b")) == (["running"], ["succeeded"])


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE rota.job SET lease_ms = 9223372036854775807",
        "UPDATE rota.job SET timeout_ms = 9223372036854775807",
        "UPDATE rota.job SET max_attempts = 2000",
        "UPDATE rota.job SET max_losses = 2000",
        """UPDATE rota.job SET retry = '{"factor": 1e9}'""",
        """UPDATE rota.job SET retry = '{"factor": "steep"}'""",
    ],
)
async def test_what_the_program_refuses_sql_cannot_write(rota_kit: RotaKit, change: str) -> None:
    await rota_kit.put(Job(job_id="a", handler="h"))
    with pytest.raises(asyncpg.CheckViolationError):
        await execute(rota_kit, change)
