"""What is wrong with one job costs the others nothing: open transactions, passing trouble, rows that are refused."""

from datetime import timedelta
from importlib import resources
from typing import Any

import pytest

import rota
from rota.control.principal import operator
from rota.domain import zones
from rota.domain.ids import job_uid
from rota.domain.job import Job
from rota.domain.zones import tzdata_version
from rota.errors import Conflict
from rota.services import next_slots
from rota.services import scheduler as module
from rota.store import due
from rota.testing import RotaKit
from tests.services.stories import (
    HOUR,
    MINUTE,
    SECOND,
    START,
    TEN_SECONDS,
    every,
    execute,
    fetch,
    ledger,
    slots,
    states,
    stored,
)
from tests.store.stage import outsider, uncommitted

BERLIN = rota.cron("* * * * *", tz="Europe/Berlin")


def triggered(job_id: str, slot: Any) -> str:
    return f"SELECT rota.trigger('{job_id}', scheduled_for => '{slot.isoformat()}')"


async def waiting_backends(kit: RotaKit) -> int:
    async with outsider(kit.dsn) as other:
        count: int = await other.fetchval(
            "SELECT count(DISTINCT l.pid) FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
            " WHERE NOT l.granted AND a.datname = current_database()"
        )
    return count


async def refuse(kit: RotaKit, table: str, condition: str) -> None:
    """Let a table refuse what an administrator's own rule forbids."""
    await execute(kit, f"ALTER TABLE rota.{table} ADD CONSTRAINT house_rule CHECK ({condition}) NOT VALID")


# open transactions ----------------------------------------------------------------------------------------------------


async def test_an_open_transaction_that_triggered_a_slot_holds_that_slot_and_nothing_else(rota_kit: RotaKit) -> None:
    jobs = [every("10s", f"job-{number}") for number in range(40)]
    await rota_kit.put(
        every("10s", "held"), *jobs, Job(job_id="late", handler="h", start_deadline=5 * SECOND),
        Job(job_id="soon", handler="h"),
    )  # fmt: skip
    await rota_kit.on_demand.trigger("late", tenant_id="default")
    await rota_kit.on_demand.trigger("soon", tenant_id="default", scheduled_for=START + 9 * SECOND)
    await rota_kit.process.keeper.tick()
    async with uncommitted(rota_kit.dsn, triggered("held", START + TEN_SECONDS)) as caller:
        rota_kit.clock.advance(10)
        await rota_kit.tick()
        assert [await slots(rota_kit, job.job_id) for job in jobs] == [[START + TEN_SECONDS]] * 40
        assert await slots(rota_kit, "held") == []
        assert await states(rota_kit, "late") == ["cancelled"]
        assert [run.gate for run in await rota_kit.runs("soon")] == ["open"]
        assert await waiting_backends(rota_kit) == 0
        await rota_kit.definitions.pause("job-0", tenant_id="default", reason="a look")
        await rota_kit.put(every("20s", "job-1"))
        # It stays so for as long as the caller likes, at the usual pace.
        await rota_kit.advance(20)
        assert [len(await slots(rota_kit, job.job_id)) for job in jobs[2:]] == [3] * 38
        assert (await stored(rota_kit, "held")).next_run_at == START + TEN_SECONDS
        await caller.execute("COMMIT")
    await rota_kit.advance(2)
    assert await slots(rota_kit, "held") == [START + n * TEN_SECONDS for n in (1, 2, 3)]
    assert [run.origin for run in await rota_kit.runs("held")] == ["manual", "schedule", "schedule"]
    await rota_kit.check()


