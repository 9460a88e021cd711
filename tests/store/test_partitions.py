"""Monthly partitions: there before they are needed, made on the spot where not, and cut in UTC."""

import asyncio
from datetime import UTC, date, datetime, timedelta, timezone

import pytest

import rota
from rota.domain.job import Job
from rota.errors import SetupFailed
from rota.store import partitions
from rota.store.database import Database, MissingPartition
from rota.store.statements import Statement
from rota.testing import RotaKit, TestCluster
from tests.store.stage import outsider, uncommitted, until_waiting_for

KOLKATA = "Asia/Kolkata"
FAR = [datetime(2006, 2, 1, tzinfo=UTC), datetime(2045, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)]


async def months(dsn: str, parent: str = "run", *, zone: str = "UTC") -> list[str]:
    async with outsider(dsn, TimeZone=zone) as other:
        rows = await other.fetch(
            "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
            " WHERE i.inhparent = $1::regclass ORDER BY 1",
            f"rota.{parent}",
        )
    return [row["relname"].removeprefix(f"{parent}_") for row in rows]


async def test_upkeep_keeps_months_ahead(rota_kit: RotaKit) -> None:
    assert await months(rota_kit.dsn) == ["2025_12", "2026_01", "2026_02", "2026_03", "2026_04", "far"]
    rota_kit.clock.advance(timedelta(days=31 + 28))
    await rota_kit.tick()
    assert (await months(rota_kit.dsn))[-3:] == ["2026_05", "2026_06", "far"]
    assert await months(rota_kit.dsn, "attempt") == await months(rota_kit.dsn)
    await rota_kit.tick()


def test_months_ahead_cross_the_years_end() -> None:
    assert partitions.months_ahead(datetime(2026, 11, 30, tzinfo=UTC)) == [
        date(2026, 11, 1),
        date(2026, 12, 1),
        date(2027, 1, 1),
        date(2027, 2, 1),
    ]


def test_months_ahead_end_with_the_calendar() -> None:
    assert partitions.months_ahead(datetime(9999, 11, 30, tzinfo=UTC)) == [date(9999, 11, 1), date(9999, 12, 1)]


@pytest.mark.parametrize("slot", FAR, ids=lambda slot: f"{slot:%Y-%m}")
async def test_a_run_triggered_at_a_far_slot_is_made_and_ends_like_any_other(rota_kit: RotaKit, slot: datetime) -> None:
    before = await months(rota_kit.dsn)
    await rota_kit.put(Job(job_id="job", handler="h"))
    run = await rota_kit.on_demand.trigger("job", tenant_id="default", scheduled_for=slot)
    async with rota_kit.database.transaction() as tx:
        await tx._raw.execute("UPDATE rota.pending SET gate = 'open'")
    await (await rota_kit.worker("w", handlers=["h"]).claim_one()).succeed()
    found, attempts = await rota_kit.history.run(run)
    assert (found.state, found.scheduled_for, len(attempts)) == ("succeeded", slot, 1)
    assert await months(rota_kit.dsn) == before
    await rota_kit.check()


async def test_far_slots_share_a_partition_whatever_their_number(rota_kit: RotaKit) -> None:
    """Twenty years of months, by the API's way and by SQL, make no table."""
    before = await months(rota_kit.dsn), await months(rota_kit.dsn, "attempt")
    await rota_kit.put(Job(job_id="job", handler="h"))
    async with outsider(rota_kit.dsn) as other:
        await other.execute(
            "SELECT rota.trigger('job', scheduled_for => date_trunc('month', now()) + n * interval '1 month')"
            " FROM generate_series(-200, 200) n"
        )
    for year in range(2010, 2046):
        await rota_kit.on_demand.trigger(
            "job", tenant_id="default", scheduled_for=datetime(year, 6, 2, tzinfo=UTC)
        )  # fmt: skip
    assert (await months(rota_kit.dsn), await months(rota_kit.dsn, "attempt")) == before
    await rota_kit.check()


