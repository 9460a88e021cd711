"""Many runs asked for in one call: what each came to, and what ends the whole call before anything is made."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from rota.domain.ids import job_uid, run_id
from rota.domain.job import Job
from rota.errors import CommitUnknown, InvalidInput, KeyReused, Locked, NotFound, RotaError, Shed, TooLarge
from rota.services.hints import SCHEDULES, pool_topic
from rota.services.many_runs import AskedRun, ManyMade
from rota.services.on_demand import OnDemand
from rota.services.patience import PATIENCE
from rota.testing import RotaKit, TestCluster
from tests.services.stories import HOUR, MINUTE, START, Faulty, every, fetch, let_wait
from tests.store.stage import outsider, uncommitted

SLOT = START + HOUR


async def ask(kit: RotaKit, *items: dict[str, Any], tenant_id: str = "default") -> list[ManyMade]:
    asked = [AskedRun(**{"job_id": "tick", **item}) for item in items]
    return await kit.on_demand.request_many(asked, tenant_id=tenant_id)


def outcomes(made: list[ManyMade]) -> list[str]:
    return [one.outcome for one in made]


async def test_many_runs_of_several_jobs_are_made_in_order_with_one_entry_for_each_job(rota_kit: RotaKit) -> None:
    await rota_kit.put(
        Job(job_id="tick", handler="h", payload={"own": 1}),
        Job(job_id="tock", handler="h", pool="p"),
        every("1s", "sec"),
    )
    made = await ask(
        rota_kit, {"payload": {"n": 0}}, {"job_id": "tock", "payload": {"n": 1}}, {}, {"job_id": "sec"},
        {"scheduled_for": SLOT, "payload": {"n": 4}},
    )  # fmt: skip
    assert outcomes(made) == ["created"] * 5
    assert [one.job_id for one in made] == ["tick", "tock", "tick", "sec", "tick"]
    assert made[4].scheduled_for == SLOT
    for one in made:
        run, _ = await rota_kit.history.run(one.run_id)
        assert (run.job_id, run.scheduled_for, run.origin) == (one.job_id, one.scheduled_for, "manual")
    claimed = await rota_kit.worker("w", handlers=["h"]).claim(limit=10)
    assert {work.claim.run_id: work.claim.payload for work in claimed} == {
        made[0].run_id: {"n": 0}, made[2].run_id: {"own": 1}, made[3].run_id: {},
    }  # fmt: skip
    entries = await fetch(rota_kit, "SELECT subject FROM rota.audit WHERE action = 'runs.triggered' ORDER BY subject")
    assert [entry["subject"] for entry in entries] == ["sec", "tick", "tock"]
    [late] = await fetch(rota_kit, "SELECT scheduled_for, available_at FROM rota.pending WHERE gate = 'time'")
    assert (late["scheduled_for"], late["available_at"]) == (SLOT, SLOT)
    await rota_kit.check()


async def test_each_item_is_told_what_it_came_to(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"), Job(job_id="tock", handler="h"))
    alone = await rota_kit.on_demand.request("tick", tenant_id="default", payload={"a": 1}, idempotency_key="alone")
    slot = await rota_kit.on_demand.trigger("tick", tenant_id="default", scheduled_for=SLOT)
    items: list[dict[str, Any]] = [
        {"idempotency_key": "alone", "payload": {"a": 1}},
        {"idempotency_key": "alone", "payload": {"a": 2}},
        {"idempotency_key": "new"},
        {"idempotency_key": "new"},
        {"idempotency_key": "new", "payload": {}},
        {"scheduled_for": SLOT},
        {"scheduled_for": SLOT, "idempotency_key": "in vain"},
        {"scheduled_for": SLOT + HOUR},
        {"scheduled_for": SLOT + HOUR, "idempotency_key": "too late"},
        {"job_id": "tock", "scheduled_for": SLOT},
    ]
    made = await ask(rota_kit, *items)
    assert outcomes(made) == [
        "repeated", "reused", "created", "repeated", "reused", "taken", "taken", "created", "taken", "created",
    ]  # fmt: skip
    assert [made[0].run_id, made[1].run_id, made[0].scheduled_for] == [alone.run_id, alone.run_id, alone.scheduled_for]
    assert made[2].run_id == made[3].run_id == made[4].run_id
    assert made[5].run_id == made[6].run_id == slot
    assert made[7].run_id == made[8].run_id == run_id(job_uid("default", "tick"), SLOT + HOUR)
    # A key whose run could not be made stands for nothing, and is free.
    again = await ask(rota_kit, {"idempotency_key": "in vain"}, {"idempotency_key": "too late"}, items[2])
    assert outcomes(again) == ["created", "created", "repeated"]
    assert again[2].run_id == made[2].run_id
    with pytest.raises(KeyReused):
        await rota_kit.on_demand.request("tick", tenant_id="default", payload={"b": 1}, idempotency_key="new")
    assert len(await rota_kit.runs("tick")) == 6
    await rota_kit.check()


async def test_a_run_that_may_start_at_any_instant_never_meets_one_beside_it(rota_kit: RotaKit) -> None:
    """A sibling names the very instants that would be taken first."""
    await rota_kit.put(Job(job_id="tick", handler="h"))
    first = (await ask(rota_kit, {}))[0].scheduled_for
    beside = [{"scheduled_for": first + timedelta(milliseconds=n)} for n in range(1, 5)]
    made = await ask(rota_kit, *[{}] * 4, *beside)
    assert outcomes(made) == ["created"] * 8
    assert len({one.run_id for one in made}) == 8


@pytest.mark.parametrize(
    ("item", "field"),
    [
        ({"payload": [1]}, "items[1].payload"),
        ({"payload": {"k": "x" * 300_000}}, "items[1].payload"),
        ({"scheduled_for": START.replace(year=2060)}, "items[1].scheduled_for"),
        ({"scheduled_for": START.replace(microsecond=1)}, "items[1].scheduled_for"),
        ({"scheduled_for": START.replace(tzinfo=None)}, "items[1].scheduled_for"),
        ({"idempotency_key": ""}, "items[1].idempotency_key"),
        ({"idempotency_key": "a\nb"}, "items[1].idempotency_key"),
        ({"job_id": "x" * 2000}, "items[1].job_id"),
    ],
)
async def test_what_could_not_be_kept_is_refused_by_its_place(
    rota_kit: RotaKit, item: dict[str, Any], field: str
) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    with pytest.raises(InvalidInput) as refused:
        await ask(rota_kit, {}, item)
    assert refused.value.field == field
    assert await rota_kit.runs("tick") == []


async def test_none_and_too_many_are_refused(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    for count in (0, 1001):
        with pytest.raises(InvalidInput, match="from 1 to 1000"):
            await ask(rota_kit, *[{}] * count)
    assert outcomes(await ask(rota_kit, *[{}] * 1000)) == ["created"] * 1000


async def test_a_tenants_quota_counts_for_each_payload(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    await rota_kit.rota.access.put_tenant(
        "default", max_jobs=None, max_payload_bytes=20, calls_per_second=None, actor="test"
    )  # fmt: skip
    assert outcomes(await ask(rota_kit, *[{"payload": {"k": "x" * 10}}] * 3)) == ["created"] * 3
    with pytest.raises(TooLarge) as refused:
        await ask(rota_kit, {}, {}, {"payload": {"k": "x" * 15}})
    assert refused.value.field == "items[2].payload"


async def refused_and_told_again(kit: RotaKit, kind: type[RotaError], match: str) -> None:
    """What is refused makes nothing; but a call of which everything was made before is answered."""
    before = (await fetch(kit, "SELECT count(*) AS n FROM rota.run"))[0]["n"]
    with pytest.raises(kind, match=match):
        await ask(kit, {"idempotency_key": "a"}, {"idempotency_key": "b"}, {"idempotency_key": "c"})
    with pytest.raises(kind, match=match):
        await ask(kit, {"idempotency_key": "a"}, {})
    again = await ask(kit, {"idempotency_key": "b", "payload": {}}, {"idempotency_key": "a"})
    assert outcomes(again) == ["reused", "repeated"]
    assert (await fetch(kit, "SELECT count(*) AS n FROM rota.run"))[0]["n"] == before


async def test_a_job_that_is_not_there_is_named_and_nothing_is_made(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"), Job(job_id="theirs", handler="h", tenant_id="acme"))
    with pytest.raises(NotFound, match=r"items\[1\]: there is no job 'theirs'"):
        await ask(rota_kit, {}, {"job_id": "theirs"})
    assert await rota_kit.runs("tick") == []
    await ask(rota_kit, {"idempotency_key": "a"}, {"idempotency_key": "b"})
    await rota_kit.definitions.delete("tick", tenant_id="default")
    await refused_and_told_again(rota_kit, NotFound, "there is no job 'tick'")


async def test_a_pool_that_is_too_deep_refuses_the_call(rota_kit: RotaKit) -> None:
    await let_wait(rota_kit, 20, tenant_id="default")
    await rota_kit.put(Job(job_id="tick", handler="h"))
    await ask(rota_kit, {"idempotency_key": "a"}, {"idempotency_key": "b"})
    await rota_kit.rota.pools.put("default", shed_above=10, ageing=None, actor="test")
    rota_kit.clock.advance(2)
    await refused_and_told_again(rota_kit, Shed, "too deep")


async def test_a_job_that_is_deleted_between_two_looks_makes_no_run_of_the_others(
    rota_kit: RotaKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"), Job(job_id="tock", handler="h"))
    service = rota_kit.on_demand._many
    refusal = service._refusal

    async def delete_then_look(*arguments: Any, **options: Any) -> Any:
        await rota_kit.definitions.delete("tock", tenant_id="default")
        return await refusal(*arguments, **options)

    monkeypatch.setattr(service, "_refusal", delete_then_look)
    with pytest.raises(NotFound, match="nothing was made"):
        await ask(rota_kit, {}, {"job_id": "tock"})
    assert await rota_kit.runs("tick") == []


async def test_two_that_ask_for_the_same_at_once_get_the_same_runs(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"), Job(job_id="tock", handler="h"))
    items = [{"idempotency_key": f"key {n}", "job_id": ("tick", "tock")[n % 2]} for n in range(60)]
    answers = await asyncio.gather(*(ask(rota_kit, *items) for _ in range(4)))
    assert len({tuple(one.run_id for one in made) for made in answers}) == 1
    assert sorted({outcome for made in answers for outcome in outcomes(made)}) == ["created", "repeated"]
    assert len(await rota_kit.runs("tick")) == len(await rota_kit.runs("tock")) == 30


async def test_a_strangers_open_transaction_delays_no_other_many_runs(rota_kit: RotaKit) -> None:
    """It has made many of this job, and others of them with keys: only who asks for these keys is told to wait."""
    await rota_kit.put(Job(job_id="tick", handler="h"))
    # Rota's clock and the server's say the same, so that both want instants from the same minute on.
    async with outsider(rota_kit.dsn) as other:
        now = await other.fetchval("SELECT clock_timestamp()")
    rota_kit.clock.advance(now - rota_kit.clock.now())
    opened = "SELECT count(*) FROM rota.trigger_many('tick', ARRAY[NULL, NULL]::jsonb[], 'default', ARRAY['a', NULL])"
    async with uncommitted(rota_kit.dsn, opened) as other:
        async with asyncio.timeout(PATIENCE):
            assert outcomes(await ask(rota_kit, {}, {"idempotency_key": "b"})) == ["created", "created"]
        with pytest.raises(Locked, match="keys"):
            await ask(rota_kit, {}, {"idempotency_key": "a"})
        await other.execute("COMMIT")
    assert outcomes(await ask(rota_kit, {}, {"idempotency_key": "a"})) == ["created", "repeated"]
    assert len(await rota_kit.runs("tick")) == 5


async def test_a_lost_answer_is_read_back_by_the_keys(rota_cluster: TestCluster) -> None:
    async with rota_cluster.kit() as kit, await Faulty.connect(kit.dsn) as database:
        await kit.put(Job(job_id="tick", handler="h"))
        service = OnDemand(database, kit.clock, kit.rota.hints)
        faulty: Any = service._many._database
        faulty.trouble["make_runs"] = "lost"
        asked = [AskedRun(job_id="tick", idempotency_key=key) for key in "ab"]
        made = await service.request_many(asked, tenant_id="default")
        assert outcomes(made) == ["created", "created"]
        kit.clock.advance(MINUTE)
        assert outcomes(await service.request_many(asked, tenant_id="default")) == ["repeated", "repeated"]
        with pytest.raises(CommitUnknown):
            await service.request_many([*asked, AskedRun(job_id="tick")], tenant_id="default")
        assert {one.run_id for one in made} < {run.run_id for run in await kit.runs("tick")}


async def test_those_who_wait_are_told_once(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"), Job(job_id="tock", handler="h", pool="p"))
    hints = rota_kit.rota.hints
    topics = {topic: hints.subscribe(topic) for topic in (pool_topic("default"), pool_topic("p"), SCHEDULES)}
    for hint in topics.values():
        hint.clear()
    await ask(rota_kit, {"idempotency_key": "a"}, {"job_id": "tock", "scheduled_for": SLOT})
    assert [topic for topic, hint in topics.items() if hint.is_set()] == [pool_topic("default"), SCHEDULES]
    topics[pool_topic("default")].clear()
    await ask(rota_kit, {"idempotency_key": "a"})
    assert not topics[pool_topic("default")].is_set()
