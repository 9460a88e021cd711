"""Runs that are useless after a while: they end by themselves, unless they have begun."""

from datetime import timedelta
from typing import Any

import pytest

import rota
from rota.testing import RotaKit
from tests.services.stories import HOUR, MINUTE, SECOND, START, TEN_SECONDS, every, execute, ledger, states

MILLISECOND = timedelta(milliseconds=1)
FIRST = START + HOUR


async def first_slot(kit: RotaKit, **changes: Any) -> None:
    """Have the first run of an hourly job that is useless after ten minutes."""
    await kit.put(every("1h", start_deadline=10 * MINUTE, **changes))
    await after(kit, HOUR)


async def after(kit: RotaKit, by: timedelta) -> None:
    kit.clock.advance(by)
    await kit.tick()


async def test_a_run_that_nobody_starts_in_time_is_cancelled_and_in_the_ledger(rota_kit: RotaKit) -> None:
    await first_slot(rota_kit)
    await after(rota_kit, 10 * MINUTE)
    [run] = await rota_kit.runs("tick")
    assert (run.state, run.finished_at) == ("cancelled", FIRST + 10 * MINUTE)
    assert run.reason == "start deadline passed: not started within 600 s"
    assert await ledger(rota_kit) == [("start_deadline", FIRST, FIRST, 1)]
    assert await rota_kit.worker("w", handlers=["h"]).claim() == []


@pytest.mark.parametrize(("off", "state"), [(-MILLISECOND, "pending"), (0 * MILLISECOND, "cancelled")])
async def test_the_deadline_is_the_first_instant_that_is_too_late(
    rota_kit: RotaKit, off: timedelta, state: str
) -> None:
    await first_slot(rota_kit)
    await after(rota_kit, 10 * MINUTE + off)
    assert await states(rota_kit) == [state]


async def test_a_scheduler_sleeps_until_the_deadline_and_no_longer(rota_kit: RotaKit) -> None:
    await first_slot(rota_kit)
    await after(rota_kit, 10 * MINUTE - 200 * MILLISECOND)
    assert await rota_kit.process.scheduler.pause() == pytest.approx(0.201, abs=0.0005)
    assert await states(rota_kit) == ["pending"]


@pytest.mark.parametrize("ending", ["released", "failed", "still running"])
async def test_a_run_that_has_begun_never_expires(rota_kit: RotaKit, ending: str) -> None:
    await first_slot(rota_kit, timeout=HOUR, lease_duration=HOUR, retry=rota.retry(initial=1800, jitter=0))
    work = await rota_kit.worker("w", handlers=["h"]).claim_one()
    if ending == "released":
        await work.release()
    if ending == "failed":
        await work.fail()
    await after(rota_kit, 10 * MINUTE)
    assert await states(rota_kit) == ["running" if ending == "still running" else "pending"]
    assert await ledger(rota_kit) == []


@pytest.mark.parametrize("gate", ["open", "time", "handler", "limit", "upstream"])
async def test_it_expires_whatever_it_waits_for(rota_kit: RotaKit, gate: str) -> None:
    await first_slot(rota_kit)
    await execute(
        rota_kit, "UPDATE rota.pending SET gate = $1, limit_key = 'job/1', available_at = '2027-01-01Z'", gate
    )
    await after(rota_kit, 10 * MINUTE)
    assert await states(rota_kit) == ["cancelled"]


async def test_more_than_one_batch_of_them_expires_in_one_settling(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s", misfire=rota.catch_up(40), start_deadline=10 * MINUTE))
    await after(rota_kit, 400 * SECOND)
    assert await states(rota_kit) == ["pending"] * 40
    await rota_kit.definitions.pause("tick", tenant_id="default", reason="")
    await after(rota_kit, 10 * MINUTE)
    assert await states(rota_kit) == ["cancelled"] * 40
    assert [(reason, count) for reason, *_, count in await ledger(rota_kit)] == [("start_deadline", 1)] * 40


async def test_the_time_of_a_manual_run_begins_when_it_is_asked_for(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("1h", start_deadline=TEN_SECONDS))
    rota_kit.clock.advance(MINUTE)
    await rota_kit.on_demand.trigger("tick", tenant_id="default", scheduled_for=START - HOUR)
    await rota_kit.advance(TEN_SECONDS - SECOND)
    assert await states(rota_kit) == ["pending"]
    await rota_kit.advance(SECOND)
    [run] = await rota_kit.runs("tick")
    assert (run.state, run.reason) == ("cancelled", "start deadline passed: not started within 10 s")
    assert await ledger(rota_kit) == [], "no slot of the schedule is missing"


async def test_a_deadline_of_the_latest_slot_leaves_the_earlier_entries_as_they_are(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s", start_deadline=1500 * MILLISECOND))
    await rota_kit.advance(22)
    assert [run.reason for run in await rota_kit.runs("tick")] == [
        "start deadline passed: not started within 1.5 s",
        "start deadline passed: not started within 1.5 s",
    ]
    assert [first for _, first, *_ in await ledger(rota_kit)] == [START + TEN_SECONDS, START + 2 * TEN_SECONDS]