async def test_rows_of_a_month_that_comes_near_move_into_its_partition(rota_kit: RotaKit) -> None:
    slot, later = datetime(2026, 6, 15, tzinfo=UTC), datetime(2031, 6, 15, tzinfo=UTC)
    await rota_kit.put(Job(job_id="job", handler="h"))
    for at in (slot, later):
        await rota_kit.on_demand.trigger("job", tenant_id="default", scheduled_for=at)
    rota_kit.clock.set(datetime(2026, 3, 20, tzinfo=UTC))
    await rota_kit.tick()
    async with outsider(rota_kit.dsn) as other:
        assert [row["scheduled_for"] for row in await other.fetch("SELECT scheduled_for FROM rota.run_2026_06")] == [
            slot
        ]
        assert [row["scheduled_for"] for row in await other.fetch("SELECT scheduled_for FROM rota.run_far")] == [later]
    rota_kit.clock.set(slot)
    await rota_kit.tick()
    await (await rota_kit.worker("w", handlers=["h"]).claim_one()).succeed()
    assert [run.state for run in await rota_kit.runs("job")] == ["succeeded", "pending"]
    await rota_kit.check()


async def test_a_write_that_crosses_the_birth_of_its_month_is_made_there(rota_kit: RotaKit) -> None:
    slot = datetime(2026, 6, 15, tzinfo=UTC)
    await rota_kit.put(Job(job_id="job", handler="h"))
    async with uncommitted(rota_kit.dsn, "SELECT rota.ensure_month('2026-06-01')") as maker:
        by_sql = asyncio.create_task(triggered_by_sql(rota_kit.dsn, slot))
        trigger = rota_kit.on_demand.trigger("job", tenant_id="default", scheduled_for=slot + timedelta(days=1))
        by_api = asyncio.create_task(trigger)
        await until_waiting_for(maker, waiters=2)
        await maker.execute("COMMIT")
        await by_sql
        await by_api
        assert await maker.fetchval("SELECT count(*) FROM rota.run_2026_06") == 2
    await rota_kit.check()


async def triggered_by_sql(dsn: str, slot: datetime) -> None:
    async with outsider(dsn) as other:
        await other.execute("SELECT rota.trigger('job', scheduled_for => $1)", slot)


async def test_a_table_that_has_a_detached_months_name_is_named_and_stops_nothing(rota_kit: RotaKit) -> None:
    month = date(2026, 4, 1)
    async with outsider(rota_kit.dsn) as other:
        await other.execute("ALTER TABLE rota.run DETACH PARTITION rota.run_2026_04")
        with pytest.raises(
            SetupFailed, match=r"rota\.run_2026_04 is in the way.*rename it, drop it, or attach it again"
        ):
            await partitions.ensure_months(rota_kit.database, [month])
        await rota_kit.put(Job(job_id="job", handler="h", schedule=rota.every("1m")))
        await rota_kit.on_demand.trigger("job", tenant_id="default", scheduled_for=datetime(2026, 4, 5, tzinfo=UTC))
        await rota_kit.advance(60)
        assert len(await rota_kit.runs("job")) == 2
        await other.execute("DROP TABLE rota.run_2026_04")
        assert await partitions.ensure_months(rota_kit.database, [month]) == 1
        assert await other.fetchval("SELECT count(*) FROM rota.run_2026_04") == 1
    await rota_kit.check()


