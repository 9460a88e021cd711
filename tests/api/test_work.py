"""A worker in any language: it claims, waits, renews and completes over HTTP."""

import asyncio
from typing import Any
from uuid import NAMESPACE_URL, uuid4, uuid5

import pytest

from rota.domain.attempt import Outcome
from tests.api.conftest import Caller, Served, soon
from tests.store.stage import uncommitted

STRANGER = "00000000-0000-4000-8000-000000000000"


async def claimed(me: Caller, **changes: Any) -> Any:
    """Put a job, trigger it, and claim its run."""
    await me.put_job()
    await me.trigger()
    [run] = await me.claim(**changes)
    return run


async def complete(me: Caller, run: Any, status: str = "succeeded", **more: Any) -> Any:
    return await me.post(
        f"/v1/runs/{run['run_id']}/complete", {"lease_token": run["lease_token"], "status": status, **more}
    )


async def test_a_run_is_claimed_renewed_and_completed(me: Caller) -> None:
    run = await claimed(me)
    assert (run["job_id"], run["attempt"], run["lease_seconds"]) == ("tick", 1, 60.0)
    beat = {"lease_token": run["lease_token"], "progress": {"value": 0.5, "note": "half"}}
    assert (await me.post(f"/v1/runs/{run['run_id']}/heartbeat", beat)).ok()["cancel"] is False
    shown = (await me.get(f"/v1/runs/{run['run_id']}")).ok()
    assert (shown["state"], shown["progress"], shown["progress_note"]) == ("running", 0.5, "half")
    done = await complete(me, run, result={"rows": 3})
    assert done.ok() == {"run_id": run["run_id"], "state": "succeeded"}
    assert (await me.get(f"/v1/runs/{run['run_id']}")).ok()["result"] == {"rows": 3}


async def test_the_same_completion_again_is_answered_alike_and_another_is_refused(me: Caller) -> None:
    run = await claimed(me)
    assert (await complete(me, run)).status == 200
    assert (await complete(me, run)).ok()["state"] == "succeeded"
    refused = await complete(me, run, "failed", error="after all")
    assert (refused.status, refused.code) == (409, "lease-lost")


async def test_two_different_completions_at_once_cannot_both_be_recorded(me: Caller) -> None:
    run = await claimed(me)
    answers = await asyncio.gather(complete(me, run), complete(me, run, "failed", error="no"))
    assert sorted(answer.status for answer in answers) == [200, 409]


async def test_whoever_has_no_lease_hears_so(me: Caller) -> None:
    run = await claimed(me)
    stranger = {**run, "lease_token": STRANGER}
    assert (await complete(me, stranger)).code == "lease-lost"
    beat = await me.post(f"/v1/runs/{run['run_id']}/heartbeat", {"lease_token": STRANGER})
    assert (beat.status, beat.code) == (409, "lease-lost")


async def test_a_whole_worker_renews_in_one_call_and_hears_what_is_lost(me: Caller) -> None:
    run = await claimed(me)
    leases = [{"run_id": run["run_id"], "lease_token": token} for token in (run["lease_token"], STRANGER)]
    answer = (await me.post("/v1/leases:renew", {"worker_id": "w-1", "leases": leases})).ok()
    assert [lease["lease_token"] for lease in answer["renewed"]] == [run["lease_token"]]
    assert answer["lost"] == [STRANGER]


async def test_reports_go_in_batches_each_by_itself(me: Caller) -> None:
    run = await claimed(me)
    reports = [
        {"run_id": run["run_id"], "lease_token": token, "status": "succeeded"}
        for token in (STRANGER, run["lease_token"])
    ]
    answer = (await me.post("/v1/runs:complete", {"reports": reports})).ok()
    assert answer == {"accepted": [{"run_id": run["run_id"], "state": "succeeded"}], "lost": [STRANGER], "locked": []}


