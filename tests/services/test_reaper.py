"""Leases whose holders are gone: reclaimed on time, in any number, and not after an outage that was nobody's fault."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

import rota
from rota.clock import ManualClock
from rota.domain.ids import job_uid
from rota.domain.job import Job
from rota.errors import DatabaseUnavailable, LeaseLost
from rota.services import reaper as module
from rota.services.reaper import HELD_FIRST, INTERVAL, OUTAGE, Reaper
from rota.store.database import Database
from rota.testing import RotaKit
from rota.testing.kit import KitWork
from tests.services.stories import HOUR, MINUTE, SECOND, START, TEN_SECONDS, every, execute, outage, states, tick_all
from tests.store.stage import uncommitted

BATCH = 20


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the reaper take BATCH leases at a time, so that a test needs no thousands."""
    monkeypatch.setattr(module, "REAP_BATCH", BATCH)


async def claim_all(kit: RotaKit, *, limit: int = 500) -> list[KitWork]:
    return await kit.worker("w-1", handlers=["h"]).claim(limit=limit)


async def trigger(kit: RotaKit, job_id: str, *, times: int) -> None:
    for number in range(times):
        slot = kit.clock.now() - timedelta(seconds=number)
        await kit.on_demand.trigger(job_id, tenant_id="default", scheduled_for=slot)


@pytest.mark.parametrize(("off", "state"), [(-1, "running"), (0, "pending")])
async def test_a_lease_is_reclaimed_from_its_expiry_instant_on(rota_kit: RotaKit, off: int, state: str) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h", lease_duration=30 * SECOND))
    await rota_kit.on_demand.trigger("tick", tenant_id="default")
    await claim_all(rota_kit)
    await rota_kit.advance(timedelta(seconds=30, milliseconds=off))
    assert await states(rota_kit) == [state]


@pytest.mark.usefixtures("small_batches")
async def test_a_full_batch_of_a_job_that_is_held_hides_no_lease_behind_it(rota_kit: RotaKit) -> None:
    same_shard = [n for n in range(1000) if job_uid(*Job(job_id=f"j{n}", handler="h").name) % 64 == 5][:2]
    held, free = (f"j{n}" for n in same_shard)
    await rota_kit.put(*(Job(job_id=job_id, handler="h", lease_duration=SECOND) for job_id in (held, free)))
    await rota_kit.tick()
    await trigger(rota_kit, held, times=BATCH)
    assert len(await claim_all(rota_kit)) == BATCH
    await trigger(rota_kit, free, times=1)
    assert len(await claim_all(rota_kit)) == 1
    rota_kit.clock.advance(2)
    async with uncommitted(rota_kit.dsn, f"SELECT FROM rota.job WHERE job_id = '{held}' FOR UPDATE"):
        assert await rota_kit.process.reaper.tick()
        assert not await rota_kit.process.reaper.tick()
        assert await states(rota_kit, free) == ["pending"]
        assert set(await states(rota_kit, held)) == {"running"}
    rota_kit.clock.advance(HELD_FIRST)
    await rota_kit.process.keeper.tick()
    assert await rota_kit.process.reaper.tick()
    assert set(await states(rota_kit, held)) == {"pending"}


@pytest.mark.usefixtures("small_batches")
async def test_a_full_batch_that_may_not_be_taken_hides_no_lease_behind_it(rota_kit: RotaKit) -> None:
    """B05: as many leases as a batch holds are spared after an outage; the one behind them is reclaimed."""
    same_shard = [n for n in range(1000) if job_uid(*Job(job_id=f"j{n}", handler="h").name) % 64 == 5][:2]
    spared, short = (f"j{n}" for n in same_shard)
    await rota_kit.put(
        Job(job_id=spared, handler="h", lease_duration=HOUR), Job(job_id=short, handler="h", lease_duration=SECOND)
    )
    await rota_kit.tick()
    await trigger(rota_kit, spared, times=BATCH)
    await trigger(rota_kit, short, times=1)
    assert len(await claim_all(rota_kit)) == BATCH + 1
    async with outage(rota_kit):
        for _ in range(3):
            rota_kit.clock.advance(20 * MINUTE)
            rota_kit.process.owned.hold(rota_kit.process.keeper._epochs, expires_at=rota_kit.clock.now() + TEN_SECONDS)
            with pytest.raises(DatabaseUnavailable):
                await rota_kit.process.reaper.tick()
    rota_kit.clock.advance(5 * MINUTE)
    await rota_kit.tick()
    assert set(await states(rota_kit, spared)) == {"running"}
    await rota_kit.advance(2)
    assert set(await states(rota_kit, spared)) == {"running"}
    assert await states(rota_kit, short) == ["pending"]


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("count", [BATCH - 1, BATCH, 2 * BATCH, 2 * BATCH + 1])
async def test_any_number_of_lapsed_leases_is_worked_off_batch_by_batch(rota_kit: RotaKit, count: int) -> None:
    """B05: a full batch means that there may be more."""
    await rota_kit.put(Job(job_id="tick", handler="h", lease_duration=30 * SECOND))
    await rota_kit.tick()
    await trigger(rota_kit, "tick", times=count)
    assert len(await claim_all(rota_kit)) == count
    rota_kit.clock.advance(31)
    await rota_kit.process.keeper.tick()
    ticks = 1
    while await rota_kit.process.reaper.tick():
        ticks += 1
    assert ticks == count // BATCH + 1
    assert set(await states(rota_kit)) == {"pending"}


