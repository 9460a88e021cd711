"""Corners of the claim: shares and tokens, runs that two limits hold back, looks that fail, and whose turn it is."""

import uuid
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from rota.domain.job import Job
from rota.domain.limit import Limit
from rota.errors import CommitUnknown, DatabaseUnavailable
from rota.services import rounds
from rota.store import claims, parking
from rota.store.audit import SYSTEM
from rota.store.claims import Place, Taken
from rota.testing import RotaKit
from rota.testing.kit import KitWork
from tests.services.stories import execute, fetch
from tests.services.test_limited_claims import OPERATOR, gates, have, jobs_of


async def put(kit: RotaKit, *limits: Limit) -> None:
    for limit in limits:
        await kit.rota.limits.put(limit, actor=SYSTEM)


async def leases(kit: RotaKit) -> int:
    return len(await fetch(kit, "SELECT FROM rota.lease"))


async def test_shares_that_are_rounded_up_never_need_more_tokens_than_there_are(rota_kit: RotaKit) -> None:
    await put(rota_kit, Limit(name="shut", permits=0))
    for tenant in ("default", "other"):
        await have(rota_kit, 20, tenant_id=tenant, job_id="free")
    await have(rota_kit, 1, job_id="held", limits={"shut": 1}, priority=9)
    assert len(await rota_kit.worker("w-1", handlers=["h"]).claim(limit=9)) == 9


async def test_a_heavy_tenant_takes_no_more_rows_than_a_claim_asks_for(rota_kit: RotaKit) -> None:
    await put(rota_kit, Limit(name="shut", permits=0))
    await have(rota_kit, 20, job_id="free")
    await have(rota_kit, 1, job_id="held", limits={"shut": 1}, priority=9)
    await rota_kit.rota.access.put_tenant(
        "default", max_jobs=None, max_payload_bytes=None, calls_per_second=None, weight=100, actor=SYSTEM
    )
    assert jobs_of(await rota_kit.worker("w-1", handlers=["h"]).claim(limit=1)) == ["free"]


async def test_what_was_owed_to_a_tenant_without_runs_is_nobody_else_s(rota_kit: RotaKit) -> None:
    for tenant in ("b", "c"):
        await have(rota_kit, 40, tenant_id=tenant)
    taken = await claims.claim_runs(
        rota_kit.database, pool="default", handlers=["h"], worker_id="w-1", tokens=[uuid.uuid4() for _ in range(20)],
        limit=20, place=Place(after="a", owed=99), turns=3, now=rota_kit.clock.now(),
    )  # fmt: skip
    assert Counter(claim.tenant_id for claim in taken.claims) == {"b": 10, "c": 10}


async def test_a_run_that_one_limit_holds_takes_nothing_of_another(rota_kit: RotaKit) -> None:
    await put(rota_kit, Limit(name="crm", permits=1), Limit(name="shut", permits=0))
    await have(rota_kit, 1, job_id="both", limits={"crm": 1, "shut": 1}, priority=9)
    await have(rota_kit, 1, job_id="one", limits={"crm": 1})
    assert jobs_of(await rota_kit.worker("w-1", handlers=["h"]).claim(limit=5)) == ["one"]


async def test_many_runs_of_one_key_leave_the_room_of_a_shared_limit_to_other_keys(rota_kit: RotaKit) -> None:
    await put(rota_kit, Limit(name="crm", permits=10))
    fields: dict[str, Any] = {"limits": {"crm": 1}, "concurrency_key": "payload.customer"}
    for customer, runs in (("ann", 10), ("bob", 1), ("carl", 1)):
        await have(rota_kit, runs, payload={"customer": customer}, **fields)
        rota_kit.clock.advance(20)
    claimed = await rota_kit.worker("w-1", handlers=["h"]).claim(limit=50)
    assert sorted(work.claim.payload["customer"] for work in claimed) == ["ann", "bob", "carl"]