@pytest.mark.parametrize("ends_with", ["COMMIT", "ROLLBACK"])
async def test_a_run_that_an_open_transaction_completes_keeps_no_other_worker_waiting(
    server: Served, me: Caller, ends_with: str
) -> None:
    await me.put_job()
    for _ in range(3):
        await me.trigger()
    held, *others = await me.claim(limit=3)
    completing = f"SELECT rota.complete('{held['run_id']}', '{held['lease_token']}')"
    async with uncommitted(server.kit.dsn, completing) as other, asyncio.timeout(20):
        waiting = asyncio.create_task(complete(me, held, "timed_out"))
        assert (await complete(me, others[0])).status == 200
        reports = [
            {"run_id": run["run_id"], "lease_token": run["lease_token"], "status": "succeeded"}
            for run in (held, others[1])
        ]
        answer = (await me.post("/v1/runs:complete", {"reports": reports})).ok()
        assert answer["accepted"] == [{"run_id": others[1]["run_id"], "state": "succeeded"}]
        assert (answer["lost"], answer["locked"]) == ([], [held["lease_token"]])
        beat = {"lease_token": held["lease_token"], "progress": 0.5}
        assert (await me.post(f"/v1/runs/{held['run_id']}/heartbeat", beat)).status == 200
        await other.execute(ends_with)
        told = await waiting
    assert told.code == "lease-lost" if ends_with == "COMMIT" else told.ok()["state"] == "pending"


