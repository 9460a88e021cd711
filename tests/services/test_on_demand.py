"""Requests that can be repeated: one run for a key, however often and by however many it is asked for."""

import asyncio
import json
import random
from contextlib import asynccontextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

import rota
from rota.domain.ids import job_uid, run_id
from rota.domain.job import Job
from rota.domain.schedule import may_name
from rota.errors import CommitUnknown, InvalidInput, KeyReused, NotFound, SlotTaken, TooLarge
from rota.services.on_demand import OnDemand
from rota.services.run_request import Requested
from rota.store.database import Database
from rota.store.requests import forget_keys
from rota.testing import RotaKit, TestCluster
from tests.services.stories import START, TEN_SECONDS, Faulty, every, execute, fetch

KEY = "3f1c-retry-me"


async def ask(kit: RotaKit, key: str | None = KEY, **changes: Any) -> Requested:
    asked: dict[str, Any] = {"job_id": "tick", "tenant_id": "default", "idempotency_key": key, **changes}
    return await kit.on_demand.request(asked.pop("job_id"), **asked)


async def test_the_same_key_and_request_give_the_same_run(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    first = await ask(rota_kit, payload={"b": 1, "a": [1, 2]})
    rota_kit.clock.advance(5)
    again = await ask(rota_kit, payload={"a": [1, 2], "b": 1})
    assert (first.created, again.created) == (True, False)
    assert (first.run_id, first.scheduled_for) == (again.run_id, again.scheduled_for)
    assert len(await rota_kit.runs("tick")) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"payload": {"a": 2}},
        {"payload": None},
        {"payload": {}},
        {"payload": {"a": 1}, "scheduled_for": START},
        {"payload": {"a": 1}, "job_id": "tock"},
    ],
)
async def test_a_key_that_stands_for_another_request_is_refused(rota_kit: RotaKit, other: dict[str, Any]) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"), Job(job_id="tock", handler="h"))
    made = await ask(rota_kit, payload={"a": 1})
    with pytest.raises(KeyReused, match=str(made.run_id)):
        await ask(rota_kit, **other)
    assert len(await rota_kit.runs("tick")) + len(await rota_kit.runs("tock")) == 1


