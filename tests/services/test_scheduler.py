"""The timer under trouble: long gaps, herds, broken rules, and clocks that are not what they should be."""

from datetime import datetime, timedelta
from typing import Any

import pytest

import rota
from rota.assembly import assemble
from rota.clock import ManualClock
from rota.domain.ids import SHARD_COUNT, job_uid
from rota.domain.jitter import jitter_of
from rota.domain.job import Job
from rota.errors import InvalidInput
from rota.services import scheduler as module
from rota.settings import Settings
from rota.store.runs import RunView
from rota.testing import RotaKit
from tests.services.stories import HOUR, MINUTE, SECOND, START, TEN_SECONDS, every, execute

GRACE = timedelta(seconds=30)
MICROSECOND = timedelta(microseconds=1)


def slots(runs: list[RunView]) -> list[datetime]:
    return [run.scheduled_for for run in runs]


async def skipped(kit: RotaKit, job_id: str = "tick") -> list[tuple[str, datetime, datetime, int | None]]:
    """Return a job's slot ledger, oldest first."""
    found = await kit.history.skipped(job_id, tenant_id="default", limit=1000)
    return [(entry.reason, entry.first_slot, entry.last_slot, entry.slots) for entry in found[::-1]]


# misfire --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("misfire", "made"), [(rota.skip(), 0), (rota.fire_once(), 1), (rota.catch_up(3), 3)])
async def test_a_minutely_job_that_nobody_looked_at_for_seven_days_goes_on(
    rota_kit: RotaKit, misfire: rota.domain.misfire.Misfire, made: int
) -> None:
    """B23: no give-up counter; each policy does what it says, then come the normal slots."""
    await rota_kit.put(every("1m", misfire=misfire))
    week = START + timedelta(days=7)
    rota_kit.clock.set(week + timedelta(seconds=45))
    await rota_kit.tick()
    assert slots(await rota_kit.runs("tick")) == [week - n * MINUTE for n in reversed(range(made))]
    [(reason, first, last, _)] = await skipped(rota_kit)
    assert (reason, first, last) == ("misfire", START + MINUTE, week - made * MINUTE)
    await rota_kit.advance(60)
    assert slots(await rota_kit.runs("tick"))[made:] == [week + MINUTE]


@pytest.mark.parametrize("off", [-MICROSECOND, timedelta(0), MICROSECOND])
@pytest.mark.parametrize("path", ["tick", "resume", "restart"])
async def test_the_grace_ends_at_the_same_instant_by_every_path(rota_kit: RotaKit, path: str, off: timedelta) -> None:
    """B25: exactly as old as the grace is late, a microsecond more is missed, whoever asks.

    The grace is for a scheduler that looks late. A pause that ended before the slot came has no part in it.
    """
    await rota_kit.put(every("1h", misfire=rota.skip(), misfire_grace=GRACE))
    if path == "resume":
        await rota_kit.definitions.pause("tick", tenant_id="default", reason="a look", resume_at=START + HOUR)
    await rota_kit.tick()
    rota_kit.clock.set(START + HOUR + GRACE + off)
    process = rota_kit.process
    if path == "restart":
        process = rota_kit.scheduler("scheduler-2")
    await rota_kit.tick(process)
    assert len(await rota_kit.runs("tick")) == (0 if off > timedelta(0) else 1)
    assert len(await skipped(rota_kit)) == (1 if off > timedelta(0) else 0)


async def test_a_tick_that_comes_two_seconds_late_skips_nothing(rota_kit: RotaKit) -> None:
    """B29: late, not missed, by the default grace."""
    await rota_kit.put(every("10s", misfire=rota.skip()))
    rota_kit.clock.advance(TEN_SECONDS + 2 * SECOND)
    await rota_kit.tick()
    assert slots(await rota_kit.runs("tick")) == [START + TEN_SECONDS]
    assert await skipped(rota_kit) == []


async def test_a_catch_up_greater_than_one_write_is_made_whole(rota_kit: RotaKit) -> None:
    jobs = [every("1s", f"job-{number}", misfire=rota.catch_up(1000)) for number in range(3)]
    await rota_kit.put(*jobs)
    rota_kit.clock.advance(1500)
    assert module.WRITE_BATCH < 3 * 1000
    await rota_kit.tick()
    for job in jobs:
        runs = await rota_kit.runs(job.job_id)
        assert slots(runs) == [START + n * SECOND for n in range(501, 1501)]
        assert await skipped(rota_kit, job.job_id) == [("misfire", START + SECOND, START + 500 * SECOND, 500)]


