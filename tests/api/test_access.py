"""Who gets in: no token sees another tenant's rows, and every route says what it needs."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from fastapi import FastAPI

from rota.api.app import create_app
from rota.api.auth import STRANGERS_AT_ONCE, TOKEN_KEPT
from rota.api.binding import bind
from rota.api.calls import Route
from rota.api.serving import serve
from rota.clock import ManualClock
from rota.domain.token_text import SECRET_BYTES, token_of
from rota.errors import SetupFailed
from rota.store.database import Lane
from rota.testing import RotaKit
from tests.api.conftest import Answer, Caller, Served, Serving
from tests.store.stage import uncommitted, until_waiting_for

SECRET = "acme-only"
"""Stands in everything that the other tenant has."""


def routes(app: FastAPI) -> Iterator[tuple[str, Route]]:
    """Yield every route of the application that answers with data, with its method."""
    for route in app.routes:
        if isinstance(route, Route):
            for method in sorted(route.methods or ()):
                yield method, route


async def theirs(server: Served) -> tuple[dict[str, str], dict[str, Any]]:
    """Give another tenant one of everything; returns what stands in paths, and bodies by path."""
    acme = await server.tenant("acme")
    await acme.put_job(SECRET, description=SECRET, labels={"owner": SECRET}, payload={"secret": SECRET})
    await acme.trigger(SECRET)
    [run] = await acme.claim(worker_id=SECRET, instance="0b0e1c52-4a6b-4a57-8a5e-0a6a1d9a7b11")
    (await acme.ask("PUT", f"/v1/limits/{SECRET}", {"permits": 7})).ok()
    token_id = (await acme.post("/v1/tokens", {"scopes": ["read"], "name": SECRET})).ok()["token_id"]
    lease = {"run_id": run["run_id"], "lease_token": run["lease_token"]}
    parts = {
        "job_id": SECRET, "run_id": run["run_id"], "token_id": token_id, "worker_id": SECRET, "tenant_id": "acme",
        "instance": "0b0e1c52-4a6b-4a57-8a5e-0a6a1d9a7b11", "name": SECRET, "pool": "default",
    }  # fmt: skip
    bodies = {
        "/v1/jobs/{job_id}": {"handler": "h", "tenant_id": "acme"},
        "/v1/jobs:batch": {"jobs": [{"job_id": SECRET, "handler": "h", "tenant_id": "acme"}]},
        "/v1/jobs/{job_id}/pause": {"reason": "mine now"},
        "/v1/schedules:preview": {"schedule": {"kind": "interval", "every": "1h"}},
        "/v1/runs:replay": {"filter": {"job_id": SECRET}},
        "/v1/claims": {"worker_id": "thief", "limit": 10, "handlers": ["h", "*"]},
        "/v1/leases:renew": {"worker_id": SECRET, "leases": [lease]},
        "/v1/runs:complete": {"reports": [{**lease, "status": "dead"}]},
        "/v1/runs/{run_id}/complete": {"lease_token": run["lease_token"], "status": "dead"},
        "/v1/runs/{run_id}/heartbeat": {"lease_token": run["lease_token"]},
        "/v1/callbacks/{run_id}": {"lease_token": "00000000-0000-4000-8000-000000000000", "status": "dead"},
        "/v1/workers/{instance}": {"worker_id": SECRET, "instance": parts["instance"]},
        "/v1/tokens": {"scopes": ["read"], "name": "mine"},
        "/v1/tenants/{tenant_id}": {"max_jobs": 0},
        "/v1/limits/{name}": {"permits": 0, "tenant_id": "acme"},
        "/v1/pools/{pool}": {"ageing": 1},
    }
    return parts, bodies


async def test_no_route_shows_or_changes_what_is_another_tenant_s(server: Served) -> None:
    parts, bodies = await theirs(server)
    acme = await server.tenant("acme")
    before = [(await acme.get(path)).body for path in (f"/v1/jobs/{SECRET}", f"/v1/runs/{parts['run_id']}")]
    thief = await server.tenant("thieves")
    asked = 0
    for method, route in routes(server.app):
        path = route.path_format.format_map({name: quote(value) for name, value in parts.items()})
        body = bodies.get(route.path_format) if method in ("PUT", "POST") else None
        answer = await thief.ask(method, path, body)
        assert answer.status < 500 or route.path_format == "/readyz", (method, path, answer.body)
        without_echo = answer.body.decode().replace(f"'{SECRET}'", "").replace(f'"{SECRET}"', "")
        assert SECRET not in without_echo or answer.status == 404, (method, path, answer.body)
        if 200 <= answer.status < 300 and "{" in route.path_format and answer.body:
            raise AssertionError(f"{method} {path} answered {answer.body!r}")
        asked += 1
    assert asked >= 35
    after = [(await acme.get(path)).body for path in (f"/v1/jobs/{SECRET}", f"/v1/runs/{parts['run_id']}")]
    assert after == before
    assert (await acme.get("/v1/workers")).ok()["workers"][0]["worker_id"] == SECRET


async def test_counts_and_lists_of_a_tenant_are_its_own(server: Served) -> None:
    await theirs(server)
    thief = await server.tenant("thieves")
    for path in ("/v1/jobs", "/v1/runs", "/v1/workers", "/v1/audit", "/v1/tokens", "/v1/limits"):
        assert SECRET not in (await thief.get(path)).body.decode()
    stats = (await thief.get("/v1/stats")).ok()
    assert stats == {"jobs": 0, "waiting": [], "running": 0, "dead": 0, "workers": 0}


async def test_a_cursor_of_another_tenant_is_no_cursor(server: Served) -> None:
    acme, thief = await server.tenant("acme"), await server.tenant("thieves")
    for name in "abc":
        await acme.put_job(name)
    cursor = (await acme.get("/v1/jobs?limit=1")).ok()["next_cursor"]
    assert (await thief.get(f"/v1/jobs?limit=1&cursor={cursor}")).code == "invalid-cursor"


async def test_every_route_asks_for_a_token_unless_it_tells_no_secrets(server: Served) -> None:
    nobody, open_routes = server.caller(), set()
    for method, route in routes(server.app):
        answer = await nobody.ask(method, route.path_format.replace("{", "").replace("}", ""))
        if answer.status == 401:
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            assert answer.code == "unauthorized"
        else:
            open_routes.add(route.path_format)
    assert open_routes == {"/healthz", "/readyz", "/v1/callbacks/{run_id}"}


async def test_what_is_no_token_is_refused(server: Served) -> None:
    for header in ["", "Bearer", "Basic abc", "Bearer rota_x_y", "Bearer x", "Bearer " + "x" * 5000, "bearer é"]:
        nobody = server.caller().with_headers(Authorization=header)
        assert (await nobody.get("/v1/me")).code == "unauthorized"


async def test_a_token_without_a_scope_is_refused_by_its_name(server: Served) -> None:
    worker = await server.tenant(scopes=("worker",))
    refused = await worker.get("/v1/jobs")
    assert (refused.status, refused.code) == (403, "forbidden")
    assert "read" in refused.json["detail"]
    assert (await worker.claim()) == []


async def test_admin_implies_every_other_scope(server: Served) -> None:
    admin = await server.tenant(scopes=("admin",))
    await admin.put_job()
    assert (await admin.get("/v1/jobs/tick")).status == 200


async def test_a_tenant_s_token_cannot_name_another_tenant(server: Served, me: Caller) -> None:
    assert (await me.with_headers(Rota_Tenant="default").get("/v1/jobs")).status == 200
    assert (await me.with_headers(Rota_Tenant="acme").get("/v1/jobs")).code == "forbidden"
    assert (await me.with_headers(Rota_Tenant="*").get("/v1/jobs")).code == "forbidden"


async def test_a_revocation_holds_within_seconds(server: Served, me: Caller) -> None:
    made = (await me.post("/v1/tokens", {"scopes": ["read"]})).ok()
    revoked = server.caller(made["token"])
    assert (await revoked.get("/v1/me")).status == 200
    await me.ask("DELETE", f"/v1/tokens/{made['token_id']}")
    server.kit.clock.advance(2)
    assert (await revoked.get("/v1/me")).code == "unauthorized"


async def test_an_expiry_holds_at_once(server: Served) -> None:
    clock: ManualClock = server.kit.clock
    text = await server.token(expires_at=clock.now() + timedelta(seconds=1))
    assert (await server.caller(text).get("/v1/me")).status == 200
    clock.advance(1)
    assert (await server.caller(text).get("/v1/me")).code == "unauthorized"


async def test_the_last_use_of_a_token_is_noted(server: Served, me: Caller) -> None:
    assert (await me.get("/v1/me")).status == 200
    await server.app.state.api.close()
    [token] = (await me.get("/v1/tokens")).ok()["tokens"]
    assert token["last_used_at"] == "2026-01-01T00:00:00Z"


async def test_a_tenant_is_held_to_its_rate_and_no_other_is(serving: Serving) -> None:
    async with serving(calls_per_second=5) as server:
        me, acme = await server.tenant(), await server.tenant("acme")
        answers = [await me.get("/v1/me") for _ in range(11)]
        assert [answer.status for answer in answers] == [200] * 10 + [429]
        refused = answers[-1]
        assert (refused.code, refused.headers["Retry-After"], refused.json["retry_after"]) == (
            "too-many-calls",
            "1",
            0.2,
        )
        assert (await acme.get("/v1/me")).status == 200
        server.kit.clock.advance(0.2)
        assert [(await me.get("/v1/me")).status for _ in range(2)] == [200, 429]


async def test_a_tenant_that_has_used_up_its_rate_keeps_its_leases(serving: Serving) -> None:
    async with serving(calls_per_second=5) as server:
        me = await server.tenant()
        await me.put_job()
        await me.trigger()
        [run] = await me.claim()
        while (await me.get("/v1/me")).status == 200:
            pass
        proof = {"lease_token": run["lease_token"]}
        path = f"/v1/runs/{run['run_id']}"
        assert (await me.post(f"{path}/heartbeat", proof)).ok()["cancel"] is False
        assert (await me.post(f"{path}/complete", {**proof, "status": "succeeded"})).ok()["state"] == "succeeded"
        assert [(await me.post(f"{path}/heartbeat", proof)).status for _ in range(9)] == [409] * 8 + [429]


async def test_a_quota_replaces_the_usual_rate(server: Served) -> None:
    operator = server.caller(await server.token("*"))
    (await operator.put("/v1/tenants/acme", {"calls_per_second": 0.5})).ok()
    acme = await server.tenant("acme")
    assert [(await acme.get("/v1/me")).status for _ in range(2)] == [200, 429]


async def test_identical_requests_at_once_make_one_run(me: Caller) -> None:
    await me.put_job()
    keyed = me.with_headers(Idempotency_Key="once")
    answers: list[Answer] = await asyncio.gather(*(keyed.post("/v1/jobs/tick/runs") for _ in range(20)))
    assert {answer.ok()["run_id"] for answer in answers} == {answers[0].json["run_id"]}
    assert sorted(answer.status for answer in answers) == [200] * 19 + [201]


async def test_open_on_loopback_everybody_here_is_the_operator(serving: Serving) -> None:
    async with serving(open_to="loopback") as server:
        anybody = server.caller()
        assert (await anybody.get("/v1/me")).ok()["actor"] == "dev"
        assert (await anybody.get("/v1/shards")).status == 200
        for host in ("localhost:1", "127.0.0.1", "[::1]:8470"):
            assert (await anybody.with_headers(Host=host).get("/v1/me")).status == 200


PAGES: list[dict[str, str]] = [
    {"Host": "evil.example"},
    {"Host": "127.0.0.1.evil.example:80"},
    {"Host": "localhost.evil.example"},
    {"Host": "[::1"},
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
]


async def test_open_on_loopback_a_web_page_gets_nothing(serving: Serving) -> None:
    async with serving(open_to="loopback") as server:
        for headers in PAGES:
            page = server.caller().with_headers(**headers)
            for path in ("/v1/me", "/healthz", "/docs"):
                assert (await page.get(path)).code == "forbidden"
        own = server.caller().with_headers(Origin=server.url)
        assert (await own.get("/v1/me")).status == 200


async def test_an_open_api_is_served_to_this_machine_only(rota_kit: RotaKit) -> None:
    app = create_app(rota_kit.rota, open_to="loopback")
    with pytest.raises(SetupFailed, match="rota token create"):
        await serve(app, bind("0.0.0.0", 0), stop=asyncio.Event())


async def test_an_address_that_is_taken_is_said(server: Served, rota_kit: RotaKit) -> None:
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(SetupFailed, match="cannot be bound"):
        await serve(create_app(rota_kit.rota), bind("127.0.0.1", port), stop=asyncio.Event())


@asynccontextmanager
async def all_taken(server: Served, lane: Lane) -> AsyncIterator[None]:
    """Hold every connection of a lane while the block lasts."""
    async with AsyncExitStack() as stack:
        for _ in range(server.kit.database.size_of(lane)):
            await stack.enter_async_context(server.kit.database.transaction(lane=lane))
        yield


async def test_unknown_tokens_take_no_reserved_connection_and_are_not_asked_for_again(server: Served) -> None:
    me, stranger = await server.tenant(), server.caller(str(token_of(bytes(8 + SECRET_BYTES))))
    (await me.get("/v1/jobs")).ok()
    async with all_taken(server, Lane.URGENT):
        assert (await stranger.get("/v1/jobs")).code == "unauthorized"
    async with all_taken(server, Lane.CALLS):
        first = await stranger.get("/v1/jobs")
        assert (first.code, first.json["hint"]) == ("unauthorized", "`rota token create` makes one")
        server.kit.clock.advance(TOKEN_KEPT)
        (await me.get("/v1/jobs")).ok()


async def test_however_many_unknown_tokens_come_a_few_are_looked_up_at_a_time(server: Served) -> None:
    me, kit = await server.tenant(), server.kit
    (await me.get("/v1/jobs")).ok()
    async with uncommitted(kit.dsn, "LOCK TABLE rota.token") as other:
        texts = [str(token_of(number.to_bytes(8 + SECRET_BYTES, "big"))) for number in range(40)]
        asking = [asyncio.create_task(server.caller(text).get("/v1/jobs")) for text in texts]
        waiting = await until_waiting_for(other, waiters=STRANGERS_AT_ONCE)
        assert len(waiting) == STRANGERS_AT_ONCE
        (await me.get("/v1/jobs")).ok()
        await other.execute("ROLLBACK")
    answers = await asyncio.gather(*asking)
    assert {answer.status for answer in answers} <= {401, 503}


async def test_a_token_made_by_a_token_ends_with_it(server: Served) -> None:
    me = await server.tenant("acme")
    made = (await me.post("/v1/tokens", {"scopes": ["admin"], "name": "child"})).ok()
    # Both were made in one instant, so their order is chance.
    [parent, listed] = sorted((await me.get("/v1/tokens")).ok()["tokens"], key=lambda token: token["name"] == "child")
    assert (listed["token_id"], listed["parent_id"]) == (made["token_id"], parent["token_id"])
    child = server.caller(made["token"])
    assert (await child.get("/v1/me")).status == 200
    assert (await child.ask("DELETE", f"/v1/tokens/{parent['token_id']}")).status == 204
    server.kit.clock.advance(5)
    assert (await child.get("/v1/me")).code == "unauthorized"
    assert (await me.get("/v1/me")).code == "unauthorized"


async def test_tokens_are_listed_page_by_page(server: Served) -> None:
    me = await server.tenant("acme")
    made = [(await me.post("/v1/tokens", {"scopes": ["read"]})).ok()["token_id"] for _ in range(4)]
    seen, path = set[str](), "/v1/tokens?limit=2"
    for _ in range(3):
        page = (await me.get(path)).ok()
        seen |= {token["token_id"] for token in page["tokens"]}
        path = f"/v1/tokens?limit=2&cursor={page['next_cursor']}"
    assert page["next_cursor"] is None
    assert set(made) < seen
    assert len(seen) == 5
    other = await server.tenant("other")
    assert (await other.get(path.replace("None", "x"))).code == "invalid-cursor"


async def test_whoever_needs_no_token_makes_none(serving: Serving) -> None:
    async with serving(open_to="loopback") as server:
        refused = await server.caller().post("/v1/tokens", {"scopes": ["admin"]})
        assert (refused.status, refused.code) == (403, "forbidden")
        assert (await server.caller(Rota_Tenant="*").post("/v1/tokens", {"scopes": ["read"]})).code == "forbidden"
        assert (await server.caller().get("/v1/tokens")).ok()["tokens"] == []


async def test_a_signing_secret_is_rotated(server: Served) -> None:
    me, worker = await server.tenant("acme"), await server.tenant("acme", scopes=("worker",))
    before = (await worker.get("/v1/signing-secret")).ok()
    assert (before["former"], before["former_until"]) == (None, None)
    assert (await worker.post("/v1/signing-secret/rotate")).code == "forbidden"
    rotated = (await me.post("/v1/signing-secret/rotate", {"keep_seconds": 60})).ok()
    assert (rotated["former"], rotated["former_until"]) == (before["secret"], "2026-01-01T00:01:00Z")
    assert (await worker.get("/v1/signing-secret")).ok() == rotated
    server.kit.clock.advance(60)
    assert (await worker.get("/v1/signing-secret")).ok() == {**rotated, "former": None, "former_until": None}
