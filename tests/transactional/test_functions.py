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
from rota.services.hints import CHANNEL
from rota.store.statements import upkeep
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


async def many(other: Any, job_id: str, payloads: list[Any], keys: list[str] | None = None) -> list[UUID]:
    """Make many runs by the SQL function; returns their ids."""
    rows = await other.fetch(
        "SELECT rota.trigger_many($1, $2::jsonb[], idempotency_keys => $3) AS run_id", job_id,
        [None if payload is None else json.dumps(payload) for payload in payloads], keys,
    )  # fmt: skip
    return [row["run_id"] for row in rows]


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


async def test_many_runs_have_their_ids_and_payloads_in_the_order_of_the_call(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h", payload={"own": True}))
    async with outsider(rota_kit.dsn, TimeZone="America/New_York", DateStyle="SQL, DMY") as other:
        made = await many(other, "tick", [{"n": 0}, None, {}, {"n": 3}])
    claimed = await rota_kit.worker("w", handlers=["h"]).claim(limit=10)
    assert {work.claim.run_id: work.claim.payload for work in claimed} == dict(
        zip(made, [{"n": 0}, {"own": True}, {}, {"n": 3}], strict=True)
    )
    [entry] = await fetch(rota_kit, "SELECT actor, subject, after FROM rota.audit WHERE action = 'runs.triggered'")
    assert (entry["actor"].startswith("sql:"), entry["subject"]) == (True, "tick")
    assert json.loads(entry["after"]) == {"runs": 4, "first": str(min(made)), "last": str(max(made))}
    await rota_kit.check()


async def test_each_of_many_runs_waits_as_one_made_alone_would(rota_kit: RotaKit) -> None:
    await rota_kit.put(
        Job(job_id="tick", handler="https://example.com/h", priority=2, pool="p", start_deadline=timedelta(hours=1))
    )
    async with outsider(rota_kit.dsn) as other:
        await other.fetch("SELECT rota.trigger('tick', '{}')")
        await many(other, "tick", [{}, {}])
    rows = await fetch(rota_kit, "SELECT * FROM rota.pending")
    told = {
        (row["pool"], row["handler"], row["gate"], row["priority"], row["has_payload"], row["attempt"],
         row["deadline_at"] - row["available_at"], row["rank"] - row["available_at"].timestamp() * 1000 // 1)
        for row in rows
    }  # fmt: skip
    assert (len(rows), len(told)) == (3, 1)


async def test_a_key_among_many_stands_for_its_run_alone_or_in_a_call(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    async with outsider(rota_kit.dsn) as other:
        alone = await other.fetchval("SELECT rota.trigger('tick', '{\"n\": 1}', idempotency_key => 'é')")
        first = await many(other, "tick", [{"n": 1}, {"n": 2}, {"n": 3}], ["é", "b", "c"])
        again = await many(other, "tick", [{"n": 3}, {"n": 2}, {"n": 1}, {"n": 4}], ["c", "b", "é", "d"])
        assert first[0] == alone
        assert again[:3] == first[::-1]
        assert len({*first, *again}) == 4
        assert await other.fetchval("SELECT rota.trigger('tick', '{\"n\": 4}', idempotency_key => 'd')") == again[3]
    made = await rota_kit.on_demand.request("tick", tenant_id="default", payload={"n": 2}, idempotency_key="b")
    assert (made.run_id, made.created) == (first[1], False)
    assert len(await rota_kit.runs("tick")) == 4


async def test_a_key_twice_in_a_call_is_one_run_or_a_refusal(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    call = "SELECT count(*) FROM rota.trigger_many('tick', $1::jsonb[], idempotency_keys => $2)"
    async with outsider(rota_kit.dsn) as other:
        one, same, two = await many(other, "tick", [{"n": 1}, {"n": 1}, {"n": 2}], ["a", "a", "b"])
        assert one == same != two
        state, message = await refused(other, call, ['{"n": 3}', '{"n": 4}'], ["c", "c"])
        assert (state, message) == ("RT411", "the idempotency key 'c' stands for another request")
        assert (await refused(other, call, ["{}", "{}"], ["d", "a"]))[0] == "RT411"
        [kept] = await many(other, "tick", [{"n": 9}], ["d"])
    assert {run.run_id for run in await rota_kit.runs("tick")} == {one, two, kept}


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ("'tick', '{}'", "payloads"),
        ("'tick', NULL", "payloads"),
        ("'tick', array_fill('{}'::jsonb, ARRAY[10001])", "payloads"),
        ("'tick', ARRAY['{}', '{}']::jsonb[], idempotency_keys => ARRAY['a']", "payloads"),
        ("NULL, ARRAY['{}']::jsonb[]", "job_id"),
        ("'tick', ARRAY['{}']::jsonb[], NULL", "job_id"),
        ("'tick', ARRAY['{}', NULL, '[1]']::jsonb[]", "payloads[3]"),
        ("'tick', ARRAY['{}', 'null']::jsonb[]", "payloads[2]"),
        ("'tick', ARRAY['{}', jsonb_build_object('k', repeat('x', 262144))]", "payloads[2]"),
        ("'tick', ARRAY[('{\"k\":' || repeat('[', 65) || repeat(']', 65) || '}')::jsonb]", "payloads[1]"),
        ("'tick', ARRAY['{}', '{}']::jsonb[], idempotency_keys => ARRAY['a', '']", "idempotency_keys[2]"),
        ("'tick', ARRAY['{}', '{}']::jsonb[], idempotency_keys => ARRAY[E'a\nb', 'a']", "idempotency_keys[1]"),
        ("'tick', ARRAY['{}']::jsonb[], idempotency_keys => ARRAY[repeat('x', 201)]", "idempotency_keys[1]"),
    ],
)
async def test_what_one_of_many_could_not_keep_is_refused_by_its_place(
    rota_kit: RotaKit, arguments: str, field: str
) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    async with outsider(rota_kit.dsn) as other:
        state, message = await refused(other, f"SELECT rota.trigger_many({arguments})")
        assert (state, message.partition(":")[0]) == ("RT422", field)
    assert await rota_kit.runs("tick") == []


async def test_many_runs_are_made_up_to_the_bounds(rota_kit: RotaKit) -> None:
    """A payload of many brackets that is not deep, one as deep as may be, and ten thousand in one call."""
    await rota_kit.put(Job(job_id="tick", handler="h"))
    wide: dict[str, Any] = {"k": [[]] * 100}
    deep = json.loads('{"k":' * 64 + "1" + "}" * 64)
    async with outsider(rota_kit.dsn) as other:
        made = await many(other, "tick", [wide, deep, *[None] * 9998])
        assert len(set(made)) == 10000
        assert (await refused(other, "SELECT rota.trigger_many('tock', ARRAY['{}']::jsonb[])"))[0] == "RT404"


async def test_many_runs_of_a_transaction_that_is_rolled_back_leave_nothing(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    async with uncommitted(rota_kit.dsn) as other:
        await many(other, "tick", [{}, {}], ["a", "b"])
        await other.execute("ROLLBACK")
        left = await other.fetchrow(
            "SELECT (SELECT count(*) FROM rota.run) + (SELECT count(*) FROM rota.pending) AS runs,"
            " (SELECT count(*) FROM rota.idempotency) AS keys,"
            " (SELECT count(*) FROM rota.audit WHERE action LIKE 'run%') AS entries"
        )
    assert dict(left) == {"runs": 0, "keys": 0, "entries": 0}


async def test_transactions_that_make_many_runs_of_one_job_do_not_wait_for_each_other(rota_kit: RotaKit) -> None:
    """Also where the last run stands so near a lot's end that the next runs would reach into what others take."""
    await rota_kit.put(Job(job_id="tick", handler="h"))
    async with outsider(rota_kit.dsn) as other:
        await other.fetchval(
            "SELECT rota.trigger('tick', scheduled_for =>"
            " to_timestamp(16 * ceil((extract(epoch FROM clock_timestamp()) + 120) / 16)) - interval '10 ms')"
        )
    made: list[UUID] = []
    async with (
        uncommitted(rota_kit.dsn, "SET lock_timeout = '20s'") as one,
        uncommitted(rota_kit.dsn, "SET lock_timeout = '20s'") as two,
        uncommitted(rota_kit.dsn, "SET lock_timeout = '20s'") as three,
    ):
        for other in (one, two, three, one, two):
            made += await many(other, "tick", [None] * 800)
        await two.execute("COMMIT")
        made += await many(three, "tick", [None] * 800)
        await three.execute("COMMIT")
        await one.execute("COMMIT")
        made += await many(one, "tick", [None] * 800)
    assert len(set(made)) == len(made) == len(await fetch(rota_kit, "SELECT FROM rota.pending")) - 1


async def test_many_runs_find_room_beside_runs_that_stand_far_ahead(rota_kit: RotaKit) -> None:
    """The last instants of the hour, and of the day, that are looked at first are taken."""
    await rota_kit.put(Job(job_id="tick", handler="h"))
    async with outsider(rota_kit.dsn) as other:
        for reach in (timedelta(hours=1), timedelta(days=1)):
            await other.fetchval(
                "SELECT rota.trigger('tick', scheduled_for => to_timestamp(16 * ceil((extract(epoch FROM"
                " clock_timestamp()) + 60) / 16)) + $1::interval)",
                reach - MILLISECOND,
            )
            for _ in range(3):
                assert len(await many(other, "tick", [None] * 50)) == 50


async def test_one_run_alone_passes_over_what_others_fill(rota_kit: RotaKit) -> None:
    """A transaction that has made many runs may stay open until their instants have come."""
    await rota_kit.put(Job(job_id="tick", handler="h"))
    uid = job_uid("default", "tick")
    async with outsider(rota_kit.dsn) as other, uncommitted(rota_kit.dsn) as filling:
        lots = [await other.fetchval("SELECT floor(extract(epoch FROM clock_timestamp()) / 16)::integer")]
        lots += [lots[0] + 1, lots[0] + 2]
        holder = await filling.fetchval("SELECT pg_backend_pid()")
        for lot in lots:
            await filling.execute(f"SELECT pg_advisory_xact_lock({uid % 2147483647}, {lot})")
        made = await other.fetchval("SELECT rota.trigger('tick')")
        [run] = await rota_kit.runs("tick")
        assert run.run_id == made
        assert run.scheduled_for.timestamp() // 16 not in lots
        assert not await other.fetchval(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid <> $1", holder
        )


@pytest.mark.parametrize(
    "schedule",
    [
        None,
        rota.every("1s"),
        rota.every("1s500ms", anchor=START + 7 * MILLISECOND),
        rota.cron("* * * * * *", seconds=True),
    ],
    ids=["none", "seconds", "anchored", "cron"],
)
async def test_many_runs_leave_the_schedule_its_slots(rota_kit: RotaKit, schedule: Any) -> None:
    """Those of a schedule that the job gets tomorrow, too, if they are whole seconds."""
    await rota_kit.put(Job(job_id="tick", handler="h", schedule=schedule))
    async with outsider(rota_kit.dsn) as other:
        made = await many(other, "tick", [None] * 4000)
        named = await other.fetchval(
            "SELECT count(*) FROM rota.run r JOIN rota.job j USING (shard, job_uid)"
            " WHERE rota.may_name(j.schedule, r.scheduled_for)"
            " OR r.scheduled_for = date_trunc('second', r.scheduled_for)"
        )
    assert (len(set(made)), named) == (4000, 0)


async def test_many_runs_ring_once_where_somebody_waits(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    heard, told = list[str](), asyncio.Event()

    def hear(topic: str) -> None:
        heard.append(topic)
        if topic == "the end":
            told.set()

    async with rota_kit.database.listening(CHANNEL, hear) as line, outsider(rota_kit.dsn) as other:
        await many(other, "tick", [None] * 10)
        await line.ask(upkeep.hold_bell, pool="default")
        async with other.transaction():
            await many(other, "tick", [None] * 10)
            await many(other, "tick", [None] * 10)
            assert heard == []
        await other.execute("NOTIFY rota_hint, 'the end'")
        async with asyncio.timeout(20):
            await told.wait()
    assert heard == ["pool:default", "the end"]


async def test_a_delete_waits_for_the_transaction_that_made_many_runs(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    call = "SELECT count(*) FROM rota.trigger_many('tick', ARRAY[NULL, '{}']::jsonb[])"
    async with uncommitted(rota_kit.dsn, call) as other:
        deleting = asyncio.ensure_future(rota_kit.definitions.delete("tick", tenant_id="default"))
        await until_waiting_for(other)
        await other.execute("COMMIT")
        await deleting
    rows = await fetch(rota_kit, "SELECT outcome FROM rota.run")
    assert [row["outcome"] for row in rows] == ["cancelled", "cancelled"]
