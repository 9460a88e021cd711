"""The fleet as people and probes see it: who lives, who drains, how much there is, and whether it moves."""

from datetime import datetime

import pytest

from rota.domain.job import Job
from rota.errors import Conflict, NotFound
from rota.services.fleet import ANNOUNCED_FOR, Fleet
from rota.services.owned import OwnedShards
from rota.services.shard_keeper import ShardKeeper
from rota.testing import RotaKit
from rota.testing.kit import KitWorker
from tests.services.stories import MINUTE, SECOND, every, fetch


async def says_hello(fleet: Fleet, worker: KitWorker, *, last_claim_at: datetime | None = None) -> bool:
    info = worker.info
    return await fleet.announce(
        instance=info.instance, worker_id=info.worker_id, pool=info.pool, handlers=sorted(info.handlers),
        concurrency=1, tenant_id=info.tenant_id, last_claim_at=last_claim_at,
    )  # fmt: skip


async def names(fleet: Fleet, tenant_id: str | None) -> list[str]:
    return [worker.worker_id for worker in await fleet.workers(tenant_id=tenant_id)]


async def test_a_tenant_sees_the_workers_that_are_its_own_and_the_operator_all(rota_kit: RotaKit) -> None:
    fleet = rota_kit.rota.fleet
    for name, tenant in (("w-all", None), ("w-acme", "acme"), ("w-globex", "globex")):
        await rota_kit.worker(name, handlers=["h"], tenant_id=tenant).announce()
    assert await names(fleet, None) == ["w-acme", "w-all", "w-globex"]
    assert await names(fleet, "acme") == ["w-acme"]
    rota_kit.clock.advance(ANNOUNCED_FOR)
    assert await names(fleet, None) == []


async def test_an_instance_stays_its_worker_s(rota_kit: RotaKit) -> None:
    """A guess at another tenant's instance changes nothing of it, and cannot end it."""
    fleet, owner = rota_kit.rota.fleet, rota_kit.worker("w-1", handlers=["h"], tenant_id="acme")
    await owner.announce()
    for tenant, name in (("globex", "w-1"), (None, "w-1"), ("acme", "w-2")):
        stranger = KitWorker(owner.desk, name, frozenset({"evil"}), "default", tenant, owner.instance)
        with pytest.raises(Conflict, match="another worker's"):
            await says_hello(fleet, stranger)
    assert not await fleet.retire(owner.instance, tenant_id="globex")
    [worker] = await fleet.workers(tenant_id="acme")
    assert (worker.worker_id, worker.handlers) == ("w-1", ("h",))
    assert await fleet.retire(owner.instance, tenant_id="acme")


async def test_a_drained_worker_is_told_and_the_log_says_by_whom(rota_kit: RotaKit) -> None:
    fleet = rota_kit.rota.fleet
    worker = rota_kit.worker("w-1", handlers=["h"], tenant_id="acme")
    twin = rota_kit.worker("w-1", handlers=["h"], tenant_id="acme")
    foreign = rota_kit.worker("w-1", handlers=["h"], tenant_id="globex")
    for each in (worker, twin, foreign):
        assert not await each.announce()
    drained = await fleet.drain("w-1", tenant_id="acme", actor="token:abc")
    assert {each.instance for each in drained} == {worker.instance, twin.instance}
    assert {each.draining_at for each in drained} == {rota_kit.clock.now()}
    assert [await each.announce() for each in (worker, twin, foreign)] == [True, True, False]
    [entry] = await fetch(rota_kit, "SELECT tenant_id, actor, action, subject FROM rota.audit")
    assert tuple(entry) == ("acme", "token:abc", "worker.drained", "w-1")
    assert not await rota_kit.worker("w-1", handlers=["h"], tenant_id="acme").announce(), "a new process starts afresh"