async def test_keys_of_two_tenants_do_not_meet(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"), Job(job_id="tick", handler="h", tenant_id="other"))
    one, other = await ask(rota_kit), await ask(rota_kit, tenant_id="other", payload={"a": 1})
    assert one.created
    assert other.created


async def test_a_slot_taken_under_another_key_names_the_run_and_leaves_the_key_free(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    slot = START + TEN_SECONDS
    made = await ask(rota_kit, scheduled_for=slot)
    with pytest.raises(SlotTaken, match=str(made.run_id)):
        await ask(rota_kit, "another key", scheduled_for=slot)
    again = await ask(rota_kit, "another key", scheduled_for=slot + TEN_SECONDS)
    assert again.created


@pytest.mark.parametrize("slot", [None, START + TEN_SECONDS])
async def test_fifty_that_ask_at_once_under_one_key_get_one_run(rota_kit: RotaKit, slot: Any) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    answers = await asyncio.gather(*(ask(rota_kit, scheduled_for=slot, payload={"n": 1}) for _ in range(50)))
    assert len({answer.run_id for answer in answers}) == 1
    assert sum(answer.created for answer in answers) == 1
    assert len(await rota_kit.runs("tick")) == 1


async def test_runs_wanted_now_under_different_keys_are_different_runs(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    answers = [await ask(rota_kit, f"key {n}") for n in range(3)]
    assert len({answer.run_id for answer in answers}) == 3
    for n, answer in enumerate(answers):
        assert (await ask(rota_kit, f"key {n}")).run_id == answer.run_id


async def test_a_request_whose_answer_was_lost_is_read_back_by_its_key(rota_cluster: TestCluster) -> None:
    class Lost(Database):
        """Loses the answer to the next commit."""

        lost = False

        def transaction(self, **options: Any) -> Any:
            @asynccontextmanager
            async def lossy() -> Any:
                async with super(Lost, self).transaction(**options) as tx:
                    yield tx
                if self.lost:
                    self.lost = False
                    raise CommitUnknown("commit: the connection ended")

            return lossy()

    async with rota_cluster.kit() as kit, await Lost.connect(kit.dsn) as database:
        await kit.put(Job(job_id="tick", handler="h"))
        service = OnDemand(database, kit.clock, kit.rota.hints)
        database.lost = True
        made = await service.request("tick", tenant_id="default", idempotency_key=KEY)
        assert made.created
        assert [run.run_id for run in await kit.runs("tick")] == [made.run_id]
        await kit.check()


async def test_a_crash_between_the_steps_leaves_nothing_half(rota_cluster: TestCluster) -> None:
    """The key is held and the process ends before the run is made: neither is there, and the retry makes both."""
    async with rota_cluster.kit() as kit, await Faulty.connect(kit.dsn) as database:
        await kit.put(Job(job_id="tick", handler="h"))
        dying = OnDemand(database, kit.clock, kit.rota.hints)
        await execute(kit, "ALTER TABLE rota.pending RENAME TO hidden")
        with pytest.raises(Exception, match="pending"):
            await dying.request("tick", tenant_id="default", idempotency_key=KEY)
        await execute(kit, "ALTER TABLE rota.hidden RENAME TO pending")
        assert await fetch(kit, "SELECT * FROM rota.idempotency") == []
        assert await kit.runs("tick") == []
        assert (await ask(kit)).created
        await kit.check()


async def test_a_request_that_is_repeated_after_the_jobs_delete_still_gets_its_answer(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    made = await ask(rota_kit)
    await rota_kit.definitions.delete("tick", tenant_id="default")
    assert (await ask(rota_kit)).run_id == made.run_id
    with pytest.raises(NotFound):
        await ask(rota_kit, "another key")


async def test_a_run_in_a_month_without_a_partition_is_made_with_its_key(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    slot = START.replace(year=2031)
    made = await ask(rota_kit, scheduled_for=slot)
    assert made.run_id == run_id(job_uid(*Job(job_id="tick", handler="h").name), slot)
    assert not (await ask(rota_kit, scheduled_for=slot)).created


@pytest.mark.parametrize("key", ["", "x" * 201, "a\nb", "a\x00b", "a\u200bb", "\ud800", 7])
async def test_a_key_that_cannot_be_one_is_refused_by_name(rota_kit: RotaKit, key: Any) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    with pytest.raises(InvalidInput) as refusal:
        await ask(rota_kit, key)
    assert refusal.value.field == "Idempotency-Key"


@pytest.mark.parametrize("key", ["x" * 200, "ключ é 鍵", "' OR 1=1 --", "%s$1"])
async def test_a_key_of_any_printable_characters_holds(rota_kit: RotaKit, key: str) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    assert (await ask(rota_kit, key)).run_id == (await ask(rota_kit, key)).run_id


async def test_old_keys_are_forgotten_in_bounded_steps(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    for n in range(3):
        await ask(rota_kit, f"old {n}")
    rota_kit.clock.advance(timedelta(hours=25))
    fresh = await ask(rota_kit, "fresh")
    before = rota_kit.clock.now() - timedelta(hours=24)
    assert [await forget_keys(rota_kit.database, before=before, limit=2) for _ in range(3)] == [2, 1, 0]
    assert (await ask(rota_kit, "fresh")).run_id == fresh.run_id
    assert (await ask(rota_kit, "old 0")).created


async def test_a_trigger_is_in_the_audit_log_with_its_run(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s"))
    made = await ask(rota_kit, actor="token:abc")
    plain = await rota_kit.on_demand.trigger("tick", tenant_id="default")
    with pytest.raises(SlotTaken):
        await rota_kit.on_demand.trigger("tick", tenant_id="default", scheduled_for=START)
    rows = await fetch(
        rota_kit, "SELECT actor, subject, after FROM rota.audit WHERE action = 'run.triggered' ORDER BY actor DESC"
    )
    assert [(row["actor"], row["subject"]) for row in rows] == [
        ("token:abc", str(made.run_id)),
        ("system", str(plain)),
    ]
    assert json.loads(rows[0]["after"]) == {
        "job_id": "tick",
        "scheduled_for": "2026-01-01T00:00:00Z",
        "idempotency_key": KEY,
    }


async def test_a_slot_after_the_last_year_is_refused(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    late = datetime(9999, 12, 31, 23, 59, tzinfo=timezone(timedelta(hours=-5)))
    with pytest.raises(InvalidInput) as refusal:
        await ask(rota_kit, scheduled_for=late)
    assert refusal.value.field == "scheduled_for"


@pytest.mark.parametrize("slot", [START.replace(year=1970), START.replace(year=2047), START.replace(year=9998)])
async def test_no_tenant_makes_partitions_of_all_months_there_are(rota_kit: RotaKit, slot: datetime) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    parts = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'rota.run'::regclass"
    before = await fetch(rota_kit, parts)
    with pytest.raises(InvalidInput) as refusal:
        await ask(rota_kit, scheduled_for=slot)
    assert refusal.value.field == "scheduled_for"
    assert await fetch(rota_kit, parts) == before


async def test_a_payload_larger_than_the_tenants_quota_is_refused(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    await rota_kit.rota.access.put_tenant(
        "default", max_jobs=None, max_payload_bytes=10, calls_per_second=None, actor="system"
    )
    await ask(rota_kit, payload={"a": 1})
    with pytest.raises(TooLarge):
        await ask(rota_kit, "another key", payload={"a": "x" * 10})


async def test_a_burst_of_runs_wanted_at_one_instant_gets_a_slot_each(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    made = await asyncio.gather(*(ask(rota_kit, f"order-{number}") for number in range(120)))
    assert len({run.run_id for run in made}) == len(await rota_kit.runs("tick")) == 120


# slots of the schedule ------------------------------------------------------------------------------------------------

ODD = rota.every(timedelta(milliseconds=1501), anchor=START + timedelta(milliseconds=7))


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize(
    "schedule", [rota.cron("* * * * *"), rota.every("1s"), ODD, rota.once(START + timedelta(minutes=1))]
)  # fmt: skip
async def test_a_run_wanted_now_never_takes_a_slot_that_is_to_come(
    rota_kit: RotaKit, schedule: Any, key: str | None
) -> None:
    """Many that are wanted in the milliseconds before and at a slot: the scheduled run is made with its own payload."""
    await rota_kit.put(Job(job_id="tick", handler="h", schedule=schedule, payload={"by": "schedule"}))
    slot = schedule.next_slot(START)
    for number, before in enumerate((3, 2, 1, 1, 1, 0, 0)):
        rota_kit.clock.set(slot - timedelta(milliseconds=before))
        made = await ask(rota_kit, key and f"{key}-{number}", payload={"by": "hand"})
        assert made.scheduled_for != slot
    await rota_kit.tick()
    [run] = [run for run in await rota_kit.runs("tick") if run.scheduled_for == slot]
    assert (run.origin, run.payload) == ("schedule", {"by": "schedule"})
    assert len(await rota_kit.runs("tick")) == 8
    await rota_kit.check()


@pytest.mark.parametrize(
    "schedule",
    [
        None, rota.cron("*/5 * * * *", tz="Asia/Kolkata"), rota.every("1h30m"), ODD, rota.every("2d3h4m5s"),
        rota.once(START + timedelta(milliseconds=12)), rota.once(START),
    ],
)  # fmt: skip
async def test_sql_and_the_program_agree_on_what_a_schedule_may_name(rota_kit: RotaKit, schedule: Any) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h", schedule=schedule))
    chance = random.Random(1)
    asked = [START + timedelta(milliseconds=chance.randrange(-(10**9), 10**9)) for _ in range(500)]
    asked += [START + timedelta(seconds=second) for second in range(300)]
    if schedule is not None:
        named = schedule.latest_slots(START + timedelta(days=30), after=START - timedelta(days=1), count=50)
        assert all(may_name(schedule, slot) for slot in named)
        asked += named
    rows = await fetch(
        rota_kit,
        "SELECT rota.may_name(j.schedule, at) AS named FROM unnest($1::timestamptz[]) WITH ORDINALITY a (at, n)"
        " CROSS JOIN rota.job j ORDER BY n",
        asked,
    )
    assert [row["named"] for row in rows] == [may_name(schedule, at) for at in asked]
