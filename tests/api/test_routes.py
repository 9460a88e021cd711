"""Every route of the API, as a caller with all scopes of one tenant meets it."""

from typing import Any

from tests.api.conftest import Caller, Served
from tests.services.stories import execute


async def test_a_job_is_put_read_edited_paused_resumed_and_deleted(me: Caller) -> None:
    made = await me.put("/v1/jobs/nightly", {"handler": "bill", "schedule": {"kind": "interval", "every": "1h"}})
    assert made.status == 200
    assert made.headers["ETag"] == '"1"'
    assert made.ok() | {"next_run_at": None, "next_slot": None} == {
        "job_id": "nightly", "version": 1, "next_run_at": None, "next_slot": None, "changed": True, "created": True,
        "warnings": [], "fields": [], "reset": [], "differs": [],
    }  # fmt: skip
    read = await me.get("/v1/jobs/nightly")
    assert read.headers["ETag"] == '"1"'
    definition = read.ok()["job"]
    again = (await me.put("/v1/jobs/nightly", definition)).ok()
    assert (again["changed"], again["version"]) == (False, 1)
    assert (await me.post("/v1/jobs/nightly/pause", {"reason": "holiday"})).ok()["pause_reason"] == "holiday"
    assert [job["job_id"] for job in (await me.get("/v1/jobs?enabled=false")).ok()["jobs"]] == ["nightly"]
    assert (await me.post("/v1/jobs/nightly/resume", {"missed": "drop"})).ok()["state"] == "active"
    assert (await me.ask("DELETE", "/v1/jobs/nightly")).ok() == {"job_id": "nightly", "cancelled": 0}
    assert (await me.get("/v1/jobs/nightly")).code == "not-found"


async def test_a_guarded_put_is_refused_once_somebody_else_has_edited_the_job(me: Caller) -> None:
    await me.put_job("guarded")
    stale = me.with_headers(If_Match='"1"')
    assert (await stale.put("/v1/jobs/guarded", {"handler": "h", "priority": 7})).ok()["version"] == 2
    refused = await stale.put("/v1/jobs/guarded", {"handler": "h", "priority": 8})
    assert (refused.status, refused.code) == (412, "version-conflict")
    new_only = me.with_headers(If_None_Match="*")
    assert (await new_only.put("/v1/jobs/guarded", {"handler": "h"})).status == 412
    assert (await new_only.put("/v1/jobs/fresh", {"handler": "h"})).ok()["created"]
    existing_only = me.with_headers(If_Match="*")
    assert (await existing_only.put("/v1/jobs/guarded", {"handler": "h", "priority": 1})).ok()["version"] == 3
    assert (await existing_only.put("/v1/jobs/nowhere", {"handler": "h"})).status == 412


async def test_an_etag_that_no_job_has_matches_none(me: Caller) -> None:
    await me.put_job("guarded")
    for etag in ["1", '"0"', '"99999999999"', 'W/"1"', '"x"', "''"]:
        refused = await me.with_headers(If_Match=etag).put("/v1/jobs/guarded", {"handler": "h"})
        assert refused.status == 412


async def test_a_batch_is_put_whole_or_not_at_all(me: Caller) -> None:
    jobs = [{"job_id": f"j-{number}", "handler": "h"} for number in range(3)]
    assert [put["created"] for put in (await me.post("/v1/jobs:batch", {"jobs": jobs})).ok()["jobs"]] == [True] * 3
    refused = await me.post(
        "/v1/jobs:batch", {"jobs": [{"job_id": "j-9", "handler": "h"}, {"job_id": "", "handler": "h"}]}
    )
    assert (refused.status, refused.json["field"]) == (422, "jobs[1].job_id")
    assert (await me.get("/v1/jobs/j-9")).status == 404


