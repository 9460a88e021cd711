"""Many at once: what a filter means is counted, changed job by job, and nothing else is touched."""

from contextlib import AsyncExitStack
from datetime import timedelta

import pytest

import rota
from rota.domain.attempt import Outcome
from rota.domain.job import Job
from rota.domain.run_filter import RunFilter
from rota.errors import InvalidInput, Locked
from rota.services.definitions import job_filter
from rota.store.database import Lane
from rota.store.jobs import JobFilter
from rota.testing import RotaKit
from tests.services.stories import every
from tests.store.stage import uncommitted

BILLING = JobFilter(label="team", label_value="billing")


async def states(kit: RotaKit) -> dict[str, str]:
    return {job.job_id: job.state for job in await kit.definitions.page(tenant_id="default")}


async def put_teams(kit: RotaKit) -> None:
    """Three jobs of billing, one of sales, and one of billing at another tenant."""
    jobs = [every("1h", f"b/{n}", labels={"team": "billing"}) for n in range(3)]
    await kit.put(*jobs, every("1h", "sales", labels={"team": "sales"}))
    await kit.put(every("1h", "b/0", tenant_id="acme", labels={"team": "billing"}))


async def test_what_is_asked_of_many_takes_none_of_the_connections_for_claims(rota_kit: RotaKit) -> None:
    await put_teams(rota_kit)
    await rota_kit.on_demand.trigger("sales", tenant_id="default")
    async with AsyncExitStack() as stack:
        for _ in range(rota_kit.database.size_of(Lane.WORK)):
            await stack.enter_async_context(rota_kit.database.transaction(lane=Lane.WORK))
        assert (await rota_kit.rota.bulk.count(BILLING, tenant_id="default")).matched == 3
        assert (await rota_kit.rota.bulk.cancel(RunFilter(), tenant_id="default")).cancelled == 1


async def test_a_team_is_paused_and_resumed_and_earlier_pauses_stay(rota_kit: RotaKit) -> None:
    await put_teams(rota_kit)
    await rota_kit.definitions.pause("b/1", tenant_id="default", reason="long ago")
    assert (await rota_kit.rota.bulk.count(BILLING, tenant_id="default")).matched == 3
    done = await rota_kit.rota.bulk.pause(BILLING, tenant_id="default", reason="incident 12", actor="cli:me")
    assert (done.matched, done.done, done.left, done.after) == (3, 2, (), None)
    assert await states(rota_kit) == {"b/0": "paused", "b/1": "paused", "b/2": "paused", "sales": "active"}
    assert (await rota_kit.definitions.get("b/0", tenant_id="acme")).state == "active"
    back = await rota_kit.rota.bulk.resume(BILLING, tenant_id="default", pause_reason="incident 12")
    assert back.done == 2
    assert await states(rota_kit) == {"b/0": "active", "b/1": "paused", "b/2": "active", "sales": "active"}


async def test_a_call_goes_on_where_the_one_before_ended(rota_kit: RotaKit) -> None:
    await put_teams(rota_kit)
    first = await rota_kit.rota.bulk.delete(BILLING, tenant_id="default", limit=2)
    assert (first.done, first.after) == (2, "b/1")
    rest = await rota_kit.rota.bulk.delete(BILLING, tenant_id="default", limit=2, after=first.after or "")
    assert (rest.done, rest.after) == (1, None)
    assert await states(rota_kit) == {"sales": "active"}


async def test_a_job_that_another_transaction_holds_keeps_no_other(rota_kit: RotaKit) -> None:
    await put_teams(rota_kit)
    async with rota_kit.database.transaction() as tx:
        await tx._raw.execute("SELECT FROM rota.job WHERE job_id = 'b/1' AND tenant_id = 'default' FOR SHARE")
        done = await rota_kit.rota.bulk.pause(BILLING, tenant_id="default", reason="")
    assert (done.done, [one.job_id for one in done.left]) == (2, ["b/1"])
    assert "held by a transaction" in done.left[0].reason


async def test_many_are_triggered_once_at_a_slot(rota_kit: RotaKit) -> None:
    await put_teams(rota_kit)
    slot = rota_kit.clock.now()
    assert (await rota_kit.rota.bulk.trigger(BILLING, tenant_id="default", scheduled_for=slot)).done == 3
    again = await rota_kit.rota.bulk.trigger(BILLING, tenant_id="default", scheduled_for=slot)
    assert (again.done, len(again.left)) == (0, 3)
    assert [len(await rota_kit.runs(f"b/{n}")) for n in range(3)] == [1, 1, 1]


