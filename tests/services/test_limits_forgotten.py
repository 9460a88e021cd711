"""Rows that count permits and tokens go when nobody uses them, and nobody notices."""

import asyncio
from datetime import timedelta

from rota.domain.limit import Limit
from rota.services.dispatch import Dispatch
from rota.services.limit_keeper import KEEP_IDLE
from rota.store.audit import SYSTEM
from rota.testing import RotaKit
from tests.services.flow import claim, succeed
from tests.services.stories import fetch
from tests.services.test_limited_claims import have


async def rows(kit: RotaKit, table: str = "permit") -> int:
    return len(await fetch(kit, f"SELECT FROM rota.{table}"))


async def later(kit: RotaKit, by: timedelta) -> None:
    kit.clock.advance(by)
    await kit.process.limit_keeper.tick()


async def test_a_key_that_had_its_day_leaves_no_permits_behind(rota_kit: RotaKit) -> None:
    for order in range(12):
        await have(
            rota_kit,
            1,
            payload={"order": order},
            concurrency_key="payload.order",
            key_concurrency=3,
            max_concurrency=20,
        )
        rota_kit.clock.advance(5)
    held = await claim(rota_kit, 50)
    assert (len(held), await rows(rota_kit)) == (12, 12 * 3 + 20)
    await succeed(rota_kit, held[1:])
    await later(rota_kit, KEEP_IDLE / 2)
    assert await rows(rota_kit) == 12 * 3 + 20, "they may be wanted again"
    await later(rota_kit, KEEP_IDLE)
    left = await fetch(rota_kit, "SELECT limit_key, token FROM rota.permit")
    assert len(left) == 3 + 20, "those of the key and of the job that still run"
    await succeed(rota_kit, held[:1])
    await later(rota_kit, timedelta(minutes=1))
    assert await rows(rota_kit) == 0


async def test_what_was_forgotten_is_made_again_by_whoever_wants_it(rota_kit: RotaKit) -> None:
    await have(rota_kit, 6, max_concurrency=2)
    await succeed(rota_kit, await claim(rota_kit, 1))
    await have(rota_kit, 1, job_id="other", max_concurrency=1)
    rota_kit.clock.advance(2 * KEEP_IDLE)
    racers = [claim(rota_kit, 2, by=Dispatch(rota_kit.database, rota_kit.clock)) for _ in range(6)]
    claimed, _ = await asyncio.gather(asyncio.gather(*racers), rota_kit.process.limit_keeper.tick())
    started = [each for some in claimed for each in some]
    started += await claim(rota_kit, 9)
    await rota_kit.process.limit_keeper.tick()
    started += await claim(rota_kit, 9)
    assert len([each for each in started if each.job_id == "job"]) == 2, "the cap holds, and what it allows runs"


async def test_permits_above_a_lowered_cap_go_when_their_runs_have_ended(rota_kit: RotaKit) -> None:
    await rota_kit.rota.limits.put(Limit(name="crm", permits=6), actor=SYSTEM)
    await have(rota_kit, 6, limits={"crm": 1})
    held = await claim(rota_kit, 6)
    await rota_kit.rota.limits.put(Limit(name="crm", permits=2), actor=SYSTEM)
    await later(rota_kit, timedelta(seconds=20))
    assert await rows(rota_kit) == 6
    await succeed(rota_kit, held)
    await later(rota_kit, timedelta(seconds=20))
    kept = await fetch(rota_kit, "SELECT slot FROM rota.permit ORDER BY slot")
    assert [row["slot"] for row in kept] == [1, 2]


async def test_a_bucket_goes_when_it_is_full_again_and_idle(rota_kit: RotaKit) -> None:
    for name, rate in (("quick", 10), ("slow", 0.0001)):
        await rota_kit.rota.limits.put(Limit(name=name, rate=rate, burst=2), actor=SYSTEM)
        await have(rota_kit, 1, job_id=name, limits={name: 1})
    await succeed(rota_kit, await claim(rota_kit, 6))
    await later(rota_kit, KEEP_IDLE / 2)
    assert await rows(rota_kit, "bucket") == 2
    await later(rota_kit, KEEP_IDLE)
    left = await fetch(rota_kit, "SELECT limit_key FROM rota.bucket")
    assert [row["limit_key"] for row in left] == ["downstream/default/slow"], "one that is not full counts yet"