async def test_a_slot_whose_trigger_is_rolled_back_is_the_schedulers_again(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s", "held"))
    async with uncommitted(rota_kit.dsn, triggered("held", START + TEN_SECONDS)):
        await rota_kit.advance(10)
        assert await slots(rota_kit, "held") == []
    await rota_kit.advance(2)
    assert [run.origin for run in await rota_kit.runs("held")] == ["schedule"]
    await rota_kit.check()


async def test_many_slots_that_one_transaction_holds_are_told_apart_at_once(rota_kit: RotaKit) -> None:
    held, free = [f"held-{n}" for n in range(60)], [f"free-{n}" for n in range(60)]
    await rota_kit.put(*(every("10s", name) for name in held + free))
    commands = [triggered(name, START + TEN_SECONDS) for name in held]
    async with uncommitted(rota_kit.dsn, *commands) as caller:
        await rota_kit.advance(10)
        assert [len(await slots(rota_kit, name)) for name in free] == [1] * 60
        assert [len(await slots(rota_kit, name)) for name in held] == [0] * 60
        await caller.execute("COMMIT")
    await rota_kit.advance(2)
    assert [len(await slots(rota_kit, name)) for name in held] == [1] * 60
    await rota_kit.check()


@pytest.mark.parametrize("command", [
    "SELECT FROM rota.schedule WHERE job_uid = {uid} FOR UPDATE",
    "UPDATE rota.schedule SET since = since WHERE job_uid = {uid}",
])  # fmt: skip
async def test_a_schedule_that_somebody_has_locked_waits_alone(rota_kit: RotaKit, command: str) -> None:
    await rota_kit.put(every("10s", "held"), every("10s", "free"))
    async with uncommitted(rota_kit.dsn, command.format(uid=job_uid("default", "held"))):
        await rota_kit.advance(10)
        assert (await slots(rota_kit, "held"), len(await slots(rota_kit, "free"))) == ([], 1)
    await rota_kit.advance(2)
    assert len(await slots(rota_kit, "held")) == 1


async def test_a_job_triggered_now_in_an_open_transaction_has_its_slots_all_the_same(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s", "busy"), every("10s", "held"))
    async with uncommitted(
        rota_kit.dsn, "SELECT rota.trigger('busy')", triggered("held", START + TEN_SECONDS)
    ):  # fmt: skip
        await rota_kit.advance(10)
        assert (await slots(rota_kit, "busy"), await slots(rota_kit, "held")) == ([START + TEN_SECONDS], [])


async def test_a_run_that_somebody_has_locked_keeps_no_other_from_its_end(rota_kit: RotaKit) -> None:
    jobs = [Job(job_id=name, handler="h", start_deadline=5 * SECOND) for name in ("held", "free")]
    queued = every("10s", "queued", overlap="queue_one")
    await rota_kit.put(*jobs, queued)
    for job in jobs:
        await rota_kit.on_demand.trigger(job.job_id, tenant_id="default")
    await rota_kit.advance(TEN_SECONDS - SECOND)
    commands = [
        f"SELECT FROM rota.run WHERE job_uid = {job_uid('default', name)} FOR UPDATE" for name in ("held", "queued")
    ]
    await rota_kit.put(*(Job(job_id=f"late-{name}", handler="h", start_deadline=5 * SECOND) for name in "ab"))
    for name in "ab":
        await rota_kit.on_demand.trigger(f"late-{name}", tenant_id="default")
    await rota_kit.advance(1)
    lock = f"SELECT FROM rota.run WHERE job_uid = {job_uid('default', 'late-a')} FOR UPDATE"
    async with uncommitted(rota_kit.dsn, *commands, lock):
        await rota_kit.advance(TEN_SECONDS)
        assert (await states(rota_kit, "late-a"), await states(rota_kit, "late-b")) == (["pending"], ["cancelled"])
        # What is locked is not superseded now, but by the next slot.
        assert await states(rota_kit, "queued") == ["pending", "pending"]
    await rota_kit.advance(TEN_SECONDS)
    assert await states(rota_kit, "late-a") == ["cancelled"]
    assert await states(rota_kit, "queued") == ["cancelled", "cancelled", "pending"]
    await rota_kit.check()


async def test_a_job_that_a_caller_holds_is_resumed_later_and_the_others_in_time(rota_kit: RotaKit) -> None:
    for name in ("held", "free"):
        await rota_kit.put(every("1m", name))
        await rota_kit.definitions.pause(name, tenant_id="default", reason="", resume_at=START + HOUR)
    rota_kit.clock.advance(HOUR)
    async with uncommitted(rota_kit.dsn, "SELECT rota.trigger('held')"):
        await rota_kit.tick()
        assert ((await stored(rota_kit, "held")).state, (await stored(rota_kit, "free")).state) == ("paused", "active")
    await rota_kit.advance(2)
    assert (await stored(rota_kit, "held")).state == "active"


# trouble that passes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", [OSError(24, "Too many open files"), MemoryError(), ValueError("half a file")])
async def test_a_passing_trouble_of_the_host_costs_a_job_one_turn(
    rota_kit: RotaKit, monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    await rota_kit.put(
        Job(job_id="zoned", handler="h", schedule=BERLIN), every("1m", "sound"),
        Job(job_id="zoned-too", handler="h", schedule=BERLIN),
    )  # fmt: skip
    await rota_kit.advance(59)

    def broken(_: str) -> Any:
        raise trouble

    with monkeypatch.context() as patch:
        patch.setattr(resources, "files", broken)
        for cached in (zones.zone, zones.zone_keys, due.parse_schedule):
            cached.cache_clear()
        await rota_kit.advance(1)
        assert (await slots(rota_kit, "sound"), await slots(rota_kit, "zoned")) == ([START + MINUTE], [])
    # Asked after the patch is gone: the definition itself needs the zone.
    assert (await stored(rota_kit, "zoned")).state == "active"
    await rota_kit.advance(3 * MINUTE)
    for name in ("zoned", "zoned-too", "sound"):
        assert await slots(rota_kit, name) == [START + n * MINUTE for n in range(1, 5)]
        assert await ledger(rota_kit, name) == []
    await rota_kit.check()


async def test_a_zone_that_only_newer_tz_data_names_waits_for_a_host_that_has_it(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("1m", "zoned"), every("1m", "sound"))
    zoned = '{"kind": "cron", "expression": "* * * * *", "tz": "Mars/Olympus_Mons"}'
    await execute(rota_kit, "UPDATE rota.job SET schedule = $1::jsonb WHERE job_id = 'zoned'", zoned)
    await execute(
        rota_kit,
        "INSERT INTO rota.worker (instance, worker_id, pool, handlers, concurrency, started_at, expires_at, version,"
        " tzdata) VALUES (gen_random_uuid(), 'newer', 'default', '{h}', 1, $1, $2, '1', '9999a')",
        START, START + HOUR,
    )  # fmt: skip
    await rota_kit.advance(10 * MINUTE)
    assert (await stored(rota_kit, "zoned")).quarantined is None
    assert len(await slots(rota_kit, "sound")) == 10
    await execute(rota_kit, "UPDATE rota.worker SET tzdata = $1", tzdata_version())
    await rota_kit.advance(2 * MINUTE)
    assert (await stored(rota_kit, "zoned")).state == "quarantined", "nobody knows it"


async def test_a_clock_set_back_while_zones_cannot_be_read_takes_the_others_back(
    rota_kit: RotaKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rota_kit.put(Job(job_id="zoned", handler="h", schedule=BERLIN), every("1m", "sound"))
    await rota_kit.advance(MINUTE)
    rota_kit.clock.set(START + 8 * HOUR)
    await rota_kit.tick()
    rota_kit.clock.set(START + 10 * MINUTE)

    def broken(_: str) -> Any:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(resources, "files", broken)
        for cached in (zones.zone, zones.zone_keys, due.parse_schedule):
            cached.cache_clear()
        await rota_kit.tick()
        [sound] = await fetch(
            rota_kit, "SELECT next_slot FROM rota.schedule WHERE job_uid = $1", job_uid("default", "sound")
        )  # fmt: skip
        assert sound["next_slot"] == START + 11 * MINUTE
    await rota_kit.advance(2)
    assert (await stored(rota_kit, "zoned")).next_slot == START + 11 * MINUTE


async def test_a_large_shard_is_taken_back_page_by_page_after_a_clock_was_set_back(
    rota_kit: RotaKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(next_slots, "PAGE", 2)
    same_shard = [name for n in range(2000) if job_uid("default", name := f"j{n}") % 64 == 5][:5]
    await rota_kit.put(*(every("1m", name) for name in same_shard), every("1m", "sound"))
    await rota_kit.process.keeper.tick()
    rota_kit.clock.set(START + 8 * HOUR)
    await rota_kit.tick()
    rota_kit.clock.set(START + 10 * MINUTE)
    await rota_kit.process.keeper.tick()

    async def taken_back() -> int:
        return [(await stored(rota_kit, name)).next_slot for name in same_shard].count(START + 11 * MINUTE)

    counts = [0]
    while await rota_kit.process.scheduler.tick():
        counts.append(await taken_back())
    assert sorted(set(counts)) in ([0, 2, 4, 5], [0, 2, 4]), "a page at a time"
    assert await taken_back() == 5


async def test_a_schedule_that_is_held_keeps_no_other_from_being_computed_anew(rota_kit: RotaKit) -> None:
    names = [f"job-{number}" for number in range(4)]
    await rota_kit.put(*(every("1m", name) for name in names))
    await execute(rota_kit, "UPDATE rota.schedule SET next_slot = next_slot + interval '30 s'")
    held = f"SELECT FROM rota.schedule WHERE job_uid = {job_uid('default', 'job-1')} FOR UPDATE"
    async with uncommitted(rota_kit.dsn, held):
        with pytest.raises(Conflict, match="1 next slots could not be computed anew; 3 have moved"):
            await rota_kit.definitions.recompute(range(64))
    assert await rota_kit.definitions.recompute(range(64)) == 1


# rows that are refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["run", "pending", "schedule"])
async def test_a_job_whose_row_is_refused_is_quarantined_and_the_others_are_made(rota_kit: RotaKit, table: str) -> None:
    names = [f"job-{number}" for number in range(30)]
    await rota_kit.put(*(every("10s", name) for name in names))
    guilty = ["job-7", "job-8", "job-21"]
    uids = ", ".join(str(job_uid("default", name)) for name in guilty)
    column = "next_slot" if table == "schedule" else "scheduled_for"
    limit = START + (19 if table == "schedule" else 9) * SECOND
    await refuse(rota_kit, table, f"job_uid NOT IN ({uids}) OR {column} < '{limit.isoformat()}'")
    await rota_kit.advance(10)
    made = [name for name in names if await slots(rota_kit, name) == [START + TEN_SECONDS]]
    assert made == [name for name in names if name not in guilty]
    for name in guilty:
        job = await stored(rota_kit, name)
        assert job.state == "quarantined"
        assert job.quarantined is not None
        assert "house_rule" in job.quarantined
        assert "house_rule" in (await rota_kit.rota.why.job(name, tenant_id="default")).text
    [check] = [check for check in await rota_kit.rota.doctor.examine() if check.name == "quarantine"]
    assert len(check.findings) == 3
    await rota_kit.advance(10)
    assert len(await slots(rota_kit, "job-0")) == 2
    await execute(rota_kit, f"ALTER TABLE rota.{table} DROP CONSTRAINT house_rule")
    await rota_kit.put(every("10s", "job-7"))
    await rota_kit.advance(10)
    assert await slots(rota_kit, "job-7") == [START + 3 * TEN_SECONDS]


async def test_a_database_that_refuses_everybody_quarantines_nobody(rota_kit: RotaKit) -> None:
    names = [f"job-{number}" for number in range(module.EACH)]
    await rota_kit.put(*(every("10m", name) for name in names))
    await refuse(rota_kit, "run", "scheduled_for < '2026-01-01T00:09:00Z'")
    await rota_kit.advance(10 * MINUTE - SECOND)
    rota_kit.clock.advance(1)
    await rota_kit.tick()
    assert {(await stored(rota_kit, name)).state for name in names} == {"active"}
    await execute(rota_kit, "ALTER TABLE rota.run DROP CONSTRAINT house_rule")
    await rota_kit.advance(2)
    assert [await slots(rota_kit, name) for name in names] == [[START + 10 * MINUTE]] * module.EACH


async def test_a_run_whose_end_is_refused_keeps_no_other_from_its_end(rota_kit: RotaKit) -> None:
    names = ("bad", "good-1", "good-2")
    await rota_kit.put(*(Job(job_id=name, handler="h", start_deadline=5 * SECOND) for name in names))
    for name in names:
        await rota_kit.on_demand.trigger(name, tenant_id="default")
    await refuse(rota_kit, "run", f"job_uid <> {job_uid('default', 'bad')} OR outcome IS NULL")
    await rota_kit.advance(6)
    assert [await states(rota_kit, name) for name in names] == [["pending"], ["cancelled"], ["cancelled"]]
    await execute(rota_kit, "ALTER TABLE rota.run DROP CONSTRAINT house_rule")
    await rota_kit.advance(MINUTE)
    assert await states(rota_kit, "bad") == ["cancelled"]


async def test_a_gate_that_cannot_be_opened_keeps_no_other_shut(rota_kit: RotaKit) -> None:
    names = ("bad", "good-1", "good-2")
    await rota_kit.put(*(Job(job_id=name, handler="h") for name in names))
    for name in names:
        await rota_kit.on_demand.trigger(name, tenant_id="default", scheduled_for=START + 5 * SECOND)
    await refuse(rota_kit, "pending", f"job_uid <> {job_uid('default', 'bad')} OR gate = 'time'")
    await rota_kit.advance(timedelta(seconds=5))
    assert [[run.gate for run in await rota_kit.runs(name)] for name in names] == [["time"], ["open"], ["open"]]
    await execute(rota_kit, "ALTER TABLE rota.pending DROP CONSTRAINT house_rule")
    await rota_kit.advance(MINUTE)
    assert [run.gate for run in await rota_kit.runs("bad")] == ["open"]


# what people read of it -----------------------------------------------------------------------------------------------

AGAIN = " It is tried again, at least once a minute."


async def told(kit: RotaKit, job_id: str) -> tuple[str | None, str]:
    """Return what `job show` and `job why` say of it, once upkeep has looked."""
    await kit.process.upkeep.tick()
    shown = await kit.rota.control(operator("cli:somebody")).get_job(job_id)
    return shown.set_aside, (await kit.rota.why.job(job_id, tenant_id="default")).text


async def findings(kit: RotaKit) -> list[str]:
    [check] = [check for check in await kit.rota.doctor.examine() if check.name == "quarantine"]
    return list(check.findings)


async def test_people_read_that_an_open_transaction_holds_a_slot_and_for_how_long(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s", "held"), every("10s", "free"))
    held = "an open transaction holds its slot, its schedule or the job itself"
    async with uncommitted(rota_kit.dsn, triggered("held", START + TEN_SECONDS)):
        await rota_kit.advance(12)
        assert await told(rota_kit, "held") == (
            f"slot: {held}", f"Its slot 2026-01-01T00:00:10Z has come, and it is set aside: {held}.{AGAIN}",
        )  # fmt: skip
        assert (await told(rota_kit, "free"))[0] is None
        assert await findings(rota_kit) == [], "it may have ended in a moment"
        await rota_kit.advance(6)
        [finding] = await findings(rota_kit)
        assert finding.startswith("job 'held' of tenant 'default' is set aside since 2026-01-01T00:00:1")
        assert finding.endswith(f": slot: {held}")
    await rota_kit.advance(2)
    assert (await told(rota_kit, "held"))[0] is None
    assert await findings(rota_kit) == []
    assert await fetch(rota_kit, "SELECT FROM rota.set_aside") == []


async def test_people_read_which_trouble_keeps_a_slot_from_being_computed(
    rota_kit: RotaKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rota_kit.put(every("10s", "tick"))
    await rota_kit.advance(9)

    def broken(*_: Any, **__: Any) -> Any:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(module, "_decide_rule", broken)
        await rota_kit.advance(2)
        shown, why = await told(rota_kit, "tick")
        assert shown == "slot: it cannot be computed for now: OSError(24, 'Too many open files')"
        assert "Too many open files" in why
    await rota_kit.advance(MINUTE)
    assert (await told(rota_kit, "tick"))[0] is None


async def test_people_read_why_a_gate_does_not_open_and_a_late_run_does_not_end(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="gate", handler="h"), Job(job_id="late", handler="h", start_deadline=5 * SECOND))
    await rota_kit.on_demand.trigger("gate", tenant_id="default", scheduled_for=START + 5 * SECOND)
    await rota_kit.on_demand.trigger("late", tenant_id="default")
    await refuse(rota_kit, "pending", f"job_uid <> {job_uid('default', 'gate')} OR gate = 'time'")
    await refuse(rota_kit, "run", f"job_uid <> {job_uid('default', 'late')} OR outcome IS NULL")
    await rota_kit.advance(20)
    for name, gate, begins in [
        ("gate", "time", "Its time came at 2026-01-01T00:00:05Z, and it is set aside: "),
        ("late", "deadline", "It was to start before 2026-01-01T00:00:05Z, so it is to be skipped, and it is "),
    ]:
        [run] = await rota_kit.runs(name)
        reason = await rota_kit.rota.why.run(run.run_id, tenant_id="default")
        assert (reason.gate, reason.cause) == (gate, "set_aside")
        assert reason.text.startswith(begins)
        shown, why = await told(rota_kit, name)
        assert why == reason.text
        assert shown is not None
        assert shown.startswith("waiting runs: the database refuses it: ")
    assert len(await findings(rota_kit)) == 2
    await execute(rota_kit, "ALTER TABLE rota.pending DROP CONSTRAINT house_rule")
    await execute(rota_kit, "ALTER TABLE rota.run DROP CONSTRAINT house_rule")
    await rota_kit.advance(2 * MINUTE)
    assert ([run.gate for run in await rota_kit.runs("gate")], await states(rota_kit, "late")) == (
        ["open"],
        ["cancelled"],
    )
    assert await findings(rota_kit) == []


async def test_people_read_why_a_lost_run_does_not_come_back_and_a_pause_does_not_end(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="lost", handler="h", lease_duration=SECOND), every("1m", "paused"))
    await rota_kit.definitions.pause("paused", tenant_id="default", reason="", resume_at=START + 5 * SECOND)
    await rota_kit.on_demand.trigger("lost", tenant_id="default")
    await rota_kit.worker("w-1", handlers=["h"]).claim_one()
    async with uncommitted(rota_kit.dsn, "SELECT FROM rota.job FOR UPDATE"):
        await rota_kit.advance(20)
        [run] = await rota_kit.runs("lost")
        reason = await rota_kit.rota.why.run(run.run_id, tenant_id="default")
        assert (reason.gate, reason.cause) == ("running", "set_aside")
        assert reason.text.startswith(
            "Worker w-1 was lost with it at 2026-01-01T00:00:01Z, and it is set aside: an open"
        )
        shown, why = await told(rota_kit, "paused")
        assert shown == "resume: an open transaction holds the job"
        assert why.endswith(f"It was to be resumed, and it is set aside: an open transaction holds the job.{AGAIN}")
        assert len(await findings(rota_kit)) == 2
    await rota_kit.advance(10)
    assert (await states(rota_kit, "lost"), (await stored(rota_kit, "paused")).state) == (["pending"], "active")
    await rota_kit.advance(2)
    assert await findings(rota_kit) == []


async def test_what_a_scheduler_said_counts_no_more_once_another_has_its_shards(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s", "held"))
    async with uncommitted(rota_kit.dsn, triggered("held", START + TEN_SECONDS)):
        await rota_kit.advance(12)
        assert (await told(rota_kit, "held"))[0] is not None
        await rota_kit.process.keeper.leave()
        assert (await told(rota_kit, "held"))[0] is None
    other = rota_kit.scheduler("other")
    rota_kit.clock.advance(timedelta(hours=2))
    for _ in range(3):
        await rota_kit.tick(other)
    assert await fetch(rota_kit, "SELECT FROM rota.set_aside") == []
