"""Edits, deletes and triggers that meet a scheduler or a worker half-way: nothing is lost, doubled or left behind."""

import asyncio
from datetime import timedelta
from uuid import UUID

import pytest

from rota.domain.attempt import Outcome, Report, after_attempt
from rota.domain.ids import job_uid
from rota.domain.job import Job
from rota.domain.run import RunState
from rota.errors import LeaseLocked
from rota.store import claims
from rota.store.database import Database
from rota.store.statements import jobs as sql
from rota.testing import RotaKit
from tests.services.stories import TEN_SECONDS, every, execute, fetch, ledger, slots, states, stored


async def waits_for_a_lock(kit: RotaKit) -> None:
    """Return once some statement of this database waits for a row."""
    for _ in range(2000):
        if await fetch(
            kit,
            "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
        ):
            return
    raise AssertionError("nobody waits for a lock")


async def test_a_pause_that_waited_for_an_edit_does_not_write_the_old_slot_back(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("1d"))
    async with rota_kit.database.transaction() as tx:
        await rota_kit.definitions._put_batch(tx, [every("10s")], if_version=None, pause_new={})
        pausing = asyncio.ensure_future(rota_kit.definitions.pause("tick", tenant_id="default", reason="race"))
        await waits_for_a_lock(rota_kit)
    await pausing
    await rota_kit.definitions.resume("tick", tenant_id="default")
    await rota_kit.advance(60)
    assert len(await slots(rota_kit)) == 6


async def test_an_edit_that_crosses_a_tick_neither_rewinds_nor_tears_the_ledger(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("1s"))
    rota_kit.clock.advance(60)
    async with rota_kit.database.transaction() as tx:
        # The tick of another scheduler, between the edit's two reads: it holds the schedule's row, the edit waits.
        await tx.fetch(
            sql.lock_schedules, shards=[job_uid(*every("1s").name) % 64], job_uids=[job_uid(*every("1s").name)]
        )
        editing = asyncio.ensure_future(rota_kit.put(every("1s", payload={"edited": True})))
        await waits_for_a_lock(rota_kit)
        await tx._raw.execute("UPDATE rota.schedule SET next_slot = next_slot + interval '30 s', next_run_at = NULL")
    await editing
    row = await stored(rota_kit)
    assert row.next_slot is not None
    assert row.next_slot - rota_kit.clock.now() == timedelta(seconds=-29)
    await execute(
        rota_kit,
        "INSERT INTO rota.skipped (shard, job_uid, first_slot, last_slot, slots, reason, recorded_at)"
        " SELECT shard, job_uid, since + interval '1 s', since + interval '30 s', 30, 'misfire', since"
        " FROM rota.schedule",
    )
    await rota_kit.advance(5)


async def test_a_longer_range_in_the_ledger_extends_one_that_begins_like_it(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("1s"))
    await execute(
        rota_kit,
        "INSERT INTO rota.skipped (shard, job_uid, first_slot, last_slot, slots, reason, recorded_at)"
        " SELECT shard, job_uid, next_slot, next_slot + interval '10 s', 11, 'misfire', next_slot FROM rota.schedule",
    )
    rota_kit.clock.advance(120)
    await rota_kit.tick()
    [(_, first, last, count)] = await ledger(rota_kit)
    assert (last - first, count) == (timedelta(seconds=118), 119)


async def test_two_that_put_the_same_new_job_at_once_both_succeed(rota_kit: RotaKit) -> None:
    async with await Database.connect(rota_kit.dsn) as other:
        second = type(rota_kit.definitions)(other, rota_kit.clock, rota_kit.rota.hints)
        results = await asyncio.gather(*(place.put([every("10s")]) for place in (rota_kit.definitions, second) * 3))
    assert sum(result.created for [result] in results) == 1
    assert (await stored(rota_kit)).version == 1


