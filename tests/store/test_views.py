"""What people read of runs: their ids, states and attempts, and never a token."""

import random
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import rota
from rota.domain.attempt import Outcome
from rota.domain.ids import job_uid, run_id, slot_of
from rota.domain.job import Job
from rota.store.runs import RunView
from rota.store.statements import jobs
from rota.testing import RotaKit
from tests.store.stage import outsider

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EARLIER = datetime(2025, 12, 31, tzinfo=UTC)
LAST = datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)


async def test_the_database_and_the_program_agree_on_run_ids(dsn: str) -> None:
    chance = random.Random(20260101)
    uids = [0, 1, 2**62 - 1, *(chance.getrandbits(chance.randint(1, 62)) for _ in range(3000))]
    span = (LAST - EPOCH) // MILLISECOND
    slots = [EPOCH, LAST, EPOCH + MILLISECOND, *(EPOCH + chance.randint(0, span) * MILLISECOND for _ in range(3000))]
    async with outsider(dsn, TimeZone="America/New_York") as other:
        rows = await other.fetch(
            "SELECT rota.run_id(uid, slot) AS run_id FROM unnest($1::bigint[], $2::timestamptz[]) k (uid, slot)",
            uids,
            slots,
        )
    made = [row["run_id"] for row in rows]
    assert made == [run_id(uid, slot) for uid, slot in zip(uids, slots, strict=True)]
    assert [slot_of(run) for run in made] == list(zip(uids, slots, strict=True))


async def test_a_run_is_named_alike_by_trigger_claim_and_view(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="job", handler="h"))
    triggered = await rota_kit.on_demand.trigger("job", tenant_id="default")
    work = await rota_kit.worker("w", handlers=["h"]).claim_one()
    [run] = await rota_kit.runs("job")
    assert triggered == work.claim.run_id == run.run_id == run_id(job_uid("default", "job"), rota_kit.clock.now())
    await work.succeed()
    async with outsider(rota_kit.dsn) as other:
        assert await other.fetchval("SELECT run_id FROM rota.run_attempt") == triggered


async def the_run(kit: RotaKit, job_id: str) -> RunView:
    [run] = await kit.runs(job_id)
    return run


async def test_each_place_of_a_run_shows_as_its_state(rota_kit: RotaKit) -> None:
    policy = rota.retry(initial=60, jitter=0)
    await rota_kit.put(*(Job(job_id=name, handler=name, max_attempts=2, retry=policy) for name in NAMES))
    for name in NAMES:
        await rota_kit.on_demand.trigger(name, tenant_id="default")
    for name in NAMES[1:]:
        work = await rota_kit.worker(f"w-{name}", handlers=[name]).claim_one()
        if outcome := ENDINGS.get(name):
            await work.report(outcome, error=None if outcome is Outcome.SUCCEEDED else f"{name} it was")
    await rota_kit.definitions.delete("deleted", tenant_id="default")
    runs = {name: await the_run(rota_kit, name) for name in NAMES if name != "deleted"}
    assert {name: (run.state, run.gate, run.attempt) for name, run in runs.items()} == {
        "waiting": ("pending", "open", 0),
        "running": ("running", None, 1),
        "succeeded": ("succeeded", None, 1),
        "backing-off": ("pending", "time", 1),
        "dead": ("dead", None, 1),
        "released": ("pending", "open", 0),
    }
    assert runs["running"].worker_id == "w-running"
    assert runs["running"].started_at == rota_kit.clock.now()
    assert runs["backing-off"].available_at == rota_kit.clock.now() + timedelta(minutes=1)
    assert runs["succeeded"].finished_at == rota_kit.clock.now()
    async with outsider(rota_kit.dsn) as other:
        states = await other.fetch("SELECT job_id, state FROM rota.job_run WHERE job_id = 'deleted'")
        assert [row["state"] for row in states] == ["cancelled"]
        # Gates that no service of this version sets yet.
        for gate, state in (("upstream", "blocked"), ("limit", "pending"), ("handler", "pending")):
            await other.execute(
                "UPDATE rota.pending SET gate = $1, limit_key = 'job/1' WHERE handler = 'waiting'", gate
            )
            assert (await the_run(rota_kit, "waiting")).state == state


NAMES = ["waiting", "running", "succeeded", "backing-off", "dead", "released", "deleted"]
ENDINGS = {
    "succeeded": Outcome.SUCCEEDED,
    "backing-off": Outcome.FAILED,
    "dead": Outcome.GAVE_UP,
    "released": Outcome.RELEASED,
    "deleted": Outcome.RELEASED,
}


async def test_attempts_show_in_the_order_in_which_they_ended(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="job", handler="h", max_attempts=3, retry=rota.retry(initial=1, jitter=0)))
    await rota_kit.on_demand.trigger("job", tenant_id="default")
    for error in ("first", "second", "third"):
        await (await rota_kit.worker("w", handlers=["h"]).claim_one()).fail(error)
        await rota_kit.advance(timedelta(seconds=10))
    found = await rota_kit.attempts(await the_run(rota_kit, "job"))
    assert [(attempt.attempt, attempt.outcome, attempt.error) for attempt in found] == [
        (1, "failed", "first"),
        (2, "failed", "second"),
        (3, "failed", "third"),
    ]


async def test_no_view_shows_a_token(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="job", handler="h"))
    await rota_kit.on_demand.trigger("job", tenant_id="default")
    work = await rota_kit.worker("w", handlers=["h"]).claim_one()
    await work.fail()
    held = await rota_kit.on_demand.trigger("job", tenant_id="default", scheduled_for=EARLIER)
    again = await rota_kit.worker("w", handlers=["h"]).claim_one()
    assert again.claim.run_id == held
    tokens = {str(work.claim.key.token), str(again.claim.key.token)}
    async with outsider(rota_kit.dsn) as other:
        names = await other.fetch("SELECT viewname FROM pg_views WHERE schemaname = 'rota'")
        views = [row["viewname"] for row in names]
        assert set(views) == {"job_run", "run_attempt"}
        for view in views:
            rows: list[Any] = await other.fetch(f"TABLE rota.{view}")
            assert rows
            assert not tokens & {str(value) for row in rows for value in row.values()}
            assert "token" not in rows[0]


async def test_a_listed_job_has_every_column_but_the_large_ones(dsn: str) -> None:
    async with outsider(dsn) as other:
        rows = await other.fetch(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = 'rota' AND table_name = 'job'"
        )
    left_out = {
        row["column_name"] for row in rows if not re.search(rf"\bj\.{row['column_name']}\b", jobs.list_jobs.text)
    }
    assert left_out == {"payload", "declared"}
