"""Who comes back from a limit that several share: whoever fits, wherever he stands, and in time also who takes much."""

from collections import Counter
from datetime import timedelta

import pytest

from rota.domain.attempt import Claim
from rota.domain.ids import job_uid
from rota.domain.job import Job
from rota.domain.limit import Limit
from rota.services.dispatch import Dispatch
from rota.store.audit import SYSTEM
from rota.testing import RotaKit
from tests.services.flow import OPERATOR, H, claim, let_wait, succeed
from tests.services.stories import START, execute, fetch

LONG = timedelta(hours=1)


async def has_workers(kit: RotaKit, *pools: str) -> None:
    """Let a worker live in each of these pools, for as long as the story takes."""
    for pool in pools:
        await kit.worker(f"w-{pool}", handlers=H, pool=pool).announce()
    await execute(kit, "UPDATE rota.worker SET expires_at = 'infinity'")


def job(job_id: str, tenant_id: str, *, cost: int = 1, pool: str = "default", limit: str = "crm") -> Job:
    return Job(
        job_id=job_id, handler="h", tenant_id=tenant_id, limits={limit: cost}, pool=pool, lease_duration=LONG,
        timeout=LONG,
    )  # fmt: skip


async def wait(kit: RotaKit, wanted: Job, runs: int = 1) -> None:
    await let_wait(kit, wanted, [START] * runs)


async def park(kit: RotaKit, wanted: Job, runs: int = 1, *, limit: str = f"downstream/{OPERATOR}/crm") -> None:
    """Let runs wait for a limit, as if a claim had put them aside."""
    await wait(kit, wanted, runs)
    await execute(
        kit,
        "UPDATE rota.pending SET gate = 'limit', limit_key = $2 WHERE job_uid = $1",
        job_uid(*wanted.name), limit,
    )  # fmt: skip


async def park_of_many(kit: RotaKit, wanted: Job, tenants: list[str]) -> None:
    """Let a run of each of these tenants wait for the limit that they share: one job's, told of all of them."""
    await park(kit, wanted, len(tenants))
    await execute(
        kit,
        "UPDATE rota.pending p SET tenant_id = t.tenant_id"
        "  FROM unnest($2::text[], $3::timestamptz[]) t (tenant_id, slot)"
        " WHERE p.job_uid = $1 AND p.scheduled_for = t.slot",
        job_uid(*wanted.name), tenants, [START + timedelta(seconds=n) for n in range(len(tenants))],
    )  # fmt: skip


async def shared(
    kit: RotaKit, *, permits: int | None = None, rate: float | None = None, burst: int | None = None
) -> None:
    limit = Limit(name="crm", tenant_id=OPERATOR, permits=permits, rate=rate, burst=burst)
    await kit.rota.limits.put(limit, actor=SYSTEM)


async def look(kit: RotaKit, seconds: float = 0.5, *, limit: int = 50) -> list[Claim]:
    """Let time pass, the schedulers look once, and a worker claim."""
    kit.clock.advance(seconds)
    for _ in range(20):
        if not await kit.process.limit_keeper.tick():
            break
    return await claim(kit, limit)


@pytest.mark.parametrize("pool", ["default", "gone"])
async def test_a_run_that_does_not_fit_stops_nobody_of_another_tenant(rota_kit: RotaKit, pool: str) -> None:
    """One permit is always in use, so the run that takes all five never fits; whoever takes one goes past it."""
    await has_workers(rota_kit, "default")
    await shared(rota_kit, permits=5)
    await wait(rota_kit, job("long", "z"))
    [_] = await claim(rota_kit, 1)
    await park(rota_kit, job("all", "a", cost=5, pool=pool))
    await wait(rota_kit, job("short", "z"), 10)
    started = held = await claim(rota_kit, 50)
    for _ in range(6):
        await succeed(rota_kit, held)
        held = await look(rota_kit)
        started = started + held
    assert len(started) == 10
    await wait(rota_kit, job("new", "z"), 3)
    assert len(await look(rota_kit)) == 3