async def test_a_herd_is_made_over_several_ticks_each_of_bounded_size(rota_kit: RotaKit) -> None:
    herd = 1500
    await rota_kit.put(*(every("1m", f"job-{number:04}") for number in range(herd)))
    rota_kit.clock.advance(60)
    await rota_kit.process.keeper.tick()
    ticks, made = 0, [0]
    more = True
    while more and ticks < 50:
        more = await rota_kit.process.scheduler.tick()
        ticks += 1
        made.append(len(await rota_kit.history.runs(tenant_id="default", limit=1000)))
        assert made[-1] - made[-2] <= module.SCAN_BATCH
    assert 2 <= ticks <= 10
    by_gate = await rota_kit.rota.doctor._waiting()
    assert [row["runs"] for row in by_gate.facts["by_gate"]] == [herd]
    assert await rota_kit.process.scheduler.tick() is False


# jitter, overlap, start deadline --------------------------------------------------------------------------------------


async def test_jobs_of_one_rule_that_differ_elsewhere_keep_what_is_their_own(rota_kit: RotaKit) -> None:
    """A herd's slots are decided once; jitter, deadline and overlap are each job's."""
    jobs: dict[str, dict[str, Any]] = {
        "plain": {}, "plain-too": {}, "spread": {"jitter": 20 * SECOND}, "short": {"start_deadline": 30 * SECOND},
        "skips": {"overlap": "skip"},
    }  # fmt: skip
    await rota_kit.put(*(every("1m", job_id, **changes) for job_id, changes in jobs.items()))
    await rota_kit.advance(60)
    worker = rota_kit.worker("w-1", handlers=["h"])
    assert {work.claim.job_id for work in await worker.claim(limit=10)} == jobs.keys() - {"spread"}
    rota_kit.clock.advance(120)
    await rota_kit.tick()
    slot = START + MINUTE
    spread = {run.scheduled_for: run.available_at for run in await rota_kit.runs("spread")}
    assert spread[slot] == slot + jitter_of(job_uid("default", "spread"), slot, width=20 * SECOND) > slot
    counts = {job_id: len(await rota_kit.runs(job_id)) for job_id in jobs}
    assert counts["plain"] == counts["plain-too"] > counts["skips"] == 1
    assert counts["short"] == 2, "of the slots that came due together the late one is skipped"


async def test_jitter_moves_the_start_and_never_the_slot(rota_kit: RotaKit) -> None:
    job = every("1m", jitter=20 * SECOND)
    await rota_kit.put(job)
    slot = START + MINUTE
    delay = jitter_of(job_uid(*job.name), slot, width=job.jitter)
    assert timedelta(0) < delay <= 20 * SECOND, "a slot that is delayed"
    await rota_kit.advance(60)
    [run] = await rota_kit.runs("tick")
    assert (run.scheduled_for, run.gate, run.available_at) == (slot, "time", slot + delay)
    worker = rota_kit.worker("w-1", handlers=["h"])
    await rota_kit.advance(delay - timedelta(milliseconds=1))
    assert await worker.claim() == []
    assert await rota_kit.process.scheduler.pause() == pytest.approx(0.002)
    await rota_kit.advance(timedelta(milliseconds=1))
    assert (await worker.claim_one()).claim.key.scheduled_for == slot