async def test_a_completion_does_not_wait_for_ever_for_somebody_elses_transaction(
    server: Served, me: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.api.desk.LOCKED_WAITS", (0.01,))
    run = await claimed(me)
    async with uncommitted(server.kit.dsn, "SELECT FROM rota.lease FOR UPDATE") as other:
        told = await complete(me, run)
        await other.execute("ROLLBACK")
    assert (told.status, told.code) == (503, "lease-locked")
    assert (await complete(me, run)).status == 200


async def test_a_result_that_is_too_large_is_refused_and_keeps_nobody(me: Caller) -> None:
    run = await claimed(me)
    refused = await complete(me, run, result="x" * 70_000)
    assert (refused.status, refused.code, refused.json["field"]) == (413, "too-large", "result")
    assert (await complete(me, run)).status == 200


async def test_an_error_text_may_hold_what_no_store_can(me: Caller) -> None:
    run = await claimed(me)
    assert (await complete(me, run, "dead", error="broken \x00 \ud800")).ok()["state"] == "dead"


async def test_a_worker_is_told_of_a_cancel_at_its_next_heartbeat(me: Caller) -> None:
    run = await claimed(me)
    assert (await me.post(f"/v1/runs/{run['run_id']}/cancel")).ok()["cancel_requested"]
    beat = (await me.post(f"/v1/runs/{run['run_id']}/heartbeat", {"lease_token": run["lease_token"]})).ok()
    assert beat["cancel"] is True
    assert (await complete(me, run, "cancelled")).ok()["state"] == "cancelled"


async def test_a_lost_answer_costs_no_run_when_the_claim_is_repeated(me: Caller) -> None:
    await me.put_job()
    await me.trigger()
    claim_id = str(uuid4())
    first = await me.claim(claim_id=claim_id)
    assert [run["run_id"] for run in await me.claim(claim_id=claim_id)] == [first[0]["run_id"]]
    assert await me.claim() == []


async def test_a_long_poll_answers_as_soon_as_there_is_work(server: Served, me: Caller) -> None:
    await me.put_job()
    waiting = asyncio.create_task(me.claim(wait=30))
    await soon(lambda: server.kit.clock.next_wake() is not None, lambda: me.get("/healthz"))
    run_id = await me.trigger()
    assert [run["run_id"] for run in await waiting] == [run_id]


async def test_a_long_poll_ends_with_nothing_when_its_time_is_over(server: Served, me: Caller) -> None:
    waiting = asyncio.create_task(me.claim(wait=2.5))
    for _ in range(3):
        await soon(lambda: server.kit.clock.next_wake() is not None, lambda: me.get("/healthz"))
        server.kit.clock.advance(1)
    assert await waiting == []


async def test_a_long_poll_for_nothing_only_waits_for_a_hint(server: Served, me: Caller) -> None:
    await me.put_job()
    waiting = asyncio.create_task(me.claim(limit=0, wait=30))
    await soon(lambda: server.kit.clock.next_wake() is not None, lambda: me.get("/healthz"))
    await me.trigger()
    assert await waiting == []
    assert len(await me.claim()) == 1


async def test_long_polls_end_when_the_server_stops(server: Served, me: Caller) -> None:
    waiting = asyncio.create_task(me.claim(wait=30))
    await soon(lambda: server.kit.clock.next_wake() is not None, lambda: me.get("/healthz"))
    server.stop.set()
    assert await waiting == []


async def test_runs_claimed_for_a_caller_who_has_gone_are_given_back(server: Served, me: Caller) -> None:
    await me.put_job()
    waiting = asyncio.create_task(me.claim(wait=30))
    await soon(lambda: server.kit.clock.next_wake() is not None, lambda: me.get("/healthz"))
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await soon(lambda: server.kit.clock.next_wake() is None, lambda: me.get("/healthz"))
    await me.trigger()
    assert len(await me.claim()) == 1


async def test_a_worker_that_claims_counts_as_live(server: Served, me: Caller) -> None:
    await me.claim(concurrency=7)
    [worker] = (await me.get("/v1/workers")).ok()["workers"]
    assert (worker["worker_id"], worker["concurrency"], worker["tenant_id"]) == ("w-1", 7, "default")
    server.kit.clock.advance(6)
    await me.claim()
    [worker] = (await me.get("/v1/workers")).ok()["workers"]
    assert worker["concurrency"] == 7
    assert worker["expires_at"] == "2026-01-01T00:00:21Z"


async def test_a_tenant_s_worker_takes_its_tenant_s_runs_and_an_operator_s_takes_all(
    server: Served, me: Caller
) -> None:
    acme = await server.tenant("acme")
    for caller in (me, acme):
        await caller.put_job()
        await caller.trigger()
    assert [run["tenant_id"] for run in await acme.claim(worker_id="theirs")] == ["acme"]
    operator = server.caller(await server.token("*"))
    assert [run["tenant_id"] for run in await operator.claim(worker_id="anybody's")] == ["default"]


async def test_a_lease_of_another_tenant_is_lost_to_whoever_shows_its_token(server: Served, me: Caller) -> None:
    run = await claimed(me)
    acme = await server.tenant("acme")
    assert (await complete(acme, run)).code == "lease-lost"
    beat = await acme.post(f"/v1/runs/{run['run_id']}/heartbeat", {"lease_token": run["lease_token"]})
    assert beat.code == "lease-lost"
    lease = {"run_id": run["run_id"], "lease_token": run["lease_token"]}
    assert (await acme.post("/v1/leases:renew", {"worker_id": "w", "leases": [lease]})).ok()["renewed"] == []
    assert (await acme.post("/v1/runs:complete", {"reports": [{**lease, "status": "dead"}]})).ok()["accepted"] == []
    assert (await complete(me, run)).status == 200


async def test_a_token_beside_a_run_of_one_s_own_proves_nothing_for_another_s(server: Served, me: Caller) -> None:
    run = await claimed(me)
    acme = await server.tenant("acme")
    theirs = await claimed(acme)
    token = run["lease_token"]
    reports = [{"run_id": ended["run_id"], "lease_token": token, "status": "dead"} for ended in (theirs, run)]
    assert (await acme.post("/v1/runs:complete", {"reports": reports})).ok()["accepted"] == []
    assert (await complete(me, run)).ok()["state"] == "succeeded"


async def test_the_instance_of_another_tenant_s_worker_cannot_be_guessed_and_taken(server: Served, me: Caller) -> None:
    acme = await server.tenant("acme")
    guessed = str(uuid5(NAMESPACE_URL, "default\0w-1"))
    said = {"worker_id": "thief", "instance": guessed}
    assert (await acme.put(f"/v1/workers/{guessed}", said)).json["field"] == "instance"
    assert (await acme.post("/v1/claims", said)).json["field"] == "instance"
    await claimed(me)


async def test_a_worker_knows_a_thousand_handlers_at_most(me: Caller) -> None:
    many = [f"h-{number}" for number in range(1001)]
    assert (await me.post("/v1/claims", {"worker_id": "w-1", "handlers": many})).json["field"] == "handlers"
    instance = str(uuid4())
    said = {"worker_id": "w-1", "instance": instance, "handlers": many}
    assert (await me.put(f"/v1/workers/{instance}", said)).json["field"] == "handlers"
    assert await me.claim(handlers=many[1:]) == []


async def test_a_server_that_did_not_see_the_claim_knows_whose_run_it_is(server: Served, me: Caller) -> None:
    await me.put_job()
    await me.trigger()
    [run] = await server.kit.rota.dispatch.claim(
        worker_id="w-1", pool="default", handlers=frozenset({"h"}), limit=1, tenant_id="default"
    )
    lease = {"run_id": str(run.run_id), "lease_token": str(run.key.token)}
    acme = await server.tenant("acme")
    assert (await complete(acme, lease)).code == "lease-lost"
    assert (await complete(me, lease)).ok()["state"] == "succeeded"


async def test_an_http_target_calls_back_with_the_token_of_its_lease(server: Served, me: Caller) -> None:
    run = await claimed(me)
    anybody = server.caller()
    path = f"/v1/callbacks/{run['run_id']}"
    assert (await anybody.post(path, {"lease_token": STRANGER, "status": "succeeded"})).code == "lease-lost"
    done = await anybody.post(path, {"lease_token": run["lease_token"], "status": "succeeded"})
    assert done.ok()["state"] == "succeeded"


async def test_completions_at_once_become_few_statements(
    server: Served, me: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    await me.put_job()
    for _ in range(20):
        await me.trigger()
    runs = await me.claim(limit=20)
    calls: list[int] = []
    report = server.kit.rota.completion.settle

    async def counted(reports: Any) -> Any:
        calls.append(len(reports))
        return await report(reports)

    monkeypatch.setattr(type(server.kit.rota.completion), "settle", lambda self, reports: counted(reports))
    answers = await asyncio.gather(*(complete(me, run) for run in runs))
    assert [answer.status for answer in answers] == [200] * 20
    assert sum(calls) == 20
    assert len(calls) <= 6


@pytest.mark.parametrize(
    ("status", "outcome", "state"),
    [
        ("succeeded", Outcome.SUCCEEDED, "succeeded"),
        ("failed", Outcome.FAILED, "pending"),
        ("dead", Outcome.GAVE_UP, "dead"),
        ("released", Outcome.RELEASED, "pending"),
        ("timed_out", Outcome.TIMED_OUT, "pending"),
        ("snoozed", Outcome.SNOOZED, "pending"),
        ("lost", Outcome.LOST, "pending"),
        ("cancelled", Outcome.CANCELLED, "cancelled"),
    ],
)
async def test_every_status_ends_an_attempt(me: Caller, status: str, outcome: Outcome, state: str) -> None:
    run = await claimed(me)
    assert (await complete(me, run, status)).ok()["state"] == state
    [attempt] = (await me.get(f"/v1/runs/{run['run_id']}")).ok()["attempts"]
    assert attempt["outcome"] == outcome


@pytest.mark.parametrize("retry_after", [0, 1.5, 1e300])
async def test_a_wait_may_be_any_length(me: Caller, retry_after: float) -> None:
    run = await claimed(me)
    assert (await complete(me, run, "failed", error="busy", retry_after=retry_after)).ok()["state"] == "pending"