async def test_however_many_tenants_wait_in_a_dead_pool_a_living_one_is_found_at_once(rota_kit: RotaKit) -> None:
    await has_workers(rota_kit, "default")
    await shared(rota_kit, permits=71)
    await park_of_many(rota_kit, job("dead", "t", pool="gone"), [f"t-{number:03}" for number in range(150)])
    for number in range(5):
        await park(rota_kit, job(f"dead-{number}", "t", pool=f"an-empty-pool-{number}"))
    await park(rota_kit, job("alive", "zz"), 5)
    assert len(await look(rota_kit)) == 5


async def test_a_tenant_s_own_worker_finds_its_runs_among_any_number_of_others(rota_kit: RotaKit) -> None:
    await rota_kit.worker("own", handlers=H, tenant_id="mm").announce()
    await rota_kit.worker("late", handlers=H, tenant_id="zz").announce()
    await shared(rota_kit, permits=500)
    await park_of_many(rota_kit, job("dead", "t"), [f"{letter}-{n:03}" for letter in "anz" for n in range(110)])
    for tenant in ("mm", "zz"):
        await park(rota_kit, job("alive", tenant), 2)
    await rota_kit.process.limit_keeper.tick()
    rows = await fetch(rota_kit, "SELECT tenant_id FROM rota.pending WHERE gate = 'open'")
    assert Counter(row["tenant_id"] for row in rows) == {"mm": 2, "zz": 2}


async def test_costly_runs_of_more_tenants_than_one_look_meets_hide_nobody_behind_them(rota_kit: RotaKit) -> None:
    await has_workers(rota_kit, "default")
    await shared(rota_kit, permits=3)
    await wait(rota_kit, job("long", "a"))
    [_] = await claim(rota_kit, 1)
    await park_of_many(rota_kit, job("all", "t", cost=3), [f"t-{number:03}" for number in range(250)])
    await park(rota_kit, job("short", "zz"), 2)
    started = [each for _ in range(2) for each in await look(rota_kit)]
    assert [each.tenant_id for each in started] == ["zz", "zz"]


@pytest.mark.parametrize("heavy", ["a", "z"])
@pytest.mark.parametrize("lasts", [1.5, 6.0])
async def test_what_a_costly_run_takes_is_saved_for_it_whatever_its_tenant_is_called(
    rota_kit: RotaKit, heavy: str, lasts: float
) -> None:
    """Others take each permit as it comes free; it waits in proportion to how long their runs last."""
    await has_workers(rota_kit, "default")
    await shared(rota_kit, permits=3)
    await wait(rota_kit, job("light", "m"), 200)
    held = [await claim(rota_kit, 1) for _ in range(3)]
    await wait(rota_kit, job("heavy", heavy, cost=3))
    waited = past = 0.0
    pause = lasts / 3
    while True:
        await succeed(rota_kit, held.pop(0))
        new = await look(rota_kit, pause)
        waited += pause
        if any(each.job_id == "heavy" for each in new):
            break
        past += len(new)
        held += [[each] for each in new] + [[]] * (3 - len(held) - len(new))
        assert waited < 8 * lasts + 4, "it starts at last"
    assert past >= 2, "nobody was stopped before that"
    [heavy_run] = [each for each in new if each.job_id == "heavy"]
    await succeed(rota_kit, [heavy_run])
    after = [each for _ in range(2) for each in await look(rota_kit)]
    assert [each.job_id for each in after] == ["light"] * 3, "and then the others go on"


async def test_tokens_are_saved_for_a_run_that_costs_several(rota_kit: RotaKit) -> None:
    await has_workers(rota_kit, "default")
    await shared(rota_kit, rate=2, burst=3)
    await wait(rota_kit, job("light", "m"), 200)
    await claim(rota_kit, 3)
    await wait(rota_kit, job("heavy", "z", cost=3))
    started = [each.job_id for _ in range(14) for each in await look(rota_kit)]
    assert started.count("heavy") == 1
    assert len(started) >= 10, "nothing is lost to the rate"


