"""The freeze: no new slots and no starts until it is lifted, and then all goes on as it was."""

import pytest

import rota
from rota.control.principal import operator
from rota.errors import Conflict, Locked, NotFound
from rota.store.due import NEVER
from rota.testing import RotaKit
from tests.services.stories import SECOND, START, every, execute, fetch, let_wait, slots, stored
from tests.store.stage import uncommitted

MINUTELY = every("1m", misfire=rota.catch_up(10))


async def test_a_frozen_tenant_makes_no_slots_and_starts_nothing_and_others_go_on(rota_kit: RotaKit) -> None:
    await rota_kit.put(MINUTELY, every("1m", tenant_id="acme"))
    await rota_kit.advance(60)
    await rota_kit.rota.freezes.freeze("default", reason="incident 12", actor="cli:me")
    await rota_kit.advance(180)
    assert await slots(rota_kit) == [START + 60 * SECOND]
    assert len(await rota_kit.runs("tick", tenant_id="acme")) == 4
    claimed = await rota_kit.worker("w-1", handlers=["h"]).claim(limit=10)
    assert {work.claim.tenant_id for work in claimed} == {"acme"}
    assert await rota_kit.worker("w-2", handlers=["h"], tenant_id="default").claim(limit=10) == []
    await rota_kit.rota.freezes.unfreeze("default", actor="cli:me")
    await rota_kit.advance(2)
    assert await slots(rota_kit) == [START + n * 60 * SECOND for n in (1, 2, 3, 4)], "as its misfire policy says"
    assert len(await rota_kit.worker("w-2", handlers=["h"], tenant_id="default").claim(limit=10)) == 4
    await rota_kit.check()


async def test_everything_is_frozen_and_a_tenant_stays_so_afterwards(rota_kit: RotaKit) -> None:
    await rota_kit.put(MINUTELY, every("1m", tenant_id="acme"))
    await rota_kit.rota.freezes.freeze("*", reason="database move")
    await rota_kit.rota.freezes.freeze("acme", reason="unpaid")
    await rota_kit.advance(120)
    await rota_kit.rota.freezes.unfreeze("*")
    await rota_kit.advance(2)
    assert len(await slots(rota_kit)) == 2
    assert await rota_kit.runs("tick", tenant_id="acme") == []
    assert [one.reason for one in await rota_kit.rota.freezes.holding("acme")] == ["unpaid"]
    await rota_kit.rota.freezes.unfreeze("acme")
    await rota_kit.advance(2)
    assert len(await rota_kit.runs("tick", tenant_id="acme")) == 1
    assert await fetch(rota_kit, "SELECT FROM rota.freeze") == [], "what is over is forgotten"


async def test_a_freeze_rewrites_only_what_comes_due_in_it_and_its_end_only_that(rota_kit: RotaKit) -> None:
    await rota_kit.put(MINUTELY, every("1h", "hourly"), every("1m", "paused"))
    await rota_kit.definitions.pause("paused", tenant_id="default", reason="")
    before = await stored(rota_kit, "hourly")
    await rota_kit.rota.freezes.freeze("default", reason="r")
    await rota_kit.advance(61)
    rows = await fetch(rota_kit, "SELECT j.job_id FROM rota.schedule s JOIN rota.job j USING (shard, job_uid)"
                                 " WHERE s.frozen_by IS NOT NULL")  # fmt: skip
    assert [row["job_id"] for row in rows] == ["tick"]
    assert (await stored(rota_kit)).next_run_at is None
    assert (await stored(rota_kit)).next_slot == START + 60 * SECOND
    await rota_kit.rota.freezes.unfreeze("default")
    await rota_kit.tick()
    assert await stored(rota_kit, "hourly") == before
    assert (await stored(rota_kit, "paused")).state == "paused"
    assert (await stored(rota_kit, "paused")).next_run_at is None


