"""Pools' own settings, tenants' weights, and whose requests a pool refuses when it is too deep."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from rota.domain.admission import rank
from rota.errors import InvalidInput, Shed
from rota.services import pools as service
from rota.services.on_demand import OnDemand
from rota.services.pools import Pools
from rota.services.shedding import REMEMBERED, RETRY_AFTER
from rota.testing import RotaKit
from tests.services.stories import HOUR, MINUTE, Faulty, every, execute, fetch, let_wait


@pytest.fixture
def pools(rota_kit: RotaKit) -> Pools:
    return rota_kit.rota.pools


async def put(pools: Pools, pool: str = "default", **given: Any) -> Any:
    return await pools.put(pool, **{"ageing": None, "shed_above": None, "actor": "cli:ada", **given})


async def test_a_pool_is_put_listed_and_stands_in_the_operators_log(rota_kit: RotaKit, pools: Pools) -> None:
    assert await pools.list() == []
    made = await put(pools, "mail", shed_above=100)
    assert (made.ageing, made.shed_above, made.updated_at) == (MINUTE, 100, rota_kit.clock.now())
    rota_kit.clock.advance(60)
    assert await put(pools, "mail", shed_above=100) == made, "the same again changes nothing"
    edited = await put(pools, "mail", ageing=HOUR)
    assert (edited.ageing, edited.shed_above) == (HOUR, None)
    assert await pools.list() == [edited]
    told = await rota_kit.rota.access.changes("*", subject="mail", before=None, limit=10)
    assert [(entry.action, entry.before, entry.after) for entry in told] == [
        ("pool.put", {"ageing": 60.0, "shed_above": 100}, {"ageing": 3600.0, "shed_above": None}),
        ("pool.put", None, {"ageing": 60.0, "shed_above": 100}),
    ]


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("pool", {"pool": ""}),
        ("ageing", {"ageing": timedelta(seconds=-1)}),
        ("ageing", {"ageing": timedelta(days=2)}),
        ("ageing", {"ageing": timedelta(microseconds=1)}),
        ("ageing", {"ageing": 60}),
        ("shed_above", {"shed_above": -1}),
        ("shed_above", {"shed_above": 1.5}),
    ],
)
async def test_what_no_pool_can_have_is_refused(pools: Pools, field: str, given: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        await put(pools, **given)
    assert caught.value.field == field


async def test_what_waits_is_ranked_anew_by_the_new_ageing(
    rota_kit: RotaKit, pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "RERANK_BATCH", 3)
    await rota_kit.put(*(every("1h", f"job-{n}", priority=n) for n in range(8)), every("1h", "else", pool="mail"))
    for n in range(8):
        await rota_kit.on_demand.trigger(f"job-{n}", tenant_id="default")
    await rota_kit.on_demand.trigger("else", tenant_id="default")

    async def ranks(pool: str) -> dict[int, int]:
        rows = await fetch(rota_kit, "SELECT priority, rank FROM rota.pending WHERE pool = $1", pool)
        return {row["priority"]: row["rank"] for row in rows}

    now = rota_kit.clock.now()
    before = await ranks("mail")
    for ageing in (HOUR, timedelta(0), None):
        await put(pools, ageing=ageing)
        expected = {n: rank(now, priority=n, ageing=MINUTE if ageing is None else ageing) for n in range(8)}
        assert await ranks("default") == expected
    assert await ranks("mail") == before
    await put(pools, ageing=HOUR)
    await rota_kit.put(every("1h", "late", priority=9))
    await rota_kit.on_demand.trigger("late", tenant_id="default")
    assert (await ranks("default"))[9] == rank(now, priority=9, ageing=HOUR)


async def test_a_tenant_has_a_weight(rota_kit: RotaKit) -> None:
    access = rota_kit.rota.access
    asked: Any = {"max_jobs": None, "max_payload_bytes": None, "calls_per_second": None, "actor": "cli:ada"}
    assert (await access.put_tenant("acme", **asked)).weight == 1
    rota_kit.clock.advance(1)
    assert (await access.put_tenant("acme", **asked, weight=7)).weight == 7
    assert [(one.tenant_id, one.weight) for one in await access.tenants()] == [("acme", 7)]
    [entry, _] = await access.changes("acme", subject="acme", before=None, limit=10)
    assert (entry.before["weight"], entry.after["weight"]) == (1, 7)
    for weight in (0, 101, 1.5, True):
        with pytest.raises(InvalidInput, match="weight"):
            await access.put_tenant("acme", **{**asked, "weight": weight})


# shedding -------------------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def watched(rota_kit: RotaKit) -> AsyncIterator[Faulty]:
    """A database of the kit's that counts what it is asked."""
    async with await Faulty.connect(rota_kit.dsn) as database:
        yield database


