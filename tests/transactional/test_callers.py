"""Runs made and finished in transactions of the caller's own, over each library: all or nothing, and once."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine

from rota import transactional
from rota.domain.attempt import Claim
from rota.domain.job import Job
from rota.errors import InvalidInput, KeyReused, LeaseLost, NotFound, SlotTaken
from rota.testing import RotaKit
from rota.transactional import complete_in, trigger_in, trigger_in_sync, trigger_many_in, trigger_many_in_sync
from tests.services.stories import START, execute, fetch, states
from tests.transactional.callers import CALLERS, EFFECT, TABLE, Caller, InHand, RolledBack

Open = Callable[[str], AbstractAsyncContextManager[Caller]]
each = pytest.mark.parametrize("opened", CALLERS.values(), ids=CALLERS)


async def effects(kit: RotaKit) -> int:
    [row] = await fetch(kit, "SELECT count(*) AS n FROM public.effect")
    return int(row["n"])


async def write_and_complete(kit: RotaKit, opened: Open, claim: Claim, *, fails: bool = False) -> None:
    """Do what a handler does: its own write and the end of its run, in one transaction."""
    async with opened(kit.dsn) as caller:
        await caller.execute(EFFECT.format(run_id=claim.run_id))
        await caller.complete(InHand.of(claim))
        if fails:
            raise RolledBack


@each
async def test_a_run_appears_when_the_callers_transaction_commits(rota_kit: RotaKit, opened: Open) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    async with opened(rota_kit.dsn) as caller:
        made = await caller.trigger("tick", payload={"customer": "acmé", "n": [1, None]})
        assert await rota_kit.runs("tick") == []
    [run] = await rota_kit.runs("tick")
    assert (run.run_id, run.state, run.origin) == (made, "pending", "manual")
    work = await rota_kit.worker("w", handlers=["h"]).claim_one()
    assert (work.claim.run_id, work.claim.payload) == (made, {"customer": "acmé", "n": [1, None]})


@each
async def test_no_run_appears_when_the_callers_transaction_is_rolled_back(rota_kit: RotaKit, opened: Open) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))

    async def trigger_and_think_better_of_it() -> None:
        async with opened(rota_kit.dsn) as caller:
            await caller.trigger("tick", scheduled_for=START, idempotency_key="key")
            raise RolledBack

    with pytest.raises(RolledBack):
        await trigger_and_think_better_of_it()
    assert await rota_kit.runs("tick") == []
    assert await fetch(rota_kit, "SELECT subject FROM rota.audit WHERE action LIKE 'run.%'") == []
    made = await rota_kit.on_demand.request("tick", tenant_id="default", idempotency_key="key", payload={"a": 1})
    assert made.created, "the key was given back"


@each
async def test_many_runs_appear_when_the_callers_transaction_commits(rota_kit: RotaKit, opened: Open) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h", payload={"own": 1}))
    payloads = [{"customer": "acmé", "n": [1, None]}, None, {"n": 10**30}, {"text": "a ? %s $1"}]
    async with opened(rota_kit.dsn) as caller:
        made = await caller.trigger_many("tick", payloads, idempotency_keys=["a", None, "é", "c"])
        assert await rota_kit.runs("tick") == []
    claimed = await rota_kit.worker("w", handlers=["h"]).claim(limit=10)
    told = {work.claim.run_id: work.claim.payload for work in claimed}
    assert [told[run] for run in made] == [payloads[0], {"own": 1}, payloads[2], payloads[3]]
    async with opened(rota_kit.dsn) as caller:
        again = await caller.trigger_many("tick", payloads[::-1], idempotency_keys=["c", "é", None, "a"])
    assert [again[0], again[1], again[3]] == [made[3], made[2], made[0]]
    assert again[2] not in made


@each
async def test_what_is_refused_of_many_runs_is_an_error_of_rota(rota_kit: RotaKit, opened: Open) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    await rota_kit.on_demand.request("tick", tenant_id="default", idempotency_key="key")

    async def refused(kind: type[Exception], match: str, payloads: Any, **asked: Any) -> None:
        with pytest.raises(kind, match=match):
            async with opened(rota_kit.dsn) as caller:
                await caller.trigger_many(**{"job_id": "tick", "payloads": payloads, **asked})

    await refused(NotFound, "there is no job 'tock'", [{}], job_id="tock")
    await refused(NotFound, "of tenant 'other'", [{}], tenant_id="other")
    await refused(KeyReused, "'key' stands for another request", [None, {"a": 1}], idempotency_keys=["b", "key"])
    await refused(InvalidInput, r"idempotency_keys\[1\]: must be 1 to 200", [{}, {}], idempotency_keys=["a", ""])
    await refused(InvalidInput, "idempotency_keys: has 1 keys for 2", [{}, {}], idempotency_keys=["a"])
    await refused(InvalidInput, r"payloads\[1\]: must be an object", [{}, [1]])
    assert len(await rota_kit.runs("tick")) == 1


async def test_more_runs_than_one_call_makes_are_made_by_several_in_the_one_transaction(
    rota_kit: RotaKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactional, "MANY", 3)
    await rota_kit.put(Job(job_id="tick", handler="h"))
    payloads, keys = [{"n": n} for n in range(8)], [f"key {n}" for n in range(8)]

    async def make(connection: Any, *, last: str) -> list[UUID]:
        async with connection.transaction():
            return await trigger_many_in(connection, "tick", payloads, idempotency_keys=[*keys[:-1], last])

    await rota_kit.on_demand.request("tick", tenant_id="default", idempotency_key="another's")
    connection = await asyncpg.connect(rota_kit.dsn)
    with pytest.raises(KeyReused):
        await make(connection, last="another's")
    made = await make(connection, last=keys[-1])
    assert await make(connection, last=keys[-1]) == made
    async with connection.transaction():
        assert await trigger_many_in(connection, "tick", []) == []
    await connection.close()
    claimed = await rota_kit.worker("w", handlers=["h"]).claim(limit=10)
    told = {work.claim.run_id: work.claim.payload for work in claimed}
    assert [told[run] for run in made] == payloads
    assert len(claimed) == 9


@each
async def test_a_run_is_finished_once_with_the_handlers_own_writes(rota_kit: RotaKit, opened: Open) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    await execute(rota_kit, TABLE)
    await rota_kit.on_demand.trigger("tick", tenant_id="default")
    work = await rota_kit.worker("w", handlers=["h"]).claim_one()
    async with opened(rota_kit.dsn) as caller:
        await caller.execute(EFFECT.format(run_id=work.claim.run_id))
        await caller.complete(InHand.of(work.claim), result={"sent": 3})
        assert await states(rota_kit) == ["running"]
    [run] = await rota_kit.runs("tick")
    assert (run.state, run.attempt, run.result) == ("succeeded", 1, {"sent": 3})
    assert [attempt.outcome for attempt in await rota_kit.attempts(run)] == ["succeeded"]
    await work.succeed()  # the worker's own report comes later, and repeats what is recorded
    with pytest.raises(LeaseLost):
        await work.fail("but it cannot say otherwise")
    with pytest.raises(LeaseLost):
        await write_and_complete(rota_kit, opened, work.claim)
    assert await effects(rota_kit) == 1
    assert len(await rota_kit.attempts(run)) == 1


@each
async def test_a_run_goes_on_when_the_handlers_transaction_is_rolled_back(rota_kit: RotaKit, opened: Open) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    await execute(rota_kit, TABLE)
    await rota_kit.on_demand.trigger("tick", tenant_id="default")
    work = await rota_kit.worker("w", handlers=["h"]).claim_one()
    with pytest.raises(RolledBack):
        await write_and_complete(rota_kit, opened, work.claim, fails=True)
    assert (await states(rota_kit), await effects(rota_kit)) == (["running"], 0)
    await work.renew()
    await work.succeed()


@each
async def test_a_handler_that_lost_its_lease_keeps_nothing_of_its_transaction(rota_kit: RotaKit, opened: Open) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    await execute(rota_kit, TABLE)
    await rota_kit.on_demand.trigger("tick", tenant_id="default")
    stale = await rota_kit.worker("w-1", handlers=["h"]).claim_one()
    rota_kit.clock.advance(stale.claim.lease_duration)
    await rota_kit.tick()
    again = await rota_kit.worker("w-2", handlers=["h"]).claim_one()
    with pytest.raises(LeaseLost, match=str(stale.claim.run_id)):
        await write_and_complete(rota_kit, opened, stale.claim)
    assert (await states(rota_kit), await effects(rota_kit)) == (["running"], 0)
    await write_and_complete(rota_kit, opened, again.claim)
    assert (await states(rota_kit), await effects(rota_kit)) == (["succeeded"], 1)


@each
async def test_what_the_functions_refuse_is_an_error_of_rota(rota_kit: RotaKit, opened: Open) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    taken = await rota_kit.on_demand.trigger("tick", tenant_id="default", scheduled_for=START)
    await rota_kit.on_demand.request("tick", tenant_id="default", idempotency_key="key")

    async def refused(kind: type[Exception], match: str, **asked: Any) -> None:
        with pytest.raises(kind, match=match):
            async with opened(rota_kit.dsn) as caller:
                await caller.trigger(**{"job_id": "tick", **asked})

    await refused(NotFound, "there is no job 'tock'", job_id="tock")
    await refused(NotFound, "of tenant 'other'", tenant_id="other")
    await refused(SlotTaken, str(taken), scheduled_for=START)
    await refused(KeyReused, "another request .use a new key", idempotency_key="key", payload={"a": 1})
    await refused(InvalidInput, "idempotency_key: is not 1 to 200", idempotency_key="")
    await refused(InvalidInput, "payload: must be an object", payload=[1])
    with pytest.raises(LeaseLost):
        async with opened(rota_kit.dsn) as caller:
            await caller.complete(InHand(taken, uuid4()))
    with pytest.raises(InvalidInput, match="run_id: "):
        async with opened(rota_kit.dsn) as caller:
            await caller.complete(InHand(uuid4(), uuid4()))


@each
async def test_what_is_not_rotas_stays_what_it_is(rota_kit: RotaKit, opened: Open) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    await execute(rota_kit, "ALTER TABLE rota.pending RENAME TO hidden")
    try:
        with pytest.raises(Exception, match="pending") as trouble:
            async with opened(rota_kit.dsn) as caller:
                await caller.trigger("tick")
        assert not type(trouble.value).__module__.startswith("rota")
    finally:
        await execute(rota_kit, "ALTER TABLE rota.hidden RENAME TO pending")


async def test_without_a_transaction_nothing_is_done(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    connection = await asyncpg.connect(rota_kit.dsn)
    try:
        with pytest.raises(InvalidInput, match="no transaction under way"):
            await trigger_in(connection, "tick")
        with pytest.raises(InvalidInput, match="no transaction under way"):
            await complete_in(connection, InHand(uuid4(), uuid4()))
    finally:
        await connection.close()
    with (
        psycopg.connect(rota_kit.dsn, autocommit=True) as own,
        pytest.raises(InvalidInput, match="no transaction under way"),
    ):
        trigger_many_in_sync(own, "tick", [None])
    engine = create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(rota_kit.dsn), isolation_level="AUTOCOMMIT"
    )
    with engine.connect() as autocommitting, pytest.raises(InvalidInput, match="no transaction under way"):
        trigger_in_sync(autocommitting, "tick")
    engine.dispose()
    assert await rota_kit.runs("tick") == []


async def test_what_is_no_connection_is_refused_with_advice(rota_kit: RotaKit) -> None:
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(rota_kit.dsn))
    with pytest.raises(InvalidInput, match="pass a connection"):
        trigger_in_sync(engine, "tick")
    with psycopg.connect(rota_kit.dsn) as own, pytest.raises(InvalidInput, match="_sync"):
        await trigger_in(own, "tick")
    connection = await asyncpg.connect(rota_kit.dsn)
    with pytest.raises(InvalidInput, match="await"):
        trigger_in_sync(connection, "tick")
    await connection.close()
    for thing in (None, "dsn", object()):
        with pytest.raises(InvalidInput, match="pass a connection"):
            await trigger_in(thing, "tick")
    engine.dispose()


def test_the_module_imports_none_of_the_libraries() -> None:
    code = (
        "import sys, rota.transactional;"
        "print([name for name in ('asyncpg', 'psycopg', 'sqlalchemy', 'django') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