async def test_runs_of_a_batch_are_made_in_order_and_its_faults_are_named(me: Caller) -> None:
    for name in ("a", "b"):
        await me.put_job(name)
    items: list[dict[str, Any]] = [{"payload": {"n": n}, "idempotency_key": f"k{n}"} for n in range(1000)]
    made = (await me.post("/v1/jobs/a/runs:batch", {"items": items})).ok()["runs"]
    assert ({one["outcome"] for one in made}, len({one["run_id"] for one in made})) == ({"created"}, 1000)
    again = (await me.post("/v1/jobs/a/runs:batch", {"items": items[::-1]})).ok()["runs"]
    assert [one["run_id"] for one in again] == [one["run_id"] for one in made[::-1]]
    assert (await me.get(f"/v1/runs/{made[7]['run_id']}")).ok()["payload"] == {"n": 7}
    mixed = (await me.post("/v1/runs:batch", {"items": [{"job_id": "b"}, {"job_id": "a"}]})).ok()["runs"]
    assert [(one["job_id"], one["outcome"]) for one in mixed] == [("b", "created"), ("a", "created")]
    for path, faulty, field in [
        ("/v1/jobs/a/runs:batch", [{}] * 1001, "items"),
        ("/v1/jobs/a/runs:batch", [], "items"),
        ("/v1/jobs/a/runs:batch", [{}, {}, {}, {"payload": 1}], "items[3].payload"),
        ("/v1/jobs/a/runs:batch", [{}, {"payload": {"x": "x" * 263_000}}], "items[1].payload"),
        ("/v1/jobs/a/runs:batch", [{"job_id": "a"}], "items[0].job_id"),
        ("/v1/runs:batch", [{"job_id": "a"}, {}], "items[1].job_id"),
        ("/v1/runs:batch", [{"job_id": "a", "scheduled_for": "2026-01-01T00:00:00"}], "items[0].scheduled_for"),
    ]:
        refused = await me.post(path, {"items": faulty})
        assert (refused.status in (413, 422), refused.json["field"]) == (True, field)
    assert (await me.post("/v1/jobs/unknown/runs:batch", {"items": [{}]})).status == 404
    assert (await me.post("/v1/runs:batch", {"items": [{"job_id": "a"}, {"job_id": "c"}]})).status == 404


async def test_jobs_come_in_pages(me: Caller) -> None:
    for name in "abc":
        await me.put_job(name)
    first = (await me.get("/v1/jobs?limit=2")).ok()
    rest = (await me.get(f"/v1/jobs?limit=2&cursor={first['next_cursor']}")).ok()
    assert [job["job_id"] for job in first["jobs"] + rest["jobs"]] == ["a", "b", "c"]
    assert rest["next_cursor"] is None


async def test_slots_of_a_job_and_of_a_schedule_without_one(me: Caller) -> None:
    schedule = {"kind": "cron", "expression": "0 2 * * *", "tz": "Europe/Berlin"}
    await me.put_job("nightly", schedule=schedule)
    slots = (await me.get("/v1/jobs/nightly/next?count=3")).ok()["slots"]
    shown = (await me.post("/v1/schedules:preview", {"schedule": schedule, "count": 3})).ok()["slots"]
    assert [slot["slot"] for slot in slots] == [slot["slot"] for slot in shown]
    assert len(slots) == 3


async def test_a_trigger_with_a_key_makes_one_run(me: Caller) -> None:
    await me.put_job()
    keyed = me.with_headers(Idempotency_Key="order-7")
    made = await keyed.post("/v1/jobs/tick/runs", {"payload": {"order": 7}})
    again = await keyed.post("/v1/jobs/tick/runs", {"payload": {"order": 7}})
    other = await keyed.post("/v1/jobs/tick/runs", {"payload": {"order": 8}})
    assert (made.status, again.status) == (201, 200)
    assert made.ok()["run_id"] == again.ok()["run_id"]
    assert (other.status, other.code) == (422, "key-reused")


async def test_a_slot_that_is_taken_names_its_run(me: Caller) -> None:
    await me.put_job()
    slot = {"scheduled_for": "2026-02-01T00:00:00Z"}
    run_id = (await me.post("/v1/jobs/tick/runs", slot)).ok()["run_id"]
    taken = await me.post("/v1/jobs/tick/runs", slot)
    assert (taken.status, taken.code) == (409, "slot-taken")
    assert run_id in taken.json["detail"]