async def jobs_of(kit: RotaKit, **depth: int) -> None:
    """Give each of these tenants a job, and so many runs that wait: behind every gate but an upstream's in turn."""
    for tenant_id, runs in depth.items():
        gates = ["open", "limit", "handler", "time"]
        await let_wait(kit, runs, tenant_id=tenant_id, gates=gates, limit_key="downstream/*/crm")


async def is_refused(on_demand: OnDemand, tenant_id: str, **given: Any) -> bool:
    try:
        await on_demand.request("job", tenant_id=tenant_id, **given)
    except Shed:
        return True
    return False


async def test_a_pool_that_is_too_deep_refuses_the_noisiest_tenants_requests(rota_kit: RotaKit, pools: Pools) -> None:
    await jobs_of(rota_kit, deep=60, middle=30, small=5, idle=0)
    tenants = ("deep", "middle", "small", "idle")

    async def refused() -> set[str]:
        rota_kit.clock.advance(REMEMBERED)
        return {tenant_id for tenant_id in tenants if await is_refused(rota_kit.on_demand, tenant_id)}

    assert await refused() == set(), "no pool refuses anything unless the operator says so"
    await put(pools, shed_above=200)
    assert await refused() == set()
    await put(pools, shed_above=80)
    assert await refused() == {"deep"}
    await put(pools, shed_above=30)
    assert await refused() == {"deep", "middle"}
    await put(pools, shed_above=0)
    assert await refused() == set(tenants), "by now even the idle one has runs that wait"


async def test_a_weight_is_a_larger_share_of_the_places(rota_kit: RotaKit, pools: Pools) -> None:
    await jobs_of(rota_kit, heavy=60, light=40)
    await rota_kit.rota.access.put_tenant(
        "heavy", max_jobs=None, max_payload_bytes=None, calls_per_second=None, weight=3, actor="cli:ada"
    )
    await put(pools, shed_above=90)
    assert [await is_refused(rota_kit.on_demand, tenant_id) for tenant_id in ("heavy", "light")] == [False, True]


async def test_a_request_that_has_its_run_is_answered_in_a_pool_that_refuses(rota_kit: RotaKit, pools: Pools) -> None:
    await jobs_of(rota_kit, deep=0)
    made = await rota_kit.on_demand.request("job", tenant_id="deep", idempotency_key="k-1")
    await put(pools, shed_above=0)
    rota_kit.clock.advance(REMEMBERED)
    again = await rota_kit.on_demand.request("job", tenant_id="deep", idempotency_key="k-1")
    assert (again.run_id, again.created) == (made.run_id, False)
    with pytest.raises(Shed) as caught:
        await rota_kit.on_demand.request("job", tenant_id="deep", idempotency_key="k-2")
    assert caught.value.retry_after == RETRY_AFTER
    assert await is_refused(rota_kit.on_demand, "deep", scheduled_for=rota_kit.clock.now() + HOUR)
    [row] = await fetch(rota_kit, "SELECT count(*) AS runs FROM rota.run")
    assert row["runs"] == 1


async def test_slots_and_transactional_triggers_are_never_refused(rota_kit: RotaKit, pools: Pools) -> None:
    await jobs_of(rota_kit, deep=50)
    await put(pools, shed_above=10)
    assert await is_refused(rota_kit.on_demand, "deep")
    await execute(rota_kit, "SELECT rota.trigger('job', tenant_id => 'deep')")
    rota_kit.clock.advance(HOUR)
    await rota_kit.tick()
    assert len(await rota_kit.runs("job", tenant_id="deep")) == 52


async def test_a_second_of_requests_costs_one_count(rota_kit: RotaKit, watched: Faulty, pools: Pools) -> None:
    on_demand = OnDemand(watched, rota_kit.clock, rota_kit.rota.hints)
    await jobs_of(rota_kit, deep=50, small=1)
    await asyncio.gather(*(on_demand.trigger("job", tenant_id="small") for _ in range(10)))
    assert (watched.asked["get_pool"], watched.asked["waiting_by_tenant"]) == (1, 0), "nobody set a depth"
    await put(pools, shed_above=10)
    rota_kit.clock.advance(REMEMBERED)
    assert all(await asyncio.gather(*(is_refused(on_demand, "deep") for _ in range(20))))
    assert (watched.asked["get_pool"], watched.asked["waiting_by_tenant"]) == (2, 1)
    await put(pools, shed_above=100)
    assert await is_refused(on_demand, "deep")
    rota_kit.clock.advance(REMEMBERED)
    assert not await is_refused(on_demand, "deep")