async def test_nobody_drains_a_worker_that_is_not_there_or_not_his(rota_kit: RotaKit) -> None:
    fleet = rota_kit.rota.fleet
    await rota_kit.worker("w-all", handlers=["h"]).announce()
    for name, tenant in (("w-none", None), ("w-all", "acme")):
        with pytest.raises(NotFound):
            await fleet.drain(name, tenant_id=tenant)
    assert not await fetch(rota_kit, "SELECT FROM rota.audit")


async def test_stats_count_a_tenant_s_rows_and_nobody_else_s(rota_kit: RotaKit) -> None:
    for tenant in ("acme", "globex"):
        for job_id, pool in (("waits", "slow"), ("runs", "default"), ("dies", "default")):
            await rota_kit.put(Job(job_id=job_id, tenant_id=tenant, handler="h", pool=pool, max_attempts=1))
    await rota_kit.put(Job(job_id="more", tenant_id="globex", handler="h"))
    await rota_kit.put(Job(job_id="gone", tenant_id="acme", handler="h"))
    await rota_kit.definitions.delete("gone", tenant_id="acme")
    since = rota_kit.clock.now()
    for job_id in ("dies", "runs", "waits"):
        await rota_kit.on_demand.trigger(job_id, tenant_id="acme")
        if job_id == "dies":
            await (await rota_kit.worker("w-0", handlers=["h"]).claim_one()).fail()
    await rota_kit.on_demand.trigger("waits", tenant_id="globex", scheduled_for=since + MINUTE)
    worker = rota_kit.worker("w-1", handlers=["h"], tenant_id="acme")
    await worker.announce()
    await worker.claim_one()
    stats = rota_kit.rota.fleet.stats
    acme, globex, everything = (
        await stats(tenant_id="acme"),
        await stats(tenant_id="globex"),
        await stats(tenant_id=None),
    )
    assert [(each.jobs, each.running, each.dead, each.workers) for each in (acme, globex, everything)] == [
        (3, 1, 1, 1), (4, 0, 0, 0), (7, 1, 1, 1),
    ]  # fmt: skip
    [depth] = acme.waiting
    assert (depth.pool, depth.gate, depth.runs, depth.oldest) == ("slow", "open", 1, since)
    assert [(each.pool, each.gate, each.runs) for each in everything.waiting] == [
        ("slow", "open", 1),
        ("slow", "time", 1),
    ]


async def test_health_is_the_last_success_of_those_that_live(rota_kit: RotaKit) -> None:
    fleet, now = rota_kit.rota.fleet, rota_kit.clock.now()
    health = await fleet.health()
    assert (health.tick_at, health.claim_at, health.workers) == (None, None, 0)
    ticks: list[datetime | None] = [None]
    keeper = ShardKeeper(
        rota_kit.database, rota_kit.clock, OwnedShards(), scheduler_id="s-1", version="1", tzdata="1",
        last_tick=lambda: ticks[0],
    )  # fmt: skip
    busy, leaving = rota_kit.worker("w-1", handlers=["h"]), rota_kit.worker("w-2", handlers=["h"])
    await keeper.tick()
    await says_hello(fleet, busy, last_claim_at=now)
    await says_hello(fleet, busy)
    await says_hello(fleet, leaving, last_claim_at=now + SECOND)
    await fleet.drain("w-2", tenant_id=None)
    health = await fleet.health()
    assert (health.tick_at, health.claim_at, health.workers) == (None, now, 1)
    ticks[0] = now
    await keeper.tick()
    ticks[0] = None
    await keeper.tick()
    assert (await fleet.health()).tick_at == now, "no news takes nothing back"
    rota_kit.clock.advance(MINUTE)
    health = await fleet.health()
    assert (health.tick_at, health.claim_at, health.workers) == (now, None, 0), "so long has nobody ticked"


async def test_the_shards_show_their_owners(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s"))
    await rota_kit.tick()
    shards = await rota_kit.rota.fleet.shards()
    assert {shard.owner for shard in shards} == {"scheduler-1"}
    assert [shard.shard for shard in shards] == list(range(64))
