"""A pause that ends: by hand with a choice for what it held back, or by itself at its time."""

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import rota
from rota.domain.ids import job_uid
from rota.domain.job import Job
from rota.errors import InvalidInput, NotFound
from rota.services.hints import pool_topic
from rota.store.database import Database
from rota.testing import RotaKit
from tests.services.stories import (
    HOUR,
    MINUTE,
    SECOND,
    START,
    every,
    execute,
    fetch,
    ledger,
    slots,
    states,
    stored,
)


async def pause(kit: RotaKit, job_id: str = "tick", **given: Any) -> None:
    await kit.definitions.pause(job_id, tenant_id="default", reason="a look", **given)


async def resume(kit: RotaKit, missed: Any, job_id: str = "tick") -> None:
    await kit.definitions.resume(job_id, tenant_id="default", missed=missed)


async def policies(kit: RotaKit) -> set[str]:
    return {row["policy"] for row in await fetch(kit, "SELECT policy FROM rota.skipped")}


# choices --------------------------------------------------------------------------------------------------------------


async def test_resumed_once_a_job_gets_one_run_at_the_latest_missed_slot(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("1m", misfire=rota.skip()))
    await pause(rota_kit)
    rota_kit.clock.advance(630)
    await resume(rota_kit, "once")
    assert await slots(rota_kit) == [START + 10 * MINUTE], "made by the resume itself, no tick needed"
    assert await ledger(rota_kit) == [("paused", START + MINUTE, START + 9 * MINUTE, 9)]
    assert await policies(rota_kit) == {'{"resume": "once"}'}
    assert (await stored(rota_kit)).next_run_at == START + 11 * MINUTE
    await rota_kit.check()
    await (await rota_kit.worker("w-1", handlers=["h"]).claim_one()).succeed()
    await rota_kit.advance(60)
    assert await states(rota_kit) == ["succeeded", "pending"]
    await rota_kit.check()


async def test_a_catch_up_is_bounded_by_the_jobs_own_policy_if_it_has_a_bound(rota_kit: RotaKit) -> None:
    await rota_kit.put(
        every("1m", "own", misfire=rota.catch_up(3)),
        every("1m", "usual", misfire=rota.fire_once()),
        every("1m", "aged", misfire=rota.catch_up(50, max_age=5 * MINUTE)),
    )
    for job_id in ("own", "usual", "aged"):
        await pause(rota_kit, job_id)
    rota_kit.clock.advance(HOUR * 2)
    for job_id in ("own", "usual", "aged"):
        await resume(rota_kit, "catch_up", job_id)
    end = START + 2 * HOUR
    assert await slots(rota_kit, "own") == [end - 2 * MINUTE, end - MINUTE, end]
    assert await slots(rota_kit, "aged") == [end - minutes * MINUTE for minutes in range(5, -1, -1)]
    usual = await slots(rota_kit, "usual")
    assert (len(usual), usual[0], usual[-1]) == (100, end - 99 * MINUTE, end)
    assert await ledger(rota_kit, "usual") == [("paused", START + MINUTE, START + 20 * MINUTE, 20)]
    await rota_kit.check()


async def test_a_pause_shorter_than_the_grace_leaves_its_slots_to_the_choice_too(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("1s", misfire_grace=HOUR))
    await pause(rota_kit)
    rota_kit.clock.advance(10)
    await resume(rota_kit, "once")
    assert await slots(rota_kit) == [START + 10 * SECOND]
    await rota_kit.check()


@pytest.mark.parametrize("missed", ["policy", "drop", "once", "catch_up"])
async def test_a_pause_that_held_nothing_back_ends_without_a_trace(rota_kit: RotaKit, missed: str) -> None:
    await rota_kit.put(every("1h"), Job(job_id="by-hand", handler="h"))
    for job_id in ("tick", "by-hand"):
        await pause(rota_kit, job_id)
        rota_kit.clock.advance(60)
        await resume(rota_kit, missed, job_id)
        assert (await slots(rota_kit, job_id), await ledger(rota_kit, job_id)) == ([], [])
    assert (await stored(rota_kit)).next_run_at == START + HOUR
    await rota_kit.check()