async def test_runs_are_listed_found_and_cancelled(me: Caller) -> None:
    await me.put_job()
    run_id = await me.trigger()
    assert [run["run_id"] for run in (await me.get("/v1/jobs/tick/runs")).ok()["runs"]] == [run_id]
    assert [run["run_id"] for run in (await me.get("/v1/runs?state=pending&handler=h")).ok()["runs"]] == [run_id]
    assert (await me.get(f"/v1/runs/{run_id}")).ok()["attempts"] == []
    assert (await me.post(f"/v1/runs/{run_id}/cancel")).ok()["state"] == "cancelled"
    again = await me.post(f"/v1/runs/{run_id}/cancel")
    assert (again.status, again.code) == (409, "run-finished")


async def test_a_run_is_given_a_priority_and_says_what_it_waits_for(me: Caller) -> None:
    await me.put_job()
    run_id = await me.trigger()
    assert (await me.ask("PATCH", f"/v1/runs/{run_id}", {"priority": 9})).ok()["priority"] == 9
    unknown = await me.ask("PATCH", f"/v1/runs/{run_id}", {"priority": 3, "colour": 1})
    assert (unknown.status, unknown.json["field"]) == (422, "colour")
    wrong = await me.ask("PATCH", f"/v1/runs/{run_id}", {"priority": 10})
    assert (wrong.status, wrong.json["field"]) == (422, "priority")
    said = (await me.get(f"/v1/runs/{run_id}/why")).ok()
    assert (said["gate"], said["cause"], said["held_by"], said["limit"]) == ("handler", "no_worker", [], None)
    assert (await me.get("/v1/jobs/tick/why")).ok() == said
    await me.claim()
    refused = await me.ask("PATCH", f"/v1/runs/{run_id}", {"priority": 1})
    assert (refused.status, refused.code) == (409, "conflict")
    assert (await me.get(f"/v1/runs/{run_id}/why")).ok()["gate"] == "running"


async def test_a_dead_letter_is_replayed_once(me: Caller) -> None:
    await me.put_job()
    await me.trigger()
    [run] = await me.claim()
    await me.post(f"/v1/runs/{run['run_id']}/complete", {"lease_token": run["lease_token"], "status": "dead"})
    replayed = (await me.post("/v1/runs:replay", {"filter": {"job_id": "tick"}})).ok()
    assert replayed["replayed"] == 1
    refused = await me.post(f"/v1/runs/{run['run_id']}/replay")
    assert (refused.status, refused.code) == (409, "not-dead")


async def test_the_slot_ledger_of_a_job(me: Caller) -> None:
    await me.put_job()
    assert (await me.get("/v1/jobs/tick/skipped")).ok() == {"skipped": []}


async def test_a_worker_announces_itself_drains_and_leaves(server: Served, me: Caller) -> None:
    instance = "0b0e1c52-4a6b-4a57-8a5e-0a6a1d9a7b11"
    said = {"worker_id": "w-1", "instance": instance, "handlers": ["h"], "concurrency": 4}
    assert (await me.put(f"/v1/workers/{instance}", said)).ok() == {"drain": False}
    assert [worker["worker_id"] for worker in (await me.get("/v1/workers")).ok()["workers"]] == ["w-1"]
    assert (await me.post("/v1/workers/w-1/drain")).ok()["workers"][0]["draining_at"] is not None
    assert (await me.put(f"/v1/workers/{instance}", said)).ok() == {"drain": True}
    await me.put_job()
    await me.trigger()
    assert await me.claim(instance=instance) == []
    assert (await me.ask("DELETE", f"/v1/workers/{instance}")).status == 204
    assert (await me.get("/v1/workers")).ok()["workers"] == []


async def test_what_an_operator_asks(server: Served, me: Caller) -> None:
    operator = server.caller(await server.token("*"))
    assert len((await operator.get("/v1/shards")).ok()["shards"]) > 0
    assert (await operator.put("/v1/tenants/acme", {"max_jobs": 5})).ok()["max_jobs"] == 5
    assert [tenant["tenant_id"] for tenant in (await operator.get("/v1/tenants")).ok()["tenants"]] == ["acme"]
    assert "rota_runs_running 0.0" in (await operator.get("/metrics")).body.decode()
    for path in ("/v1/shards", "/v1/tenants", "/metrics"):
        assert (await me.get(path)).code == "forbidden"