async def test_edits_in_a_freeze_hold_after_its_end(rota_kit: RotaKit) -> None:
    await rota_kit.put(MINUTELY, every("1m", "paused"), every("1m", "gone"))
    await rota_kit.rota.freezes.freeze("default", reason="r")
    await rota_kit.advance(60)
    await rota_kit.definitions.pause("paused", tenant_id="default", reason="mine")
    await rota_kit.definitions.delete("gone", tenant_id="default")
    await rota_kit.definitions.patch("tick", {"schedule": {"every": "10m"}}, tenant_id="default")
    await rota_kit.rota.freezes.unfreeze("default")
    await rota_kit.advance(120)
    for job_id in ("paused", "tick"):
        assert await rota_kit.runs(job_id) == []
    await rota_kit.advance(600)
    assert len(await slots(rota_kit)) == 1


async def test_frozen_tenants_take_no_turn_from_others(rota_kit: RotaKit) -> None:
    for n in range(12):
        await let_wait(rota_kit, 1, tenant_id=f"a{n:02}")
        await rota_kit.rota.freezes.freeze(f"a{n:02}", reason="r")
    await let_wait(rota_kit, 3, tenant_id="zz")
    assert len(await rota_kit.worker("w-1", handlers=["h"]).claim(limit=1)) == 1
    assert len(await rota_kit.worker("w-1", handlers=["h"]).claim(limit=5)) == 2


async def test_a_freeze_of_somebody_cuts_no_claim_of_others_short(rota_kit: RotaKit) -> None:
    for n in range(40):
        await let_wait(rota_kit, 1, tenant_id=f"a{n:02}")
    await rota_kit.rota.freezes.freeze("zz", reason="r")
    assert len(await rota_kit.worker("w-1", handlers=["h"]).claim(limit=40)) == 40


async def test_a_freeze_that_somebody_is_changing_keeps_no_other_tenant_waiting(rota_kit: RotaKit) -> None:
    await rota_kit.put(MINUTELY, every("1m", tenant_id="acme"))
    await rota_kit.rota.freezes.freeze("default", reason="r")
    async with uncommitted(rota_kit.dsn, "SELECT FROM rota.freeze FOR UPDATE"):
        await rota_kit.advance(60)
        assert len(await rota_kit.runs("tick", tenant_id="acme")) == 1
    await rota_kit.advance(2)
    assert (await stored(rota_kit)).next_run_at is None, "put off at the next look"
    assert await slots(rota_kit) == []


async def test_a_slot_that_is_put_off_as_the_freeze_ends_comes_back(rota_kit: RotaKit) -> None:
    await rota_kit.put(MINUTELY)
    await rota_kit.rota.freezes.freeze("default", reason="r")
    await rota_kit.advance(60)
    await rota_kit.rota.freezes.unfreeze("default")
    # What a slow editor holds at this moment keeps the freeze's row, and comes back at a later look.
    async with rota_kit.database.transaction() as tx:
        await tx._raw.execute("SELECT FROM rota.schedule WHERE frozen_by IS NOT NULL FOR UPDATE")
        assert not await rota_kit.rota.freezes.bring_back()
        assert len(await fetch(rota_kit, "SELECT FROM rota.freeze")) == 1
    await rota_kit.tick()
    assert len(await slots(rota_kit)) == 1


async def test_why_and_doctor_say_what_is_frozen(rota_kit: RotaKit) -> None:
    await rota_kit.put(MINUTELY)
    made = await rota_kit.on_demand.trigger("tick", tenant_id="default")
    await rota_kit.rota.freezes.freeze("default", reason="incident 12", actor="cli:me")
    assert (await rota_kit.rota.why.run(made, tenant_id="default")).gate == "frozen"
    assert (await rota_kit.rota.why.job("tick", tenant_id="default")).text.endswith(": incident 12.")
    [check] = [check for check in await rota_kit.rota.doctor.examine() if check.name == "freeze"]
    assert check.findings == ("tenant 'default' is frozen since 2026-01-01T00:00:00Z by cli:me: incident 12",)
    await rota_kit.rota.freezes.unfreeze("default")
    with pytest.raises(NotFound):
        await rota_kit.rota.freezes.unfreeze("default")
    entries = await rota_kit.rota.access.changes("default", subject="default", before=None, limit=10)
    assert {entry.action for entry in entries} == {"tenant.frozen", "tenant.unfrozen"}


