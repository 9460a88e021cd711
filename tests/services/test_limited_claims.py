"""The claim under limits: caps, permits, rates, keys; what does not fit waits aside and comes back in order."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from rota.domain.ids import job_uid
from rota.domain.job import Job
from rota.domain.limit import Limit
from rota.domain.retry import RetryPolicy
from rota.store.audit import SYSTEM
from rota.testing import RotaKit
from rota.testing.kit import KitWork
from tests.services.stories import execute, fetch

OPERATOR = "*"


async def have(
    kit: RotaKit, count: int, *, job_id: str = "job", payload: dict[str, Any] | None = None, **fields: Any
) -> None:
    """Let so many runs of a job wait, each a second older than the next."""
    job = Job(job_id=job_id, handler="h", **fields)
    await kit.put(job)
    start = kit.clock.now()
    for number in range(count):
        await kit.on_demand.trigger(
            job_id, tenant_id=job.tenant_id, scheduled_for=start - timedelta(seconds=count - number), payload=payload
        )


async def gates(kit: RotaKit) -> dict[str, int]:
    rows = await fetch(kit, "SELECT gate, count(*) AS runs FROM rota.pending GROUP BY gate")
    return {row["gate"]: row["runs"] for row in rows}


async def permits(kit: RotaKit) -> int:
    [row] = await fetch(kit, "SELECT count(*) AS held FROM rota.permit WHERE token IS NOT NULL")
    return int(row["held"])


def jobs_of(claimed: Sequence[KitWork]) -> list[str]:
    return [work.claim.job_id for work in claimed]


async def test_no_more_of_a_job_run_than_its_cap_and_the_next_goes_when_one_ends(rota_kit: RotaKit) -> None:
    await have(rota_kit, 5, max_concurrency=2)
    worker = rota_kit.worker("w-1", handlers=["h"])
    first = await worker.claim(limit=10)
    assert len(first) == 2
    assert await gates(rota_kit) == {"limit": 3}
    assert await worker.claim(limit=10) == []
    await first[0].succeed()
    [third] = await worker.claim(limit=10)
    assert third.claim.key.scheduled_for == first[1].claim.key.scheduled_for + timedelta(seconds=1), "in their order"
    await rota_kit.check()


async def test_fifty_claimers_at_once_never_exceed_a_cap(rota_kit: RotaKit) -> None:
    """B64: cap 1, 50 workers claim at once, 200 queued runs of one job."""
    await have(rota_kit, 60, max_concurrency=1)
    workers = [rota_kit.worker(f"w-{number}", handlers=["h"]) for number in range(50)]
    done = 0
    for _ in range(8):
        rounds = await asyncio.gather(*(worker.claim(limit=3) for worker in workers))
        claimed = [work for each in rounds for work in each]
        assert len(claimed) <= 1
        for work in claimed:
            await work.succeed()
            done += 1
    assert done == 8, "and one of them always gets it"


async def test_a_worker_killed_again_and_again_leaks_no_permit(rota_kit: RotaKit) -> None:
    """B62: a permit goes with its lease, whoever ends that."""
    quick = RetryPolicy(initial=timedelta(0), cap=timedelta(0))
    await have(rota_kit, 2, max_concurrency=1, max_losses=1000, retry=quick, lease_duration=timedelta(seconds=1))
    worker = rota_kit.worker("w-1", handlers=["h"])
    for _ in range(20):
        [_] = await worker.claim(limit=5)
        assert await permits(rota_kit) == 1
        await rota_kit.advance(2)
        assert await permits(rota_kit) == 0
    await rota_kit.check()


async def test_what_is_capped_does_not_hide_what_is_not(rota_kit: RotaKit) -> None:
    """B68: many rows of a capped job at the head, one free job behind."""
    await have(rota_kit, 100, job_id="capped", max_concurrency=1)
    await have(rota_kit, 1, job_id="free", priority=0)
    worker = rota_kit.worker("w-1", handlers=["h"])
    assert jobs_of(await worker.claim(limit=2)) == ["capped", "free"]


async def test_a_named_limit_is_shared_by_the_jobs_that_name_it_and_costs_what_they_say(rota_kit: RotaKit) -> None:
    await rota_kit.rota.limits.put(Limit(name="crm", permits=5), actor=SYSTEM)
    await have(rota_kit, 2, job_id="heavy", limits={"crm": 3})
    await have(rota_kit, 4, job_id="light", limits={"crm": 1}, priority=4)
    worker = rota_kit.worker("w-1", handlers=["h"])
    claimed = await worker.claim(limit=10)
    assert jobs_of(claimed) == ["heavy"], "who costs more is not passed by: 2 are left, and the next one needs 3"
    assert await permits(rota_kit) == 3


async def test_a_run_that_costs_more_than_there_is_takes_all_of_it(rota_kit: RotaKit) -> None:
    await rota_kit.rota.limits.put(Limit(name="crm", permits=2), actor=SYSTEM)
    await have(rota_kit, 2, limits={"crm": 100})
    worker = rota_kit.worker("w-1", handlers=["h"])
    [work] = await worker.claim(limit=10)
    await work.succeed()
    [_] = await worker.claim(limit=10)


async def test_each_value_of_a_key_has_a_cap_of_its_own(rota_kit: RotaKit) -> None:
    fields = {"concurrency_key": "payload.customer.id", "key_concurrency": 1}
    for customer in ("ann", "bob"):
        await have(rota_kit, 3, job_id="sync", payload={"customer": {"id": customer}}, **fields)
        rota_kit.clock.advance(10)
    await have(rota_kit, 2, job_id="sync", payload={"nothing": 1}, **fields)
    worker = rota_kit.worker("w-1", handlers=["h"])
    claimed = await worker.claim(limit=20)
    customers = Counter(work.claim.payload.get("customer", {}).get("id") for work in claimed)
    assert customers == {"ann": 1, "bob": 1, None: 2}, "who has no key is under no cap"


async def test_a_rate_lets_so_many_start_and_no_more_than_its_burst_at_once(rota_kit: RotaKit) -> None:
    await rota_kit.rota.limits.put(Limit(name="mail", rate=10, burst=4), actor=SYSTEM)
    await have(rota_kit, 100, limits={"mail": 1})
    worker = rota_kit.worker("w-1", handlers=["h"])
    starts = [len(await worker.claim(limit=50))]
    for _ in range(40):
        rota_kit.clock.advance(0.1)
        starts.append(len(await worker.claim(limit=50)))
    assert starts == [4] + [1] * 40
    rota_kit.clock.advance(60)
    assert len(await worker.claim(limit=50)) == 4, "what nobody used is saved up to the burst"
    assert await fetch(rota_kit, "SELECT FROM rota.permit") == [], "a rate has no permits"


async def test_an_edit_of_a_limit_holds_from_the_next_claim_on(rota_kit: RotaKit) -> None:
    await rota_kit.rota.limits.put(Limit(name="crm", permits=1), actor=SYSTEM)
    await have(rota_kit, 10, limits={"crm": 1})
    worker = rota_kit.worker("w-1", handlers=["h"])
    held = await worker.claim(limit=10)
    assert len(held) == 1
    await rota_kit.rota.limits.put(Limit(name="crm", permits=4), actor=SYSTEM)
    await rota_kit.tick()
    held += await worker.claim(limit=10)
    assert len(held) == 4
    await rota_kit.rota.limits.put(Limit(name="crm", permits=2), actor=SYSTEM)
    for work in held[:2]:
        await work.succeed()
    await rota_kit.tick()
    assert await worker.claim(limit=10) == [], "those above the lowered cap count"
    await held[2].succeed()
    await rota_kit.tick()
    assert len(await worker.claim(limit=10)) == 1
    await rota_kit.rota.limits.delete("crm", tenant_id="default", actor=SYSTEM)
    await rota_kit.tick()
    assert len(await worker.claim(limit=10)) == 5, "without the limit all go"
    await rota_kit.check()


async def test_a_tenant_s_limit_holds_for_all_its_runs_and_the_operator_s_for_each_tenant(rota_kit: RotaKit) -> None:
    for limit in (
        Limit(name="fair", kind="tenant", tenant_id=OPERATOR, permits=2),
        Limit(name="fair", kind="tenant", tenant_id="vip", permits=5),
    ):
        await rota_kit.rota.limits.put(limit, actor=SYSTEM)
    for tenant in ("acme", "globex", "vip"):
        await have(rota_kit, 6, tenant_id=tenant)
    claimed = await rota_kit.worker("w-1", handlers=["h"]).claim(limit=50)
    assert Counter(work.claim.tenant_id for work in claimed) == {"acme": 2, "globex": 2, "vip": 5}


async def test_tenants_take_turns_by_their_weights_and_nobody_idles(rota_kit: RotaKit) -> None:
    for tenant, runs in (("big", 60), ("small", 6), ("heavy", 30)):
        await have(rota_kit, runs, tenant_id=tenant)
    await rota_kit.rota.access.put_tenant(
        "heavy", max_jobs=None, max_payload_bytes=None, calls_per_second=None, weight=3, actor=SYSTEM
    )
    worker = rota_kit.worker("w-1", handlers=["h"])
    one_by_one = [work.claim.tenant_id for _ in range(20) for work in await worker.claim(limit=1)]
    assert Counter(one_by_one) == {"big": 4, "small": 4, "heavy": 12}
    batch = [work.claim.tenant_id for work in await worker.claim(limit=20)]
    assert Counter(batch) == {"big": 5, "small": 2, "heavy": 13} or len(batch) == 20
    rest = [work.claim.tenant_id for _ in range(3) for work in await worker.claim(limit=20)]
    assert len(rest) == 56


async def test_runs_come_back_from_a_shared_limit_tenant_by_tenant(rota_kit: RotaKit) -> None:
    await rota_kit.rota.limits.put(Limit(name="shared", tenant_id=OPERATOR, permits=1), actor=SYSTEM)
    await have(rota_kit, 20, tenant_id="big", limits={"shared": 1})
    worker = rota_kit.worker("w-1", handlers=["h"])
    [work] = await worker.claim(limit=30)
    await have(rota_kit, 2, tenant_id="small", limits={"shared": 1})
    served = []
    for _ in range(6):
        await work.succeed()
        [work] = await worker.claim(limit=30)
        served.append(work.claim.tenant_id)
    assert served.count("small") == 2, "a backlog of twenty is no reason for another tenant to wait behind it"


async def test_a_claim_that_is_killed_leaves_no_permit_behind(rota_kit: RotaKit) -> None:
    await have(rota_kit, 3, max_concurrency=2)
    worker = rota_kit.worker("w-1", handlers=["h"])
    first = await worker.claim(limit=1)
    await execute(
        rota_kit, "DELETE FROM rota.permit WHERE token IS NULL AND limit_key = $1", f"job/{job_uid('default', 'job')}"
    )
    assert len(await worker.claim(limit=5)) == 1, "rows that went missing are made again, and never too many"
    for work in first:
        await work.succeed()


async def test_an_edit_of_a_job_s_limits_holds_for_its_runs_that_wait(rota_kit: RotaKit) -> None:
    await rota_kit.rota.limits.put(Limit(name="closed", permits=0), actor=SYSTEM)
    await have(rota_kit, 3, limits={"closed": 1})
    worker = rota_kit.worker("w-1", handlers=["h"])
    assert await worker.claim(limit=10) == []
    await rota_kit.put(Job(job_id="job", handler="h", max_concurrency=2))
    assert len(await worker.claim(limit=10)) == 2


async def test_a_tenant_s_own_limit_takes_its_waiting_runs_off_the_operator_s(rota_kit: RotaKit) -> None:
    await rota_kit.rota.limits.put(Limit(name="crm", tenant_id=OPERATOR, permits=0), actor=SYSTEM)
    for tenant in ("acme", "globex"):
        await have(rota_kit, 3, tenant_id=tenant, limits={"crm": 1})
    worker = rota_kit.worker("w-1", handlers=["h"])
    assert await worker.claim(limit=10) == []
    await rota_kit.rota.limits.put(Limit(name="crm", tenant_id="acme", permits=2), actor=SYSTEM)
    assert [work.claim.tenant_id for work in await worker.claim(limit=10)] == ["acme", "acme"]


async def test_permits_above_a_lowered_cap_are_forgotten_once_they_are_free(rota_kit: RotaKit) -> None:
    await rota_kit.rota.limits.put(Limit(name="crm", permits=50), actor=SYSTEM)
    await have(rota_kit, 10, limits={"crm": 1})
    held = await rota_kit.worker("w-1", handlers=["h"]).claim(limit=10)
    await rota_kit.rota.limits.put(Limit(name="crm", permits=4), actor=SYSTEM)
    rows = await fetch(rota_kit, "SELECT slot, token IS NOT NULL AS held FROM rota.permit ORDER BY slot")
    assert sum(row["held"] for row in rows) == len(held) == 10
    assert [row["slot"] for row in rows if not row["held"] and row["slot"] > 4] == []