async def test_after_an_outage_nobody_is_reaped_until_a_lease_has_passed(rota_kit: RotaKit) -> None:
    """B71: the workers could not renew while the database was away."""
    await rota_kit.put(Job(job_id="tick", handler="h", lease_duration=30 * SECOND))
    await rota_kit.on_demand.trigger("tick", tenant_id="default")
    await rota_kit.tick()
    [work] = await claim_all(rota_kit)
    async with outage(rota_kit):
        for _ in range(5):
            rota_kit.clock.advance(1)
            with pytest.raises(DatabaseUnavailable):
                await rota_kit.process.reaper.tick()
        rota_kit.clock.advance(60)
    await rota_kit.tick()
    assert await states(rota_kit) == ["running"]
    await rota_kit.advance(29)
    assert await work.renew() == rota_kit.clock.now() + 30 * SECOND
    await work.succeed()


async def test_an_outage_that_also_costs_the_shards_is_still_an_outage(rota_kit: RotaKit) -> None:
    """B71: shards are lost before leases are; that a reaper without shards has nothing to ask is no answer."""
    await rota_kit.put(Job(job_id="tick", handler="h", lease_duration=30 * SECOND))
    await rota_kit.on_demand.trigger("tick", tenant_id="default")
    await rota_kit.tick()
    [work] = await claim_all(rota_kit)
    async with outage(rota_kit):
        rota_kit.clock.advance(5)
        with pytest.raises(DatabaseUnavailable):
            await rota_kit.process.reaper.tick()
        for _ in range(60):
            rota_kit.clock.advance(1)
            if rota_kit.process.owned.shards(now=rota_kit.clock.now()):
                with pytest.raises(DatabaseUnavailable):
                    await rota_kit.process.reaper.tick()
            else:
                assert await rota_kit.process.reaper.tick() is False
    await rota_kit.tick()
    assert await states(rota_kit) == ["running"]
    await work.succeed()