async def test_metrics_tell_what_waits_and_how_full_limits_are(server: Served, me: Caller) -> None:
    operator = server.caller(await server.token("*"))
    await me.put_job("tick", max_concurrency=1)
    await me.put_job("mail", priority=7)
    for job_id in ("tick", "mail", "mail"):
        await me.trigger(job_id)
        server.kit.clock.advance(2)
    await execute(server.kit, "UPDATE rota.pending SET gate = 'limit', limit_key = 'job/1' WHERE priority = 5")
    await execute(server.kit, "INSERT INTO rota.permit VALUES ('downstream/acme/crm', 1, gen_random_uuid())")
    await execute(
        server.kit,
        "INSERT INTO rota.limits VALUES ('acme', 'crm', 'downstream', 2, 10, 5, 1, 'epoch', 'epoch'),"
        " ('acme', 'all', 'tenant', 1, 1, NULL, 1, 'epoch', 'epoch')",
    )
    lines = set((await operator.get("/metrics")).body.decode().splitlines())
    assert {
        'rota_pending_runs{gate="limit",pool="default",priority="5"} 1.0',
        'rota_pending_runs{gate="open",pool="default",priority="7"} 2.0',
        'rota_pending_oldest_seconds{gate="limit",pool="default"} 6.0',
        'rota_pending_oldest_seconds{gate="open",pool="default"} 4.0',
        'rota_parked_runs{limit="job"} 1.0', 'rota_parked_runs{limit="crm"} 0.0',
        'rota_permits_in_use{limit="crm"} 1.0', 'rota_permits{limit="crm"} 5.0', 'rota_tokens_left{limit="crm"} 10.0',
    } <= lines  # fmt: skip
    assert not [line for line in lines if "acme" in line]
    await execute(server.kit, "DELETE FROM rota.permit")  # it was nobody's


async def test_an_operator_acts_for_the_tenant_that_a_header_names(server: Served) -> None:
    token = await server.token("*")
    await server.caller(token, Rota_Tenant="acme").put_job("theirs")
    assert (await server.caller(token).get("/v1/jobs/theirs")).status == 404
    acme = await server.tenant("acme")
    assert (await acme.get("/v1/jobs/theirs")).ok()["tenant_id"] == "acme"


async def test_runs_are_listed_by_tenant_for_an_operator_and_for_nobody_else(server: Served, me: Caller) -> None:
    await me.put_job("tick")
    made = await me.trigger("tick")
    operator = await server.tenant("*")
    assert [run["run_id"] for run in (await operator.get("/v1/runs?tenant=default")).json["runs"]] == [made]
    assert (await operator.get("/v1/runs?tenant=other")).json["runs"] == []
    assert [run["run_id"] for run in (await me.get("/v1/runs?tenant=default")).json["runs"]] == [made]
    assert (await me.get("/v1/runs?tenant=other")).status == 403


async def test_tokens_are_made_listed_and_revoked(server: Served, me: Caller) -> None:
    made = await me.post("/v1/tokens", {"scopes": ["read"], "name": "dashboard"})
    assert made.status == 201
    text, token_id = made.ok()["token"], made.ok()["token_id"]
    reader = server.caller(text)
    assert (await reader.get("/v1/me")).ok() == {
        "tenant_id": "default", "scopes": ["read"], "actor": f"token:{token_id}", "is_operator": False,
    }  # fmt: skip
    assert (await reader.put("/v1/jobs/tick", {"handler": "h"})).code == "forbidden"
    listed = (await me.get("/v1/tokens")).body.decode()
    assert token_id in listed
    assert text not in listed
    server.kit.clock.advance(1)
    assert (await me.ask("DELETE", f"/v1/tokens/{token_id}")).status == 204
    entries = (await me.get(f"/v1/audit?subject={token_id}")).ok()["entries"]
    assert [entry["action"] for entry in entries] == ["token.revoked", "token.created"]


async def test_the_signing_secret_stays_the_same(me: Caller) -> None:
    secret = (await me.get("/v1/signing-secret")).ok()["secret"]
    assert secret.startswith("whsec_")
    assert (await me.get("/v1/signing-secret")).ok()["secret"] == secret


async def test_how_much_there_is(me: Caller) -> None:
    await me.put_job()
    await me.trigger()
    stats = (await me.get("/v1/stats")).ok()
    assert (stats["jobs"], stats["running"]) == (1, 0)
    assert [(depth["pool"], depth["runs"]) for depth in stats["waiting"]] == [("default", 1)]
