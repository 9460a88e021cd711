"""The SQL functions themselves: for callers in any language, at the edges, and with others at the same time."""

import asyncio
import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

import rota
from rota.domain.admission import rank
from rota.domain.ids import job_uid, run_id
from rota.domain.job import Job
from rota.errors import KeyReused
from rota.testing import RotaKit
from rota.transactional import complete_in, trigger_in
from tests.services.stories import START, execute, fetch, states
from tests.store.stage import outsider, uncommitted, until_waiting_for
from tests.transactional.callers import InHand

MILLISECOND = timedelta(milliseconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


async def refused(other: Any, statement: str, *values: Any) -> tuple[str, str]:
    """Return the SQLSTATE and the message of a statement that is refused with a hint."""
    with pytest.raises(asyncpg.PostgresError) as trouble:
        await other.fetchval(statement, *values)
    assert trouble.value.hint
    return trouble.value.sqlstate, trouble.value.message


async def test_the_database_reads_run_ids_as_the_program_does(rota_kit: RotaKit) -> None:
    chance = random.Random(20260101)
    last = datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)
    slots = [
        EPOCH,
        last,
        *(EPOCH + chance.randint(0, (last - EPOCH) // MILLISECOND) * MILLISECOND for _ in range(2000)),
    ]
    uids = [0, 2**62 - 1, *(chance.getrandbits(62) for _ in range(2000))]
    ids = [run_id(uid, slot) for uid, slot in zip(uids, slots, strict=True)]
    async with outsider(rota_kit.dsn, TimeZone="America/New_York") as other:
        rows = await other.fetch(
            "SELECT (rota.slot_of(i)).* FROM unnest($1::uuid[]) WITH ORDINALITY u (i, n) ORDER BY n", ids
        )
        assert [(row["job_uid"], row["scheduled_for"]) for row in rows] == list(zip(uids, slots, strict=True))
        for foreign in (UUID(int=7), UUID(int=2**128 - 1), UUID("3f8a3cd5-30cb-4a0b-8a0e-29d5ca2c9e0a")):
            assert (await refused(other, "SELECT rota.slot_of($1)", foreign))[0] == "RT422"


async def test_a_run_at_a_slot_is_as_if_the_program_had_made_it(rota_kit: RotaKit) -> None:
    """Rank, gate, pool and handler key agree, in a month that has no partition yet, whatever the session's zone."""
    await rota_kit.put(Job(job_id="tick", handler="https://example.com/h", priority=8, pool="special"))
    slot = datetime(2033, 7, 1, 0, 0, 0, 123000, tzinfo=UTC)
    async with outsider(rota_kit.dsn, TimeZone="America/New_York", DateStyle="SQL, DMY") as other:
        made = await other.fetchval("SELECT rota.trigger('tick', scheduled_for => $1)", slot)
    assert made == run_id(job_uid("default", "tick"), slot)
    [row] = await fetch(rota_kit, "SELECT * FROM rota.pending")
    assert (row["rank"], row["available_at"], row["gate"]) == (rank(slot, priority=8), slot, "time")
    assert (row["pool"], row["handler"], row["tenant_id"]) == ("special", "http", "default")
    [entry] = await fetch(rota_kit, "SELECT actor, subject, after FROM rota.audit WHERE action = 'run.triggered'")
    assert (entry["actor"].startswith("sql:"), entry["subject"]) == (True, str(made))
    assert json.loads(entry["after"]) == {"job_id": "tick", "scheduled_for": "2033-07-01T00:00:00.123Z"}


async def test_a_transaction_may_want_very_many_runs_of_one_job(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    async with outsider(rota_kit.dsn) as other:
        rows = await other.fetch(
            "SELECT rota.trigger('tick', jsonb_build_object('n', n)) AS run_id FROM generate_series(1, 2000) n"
        )
    assert len({row["run_id"] for row in rows}) == 2000
    assert len(await rota_kit.worker("w", handlers=["h"]).claim(limit=500)) == 500


async def test_a_key_stands_for_the_same_request_by_either_way(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    payload = {"b": 1, "aa": {"x": [1.5, None, "é"]}}
    async with outsider(rota_kit.dsn) as other:
        for key, slot in (("one", None), ("two", START + timedelta(hours=1))):
            asked: dict[str, Any] = {"payload": payload, "scheduled_for": slot, "idempotency_key": key}
            async with other.transaction():
                first = await trigger_in(other, "tick", **asked)
            made = await rota_kit.on_demand.request("tick", tenant_id="default", **asked)
            assert (made.run_id, made.created) == (first, False)
        made = await rota_kit.on_demand.request("tick", tenant_id="default", idempotency_key="three")
        async with other.transaction():
            assert await trigger_in(other, "tick", idempotency_key="three") == made.run_id
        with pytest.raises(KeyReused):
            async with other.transaction():
                await trigger_in(other, "tick", idempotency_key="three", payload={})


async def test_a_request_waits_for_the_transaction_that_holds_its_key(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    asked: dict[str, Any] = {"tenant_id": "default", "idempotency_key": "key"}
    for ending, created in (("ROLLBACK", True), ("COMMIT", False)):
        asked["idempotency_key"] = ending
        hold = f"SELECT rota.trigger('tick', idempotency_key => '{ending}')"
        async with uncommitted(rota_kit.dsn, hold) as other:
            asking = asyncio.ensure_future(rota_kit.on_demand.request("tick", **asked))
            await until_waiting_for(other)
            await other.execute(ending)
            assert (await asking).created is created


async def test_a_delete_waits_for_the_transaction_that_made_a_run(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    async with uncommitted(rota_kit.dsn, "SELECT rota.trigger('tick')") as other:
        deleting = asyncio.ensure_future(rota_kit.definitions.delete("tick", tenant_id="default"))
        await until_waiting_for(other)
        await other.execute("COMMIT")
        await deleting
    rows = await fetch(rota_kit, "SELECT outcome FROM rota.run")
    assert [row["outcome"] for row in rows] == ["cancelled"]
    async with outsider(rota_kit.dsn) as other:
        assert (await refused(other, "SELECT rota.trigger('tick')"))[0] == "RT404"


async def test_what_was_done_is_done_though_somebody_wants_it_cancelled(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    run = await rota_kit.on_demand.trigger("tick", tenant_id="default")
    work = await rota_kit.worker("w", handlers=["h"]).claim_one()
    await rota_kit.on_demand.cancel(run, tenant_id="default")
    async with outsider(rota_kit.dsn) as other, other.transaction():
        await complete_in(other, InHand.of(work.claim))
    assert await states(rota_kit) == ["succeeded"]


async def test_the_jobs_of_others_and_of_nobody_are_not_found(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h", tenant_id="acme"))
    async with outsider(rota_kit.dsn) as other:
        state, message = await refused(other, "SELECT rota.trigger('tick')")
        assert (state, message) == ("RT404", "there is no job 'tick' of tenant 'default'")
        assert (await refused(other, "SELECT rota.trigger('tick', NULL, 'ACME')"))[0] == "RT404"
        assert await other.fetchval("SELECT rota.trigger('tick', NULL, 'acme')")


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ("NULL", "job_id"),
        ("'tick', tenant_id => NULL", "job_id"),
        ("'tick', '[1]'", "payload"),
        ("'tick', 'null'", "payload"),
        ("'tick', jsonb_build_object('k', repeat('x', 262144))", "payload"),
        ("'tick', (repeat('{\"k\":', 65) || '1' || repeat('}', 65))::jsonb", "payload"),
        ("'tick', scheduled_for => 'infinity'", "scheduled_for"),
        ("'tick', scheduled_for => '1969-12-31Z'", "scheduled_for"),
        ("'tick', scheduled_for => '10000-01-01Z'", "scheduled_for"),
        ("'tick', scheduled_for => '2026-01-01 00:00:00.0001Z'", "scheduled_for"),
        ("'tick', idempotency_key => ''", "idempotency_key"),
        ("'tick', idempotency_key => E'a\\nb'", "idempotency_key"),
        ("'tick', idempotency_key => repeat('x', 201)", "idempotency_key"),
    ],
)
async def test_what_could_not_be_kept_is_refused_by_name(rota_kit: RotaKit, arguments: str, field: str) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    async with outsider(rota_kit.dsn) as other:
        state, message = await refused(other, f"SELECT rota.trigger({arguments})")
        assert (state, message.partition(":")[0]) == ("RT422", field)
    assert await rota_kit.runs("tick") == []


async def test_a_payload_as_deep_as_the_program_allows_is_taken(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    deep = '{"k":' * 64 + "1" + "}" * 64
    await rota_kit.on_demand.trigger("tick", tenant_id="default", payload=json.loads(deep))
    async with outsider(rota_kit.dsn) as other:
        assert await other.fetchval("SELECT rota.trigger('tick', $1::text::jsonb)", deep)


@pytest.mark.parametrize(
    "result", ["to_jsonb(repeat('x', 65536))", "(repeat('[', 66) || repeat(']', 66))::jsonb"], ids=["large", "deep"]
)
async def test_a_result_that_could_not_be_kept_is_refused(rota_kit: RotaKit, result: str) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    await rota_kit.on_demand.trigger("tick", tenant_id="default")
    work = await rota_kit.worker("w", handlers=["h"]).claim_one()
    async with outsider(rota_kit.dsn) as other:
        state, message = await refused(
            other, f"SELECT rota.complete($1, $2, {result})", work.claim.run_id, work.claim.key.token
        )
        assert (state, message.partition(":")[0]) == ("RT422", "result")
    await work.succeed()


async def test_nobodys_search_path_puts_anything_in_the_way(rota_kit: RotaKit) -> None:
    """A schema of the caller's, and his temporary tables, hold what the functions must not find."""
    await rota_kit.put(Job(job_id="tick", handler="h"))
    await execute(rota_kit, "CREATE SCHEMA evil")
    for name in ("now", "clock_timestamp"):
        await execute(
            rota_kit,
            f"CREATE FUNCTION evil.{name}() RETURNS timestamptz LANGUAGE sql AS 'SELECT ''epoch''::timestamptz'",
        )
    async with outsider(rota_kit.dsn, search_path="evil, pg_temp, pg_catalog") as other:
        for table in ("job", "run", "pending", "lease", "cluster", "generate_series"):
            await other.execute(f"CREATE TEMP TABLE {table} (shard_count integer)")
        made = await other.fetchval("SELECT rota.trigger('tick')")
        work = await rota_kit.worker("w", handlers=["h"]).claim_one()
        assert work.claim.run_id == made
        assert work.claim.key.scheduled_for > datetime(2026, 1, 1, tzinfo=UTC)
        await other.fetchval("SELECT rota.complete($1, $2)", made, work.claim.key.token)
    assert await states(rota_kit) == ["succeeded"]


async def test_a_savepoint_takes_a_run_back_and_the_transaction_goes_on(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))

    async def trigger_both(other: Any) -> None:
        async with other.transaction():
            await other.fetchval("SELECT rota.trigger('tick')")
            await other.fetchval("SELECT rota.trigger('tock')")

    async with outsider(rota_kit.dsn) as other, other.transaction():
        with pytest.raises(asyncpg.PostgresError):
            await trigger_both(other)
        kept = await other.fetchval("SELECT rota.trigger('tick')")
    assert [run.run_id for run in await rota_kit.runs("tick")] == [kept]


async def test_a_run_that_sql_wants_now_never_takes_a_slot_that_is_to_come(rota_kit: RotaKit) -> None:
    """A burst over more than a second of a job of each second: only the scheduler takes whole seconds."""
    await rota_kit.put(Job(job_id="job", handler="h", schedule=rota.every("1s")))
    async with outsider(rota_kit.dsn) as other:
        await other.execute(
            "DO $$ BEGIN FOR n IN 1..1500 LOOP PERFORM rota.trigger('job'); END LOOP; END $$"
        )  # fmt: skip
        spread = await other.fetchval("SELECT max(scheduled_for) - min(scheduled_for) FROM rota.run")
        assert spread > timedelta(seconds=1)
        assert not await other.fetchval(
            "SELECT count(*) FROM rota.run WHERE scheduled_for = date_trunc('second', scheduled_for)"
        )