async def test_after_an_outage_a_worker_that_stays_away_loses_its_run_one_lease_later(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h", lease_duration=30 * SECOND))
    await rota_kit.on_demand.trigger("tick", tenant_id="default")
    await rota_kit.tick()
    await claim_all(rota_kit)
    async with outage(rota_kit):
        rota_kit.clock.advance(5)
        with pytest.raises(DatabaseUnavailable):
            await rota_kit.process.reaper.tick()
        rota_kit.clock.advance(60)
    await rota_kit.tick()
    await rota_kit.advance(29)
    assert await states(rota_kit) == ["running"]
    await rota_kit.advance(1)
    assert await states(rota_kit) == ["pending"]


async def test_a_hiccup_shorter_than_a_renewal_interval_costs_nobody_time(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h", lease_duration=3 * SECOND))
    await rota_kit.on_demand.trigger("tick", tenant_id="default")
    await rota_kit.tick()
    await claim_all(rota_kit)
    rota_kit.clock.advance(2)
    await rota_kit.tick()
    async with outage(rota_kit):
        rota_kit.clock.advance(1)
        with pytest.raises(DatabaseUnavailable):
            await rota_kit.process.reaper.tick()
    rota_kit.clock.advance(0.5)
    await rota_kit.tick()
    assert await states(rota_kit) == ["pending"]


class Slow(Database):
    """A database that gives the reaper its answers, each so many seconds after the question."""

    clock: ManualClock
    seconds = 0.0

    async def fetch(self, statement: Any, /, **options: Any) -> list[Any]:
        rows = await super().fetch(statement, **options)
        if statement.name == "expired_leases":
            self.clock.advance(self.seconds)
        return rows


@asynccontextmanager
async def slow_reaper(kit: RotaKit) -> AsyncIterator[tuple[Slow, Reaper]]:
    """Yield a reaper in the place of the kit's, over a database that can be slow."""
    async with await Slow.connect(kit.dsn, size=1, reserved=1) as database:
        database.clock = kit.clock
        yield database, Reaper(database, kit.clock, kit.process.owned, kit.rota.hints)


async def look_after(kit: RotaKit, reaper: Reaper, seconds: float) -> None:
    """Let the scheduler have its shards, and the reaper its look, so much later."""
    kit.clock.advance(seconds)
    for _ in range(2):
        await kit.process.keeper.tick()
    await reaper.tick()


async def test_a_database_that_answers_late_was_away_for_the_workers_too(rota_kit: RotaKit) -> None:
    """No call fails: it takes 20 s, in which nobody could renew a lease of 10 s."""
    await rota_kit.put(Job(job_id="tick", handler="h", lease_duration=TEN_SECONDS))
    await rota_kit.on_demand.trigger("tick", tenant_id="default")
    await claim_all(rota_kit)
    async with slow_reaper(rota_kit) as (database, reaper):
        await look_after(rota_kit, reaper, 0)
        database.seconds = 20
        await look_after(rota_kit, reaper, INTERVAL)
        database.seconds = 0
        await look_after(rota_kit, reaper, INTERVAL)
        assert await states(rota_kit) == ["running"], "its worker has had one second"
        await look_after(rota_kit, reaper, 8)
        assert await states(rota_kit) == ["running"]
        await look_after(rota_kit, reaper, 1)
        assert await states(rota_kit) == ["pending"], "its worker has had a lease's time, and did not come"


async def test_an_answer_that_is_only_a_little_late_costs_nobody_time(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h", lease_duration=3 * SECOND))
    await rota_kit.on_demand.trigger("tick", tenant_id="default")
    await claim_all(rota_kit)
    async with slow_reaper(rota_kit) as (database, reaper):
        database.seconds = OUTAGE
        await look_after(rota_kit, reaper, INTERVAL)
        await look_after(rota_kit, reaper, INTERVAL)
    assert await states(rota_kit) == ["pending"]


async def test_where_every_answer_is_late_lost_runs_are_reclaimed_all_the_same(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h", lease_duration=TEN_SECONDS))
    await rota_kit.on_demand.trigger("tick", tenant_id="default")
    await claim_all(rota_kit)
    async with slow_reaper(rota_kit) as (database, reaper):
        database.seconds = 5
        for _ in range(9):
            await look_after(rota_kit, reaper, INTERVAL)
        assert await states(rota_kit) == ["running"], "its worker has had less than ten seconds between late answers"
        for _ in range(2):
            await look_after(rota_kit, reaper, INTERVAL)
    assert await states(rota_kit) == ["pending"]


async def test_a_run_that_kills_its_worker_every_time_is_buried_as_lost(rota_kit: RotaKit) -> None:
    """B55: a poison run ends as a dead letter after max_losses, whatever max_attempts says."""
    retry = rota.retry(initial=1, factor=1, jitter=0)
    await rota_kit.put(Job(job_id="poison", handler="h", lease_duration=5 * SECOND, max_attempts=1, retry=retry))
    run_id = await rota_kit.on_demand.trigger("poison", tenant_id="default")
    for attempt in range(1, 6):
        [work] = await claim_all(rota_kit)
        assert work.claim.attempt == attempt
        # The lease, and from the second loss on a backoff.
        await rota_kit.advance(8)
    [letter] = await rota_kit.history.dead_letters(tenant_id="default")
    assert (letter.run_id, letter.attempt, letter.outcome, letter.error) == (run_id, 5, "lost", module.LEASE_EXPIRED)
    [run] = await rota_kit.runs("poison")
    assert (run.state, run.reason) == ("dead", "worker lost 5 times")
    assert [attempt.outcome for attempt in await rota_kit.attempts(run)] == ["lost"] * 5
    assert await claim_all(rota_kit) == []


async def test_losses_take_no_attempt_and_failures_no_loss(rota_kit: RotaKit) -> None:
    """B44: a run that lost two workers has every attempt left, and a failure between them counts as one."""
    retry = rota.retry(initial=1, factor=1, jitter=0)
    await rota_kit.put(
        Job(job_id="job", handler="h", lease_duration=30 * SECOND, max_attempts=2, max_losses=3, retry=retry)
    )
    await rota_kit.on_demand.trigger("job", tenant_id="default")
    for ends_lost in (True, False, True):
        [work] = await claim_all(rota_kit)
        if not ends_lost:
            await work.fail()
        await rota_kit.advance(32)
    [work] = await claim_all(rota_kit)
    assert work.claim.attempt == 4
    await work.fail("the second failure")
    [run] = await rota_kit.runs("job")
    assert (run.state, run.attempt, run.reason) == ("dead", 4, None)
    assert [attempt.outcome for attempt in await rota_kit.attempts(run)] == ["lost", "failed", "lost", "failed"]


async def test_the_neighbours_of_a_poison_run_have_attempts_left(rota_kit: RotaKit) -> None:
    """B55: four slots, one of them poison: the others are reclaimed, finished, and not blamed twice."""
    names = ["poison", "one", "two", "three"]
    await rota_kit.put(*(Job(job_id=name, handler="h", lease_duration=30 * SECOND, max_losses=2) for name in names))
    for name in names:
        await rota_kit.on_demand.trigger(name, tenant_id="default")
    assert len(await claim_all(rota_kit)) == 4
    await rota_kit.advance(31)
    again = await claim_all(rota_kit)
    for work in again:
        if work.claim.job_id != "poison":
            await work.succeed()
    await rota_kit.advance(31)
    assert {name: await states(rota_kit, name) for name in names} == {
        "poison": ["dead"], "one": ["succeeded"], "two": ["succeeded"], "three": ["succeeded"],
    }  # fmt: skip


async def test_a_lease_lost_by_a_stall_and_claimed_by_the_same_worker_is_a_new_attempt(rota_kit: RotaKit) -> None:
    """B22: both attempts are seen, the old one's result is refused, one success."""
    await rota_kit.put(Job(job_id="tick", handler="h", lease_duration=30 * SECOND))
    await rota_kit.on_demand.trigger("tick", tenant_id="default")
    [old] = await claim_all(rota_kit)
    await rota_kit.advance(31)
    [new] = await claim_all(rota_kit)
    assert new.claim.run_id == old.claim.run_id
    with pytest.raises(LeaseLost):
        await old.renew()
    with pytest.raises(LeaseLost):
        await old.succeed()
    await new.succeed()
    [run] = await rota_kit.runs("tick")
    assert [(each.attempt, each.outcome) for each in await rota_kit.attempts(run)] == [(1, "lost"), (2, "succeeded")]


async def test_a_stale_workers_error_touches_nothing_of_the_new_attempt(rota_kit: RotaKit) -> None:
    """B12: no column of the run, of the new lease or of any attempt changes."""
    await rota_kit.put(Job(job_id="tick", handler="h", lease_duration=30 * SECOND))
    await rota_kit.on_demand.trigger("tick", tenant_id="default")
    [old] = await claim_all(rota_kit)
    await rota_kit.advance(31)
    [new] = await rota_kit.worker("w-2", handlers=["h"]).claim()
    [before] = await rota_kit.runs("tick")
    attempts = await rota_kit.attempts(before)
    with pytest.raises(LeaseLost):
        await old.fail("woke up and raised")
    [after] = await rota_kit.runs("tick")
    assert after == before
    assert await rota_kit.attempts(after) == attempts
    await new.fail("its own error")
    texts = [attempt.error for attempt in await rota_kit.attempts(after)]
    assert texts == [module.LEASE_EXPIRED, "its own error"]


async def test_without_shards_a_reaper_does_nothing(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s", lease_duration=TEN_SECONDS))
    await rota_kit.advance(10)
    await claim_all(rota_kit)
    rota_kit.clock.advance(20)
    assert await rota_kit.scheduler("scheduler-2").reaper.tick() is False
    assert await states(rota_kit) == ["running"]


async def test_a_retry_after_a_lost_hour_is_counted_from_now(rota_kit: RotaKit) -> None:
    """B31: never from the slot, which lies an hour back."""
    await rota_kit.put(Job(job_id="tick", handler="h", retry=rota.retry(initial=10, jitter=0)))
    await rota_kit.on_demand.trigger("tick", tenant_id="default", scheduled_for=START - HOUR)
    [work] = await claim_all(rota_kit)
    await work.fail()
    [run] = await rota_kit.runs("tick")
    assert run.available_at == rota_kit.clock.now() + TEN_SECONDS


async def test_a_retry_policy_that_somebodys_sql_damaged_stops_nobody_else(rota_kit: RotaKit) -> None:
    """B55: the damaged job is retried by the default policy, and its neighbour is reclaimed in the same batch."""
    for job_id in ("damaged", "neighbour"):
        await rota_kit.put(Job(job_id=job_id, handler="h", lease_duration=TEN_SECONDS))
        await rota_kit.on_demand.trigger(job_id, tenant_id="default")
    assert len(await claim_all(rota_kit)) == 2
    # As a database may hold it in which that was not refused yet.
    await execute(rota_kit, "ALTER TABLE rota.job DROP CONSTRAINT job_retry_numbers")
    await execute(rota_kit, """UPDATE rota.job SET retry = '{"initial": "soon"}' WHERE job_id = 'damaged'""")
    await rota_kit.advance(11)
    assert [await states(rota_kit, job_id) for job_id in ("damaged", "neighbour")] == [["pending"], ["pending"]]
    [first, _] = await claim_all(rota_kit)
    await first.fail("and again")


# a clock that jumps ahead ---------------------------------------------------------------------------------------------


async def test_a_jump_of_the_primarys_clock_costs_no_living_worker_its_runs(rota_kit: RotaKit) -> None:
    """20 runs were renewed a second ago; by the clock that was two minutes ago."""
    await rota_kit.put(Job(job_id="tick", handler="h", lease_duration=30 * SECOND, max_losses=1))
    await trigger(rota_kit, "tick", times=20)
    await rota_kit.tick()
    works = await claim_all(rota_kit)
    for _ in range(2):
        await rota_kit.advance(1)
        rota_kit.clock.jump(2 * MINUTE)
        await rota_kit.tick()
        assert set(await states(rota_kit)) == {"running"}
    await rota_kit.advance(20)
    assert len(await rota_kit.rota.completion.renew([work.claim.key for work in works])) == 20
    await rota_kit.advance(29)
    assert set(await states(rota_kit)) == {"running"}
    await works[0].succeed()


async def test_a_worker_that_does_not_renew_after_a_jump_is_lost_one_lease_later(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h", lease_duration=30 * SECOND))
    await rota_kit.on_demand.trigger("tick", tenant_id="default")
    await rota_kit.tick()
    await claim_all(rota_kit)
    rota_kit.clock.jump(HOUR)
    await rota_kit.tick()
    await rota_kit.advance(30 * SECOND + module.STEP_KNOWN - SECOND)
    assert await states(rota_kit) == ["running"]
    await rota_kit.advance(2)
    assert await states(rota_kit) == ["pending"]


async def test_a_clock_that_is_set_back_after_a_jump_keeps_no_lease_for_long(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h", lease_duration=30 * SECOND))
    await rota_kit.on_demand.trigger("tick", tenant_id="default")
    await rota_kit.tick()
    await claim_all(rota_kit)
    rota_kit.clock.jump(HOUR)
    await rota_kit.tick()
    rota_kit.clock.set(rota_kit.clock.now() - HOUR)
    await rota_kit.advance(MINUTE)
    assert await states(rota_kit) == ["pending"]


async def test_after_a_jump_no_scheduler_takes_anothers_shards_and_no_gate_is_shut(rota_kit: RotaKit) -> None:
    second = rota_kit.scheduler("scheduler-2")
    for _ in range(3):
        await tick_all(rota_kit, rota_kit.process, second)
    worker = rota_kit.worker("w", handlers=["h"])
    assert not await worker.announce()
    held = [set(process.owned.shards(now=rota_kit.clock.now())) for process in (rota_kit.process, second)]
    await rota_kit.put(Job(job_id="tick", handler="h"))
    await rota_kit.on_demand.trigger("tick", tenant_id="default")
    rota_kit.clock.jump(HOUR)
    await tick_all(rota_kit, second, rota_kit.process)
    assert [set(process.owned.shards(now=rota_kit.clock.now())) for process in (rota_kit.process, second)] == held
    [run] = await rota_kit.runs("tick")
    assert run.gate == "open"