async def test_what_is_put_off_disturbs_no_sleep_and_no_list(rota_kit: RotaKit) -> None:
    """A scheduler sleeps no longer than usual beside schedules that are put off, and lists show no instant."""
    await rota_kit.put(MINUTELY)
    await execute(rota_kit, "UPDATE rota.schedule SET next_run_at = $1, frozen_by = '*'", NEVER)
    await rota_kit.tick()
    assert 0 < await rota_kit.process.scheduler.pause() <= 1
    assert [job.next_run_at for job in await rota_kit.definitions.page(tenant_id="default")] == [None]


async def test_a_resume_in_a_freeze_makes_no_runs_before_its_end(rota_kit: RotaKit) -> None:
    await rota_kit.put(MINUTELY)
    await rota_kit.definitions.pause("tick", tenant_id="default", reason="")
    await rota_kit.advance(120)
    await rota_kit.rota.freezes.freeze("default", reason="r")
    with pytest.raises(Conflict, match="frozen, so no runs are made"):
        await rota_kit.definitions.resume("tick", tenant_id="default", missed="catch_up")
    assert (await stored(rota_kit)).state == "paused"
    await rota_kit.definitions.resume("tick", tenant_id="default", missed="policy")
    await rota_kit.advance(60)
    assert ((await stored(rota_kit)).state, await slots(rota_kit)) == ("active", [])
    await rota_kit.rota.freezes.unfreeze("default")
    await rota_kit.advance(2)
    assert await slots(rota_kit) == [START + n * 60 * SECOND for n in (1, 2, 3)]
    await rota_kit.check()


async def test_a_job_that_is_to_catch_up_at_its_resume_waits_for_the_end_of_a_freeze(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("1m"))
    await rota_kit.definitions.pause(
        "tick", tenant_id="default", reason="", resume_at=START + 120 * SECOND, missed="catch_up"
    )
    await rota_kit.rota.freezes.freeze("*", reason="r")
    await rota_kit.advance(180)
    assert ((await stored(rota_kit)).state, await slots(rota_kit)) == ("paused", [])
    assert "is frozen" in (await rota_kit.rota.why.job("tick", tenant_id="default")).text
    await rota_kit.rota.freezes.unfreeze("*")
    await rota_kit.advance(90)
    assert (await stored(rota_kit)).state == "active"
    assert START + 60 * SECOND in await slots(rota_kit)


async def test_what_frozen_tenants_have_waiting_goes_before_nobody(rota_kit: RotaKit) -> None:
    for tenant_id in ("acme", "default"):
        await rota_kit.put(every("1m", tenant_id=tenant_id))
    await rota_kit.advance(60)
    await rota_kit.rota.freezes.freeze("acme", reason="r")
    await rota_kit.worker("w-1", handlers=["h"]).announce()
    [run] = await rota_kit.runs("tick")
    reason = await rota_kit.rota.why.run(run.run_id, tenant_id="default")
    assert (reason.cause, reason.tenants) == ("next", 0)


@pytest.mark.parametrize("table", ["freeze", "limits", "pool", "tenant", "worker"])
async def test_what_an_operator_asks_beside_a_stranger_is_answered_soon_and_names_what_is_held(
    rota_kit: RotaKit, table: str
) -> None:
    control = rota_kit.rota.control(operator("cli:me"))
    await rota_kit.worker("w-1", handlers=["h"]).announce()

    async def ask(number: int) -> None:
        match table:
            case "freeze":
                await control.freeze(reason=f"r{number}")
            case "limits":
                await control.put_limit("crm", permits=number)
            case "pool":
                await control.put_pool("default", shed_above=number)
            case "tenant":
                await control.put_tenant("acme", max_jobs=number)
            case _:
                await control.drain_worker("w-1")

    await ask(1)
    async with uncommitted(rota_kit.dsn, f"SELECT FROM rota.{table} FOR UPDATE"):
        with pytest.raises(Locked, match="is held by a transaction"):
            await ask(2)
    await ask(2)