async def test_a_race_met_on_the_other_unique_key_is_the_same_race(rota_kit: RotaKit) -> None:
    """Two sessions make a job of one name, and give it different numbers: the name is unique as well."""
    uid = job_uid(*every("10s").name)
    await rota_kit.put(Job(job_id="model", handler="h"))
    async with rota_kit.database.transaction() as tx:
        await tx._raw.execute("CREATE TEMP TABLE other ON COMMIT DROP AS SELECT * FROM rota.job")
        await tx._raw.execute("UPDATE other SET job_id = 'tick', shard = $1, job_uid = $2", uid % 64, uid + 64)
        await tx._raw.execute("INSERT INTO rota.job SELECT * FROM other")
        putting = asyncio.ensure_future(rota_kit.put(every("10s")))
        await waits_for_a_lock(rota_kit)
    await putting
    row = await stored(rota_kit)
    assert (row.version, row.job_uid) == (2, uid + 64), "the second put is an edit of what the first one made"


async def test_a_failure_that_crosses_the_jobs_delete_is_cancelled_and_not_queued(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    await rota_kit.on_demand.trigger("tick", tenant_id="default")
    work = await rota_kit.worker("w-1", handlers=["h"]).claim_one()
    told: dict[UUID, tuple[Outcome, str | None, timedelta | None]] = {
        work.claim.key.token: (Outcome.FAILED, "upstream 500", None)
    }
    [ended] = await claims.facts(rota_kit.database, [work.claim.key], told=told)
    await rota_kit.definitions.delete("tick", tenant_id="default")
    verdict = after_attempt(ended, now=rota_kit.clock.now())
    settled = await claims.settle(rota_kit.database, [verdict], now=rota_kit.clock.now())
    assert settled.states == {work.claim.key.token: RunState.CANCELLED}, "the answer says what was written"
    assert await states(rota_kit) == ["cancelled"]


async def test_a_job_that_is_gone_is_neither_triggered_nor_replayed(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h", max_attempts=1))
    run = await rota_kit.on_demand.trigger("tick", tenant_id="default")
    await (await rota_kit.worker("w-1", handlers=["h"]).claim_one()).fail()
    await rota_kit.definitions.delete("tick", tenant_id="default")
    assert await rota_kit.on_demand.replay([run]) == frozenset()
    assert await states(rota_kit) == ["dead"]


async def test_two_runs_wanted_in_one_millisecond_are_two_runs(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    runs = {await rota_kit.on_demand.trigger("tick", tenant_id="default") for _ in range(3)}
    assert len(runs) == 3
    assert len(await rota_kit.worker("w-1", handlers=["h"]).claim(limit=5)) == 3


async def test_an_edit_reroutes_a_run_that_is_on_its_way_back_to_the_queue(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    await rota_kit.on_demand.trigger("tick", tenant_id="default")
    work = await rota_kit.worker("w-1", handlers=["h"]).claim_one()
    async with rota_kit.database.transaction() as tx:
        edited = Job(job_id="tick", handler="h2")
        await rota_kit.definitions._put_batch(tx, [edited], if_version=None, pause_new={})
        report = [Report(key=work.claim.key, outcome=Outcome.RELEASED)]
        with pytest.raises(LeaseLocked):
            await rota_kit.rota.completion.report(report)
    assert await rota_kit.rota.completion.report(report) == {work.claim.key.token: RunState.PENDING}
    again = await rota_kit.worker("w-2", handlers=["h2"]).claim_one()
    assert again.claim.run_id == work.claim.run_id


async def test_more_late_slots_than_one_decision_makes_are_all_made_by_one_settling(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("1s", misfire_grace=timedelta(hours=1)))
    rota_kit.clock.advance(2500)
    await rota_kit.tick()
    found = await fetch(rota_kit, "SELECT count(*) AS n FROM rota.run")
    assert found[0]["n"] == 2500


async def test_a_job_that_comes_paused_is_paused_from_its_first_instant(rota_kit: RotaKit) -> None:
    job = every("1s")
    [result] = await rota_kit.definitions.put([job], pause_new={"tick": "suspended where it was"})
    assert result.created
    row = await stored(rota_kit)
    assert (row.state, row.pause_reason) == ("paused", "suspended where it was")
    await rota_kit.advance(TEN_SECONDS)
    assert await slots(rota_kit) == []
    await rota_kit.definitions.resume("tick", tenant_id="default", missed="drop")
    await rota_kit.definitions.put([job], pause_new={"tick": "only when new"})
    await rota_kit.advance(TEN_SECONDS)
    assert len(await slots(rota_kit)) == 10