async def test_made_up_runs_are_queued_as_the_scheduler_queues_them(rota_kit: RotaKit) -> None:
    job = every(
        "1m", handler="https://example.org/hook", pool="p", priority=9, jitter=10 * MINUTE, tenant_id="acme",
        misfire=rota.catch_up(30),
    )  # fmt: skip
    twin = job.edited(job_id="twin")
    await rota_kit.put(job, twin)
    await rota_kit.definitions.pause("tick", tenant_id="acme", reason="")
    rota_kit.clock.advance(15 * MINUTE)
    await rota_kit.definitions.resume("tick", tenant_id="acme", missed="catch_up")
    await rota_kit.tick()
    rows = await fetch(
        rota_kit,
        "SELECT j.job_id, p.scheduled_for, p.attempt, p.pool, p.handler, p.tenant_id, r.origin, r.outcome,"
        " p.rank - (extract(epoch FROM p.available_at) * 1000)::bigint AS head_start,"
        " (p.gate = 'time') = (p.available_at > $1) AS gated, p.available_at >= p.scheduled_for AS later"
        " FROM rota.pending p JOIN rota.run r USING (shard, job_uid, scheduled_for)"
        " JOIN rota.job j USING (shard, job_uid) ORDER BY p.scheduled_for",
        rota_kit.clock.now(),
    )
    mine, others = ([dict(row) for row in rows if row["job_id"] == name] for name in ("tick", "twin"))
    assert len(mine) == 15
    assert [row | {"job_id": "twin"} for row in mine] == others
    assert {(row["handler"], row["pool"], row["tenant_id"]) for row in mine} == {("http", "p", "acme")}
    assert all(row["gated"] and row["later"] for row in mine)
    assert len({row["head_start"] for row in mine}) == 1
    await rota_kit.check()


