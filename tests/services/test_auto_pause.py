"""A job whose runs die one after another is paused, if it says after how many."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from rota.domain.attempt import Outcome, Report
from rota.services.failing import pause_failing
from rota.testing import RotaKit
from rota.testing.kit import KitWork
from tests.services.stories import START, TEN_SECONDS, every, fetch, states, stored
from tests.store.stage import uncommitted

MILLISECOND = timedelta(milliseconds=1)
LONG = 20.0
"""Seconds that tell an answer from a wait for somebody else's transaction, on however busy a machine."""


async def next_run(kit: RotaKit) -> KitWork:
    await kit.advance(10)
    return await kit.worker("w", handlers=["h"]).claim_one()


async def dies(kit: RotaKit, times: int = 1, *, error: str = "it failed") -> None:
    for _ in range(times):
        await (await next_run(kit)).report(Outcome.GAVE_UP, error=error)


async def pauses(kit: RotaKit) -> list[tuple[str, str]]:
    rows = await fetch(kit, "SELECT action, actor FROM rota.audit WHERE action LIKE 'job.%ed' ORDER BY at, action")
    return [(row["action"], row["actor"]) for row in rows if row["action"] in ("job.paused", "job.resumed")]


async def test_after_that_many_dead_letters_in_a_row_the_job_is_paused(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s", pause_after=3))
    await dies(rota_kit, 2)
    assert (await stored(rota_kit)).state == "active"
    await dies(rota_kit, error="\nupstream 500\nTraceback ...")
    job = await stored(rota_kit)
    assert (job.state, job.paused_at, job.version) == ("paused", START + 3 * TEN_SECONDS, 2)
    assert job.pause_reason == "3 dead letters in a row, the last: upstream 500"
    assert (job.next_run_at, job.next_slot) == (None, START + 4 * TEN_SECONDS)
    await rota_kit.advance(60)
    assert await states(rota_kit) == ["dead"] * 3
    assert await pauses(rota_kit) == [("job.paused", "system")]


async def test_by_itself_no_job_is_paused(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s"))
    await dies(rota_kit, 5)
    assert (await stored(rota_kit)).state == "active"


async def test_a_success_ends_the_row(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s", pause_after=2))
    await dies(rota_kit)
    await (await next_run(rota_kit)).succeed()
    await dies(rota_kit)
    assert (await stored(rota_kit)).state == "active"
    await dies(rota_kit)
    assert (await stored(rota_kit)).state == "paused"


async def test_a_run_that_was_cancelled_says_nothing(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s", pause_after=2))
    await dies(rota_kit)
    await (await next_run(rota_kit)).report(Outcome.CANCELLED)
    await dies(rota_kit)
    assert (await stored(rota_kit)).state == "paused"


async def test_what_counts_is_when_runs_ended_and_not_their_slots(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s", pause_after=2))
    first, second, third, fourth = [await next_run(rota_kit) for _ in range(4)]
    await dies(rota_kit)
    await first.succeed()
    await second.report(Outcome.GAVE_UP, error="late")
    assert (await stored(rota_kit)).state == "active", "of those that ended at one instant the success is the later"
    rota_kit.clock.advance(MILLISECOND)
    await third.report(Outcome.GAVE_UP, error="later still")
    assert (await stored(rota_kit)).state == "active"
    await fourth.report(Outcome.GAVE_UP, error="and again")
    assert (await stored(rota_kit)).state == "paused"


async def test_a_resume_counts_anew(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s", pause_after=2))
    await dies(rota_kit, 2)
    await rota_kit.definitions.resume("tick", tenant_id="default", missed="drop")
    await dies(rota_kit)
    assert (await stored(rota_kit)).state == "active"
    await dies(rota_kit)
    assert (await stored(rota_kit)).state == "paused"
    assert [action for action, _ in await pauses(rota_kit)] == ["job.paused", "job.resumed", "job.paused"]


async def test_a_job_put_anew_after_its_end_does_not_inherit_the_row(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s", pause_after=2))
    await dies(rota_kit)
    await rota_kit.definitions.delete("tick", tenant_id="default")
    await rota_kit.put(every("10s", pause_after=2))
    await dies(rota_kit)
    assert (await stored(rota_kit)).state == "active"


async def test_runs_that_kill_their_workers_count_as_well(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s", pause_after=1, max_losses=1, lease_duration=timedelta(seconds=5)))
    await next_run(rota_kit)
    await rota_kit.advance(6)
    assert (await stored(rota_kit)).pause_reason == "1 dead letter in a row, the last: worker lost 1 times"


async def test_a_report_that_is_repeated_pauses_once(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s", pause_after=1))
    work = await next_run(rota_kit)
    report = Report(key=work.claim.key, outcome=Outcome.GAVE_UP, error="x" * 5000)
    for _ in range(2):
        await rota_kit.rota.completion.report([report])
    job = await stored(rota_kit)
    assert (job.version, await pauses(rota_kit)) == (2, [("job.paused", "system")])
    assert len(job.pause_reason or "") < 250


async def test_of_many_who_bury_its_runs_at_once_one_pauses_it(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s", pause_after=2))
    works = [await next_run(rota_kit) for _ in range(6)]
    await asyncio.gather(*(work.report(Outcome.GAVE_UP, error="it failed") for work in works))
    assert (await stored(rota_kit)).state == "paused"
    assert await pauses(rota_kit) == [("job.paused", "system")]


@pytest.mark.parametrize("meanwhile", ["resumed", "deleted"])
async def test_somebody_who_acts_meanwhile_is_not_overruled(rota_kit: RotaKit, meanwhile: str) -> None:
    await rota_kit.put(every("10s", pause_after=1))
    work = await next_run(rota_kit)
    await work.report(Outcome.GAVE_UP)
    if meanwhile == "resumed":
        await rota_kit.definitions.resume("tick", tenant_id="default", missed="drop")
    else:
        await rota_kit.definitions.delete("tick", tenant_id="default")
    assert await pause_failing(rota_kit.database, [work.claim.key], now=rota_kit.clock.now()) == []


@asynccontextmanager
async def triggering(kit: RotaKit) -> AsyncIterator[Any]:
    """Let an application's transaction trigger a run of the job, which it then has locked, and stay open."""
    # The application lives in the server's time, whose month is made before.
    await fetch(kit, "SELECT rota.ensure_month(clock_timestamp()::date)")
    async with uncommitted(kit.dsn, "SELECT rota.trigger('tick')") as other, asyncio.timeout(LONG):
        yield other
        # Whoever goes on finds it ended: a server notices only later that a connection is gone.
        await other.execute("ROLLBACK")


async def test_a_report_does_not_wait_for_the_pause_of_a_job_that_an_open_transaction_has_triggered(
    rota_kit: RotaKit,
) -> None:
    await rota_kit.put(every("10s", pause_after=1), every("10s", "other", pause_after=1))
    await rota_kit.advance(10)
    works = {work.claim.job_id: work for work in await rota_kit.worker("w", handlers=["h"]).claim(limit=2)}
    async with triggering(rota_kit) as other:
        reports = [Report(key=work.claim.key, outcome=Outcome.GAVE_UP, error="no") for work in works.values()]
        assert len(await rota_kit.rota.completion.report(reports)) == 2
        assert (await stored(rota_kit, "other")).state == "paused"
        await rota_kit.tick()
        assert (await stored(rota_kit)).state == "active"
        await other.execute("ROLLBACK")
    await rota_kit.tick()
    assert (await stored(rota_kit)).state == "paused"
    assert await fetch(rota_kit, "SELECT FROM rota.pause_wanted") == []


async def test_lapsed_leases_are_taken_back_while_a_job_that_is_to_be_paused_is_locked(rota_kit: RotaKit) -> None:
    lease = timedelta(seconds=5)
    await rota_kit.put(every("1h", pause_after=1, max_losses=1, lease_duration=lease))
    await rota_kit.put(every("1h", "other", lease_duration=2 * lease))
    for job_id in ("tick", "other"):
        await rota_kit.on_demand.trigger(job_id, tenant_id="default")
    assert len(await rota_kit.worker("w", handlers=["h"]).claim(limit=2)) == 2
    async with triggering(rota_kit):
        await rota_kit.advance(6)
        assert await states(rota_kit) == ["dead"]
        await rota_kit.advance(5)
        assert await states(rota_kit, "other") == ["pending"], "no outage is seen where there was none"
    await rota_kit.tick()
    assert (await stored(rota_kit)).state == "paused"


async def test_a_job_that_was_to_be_paused_and_succeeded_since_goes_on(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s", pause_after=1))
    first, second = [await next_run(rota_kit) for _ in range(2)]
    async with triggering(rota_kit) as other:
        await first.report(Outcome.GAVE_UP)
        rota_kit.clock.advance(MILLISECOND)
        await second.succeed()
        await other.execute("ROLLBACK")
    await rota_kit.tick()
    assert (await stored(rota_kit)).state == "active"
    assert await fetch(rota_kit, "SELECT FROM rota.pause_wanted") == []