async def test_what_an_import_created_is_found_by_it(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("1h", "mine"))
    await rota_kit.definitions.put([every("2h", "mine"), every("1h", "new")], source="import-1")
    where = job_filter(owner="operator", source="import-1")
    assert (await rota_kit.rota.bulk.delete(where, tenant_id="default")).done == 1
    assert await states(rota_kit) == {"mine": "active"}


async def test_waiting_and_running_runs_of_a_filter_are_cancelled_with_one_entry(rota_kit: RotaKit) -> None:
    await put_teams(rota_kit)
    for _ in range(2):
        await rota_kit.rota.bulk.trigger(BILLING, tenant_id="default")
    await rota_kit.on_demand.trigger("sales", tenant_id="default")
    await rota_kit.on_demand.trigger("b/0", tenant_id="acme")
    worker = rota_kit.worker("w-1", handlers=["h"], tenant_id="default")
    running = await worker.claim(limit=2)
    where = RunFilter(label="team=billing")
    assert (await rota_kit.rota.bulk.count_runs(where, tenant_id="default")).matched == 6
    done = await rota_kit.rota.bulk.cancel(where, tenant_id="default", actor="cli:me")
    of_billing = sum(work.claim.job_id != "sales" for work in running)
    assert (done.cancelled, done.asked, done.more) == (6 - of_billing, of_billing, False)
    again = await rota_kit.rota.bulk.cancel(where, tenant_id="default")
    assert (again.cancelled, again.asked) == (0, 0)
    entries = await rota_kit.rota.access.changes("default", subject="label=team=billing", before=None, limit=10)
    assert [(entry.action, entry.after["cancelled"], entry.after["asked"]) for entry in entries] == [
        ("runs.cancelled", 6 - of_billing, of_billing)
    ]
    assert [run.state for run in await rota_kit.runs("b/0", tenant_id="acme")] == ["pending"]
    await rota_kit.check()


async def test_a_cancel_that_is_bounded_goes_on_when_it_is_asked_again(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("1h", "j"))
    for minute in range(5):
        slot = rota_kit.clock.now() + timedelta(minutes=minute)
        await rota_kit.on_demand.trigger("j", tenant_id="default", scheduled_for=slot)
    cancelled = 0
    for _ in range(3):
        done = await rota_kit.rota.bulk.cancel(RunFilter(job_id="j"), tenant_id="default", limit=2)
        cancelled += done.cancelled
    assert (cancelled, done.more) == (5, False)
    with pytest.raises(InvalidInput) as refusal:
        await rota_kit.rota.bulk.cancel(RunFilter(state="dead"), tenant_id="default")
    assert refusal.value.field == "state"


async def test_a_cancel_says_so_when_all_that_is_left_is_held(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="j", handler="h"))
    for _ in range(2):
        await rota_kit.on_demand.trigger("j", tenant_id="default")
    work = await rota_kit.worker("w-1", handlers=["h"]).claim_one()
    complete = f"SELECT rota.complete('{work.claim.run_id}', '{work.claim.key.token}')"
    where = RunFilter(job_id="j")
    async with uncommitted(rota_kit.dsn, complete) as other:
        done = await rota_kit.rota.bulk.cancel(where, tenant_id="default")
        assert (done.cancelled, done.asked, done.more) == (1, 0, True)
        with pytest.raises(Locked):
            await rota_kit.rota.bulk.cancel(where, tenant_id="default")
        await other.execute("COMMIT")
    assert not (await rota_kit.rota.bulk.cancel(where, tenant_id="default")).more


async def test_runs_with_a_failed_attempt_are_listed_whatever_became_of_them(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="j", handler="h", retry=rota.retry(initial=1)), Job(job_id="k", handler="k"))
    await rota_kit.on_demand.trigger("k", tenant_id="default")
    made = await rota_kit.on_demand.trigger("j", tenant_id="default")
    await (await rota_kit.worker("w-1", handlers=["h"]).claim_one()).report(Outcome.FAILED, error="boom")
    for where in (RunFilter(failed=True), RunFilter(failed=True, job_id="j")):
        assert [run.run_id for run in await rota_kit.history.find(where, tenant_id="default")] == [made]
    assert (await rota_kit.rota.bulk.cancel(RunFilter(failed=True), tenant_id="default")).cancelled == 1
    with pytest.raises(InvalidInput, match="dead"):
        RunFilter(state="failed")