async def test_a_job_that_must_not_overlap_makes_no_run_while_one_lives(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s", overlap="skip"))
    worker = rota_kit.worker("w-1", handlers=["h"])
    await rota_kit.advance(10)
    work = await worker.claim_one()
    await rota_kit.advance(20)
    await work.succeed()
    await rota_kit.advance(10)
    assert slots(await rota_kit.runs("tick")) == [START + TEN_SECONDS, START + 4 * TEN_SECONDS]
    assert [(reason, first) for reason, first, *_ in await skipped(rota_kit)] == [
        ("overlap", START + 2 * TEN_SECONDS),
        ("overlap", START + 3 * TEN_SECONDS),
    ]


async def test_of_slots_that_came_due_together_only_the_latest_runs_where_runs_must_not_overlap(
    rota_kit: RotaKit,
) -> None:
    await rota_kit.put(every("1m", overlap="skip", misfire=rota.catch_up(5)))
    rota_kit.clock.advance(10 * 60)
    await rota_kit.tick()
    assert slots(await rota_kit.runs("tick")) == [START + 10 * MINUTE]
    ledger = await skipped(rota_kit)
    assert [reason for reason, *_ in ledger] == ["misfire"] + ["overlap"] * 4
    assert sum(count or 0 for *_, count in ledger) == 9


async def test_a_slot_past_its_start_deadline_makes_no_run_and_says_why(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("1m", start_deadline=2 * MINUTE, misfire=rota.catch_up(5)))
    rota_kit.clock.advance(10 * 60 + 1)
    await rota_kit.tick()
    assert slots(await rota_kit.runs("tick")) == [START + 9 * MINUTE, START + 10 * MINUTE]
    ledger = await skipped(rota_kit)
    assert [reason for reason, *_ in ledger] == ["misfire"] + ["start_deadline"] * 3


# broken rules ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "broken"),
    [
        ("schedule", '{"kind": "cron", "expression": "* * * * *", "tz": "America/New_Yrok"}'),
        ("schedule", '{"kind": "cron", "expression": "* * * * *", "tz": ""}'),
        ("schedule", '{"kind": "cron", "expression": "99 * * * *", "tz": "UTC"}'),
        ("schedule", '"every minute"'),
        ("schedule", "null"),
        ("misfire", '{"policy": "never"}'),
        ("misfire", '{"policy": "catch_up", "limit": 3, "max_age": 1e12}'),
    ],
)
async def test_a_rule_broken_by_sql_stops_its_own_job_and_no_other(rota_kit: RotaKit, column: str, broken: str) -> None:
    """B92: quarantined with the reason, until an edit lifts it."""
    await rota_kit.put(every("1m", "broken"), every("1m", "sound"))
    await execute(rota_kit, f"UPDATE rota.job SET {column} = $1::jsonb WHERE job_id = 'broken'", broken)  # noqa: S608 - two words of this test
    await rota_kit.advance(60)
    assert len(await rota_kit.runs("sound")) == 1
    assert await rota_kit.runs("broken") == []
    stored = await rota_kit.definitions.get("broken", tenant_id="default")
    assert stored.state == "quarantined"
    assert stored.quarantined is not None
    [check] = [check for check in await rota_kit.rota.doctor.examine() if check.name == "quarantine"]
    assert "broken" in check.findings[0]
    await rota_kit.advance(60)
    assert len(await rota_kit.runs("sound")) == 2
    [result] = await rota_kit.put(every("1m", "broken"))
    assert result.changed
    await rota_kit.advance(60)
    assert slots(await rota_kit.runs("broken")) == [START + 3 * MINUTE]


# clocks ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("misfire", [rota.skip(), rota.fire_once(), rota.catch_up(3)])
async def test_after_a_clock_that_ran_eight_hours_ahead_is_set_back_runs_continue(
    rota_kit: RotaKit, misfire: rota.domain.misfire.Misfire
) -> None:
    """B80: within one slot of the true time, and no slot that is a run already is made again."""
    await rota_kit.put(
        every("10s", misfire=misfire), Job(job_id="later", handler="h", schedule=rota.once(START + HOUR))
    )
    await rota_kit.advance(30)
    rota_kit.clock.set(START + 8 * HOUR)
    await rota_kit.tick()
    ahead = slots(await rota_kit.runs("tick"))
    assert ahead[-1] == START + 8 * HOUR
    rota_kit.clock.set(START + 40 * SECOND)
    await rota_kit.tick()
    await rota_kit.advance(20)
    # 40 s was the present when the schedules were computed anew, so the next slots are those after it.
    again = slots(await rota_kit.runs("tick"))
    assert set(again) - set(ahead) == {START + 50 * SECOND, START + 60 * SECOND}
    assert len(await rota_kit.runs("later")) <= 1


async def test_a_clock_set_back_by_little_waits_for_time_to_catch_up(rota_kit: RotaKit) -> None:
    """B80: four seconds are no reason to compute anything anew, and no slot is made twice."""
    await rota_kit.put(every("1s"))
    await rota_kit.advance(10)
    rota_kit.clock.set(START + 6 * SECOND)
    await rota_kit.tick()
    await rota_kit.advance(4)
    assert len(await rota_kit.runs("tick")) == 10
    await rota_kit.advance(1)
    assert len(await rota_kit.runs("tick")) == 11