async def test_a_months_partition_that_is_missing_is_made_by_the_resume(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h", schedule=rota.cron("0 0 1 * *"), misfire=rota.catch_up(9)))
    await rota_kit.tick()
    await pause(rota_kit)
    rota_kit.clock.advance(timedelta(days=400))
    await execute(rota_kit, 'UPDATE rota.job SET misfire = \'{"policy": "catch_up", "limit": 9, "max_age": 40000000}\'')
    await resume(rota_kit, "catch_up")
    assert len(await slots(rota_kit)) == 9
    await rota_kit.check()


async def test_a_slot_that_was_triggered_during_the_pause_keeps_its_run(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("1m"))
    await pause(rota_kit)
    rota_kit.clock.advance(5 * MINUTE)
    await rota_kit.on_demand.trigger("tick", tenant_id="default", scheduled_for=START + 5 * MINUTE)
    await (await rota_kit.worker("w-1", handlers=["h"]).claim_one()).succeed()
    await resume(rota_kit, "once")
    assert await states(rota_kit) == ["succeeded"]
    await rota_kit.check()


async def test_the_jobs_own_overlap_policy_and_start_deadline_hold(rota_kit: RotaKit) -> None:
    await rota_kit.put(
        every("1m", "alone", overlap="skip"),
        every("1m", "busy", overlap="skip"),
        every("1m", "prompt", start_deadline=150 * SECOND),
    )
    for job_id in ("alone", "busy", "prompt"):
        await pause(rota_kit, job_id)
    await rota_kit.on_demand.trigger("busy", tenant_id="default", scheduled_for=START + 30 * SECOND)
    rota_kit.clock.advance(5 * MINUTE)
    for job_id in ("alone", "busy", "prompt"):
        await resume(rota_kit, "catch_up", job_id)
    assert await slots(rota_kit, "alone") == [START + 5 * MINUTE]
    assert await slots(rota_kit, "busy") == [START + 30 * SECOND]
    assert {reason for reason, *_ in await ledger(rota_kit, "busy")} == {"overlap"}
    assert await slots(rota_kit, "prompt") == [START + 3 * MINUTE, START + 4 * MINUTE, START + 5 * MINUTE]
    assert [entry[0] for entry in await ledger(rota_kit, "prompt")] == ["start_deadline", "start_deadline"]
    await rota_kit.check()


async def test_workers_of_the_pool_are_told_of_made_up_runs(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("1m", pool="p"))
    await pause(rota_kit)
    hint = rota_kit.rota.hints.subscribe(pool_topic("p"))
    await resume(rota_kit, "once")
    assert not hint.is_set(), "there was nothing to make up for"
    await pause(rota_kit)
    rota_kit.clock.advance(90)
    await resume(rota_kit, "once")
    assert hint.is_set()


async def test_two_who_resume_at_once_make_up_for_the_pause_once(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("1m"))
    await pause(rota_kit)
    rota_kit.clock.advance(5 * MINUTE)
    await asyncio.gather(*(resume(rota_kit, missed) for missed in ("catch_up", "once", "catch_up", "drop")))
    assert (await stored(rota_kit)).version == 3
    await rota_kit.check()


async def test_a_definition_that_cannot_be_read_leaves_the_range_in_the_ledger(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("1m"))
    await pause(rota_kit)
    await execute(rota_kit, 'UPDATE rota.job SET schedule = \'{"kind": "unheard-of"}\'')
    rota_kit.clock.advance(5 * MINUTE)
    await resume(rota_kit, "catch_up")
    assert (await stored(rota_kit)).next_slot is None
    assert await ledger(rota_kit) == [("misfire", START + MINUTE, START + 5 * MINUTE, None)]


async def test_a_choice_that_there_is_not_is_refused(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("1m"))
    await pause(rota_kit)
    with pytest.raises(InvalidInput) as refusal:
        await resume(rota_kit, "everything")
    assert refusal.value.field == "missed"
    assert (await stored(rota_kit)).state == "paused"


@pytest.mark.parametrize(
    ("misfire", "made"),
    [(rota.skip(), 0), (rota.fire_once(), 1), (rota.catch_up(3), 3)],
    ids=["skip", "once", "catch up"],
)
@pytest.mark.parametrize("ends", ["by hand", "by itself"])
async def test_what_a_short_pause_held_back_was_missed_and_is_the_policys(
    rota_kit: RotaKit, misfire: Any, made: int, ends: str
) -> None:
    """A pause within the grace makes no run up that a long one would not."""
    await rota_kit.put(every("2s", misfire=misfire))
    await pause(rota_kit, resume_at=START + 29 * SECOND if ends == "by itself" else None)
    rota_kit.clock.advance(28 if ends == "by hand" else 29)
    if ends == "by hand":
        await resume(rota_kit, "policy")
    await rota_kit.tick()
    assert await slots(rota_kit) == [START + n * 2 * SECOND for n in range(15 - made, 15)]
    assert sum(count or 0 for *_, count in await ledger(rota_kit)) == 14 - made
    assert {reason for reason, *_ in await ledger(rota_kit)} == {"paused"}
    await rota_kit.advance(2)
    assert (await slots(rota_kit))[-1] == START + 30 * SECOND
    await rota_kit.check()


# resume_at ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("missed", "made"), [("policy", 1), ("drop", 0), ("once", 1), ("catch_up", 4)])
async def test_a_pause_with_an_end_takes_the_choice_of_a_resume_by_hand(
    rota_kit: RotaKit, missed: str, made: int
) -> None:
    await rota_kit.put(every("1m"))
    end = START + 4 * MINUTE + SECOND
    await pause(rota_kit, resume_at=end, missed=missed)
    assert (await stored(rota_kit)).resume_missed == (None if missed == "policy" else missed)
    rota_kit.clock.set(end)
    await rota_kit.tick()
    assert await slots(rota_kit) == [START + n * MINUTE for n in range(5 - made, 5)]
    assert await policies(rota_kit) <= {f'{{"resume": "{missed}"}}'}
    assert (await stored(rota_kit)).resume_missed is None
    await rota_kit.check()


async def test_a_choice_is_for_a_pause_that_has_an_end_and_goes_with_it(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("1m"))
    with pytest.raises(InvalidInput, match="missed: is for a pause that ends by itself"):
        await pause(rota_kit, missed="drop")
    with pytest.raises(InvalidInput, match="missed: 'all' is no choice"):
        await pause(rota_kit, resume_at=START + HOUR, missed="all")
    await pause(rota_kit, resume_at=START + HOUR, missed="drop")
    await pause(rota_kit, resume_at=START + HOUR, missed="once")
    assert (await stored(rota_kit)).resume_missed == "once"
    await pause(rota_kit)
    assert (await stored(rota_kit)).resume_missed is None


async def test_a_slot_at_the_end_of_a_pause_is_not_held_back_by_it(rota_kit: RotaKit) -> None:
    """Paused until nine o'clock, a job runs at nine o'clock, though the look comes a moment later."""
    await rota_kit.put(every("1h", misfire=rota.skip()))
    await pause(rota_kit, resume_at=START + 9 * HOUR)
    rota_kit.clock.set(START + 9 * HOUR + SECOND)
    await rota_kit.tick()
    assert await slots(rota_kit) == [START + 9 * HOUR]
    assert await ledger(rota_kit) == [("paused", START + HOUR, START + 8 * HOUR, 8)]
    await rota_kit.check()


async def test_a_pause_with_an_end_ends_by_itself(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("1m", misfire=rota.fire_once()))
    end = START + 5 * MINUTE + 30 * SECOND
    await pause(rota_kit, resume_at=end)
    assert (await stored(rota_kit)).resume_at == end
    rota_kit.clock.advance(end - START - SECOND)
    assert await rota_kit.definitions.resume_due() == 0
    rota_kit.clock.advance(1)
    assert await rota_kit.definitions.resume_due() == 1
    row = await stored(rota_kit)
    assert (row.state, row.resume_at, row.pause_reason) == ("active", None, None)
    await rota_kit.tick()
    assert await slots(rota_kit) == [START + 5 * MINUTE], "what was missed is the job's own policy's"
    assert await rota_kit.definitions.resume_due() == 0
    await rota_kit.check()


async def test_pausing_again_changes_the_reason_and_the_end(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("1m"))
    await pause(rota_kit, resume_at=START + MINUTE)
    again = await rota_kit.definitions.pause("tick", tenant_id="default", reason="for longer", resume_at=START + HOUR)
    assert (again.pause_reason, again.resume_at, again.paused_at) == ("for longer", START + HOUR, START)
    rota_kit.clock.advance(2 * MINUTE)
    assert await rota_kit.definitions.resume_due() == 0
    for_good = await rota_kit.definitions.pause("tick", tenant_id="default", reason="for good")
    assert for_good.resume_at is None
    rota_kit.clock.advance(HOUR)
    assert await rota_kit.definitions.resume_due() == 0
    assert (await stored(rota_kit)).state == "paused"


async def test_a_resume_or_a_delete_takes_the_end_away(rota_kit: RotaKit) -> None:
    for job_id in ("resumed", "deleted"):
        await rota_kit.put(every("1m", job_id))
        await pause(rota_kit, job_id, resume_at=START + HOUR)
    await resume(rota_kit, "drop", "resumed")
    await rota_kit.definitions.delete("deleted", tenant_id="default")
    assert await fetch(rota_kit, "SELECT FROM rota.job WHERE resume_at IS NOT NULL") == []


async def test_schedulers_that_look_at_once_resume_a_job_once(rota_kit: RotaKit) -> None:
    for number in range(5):
        await rota_kit.put(every("1m", f"job-{number}"))
        await pause(rota_kit, f"job-{number}", resume_at=START + MINUTE)
    rota_kit.clock.advance(HOUR)
    async with await Database.connect(rota_kit.dsn) as other:
        second = type(rota_kit.definitions)(other, rota_kit.clock, rota_kit.rota.hints)
        resumed = await asyncio.gather(*(service.resume_due() for service in (rota_kit.definitions, second) * 2))
    assert sum(resumed) == 5
    assert {(await stored(rota_kit, f"job-{number}")).version for number in range(5)} == {3}


async def test_a_pause_that_was_prolonged_or_a_job_that_was_deleted_meanwhile_is_left_alone(rota_kit: RotaKit) -> None:
    """What a scheduler saw as due is looked at again under the lock."""
    for job_id in ("prolonged", "deleted", "due"):
        await rota_kit.put(every("1m", job_id))
        await pause(rota_kit, job_id, resume_at=START + MINUTE)
    rota_kit.clock.advance(2 * MINUTE)
    async with rota_kit.database.transaction() as tx:
        await tx._raw.execute("UPDATE rota.job SET resume_at = $1 WHERE job_id = 'prolonged'", START + HOUR)
        await tx._raw.execute("UPDATE rota.job SET deleted_at = now() WHERE job_id = 'deleted'")
        assert await rota_kit.definitions.resume_due() == 1, "nobody is waited for"
    due: Any = {"tenant_id": "default", "missed": "policy", "actor": "system", "now": rota_kit.clock.now()}
    assert not await rota_kit.definitions._resume("prolonged", **due, due_uid=job_uid("default", "prolonged"))
    with pytest.raises(NotFound):
        await rota_kit.definitions._resume("deleted", **due, due_uid=job_uid("default", "deleted"))
    assert (await stored(rota_kit, "prolonged")).state == "paused"
    assert (await stored(rota_kit, "due")).state == "active"


async def test_no_more_jobs_than_asked_for_are_resumed_in_one_go(rota_kit: RotaKit) -> None:
    for number in range(5):
        await rota_kit.put(every("1m", f"job-{number}"))
        await pause(rota_kit, f"job-{number}", resume_at=START + MINUTE)
    rota_kit.clock.advance(HOUR)
    assert [await rota_kit.definitions.resume_due(limit=2) for _ in range(4)] == [2, 2, 1, 0]


@pytest.mark.parametrize(
    "end",
    [
        START, START - SECOND, datetime(2027, 1, 1), "2027-01-01T00:00:00Z",
        datetime(9999, 12, 31, 23, tzinfo=timezone(-timedelta(hours=12))),
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=12))),
    ],
)  # fmt: skip
async def test_an_end_that_does_not_lie_in_the_future_is_refused(rota_kit: RotaKit, end: Any) -> None:
    await rota_kit.put(every("1m"))
    with pytest.raises(InvalidInput) as refusal:
        await pause(rota_kit, resume_at=end)
    assert refusal.value.field == "resume_at"
    assert (await stored(rota_kit)).state == "active"
    with pytest.raises(NotFound):
        await pause(rota_kit, "unknown", resume_at=datetime(2027, 1, 1, tzinfo=UTC))