async def test_what_was_taken_is_given_though_what_follows_fails(
    rota_kit: RotaKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(rota_kit, Limit(name="crm", permits=1))
    await have(rota_kit, 3, job_id="free", priority=9)
    await have(rota_kit, 3, job_id="limited", limits={"crm": 1})

    async def fail(*_: object, **__: object) -> int:
        raise DatabaseUnavailable("deadlock detected")

    monkeypatch.setattr(parking, "open_limits", fail)
    claimed = await rota_kit.worker("w-1", handlers=["h"]).claim(limit=10)
    assert len(claimed) == await leases(rota_kit) == 3


async def test_a_look_that_commits_late_is_found_though_the_one_before_it_was_answered(
    rota_kit: RotaKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(rota_kit, Limit(name="shut", permits=0))
    await have(rota_kit, 2, job_id="first", priority=9)
    await have(rota_kit, 5, job_id="held", limits={"shut": 1}, priority=5)
    await have(rota_kit, 4, job_id="late")
    real, asked = claims.claim_runs, list[dict[str, Any]]()

    async def third_is_late(*arguments: Any, **values: Any) -> Taken:
        asked.append(values)
        if len(asked) == 3:
            raise CommitUnknown("no answer")
        return await real(*arguments, **values)

    monkeypatch.setattr(claims, "claim_runs", third_is_late)
    worker = rota_kit.worker("w-1", handlers=["h"])
    claimed = await worker.claim(limit=5)
    assert jobs_of(claimed) == ["first", "first"]
    await real(rota_kit.database, **asked[2])
    claimed += await worker.claim(limit=5)
    assert len(claimed) == await leases(rota_kit) == 5


async def test_a_worker_finds_its_run_behind_hundreds_of_tenants_with_work_for_others(rota_kit: RotaKit) -> None:
    tenants = [f"t-{number:03}" for number in range(200)]
    await rota_kit.put(*[Job(job_id="job", handler="g", tenant_id=tenant) for tenant in tenants])
    for tenant in tenants:
        await rota_kit.on_demand.trigger("job", tenant_id=tenant)
    await have(rota_kit, 1, tenant_id="z")
    assert len(await rota_kit.worker("w-1", handlers=["h"]).claim(limit=1)) == 1


async def test_a_clock_that_is_set_back_leaves_no_bucket_in_the_future(rota_kit: RotaKit) -> None:
    await put(rota_kit, Limit(name="mail", rate=10, burst=2))
    await have(rota_kit, 20, limits={"mail": 1})
    await execute(
        rota_kit, "INSERT INTO rota.bucket VALUES ('downstream/default/mail', 0.5, $1)",
        rota_kit.clock.now() + timedelta(hours=1),
    )  # fmt: skip
    worker, started = rota_kit.worker("w-1", handlers=["h"]), 0
    for _ in range(11):
        started += len(await worker.claim(limit=5))
        await rota_kit.advance(0.1)
    assert started == 10


async def test_new_runs_of_one_tenant_do_not_take_the_turns_of_those_that_wait_for_a_rate(rota_kit: RotaKit) -> None:
    await put(rota_kit, Limit(name="shared", tenant_id=OPERATOR, rate=1, burst=1))
    for tenant in ("a", "b"):
        await have(rota_kit, 30, tenant_id=tenant, limits={"shared": 1})
    worker, served = rota_kit.worker("w-1", handlers=["h"]), Counter[str]()
    for _ in range(20):
        await rota_kit.on_demand.trigger("job", tenant_id="a")
        served.update(work.claim.tenant_id for work in await worker.claim(limit=5))
        rota_kit.clock.advance(1.01)
    assert served["b"] >= 9


async def test_the_schedulers_let_tenants_in_by_turns(rota_kit: RotaKit) -> None:
    await put(rota_kit, Limit(name="shared", tenant_id=OPERATOR, rate=1, burst=1))
    for tenant in ("a", "b"):
        await have(rota_kit, 30, tenant_id=tenant, limits={"shared": 1})
    served = Counter[str]()
    for number in range(20):
        await rota_kit.tick()
        # A process that remembers nothing.
        claimed = await rota_kit.worker(f"w-{number}", handlers=["h"]).claim(limit=5)
        served.update(work.claim.tenant_id for work in claimed)
        rota_kit.clock.advance(1.01)
    assert served["b"] >= 9


@pytest.mark.parametrize(("pool", "handler"), [("default", "g"), ("later", "h")])
async def test_a_run_for_a_busy_worker_does_not_keep_a_limit_from_those_of_an_idle_one(
    rota_kit: RotaKit, pool: str, handler: str
) -> None:
    await put(rota_kit, Limit(name="crm", permits=1))
    busy, idle = rota_kit.worker("w-1", handlers=["h"]), rota_kit.worker("w-2", handlers=[handler], pool=pool)
    await have(rota_kit, 2, job_id="job", limits={"crm": 1})
    for worker in (busy, idle):
        await worker.announce()
    [first] = await busy.claim(limit=5)
    await rota_kit.put(Job(job_id="other", handler=handler, pool=pool, limits={"crm": 1}))
    for _ in range(3):
        rota_kit.clock.advance(0.1)
        await rota_kit.on_demand.trigger("other", tenant_id="default")
    assert await idle.claim(limit=5) == []
    await first.succeed()  # and from now on its worker has something else to do
    done: list[KitWork] = []
    for _ in range(4):
        await rota_kit.advance(1)
        for worker in (busy, idle):
            await worker.announce()
        for work in await idle.claim(limit=5):
            await work.succeed()
            done.append(work)
    assert len(done) == 3, await gates(rota_kit)


async def test_a_claim_takes_fewer_runs_where_those_before_had_large_payloads(
    rota_kit: RotaKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "CLAIM_CHARACTERS", 10_000)
    await rota_kit.put(Job(job_id="tick", handler="h"))

    async def trigger(times: int, payload: dict[str, Any]) -> None:
        for _ in range(times):
            await rota_kit.on_demand.trigger("tick", tenant_id="default", payload=payload)
            rota_kit.clock.advance(0.001)

    await trigger(30, {"text": "x" * 980})
    await trigger(30, {"n": 1})
    worker = rota_kit.worker("w-1", handlers=["h"])
    assert [len(await worker.claim(limit=limit)) for limit in (5, 100, 100)] == [5, 10, 10]
    assert len(await worker.claim(limit=100)) == 10, "five large ones, and five small ones"
    assert len(await worker.claim(limit=100)) > 10
    rest = await worker.claim(limit=100)
    assert await worker.claim(limit=100) == []
    assert (await leases(rota_kit), len(rest) > 0) == (60, True)


async def test_a_run_that_is_larger_than_a_claim_is_to_be_travels_alone(
    rota_kit: RotaKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "CLAIM_CHARACTERS", 10)
    await rota_kit.put(Job(job_id="tick", handler="h"))
    for _ in range(3):
        await rota_kit.on_demand.trigger("tick", tenant_id="default", payload={"text": "x" * 980})
        rota_kit.clock.advance(0.001)
    worker = rota_kit.worker("w-1", handlers=["h"])
    assert [len(await worker.claim(limit=limit)) for limit in (1, 9, 9, 9)] == [1, 1, 1, 0]