@pytest.mark.parametrize("off", [-5, 5])
async def test_a_scheduler_five_seconds_off_makes_no_slot_twice(rota_kit: RotaKit, off: int) -> None:
    """B78: the slot is the identity, and the next one is computed from the slot that was made."""
    await rota_kit.put(every("10s"))
    strange_clock = ManualClock(START + off * SECOND)
    strange = assemble(Settings(), dsn=rota_kit.dsn, database=rota_kit.database, clock=strange_clock)
    second = strange.scheduler_process("scheduler-2")
    for _ in range(60):
        rota_kit.clock.advance(1)
        strange_clock.advance(1)
        await rota_kit.tick(rota_kit.process)
        await rota_kit.tick(second)
    made = slots(await rota_kit.runs("tick"))
    assert made == sorted(set(made))
    assert set(made) >= {START + n * TEN_SECONDS for n in range(1, 6)}
    assert made[-1] <= START + (60 + max(off, 0)) * SECOND


async def test_a_timer_that_wakes_early_finds_nothing_and_sleeps_on(rota_kit: RotaKit) -> None:
    """B82: no run before its slot by the database's clock, and one when it comes."""
    await rota_kit.put(every("10s"))
    rota_kit.clock.advance(9)
    await rota_kit.process.keeper.tick()
    for early in (1000, 100, 1):
        rota_kit.clock.set(START + TEN_SECONDS - timedelta(milliseconds=early))
        assert await rota_kit.process.scheduler.tick() is False
        assert await rota_kit.runs("tick") == []
        assert await rota_kit.process.scheduler.pause() == pytest.approx(min(1.0, early / 1000 + 0.001))
    rota_kit.clock.set(START + TEN_SECONDS)
    await rota_kit.process.scheduler.tick()
    await rota_kit.process.scheduler.tick()
    assert slots(await rota_kit.runs("tick")) == [START + TEN_SECONDS]


async def test_a_timer_with_nothing_to_do_looks_once_a_second(rota_kit: RotaKit) -> None:
    assert await rota_kit.process.scheduler.pause() == module.IDLE
    assert await rota_kit.process.scheduler.tick() is False
    await rota_kit.process.keeper.tick()
    assert await rota_kit.process.scheduler.pause() == module.IDLE
    await rota_kit.put(every("1h"))
    assert await rota_kit.process.scheduler.pause() == module.IDLE


async def test_a_slot_in_a_month_that_has_no_partition_gets_one(rota_kit: RotaKit) -> None:
    far = datetime(2038, 1, 19, 3, 14, 8, tzinfo=START.tzinfo)
    await rota_kit.put(Job(job_id="late", handler="h", schedule=rota.once(far)))
    rota_kit.clock.set(far)
    await rota_kit.tick()
    assert slots(await rota_kit.runs("late")) == [far]


@pytest.mark.parametrize(
    "instant", ["2006-02-28T23:59:59.999+00:00", "2038-01-19T03:14:08+00:00", "2027-01-01T00:30:00+02:00"]
)
async def test_a_slot_comes_out_of_the_database_as_it_went_in(rota_kit: RotaKit, instant: str) -> None:
    """B84: long ago, past the end of 32 bits, and an instant whose month is another one in UTC."""
    slot = datetime.fromisoformat(instant)
    await rota_kit.put(Job(job_id="odd", handler="h"))
    run_id = await rota_kit.on_demand.trigger("odd", tenant_id="default", scheduled_for=slot)
    [run] = await rota_kit.runs("odd")
    assert (run.run_id, run.scheduled_for) == (run_id, slot)


@pytest.mark.parametrize("instant", ["1970-01-01T00:00:00+00:00", "9999-12-31T23:59:59.999+00:00"])
async def test_the_ends_of_time_are_refused_since_each_month_gets_tables(rota_kit: RotaKit, instant: str) -> None:
    """B84: the same value out as in, or refused."""
    await rota_kit.put(Job(job_id="odd", handler="h"))
    with pytest.raises(InvalidInput, match=r"scheduled_for: .* lies more than twenty years from now"):
        await rota_kit.on_demand.trigger("odd", tenant_id="default", scheduled_for=datetime.fromisoformat(instant))


async def test_every_shard_is_looked_at(rota_kit: RotaKit) -> None:
    jobs = [every("10s", f"job-{number}") for number in range(700)]
    assert len({job_uid(*job.name) % SHARD_COUNT for job in jobs}) == SHARD_COUNT
    await rota_kit.put(*jobs)
    await rota_kit.advance(10)
    assert len(await rota_kit.history.runs(tenant_id="default", limit=1000)) == 700