async def test_what_was_saved_is_free_again_when_the_run_is_cancelled(rota_kit: RotaKit) -> None:
    await has_workers(rota_kit, "default")
    await shared(rota_kit, permits=2)
    await wait(rota_kit, job("light", "m"), 20)
    held = await claim(rota_kit, 2)
    await wait(rota_kit, job("heavy", "z", cost=2))
    assert await look(rota_kit) == []
    for _ in range(20):
        if await fetch(rota_kit, "SELECT FROM rota.saving WHERE saves"):
            break
        await succeed(rota_kit, [held.pop(0)])
        held += await look(rota_kit)
    await succeed(rota_kit, held[1:])
    assert await look(rota_kit, 0.1) == [], "what is free is kept"
    waits = [run for run in await rota_kit.runs("light", tenant_id="m") if run.gate == "limit"]
    reason = await rota_kit.rota.why.run(waits[0].run_id, tenant_id="m")
    assert "are kept for a run that takes as many" in reason.text
    [run] = await rota_kit.runs("heavy", tenant_id="z")
    await rota_kit.on_demand.cancel(run.run_id, tenant_id="z", actor=SYSTEM)
    assert [each.job_id for each in await look(rota_kit, 0.1)] == ["light"]
    assert await fetch(rota_kit, "SELECT FROM rota.saving") == []


async def test_a_saving_whose_scheduler_died_ends_by_itself(rota_kit: RotaKit) -> None:
    await has_workers(rota_kit, "default")
    await shared(rota_kit, permits=2)
    await park(rota_kit, job("heavy", "z", cost=2))
    [run] = await fetch(rota_kit, "SELECT shard, job_uid, scheduled_for FROM rota.pending")
    await execute(
        rota_kit,
        "INSERT INTO rota.saving VALUES ($1, $2, $3, $4, 'z', 'default', 2, true, $5, $6)",
        f"downstream/{OPERATOR}/crm", *run.values(), START, START + timedelta(seconds=3),
    )  # fmt: skip
    await wait(rota_kit, job("light", "m"), 2)
    assert await claim(rota_kit, 5, by=Dispatch(rota_kit.database, rota_kit.clock)) == []
    rota_kit.clock.advance(3)
    await wait(rota_kit, job("later", "k"), 2)
    assert len(await claim(rota_kit, 5)) == 2


async def test_each_tenant_with_a_limit_of_the_same_name_is_let_in_by_its_own(rota_kit: RotaKit) -> None:
    """Names of tenants may hold slashes, those of limits do not."""
    await has_workers(rota_kit, "default")
    for tenant, permits in (("acme", 1), ("acme/crm", 2), ("a/b/c", 3)):
        await rota_kit.rota.limits.put(Limit(name="crm", tenant_id=tenant, permits=permits), actor=SYSTEM)
        await park(rota_kit, job("job", tenant), 5, limit=f"downstream/{tenant}/crm")
    started = Counter(each.tenant_id for each in await look(rota_kit))
    assert started == {"acme": 1, "acme/crm": 2, "a/b/c": 3}


async def test_what_a_freeze_holds_takes_no_room_from_others(rota_kit: RotaKit) -> None:
    await shared(rota_kit, permits=1)
    await has_workers(rota_kit, "default")
    await park(rota_kit, job("j", "iced"))
    await execute(rota_kit, "UPDATE rota.pending SET gate = 'open'")
    await park(rota_kit, job("j", "live"))
    await rota_kit.rota.freezes.freeze("iced", reason="r")
    [claimed] = await look(rota_kit)
    assert claimed.tenant_id == "live"


async def test_a_limit_saves_for_nobody_who_is_frozen(rota_kit: RotaKit) -> None:
    await shared(rota_kit, permits=2)
    await has_workers(rota_kit, "default")
    await park(rota_kit, job("j", "iced", cost=2))
    await park(rota_kit, job("j", "live"), 3)
    await execute(
        rota_kit,
        "INSERT INTO rota.saving (limit_key, shard, job_uid, scheduled_for, tenant_id, pool, cost, saves, since, until)"
        " SELECT limit_key, shard, job_uid, scheduled_for, tenant_id, pool, 2, true, $1, $1::timestamptz + '1 h'"
        " FROM rota.pending WHERE tenant_id = 'iced'",
        START,
    )
    await rota_kit.rota.freezes.freeze("iced", reason="r")
    assert [claimed.tenant_id for claimed in await look(rota_kit)] == ["live", "live"]
    assert await fetch(rota_kit, "SELECT FROM rota.saving") == []
    assert [row["gate"] for row in await fetch(rota_kit, "SELECT gate FROM rota.pending WHERE tenant_id = 'iced'")] == [
        "limit"
    ]
