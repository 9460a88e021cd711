"""Slots that made no run, over all jobs: listed, counted, and told by the doctor."""

from datetime import timedelta

import pytest

import rota
from rota.api.metrics import Metrics
from rota.domain.ids import run_id
from rota.errors import InvalidInput
from rota.testing import RotaKit
from tests.services.stories import every


async def an_outage(kit: RotaKit, jobs: int) -> None:
    """Nine slots of each job come due while no scheduler looks."""
    await kit.put(*[every("1m", f"j{number}") for number in range(jobs)], every("1m", "theirs", tenant_id="acme"))
    await kit.tick()
    kit.clock.advance(9 * 60 + 1)
    await kit.advance(2)


async def test_the_doctor_tells_of_slots_that_were_missed_lately(rota_kit: RotaKit) -> None:
    await an_outage(rota_kit, 29)
    [check] = [check for check in await rota_kit.rota.doctor.examine() if check.name == "missed"]
    assert check.findings == ("240 slots of 30 jobs were missed in the last 24 h: `rota slots skipped` lists them",)
    rota_kit.clock.advance(timedelta(days=1, minutes=1))
    [check] = [check for check in await rota_kit.rota.doctor.examine() if check.name == "missed"]
    assert (check.ok, check.facts) == (True, {})


async def test_skipped_slots_of_all_jobs_are_listed_page_by_page(rota_kit: RotaKit) -> None:
    await an_outage(rota_kit, 3)
    history = rota_kit.history
    whole = await history.skipped_of_all(tenant_id="default")
    assert [(part.slots, part.reason) for part in whole] == [(8, "misfire")] * 3
    assert {part.job_id for part in whole} == {"j0", "j1", "j2"}
    place = None
    seen = []
    for _ in range(4):
        page = await history.skipped_of_all(tenant_id="default", before=place, limit=1)
        seen += page
        if page:
            place = page[0].recorded_at, run_id(page[0].job_uid, page[0].first_slot)
    assert seen == whole
    assert await history.skipped_of_all(tenant_id="default", reason="overlap") == []
    with pytest.raises(InvalidInput) as refusal:
        await history.skipped_of_all(tenant_id="default", reason="boredom")
    assert refusal.value.field == "reason"
    now = rota_kit.clock.now()
    counts = await history.skipped_counts(since=now - timedelta(days=1), until=now + timedelta(seconds=1))
    assert [(count.reason, count.slots, count.jobs) for count in counts] == [("misfire", 32, 4)]


def test_durations_are_told_as_people_write_them() -> None:
    with pytest.raises(InvalidInput, match="must be from 1ms to 7d, not 8d"):
        every("1m", timeout=timedelta(days=8))
    with pytest.raises(InvalidInput, match="must be from 0s to 1d, not -90s"):
        every("1m", jitter=timedelta(seconds=-90))
    with pytest.raises(InvalidInput, match=r"at most .*d, not 0s"):
        rota.catch_up(1, max_age=timedelta(0))


async def test_a_counter_grows_by_what_was_skipped_between_two_scrapes(rota_kit: RotaKit) -> None:
    metrics = Metrics(rota_kit.rota)
    await metrics.scrape()
    await an_outage(rota_kit, 1)
    rota_kit.clock.advance(60)
    assert b'rota_slots_skipped_total{reason="misfire"} 16.0' in await metrics.scrape()
    assert b'rota_slots_skipped_total{reason="misfire"} 16.0' in await metrics.scrape(), "nothing is counted twice"