async def test_a_slot_given_in_another_zone_lies_in_its_month_of_utc(dsn: str) -> None:
    local = datetime(2026, 6, 1, 4, 30, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    async with await Database.connect(dsn) as database, outsider(dsn) as other:
        await partitions.ensure_months(database, [date(2026, 5, 1), date(2026, 6, 1)])
        assert await partitions.through_attach(lambda: made_at(database, local))
        assert await other.fetchval("SELECT count(*) FROM rota.run_2026_05") == 1


MAKE = Statement(
    "make",
    "Make a run's row, as a trigger does.",
    "INSERT INTO rota.run (shard, job_uid, scheduled_for, created_at, origin)"
    " VALUES (1, 1, $1, $1, 'manual') RETURNING 1",
    ("slot",),
)


async def made_at(database: Database, slot: datetime) -> bool:
    return bool(await database.fetch(MAKE, slot=slot))


async def test_a_schedulers_batch_over_months_without_partitions_is_made(rota_cluster: TestCluster) -> None:
    async with rota_cluster.kit(start=datetime(2031, 4, 30, 23, 59, tzinfo=UTC)) as kit:
        catch_up = rota.catch_up(100, max_age=timedelta(days=400))
        await kit.put(
            Job(job_id="monthly", handler="h", schedule=rota.cron("0 0 1 * *"), misfire=catch_up),
            Job(job_id="once", handler="h", schedule=rota.once(datetime(2031, 5, 2, tzinfo=UTC))),
        )
        kit.clock.set(datetime(2032, 2, 1, tzinfo=UTC))
        await kit.process.keeper.tick()
        while await kit.process.scheduler.tick():
            pass
        assert [run.scheduled_for.month for run in await kit.runs("monthly")] == [5, 6, 7, 8, 9, 10, 11, 12, 1, 2]
        await kit.check()


async def test_a_month_is_made_by_one_of_many_and_found_by_the_others(rota_kit: RotaKit) -> None:
    month = date(2040, 2, 29)
    made = await asyncio.gather(*(partitions.ensure_months(rota_kit.database, [month, month]) for _ in range(8)))
    assert sorted(made) == [0] * 7 + [2]


async def test_makers_of_different_months_wait_for_each_other_and_not_for_writers(rota_kit: RotaKit) -> None:
    """Attaching a partition must not lock the ledger against the inserts of the moment."""
    insert = (
        "INSERT INTO rota.run (shard, job_uid, scheduled_for, created_at, origin)"
        " VALUES (1, 1, '2026-01-05Z', 'epoch', 'manual')"
    )
    async with (
        uncommitted(rota_kit.dsn, insert),
        uncommitted(rota_kit.dsn, "SELECT rota.ensure_month('2050-01-01')") as maker,
    ):
        others = asyncio.create_task(partitions.ensure_months(rota_kit.database, [date(2050, 2, 1)]))
        await until_waiting_for(maker)
        await rota_kit.put(Job(job_id="job", handler="h"))
        await rota_kit.on_demand.trigger("job", tenant_id="default")
        await maker.execute("COMMIT")
        assert await others == 2


async def test_a_write_is_tried_again_once() -> None:
    calls = list[int]()

    async def write() -> None:
        calls.append(1)
        raise MissingPartition("no partition")

    with pytest.raises(MissingPartition):
        await partitions.through_attach(write)
    assert len(calls) == 2


async def test_months_are_cut_in_utc_whatever_zone_a_session_has(dsn: str) -> None:
    edges = [datetime(2033, 7, 1, tzinfo=UTC), datetime(2033, 7, 31, 23, 59, 59, 999000, tzinfo=UTC)]
    async with outsider(dsn, TimeZone=KOLKATA, DateStyle="SQL, DMY") as other:
        assert await other.fetchval("SELECT rota.ensure_month('20330714')") == 2
        assert await other.fetchval("SELECT rota.ensure_month('20330714')") == 0
    async with await Database.connect(f"{dsn}&TimeZone={KOLKATA}") as database:
        await partitions.ensure_months(database, [date(2033, 8, 1)])
        for slot in edges:
            assert await made_at(database, slot)
    async with outsider(dsn) as other:
        assert await other.fetchval("SELECT count(*) FROM rota.run_2033_07") == 2
        bounds = await other.fetch(
            "SELECT pg_get_expr(relpartbound, oid) AS bound FROM pg_class"
            " WHERE relname ~ '^(run|attempt)_2033' AND relkind = 'r'"
        )
    assert {row["bound"] for row in bounds} == {
        "FOR VALUES FROM ('2033-07-01 00:00:00+00') TO ('2033-08-01 00:00:00+00')",
        "FOR VALUES FROM ('2033-08-01 00:00:00+00') TO ('2033-09-01 00:00:00+00')",
    }
