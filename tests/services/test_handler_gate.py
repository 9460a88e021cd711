"""A run whose handler no live worker knows: it waits where people see it, costs nobody a scan, and comes back."""

import pytest

from rota.domain.ids import job_uid
from rota.domain.job import Job
from rota.services import upkeep as module
from rota.services.fleet import ANNOUNCED_FOR
from rota.testing import RotaKit
from tests.services.flow import let_wait
from tests.services.stories import SECOND, START, every, execute, fetch
from tests.store.stage import uncommitted


async def waiting(kit: RotaKit) -> list[str]:
    """Return what the doctor says about runs that wait for a handler."""
    [check] = [check for check in await kit.rota.doctor.examine() if check.name == "waiting"]
    return list(check.findings)


async def test_a_run_of_an_unknown_handler_waits_visibly_and_uses_no_attempts(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s", "strange", handler="not-deployed-yet", max_attempts=1))
    worker = rota_kit.worker("w-1", handlers=["h"])
    await rota_kit.advance(10)
    for _ in range(5):
        await worker.announce()
        assert await worker.claim() == []
        await rota_kit.advance(1)
    [run] = await rota_kit.runs("strange")
    assert (run.state, run.gate, run.attempt) == ("pending", "handler", 0)
    assert await rota_kit.attempts(run) == []
    [finding] = await waiting(rota_kit)
    assert "not-deployed-yet" in finding


async def test_it_comes_back_when_a_worker_that_knows_the_handler_says_so(rota_kit: RotaKit) -> None:
    """A rolling deploy: old workers live on for a while, the new one brings the handler."""
    await rota_kit.put(every("10s", "strange", handler="new"))
    old, new = rota_kit.worker("w-old", handlers=["h"]), rota_kit.worker("w-new", handlers=["h", "new"])
    await old.announce()
    await rota_kit.advance(10)
    await old.announce()
    await rota_kit.tick()
    assert await new.claim() == [], "gated until the worker is known"
    await new.announce()
    await rota_kit.tick()
    work = await new.claim_one()
    assert (work.claim.handler, work.claim.attempt) == ("new", 1)
    await work.succeed()
    assert await waiting(rota_kit) == []


async def test_a_run_that_somebody_holds_keeps_no_other_from_the_gate(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s", "held", handler="new"), every("10s", "free", handler="new"))
    await rota_kit.advance(10)
    await rota_kit.worker("w-1", handlers=["h"]).announce()
    command = f"SELECT FROM rota.pending WHERE job_uid = {job_uid('default', 'held')} FOR UPDATE"
    async with uncommitted(rota_kit.dsn, command):
        await rota_kit.tick()
        assert [run.gate for run in await rota_kit.runs("free")] == ["handler"]
        assert [run.gate for run in await rota_kit.runs("held")] == ["open"]
    await rota_kit.tick()
    assert [run.gate for run in await rota_kit.runs("held")] == ["handler"]


async def test_without_any_live_worker_runs_stay_ready(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s"))
    await rota_kit.advance(10)
    [run] = await rota_kit.runs("tick")
    assert run.gate == "open"


async def test_doctor_names_a_pool_that_no_live_worker_serves(rota_kit: RotaKit) -> None:
    """Other pools have workers, so that nothing else would tell."""
    await rota_kit.put(every("10s", "served"), every("10s", "misspelt", pool="bgi"))
    worker = rota_kit.worker("w-1", handlers=["h"])
    await worker.announce()
    assert await waiting(rota_kit) == [], "nothing waits yet"
    await rota_kit.advance(20)
    await worker.announce()
    assert await waiting(rota_kit) == ["2 runs wait in pool 'bgi', which no live worker serves"]
    await rota_kit.worker("w-2", handlers=["h"], pool="bgi").announce()
    assert await waiting(rota_kit) == []


async def test_a_worker_that_has_gone_does_not_count_as_knowing(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s", "strange", handler="new"))
    gone, old = rota_kit.worker("w-new", handlers=["new"]), rota_kit.worker("w-old", handlers=["h"])
    await gone.announce()
    rota_kit.clock.set(START + 10 * SECOND)
    await old.announce()
    await rota_kit.tick()
    [run] = await rota_kit.runs("strange")
    assert run.gate == "open"
    rota_kit.clock.set(START + ANNOUNCED_FOR)
    await rota_kit.tick()
    [run] = await rota_kit.runs("strange")
    assert run.gate == "handler"
    await rota_kit.worker("w-new", handlers=["new"]).announce()
    await gone.desk.retire(gone.info)
    await rota_kit.tick()
    [run] = await rota_kit.runs("strange")
    assert run.gate == "open", "the name is the same, the process that lives is another"


async def test_pools_know_handlers_each_for_themselves(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s", handler="new"))
    await rota_kit.advance(10)
    await rota_kit.worker("w-1", handlers=["new"], pool="big").announce()
    await rota_kit.worker("w-2", handlers=["h"]).announce()
    await rota_kit.tick()
    [run] = await rota_kit.runs("tick")
    assert run.gate == "handler"


async def test_an_edit_to_a_known_handler_lets_waiting_runs_through(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s", handler="mistyped"))
    worker = rota_kit.worker("w-1", handlers=["h"])
    await worker.announce()
    await rota_kit.advance(10)
    await rota_kit.put(every("10s", handler="h"))
    assert (await worker.claim_one()).claim.handler == "h"


async def test_any_number_of_strange_runs_at_the_head_hides_no_run_behind_them(rota_kit: RotaKit) -> None:
    """B68: the claim looks for what the worker knows, however much of the rest stands before it."""
    strange = 60
    await rota_kit.put(
        Job(job_id="strange", handler="unknown", priority=9), Job(job_id="free", handler="h", priority=0)
    )
    for number in range(strange):
        await rota_kit.on_demand.trigger(
            "strange", tenant_id="default", scheduled_for=rota_kit.clock.now() - number * SECOND
        )
    await rota_kit.on_demand.trigger("free", tenant_id="default")
    worker = rota_kit.worker("w-1", handlers=["h"])
    work = await worker.claim_one()
    assert work.claim.job_id == "free"
    await worker.announce()
    await rota_kit.tick()
    await work.release()
    assert (await worker.claim_one()).claim.job_id == "free"
    assert {run.gate for run in await rota_kit.runs("strange")} == {"handler"}


async def test_more_runs_than_a_batch_pass_the_gate_both_ways(rota_kit: RotaKit) -> None:
    runs = 25
    module_batch, module.GATE_BATCH = module.GATE_BATCH, 10  # type: ignore[misc]  # a smaller batch for this test
    try:
        await rota_kit.put(Job(job_id="strange", handler="new"))
        for number in range(runs):
            slot = rota_kit.clock.now() - number * SECOND
            await rota_kit.on_demand.trigger("strange", tenant_id="default", scheduled_for=slot)
        await rota_kit.worker("w-1", handlers=["h"]).announce()
        await rota_kit.tick()
        assert {run.gate for run in await rota_kit.runs("strange")} == {"handler"}
        worker = rota_kit.worker("w-2", handlers=["new"])
        await worker.announce()
        await rota_kit.tick()
        assert len(await worker.claim(limit=100)) == runs
    finally:
        module.GATE_BATCH = module_batch  # type: ignore[misc]  # as it was


async def gates(kit: RotaKit, tenant_id: str, job_id: str = "job") -> set[str | None]:
    return {run.gate for run in await kit.runs(job_id, tenant_id=tenant_id)}


async def has_run(kit: RotaKit, tenant_id: str, handler: str, job_id: str = "job") -> None:
    await kit.put(Job(job_id=job_id, tenant_id=tenant_id, handler=handler))
    await kit.on_demand.trigger(job_id, tenant_id=tenant_id)


async def test_what_a_tenant_s_worker_knows_opens_the_gate_for_its_tenant_alone(rota_kit: RotaKit) -> None:
    for tenant in ("acme", "globex"):
        await has_run(rota_kit, tenant, "new")
    everybody = rota_kit.worker("w-0", handlers=["h"])
    await everybody.announce()
    await rota_kit.tick()
    assert await gates(rota_kit, "acme") | await gates(rota_kit, "globex") == {"handler"}
    own = rota_kit.worker("w-1", handlers=["new"], tenant_id="acme")
    await own.announce()
    await rota_kit.tick()
    assert (await gates(rota_kit, "acme"), await gates(rota_kit, "globex")) == ({"open"}, {"handler"})
    assert (await own.claim_one()).claim.tenant_id == "acme"


async def test_a_tenant_s_strange_runs_are_parked_where_its_worker_looks(rota_kit: RotaKit) -> None:
    for tenant in ("acme", "globex"):
        await has_run(rota_kit, tenant, "strange")
    await rota_kit.worker("w-1", handlers=["*"], tenant_id="acme").announce()
    await rota_kit.worker("w-2", handlers=["h"], tenant_id="globex").announce()
    await rota_kit.tick()
    assert (await gates(rota_kit, "acme"), await gates(rota_kit, "globex")) == ({"open"}, {"handler"})


@pytest.mark.parametrize("tenant_id", [None, "acme"])
async def test_a_worker_of_any_handler_knows_all_but_shell_and_http(rota_kit: RotaKit, tenant_id: str | None) -> None:
    targets = {"fine": "whatever", "command": "shell", "target": "https://example.com/hook"}
    for job_id, handler in targets.items():
        await has_run(rota_kit, "acme", handler, job_id)
    stranger = rota_kit.worker("w-0", handlers=["h"])
    await stranger.announce()
    await rota_kit.tick()
    assert [await gates(rota_kit, "acme", job_id) for job_id in targets] == [{"handler"}] * 3
    worker = rota_kit.worker("w-1", handlers=["*"], tenant_id=tenant_id)
    await worker.announce()
    await rota_kit.tick()
    assert [await gates(rota_kit, "acme", job_id) for job_id in targets] == [{"open"}, {"handler"}, {"handler"}]
    await rota_kit.worker("w-2", handlers=["http"], tenant_id=tenant_id).announce()
    await rota_kit.tick()
    assert [await gates(rota_kit, "acme", job_id) for job_id in targets] == [{"open"}, {"handler"}, {"open"}]


async def test_a_worker_that_drains_does_not_count_as_knowing(rota_kit: RotaKit) -> None:
    await has_run(rota_kit, "default", "new")
    leaving, staying = rota_kit.worker("w-1", handlers=["new"]), rota_kit.worker("w-2", handlers=["h"])
    await leaving.announce()
    await staying.announce()
    await rota_kit.rota.fleet.drain("w-1", tenant_id=None)
    await rota_kit.tick()
    assert await gates(rota_kit, "default") == {"handler"}


async def test_a_deep_backlog_of_a_strange_handler_is_parked_at_once_among_many_tenants(rota_kit: RotaKit) -> None:
    """What others do not need of a look goes to the queue that is deep."""
    await rota_kit.worker("w-1", handlers=["h"]).announce()
    strange = Job(job_id="strange", handler="h", tenant_id="t-50")
    await let_wait(rota_kit, strange, [START] * 900)
    await execute(rota_kit, "UPDATE rota.pending SET handler = 'unknown'")
    others = Job(job_id="known", handler="h")
    await let_wait(rota_kit, others, [START] * 100)
    await execute(
        rota_kit,
        "UPDATE rota.pending SET tenant_id = 't-' || extract(epoch FROM scheduled_for - $2::timestamptz)::integer"
        " WHERE handler = $1",
        "h", START,
    )  # fmt: skip
    for _ in range(2):
        await rota_kit.process.upkeep.tick()
    rows = await fetch(rota_kit, "SELECT gate, handler, count(*) AS runs FROM rota.pending GROUP BY 1, 2 ORDER BY 1")
    assert [tuple(row) for row in rows] == [("handler", "unknown", 900), ("open", "h", 100)]
