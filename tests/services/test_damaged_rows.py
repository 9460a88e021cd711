"""Definitions that somebody's SQL has damaged: refused where they are written, and where they stand already they cost
the other jobs nothing."""

import asyncpg
import pytest

from rota.control.principal import operator
from rota.domain.attempt import Outcome
from rota.domain.job import Job
from rota.testing import RotaKit
from tests.services.stories import every, execute, fetch, slots, states, stored

LONG = "9" * 5000
DAMAGES = {
    "limits": [
        '{"crm": "x"}', '{"crm": 1.5}', '{"crm": -1}', '{"crm": 99999999999}', '{"crm": null}', '{"crm": [1]}', "[]",
        "5", '{"crm": 1e400}',
    ],
    "labels": ["[]", '{"a": 5}', '{"a": null}'],
    "retry": ["[]", '{"initial": "x"}', '{"initial": 1e400}', '{"cap": -5}', f'{{"initial": {LONG}}}'],
    "payload": ["[]", "5", f'{{"n": {LONG}}}'],
}  # fmt: skip
WRITE = {
    "limits": "UPDATE rota.job SET limits = $1::jsonb WHERE job_id = $2",
    "labels": "UPDATE rota.job SET labels = $1::jsonb WHERE job_id = $2",
    "retry": "UPDATE rota.job SET retry = $1::jsonb WHERE job_id = $2",
    "payload": "UPDATE rota.job SET payload = $1::jsonb WHERE job_id = $2",
}
EACH = [(column, value) for column, values in DAMAGES.items() for value in values]


async def drop_checks(kit: RotaKit) -> None:
    """Let rows stand there that are older than the checks."""
    for row in await fetch(
        kit, "SELECT conname FROM pg_constraint WHERE conrelid = 'rota.job'::regclass AND contype = 'c'"
    ):
        await execute(kit, f"ALTER TABLE rota.job DROP CONSTRAINT {row['conname']}")


async def test_what_the_program_would_not_write_sql_cannot_write_either(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    for column, value in EACH:
        with pytest.raises(asyncpg.CheckViolationError):
            await execute(rota_kit, WRITE[column], value, "tick")
    for column, value in {
        "limits": '{"crm": 1000}', "labels": '{"a": ""}', "retry": '{"initial": 2592000.0, "factor": 1}',
        "payload": f'{{"n": {LONG[:4300]}, "text": "{LONG}", "few": 1e-300}}',
    }.items():  # fmt: skip
        await execute(rota_kit, WRITE[column], value, "tick")


async def test_damaged_jobs_stop_neither_claims_nor_reports_nor_lists(rota_kit: RotaKit) -> None:
    control = rota_kit.rota.control(operator("cli:somebody"))
    await control.put_limit("crm", permits=1000)
    names = {f"bad-{number}": damage for number, damage in enumerate(EACH)}
    await rota_kit.put(*(every("10s", name, limits={"crm": 1}) for name in (*names, "good")))
    await drop_checks(rota_kit)
    for name, (column, value) in names.items():
        await execute(rota_kit, WRITE[column], value, name)
    await rota_kit.advance(10)
    claimed = await rota_kit.worker("w-1", handlers=["h"]).claim(limit=500)
    assert {work.claim.job_id for work in claimed} == {*names, "good"}
    for work in claimed:
        await work.report(Outcome.FAILED, error="no")
    await rota_kit.tick()
    assert await states(rota_kit, "good") == ["pending"]
    assert {job.job_id for job in (await control.list_jobs(limit=100)).jobs} == {*names, "good"}
    [check] = [check for check in await rota_kit.rota.doctor.examine() if check.name == "quarantine"]
    assert len(check.findings) == 20
    for name, (column, value) in names.items():
        shown = await control.get_job(name)
        assert shown.state == "active"
        if column == "payload" and LONG in value:
            assert shown.job is not None
            assert shown.job["payload"] == {"n": LONG}, "as text"
        else:
            assert shown.problem is not None
            assert shown.problem.startswith(column)
        assert (await control.why_job(name)).text
    await rota_kit.check()


async def test_a_payload_with_an_endless_number_is_refused_and_costs_no_claim_its_runs(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    for text in (
        f"SELECT rota.trigger('tick', '{{\"n\": {LONG}}}')",
        f"SELECT rota.trigger_many('tick', ARRAY['{{\"n\": [-{LONG}]}}'::jsonb])",
    ):
        with pytest.raises(asyncpg.PostgresError, match="whole number of more than 4300 digits"):
            await execute(rota_kit, text)
    for _ in range(2):
        await rota_kit.on_demand.trigger("tick", tenant_id="default", payload={"n": 1})
        rota_kit.clock.advance(1)
    [first, _] = await rota_kit.runs("tick")
    await execute(
        rota_kit, "UPDATE rota.run SET payload = $1::jsonb WHERE scheduled_for = $2", f'{{"n": {LONG}}}',
        first.scheduled_for,
    )  # fmt: skip
    claimed = await rota_kit.worker("w-1", handlers=["h"]).claim(limit=10)
    assert sorted(len(str(work.claim.payload.get("n", ""))) for work in claimed) == [1, 5000]
    work = claimed[0]
    with pytest.raises(asyncpg.PostgresError, match="result: holds a whole number of more than 4300 digits"):
        await execute(
            rota_kit, "SELECT rota.complete($1, $2, $3::jsonb)", work.claim.run_id, work.claim.key.token, f"[{LONG}]"
        )
    assert {run.state for run in await rota_kit.runs("tick")} == {"running"}
    shown, _ = await rota_kit.history.run(first.run_id)
    assert shown.payload == {"n": LONG}


async def test_a_job_that_cannot_even_be_quarantined_is_set_aside_and_stops_no_other(rota_kit: RotaKit) -> None:
    await rota_kit.put(*(every("10s", name) for name in ("worst", "bad", "good")))
    await execute(rota_kit, "UPDATE rota.job SET schedule = '{}' WHERE job_id IN ('bad', 'worst')")
    await execute(
        rota_kit,
        "ALTER TABLE rota.job ADD CONSTRAINT house_rule CHECK (job_id <> 'worst' OR quarantined IS NULL) NOT VALID",
    )
    await rota_kit.advance(10)
    await rota_kit.tick()
    assert len(await slots(rota_kit, "good")) == 1
    assert (await stored(rota_kit, "bad")).state == "quarantined"
    why = (await rota_kit.rota.why.job("worst", tenant_id="default")).text
    assert "the schedule cannot be computed" in why
    assert "it cannot be quarantined" in why


async def test_a_job_that_cannot_be_paused_keeps_no_other_from_its_pause(rota_kit: RotaKit) -> None:
    for name in ("bad", "good"):
        await rota_kit.put(Job(job_id=name, handler="h", pause_after=1, max_attempts=1))
        await rota_kit.on_demand.trigger(name, tenant_id="default")
    await execute(
        rota_kit,
        "ALTER TABLE rota.job ADD CONSTRAINT house_rule CHECK (job_id <> 'bad' OR paused_at IS NULL) NOT VALID",
    )
    works = await rota_kit.worker("w-1", handlers=["h"]).claim(limit=2)
    for work in sorted(works, key=lambda work: work.claim.job_id):
        await work.fail()
    assert [await states(rota_kit, name) for name in ("bad", "good")] == [["dead"], ["dead"]]
    assert [(await stored(rota_kit, name)).state for name in ("bad", "good")] == ["active", "paused"]
