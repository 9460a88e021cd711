"""What nobody means and somebody sends: hostile ids, bodies and cursors. Nothing of it is a fault of the server."""

import asyncio
import io
import json
import re
from contextlib import suppress
from threading import get_ident
from typing import Any
from urllib.parse import quote

import pytest
from structlog.testing import capture_logs

from rota.api import body as bodies
from rota.api.problems import every_error
from rota.services.completion import Completion
from rota.services.fleet import Fleet
from tests.api.conftest import Caller, Served, soon
from tests.services.stories import execute, outage

RUN = "019b76da-a800-8000-8cb6-e7e8c805b49c"

IDS = [
    "a/b/c", "a/b/next", "/", "//", ".", "..", "../..", "null", "None", "undefined", "true", "0", "-1", "%", "%2F",
    "100%25", "a b", "a+b", "ä€😀", "e\u0301", "👩\u200d💻", "jobs:batch", "a:batch", "?", "#", "a?b=c#d", "'", '"',
    "\\", "; DROP TABLE job", "$1", "{}", "{job_id}", "<script>", "*", "x" * 200, "😀" * 200,
]  # fmt: skip


def encoded(job_id: str) -> str:
    return quote(job_id, safe="").replace(".", "%2E")


async def test_a_job_may_be_called_anything(me: Caller) -> None:
    for job_id in IDS:
        path = f"/v1/jobs/{encoded(job_id)}"
        assert (await me.put(path, {"handler": "h"})).ok()["job_id"] == job_id
        assert (await me.get(path)).ok()["job_id"] == job_id
        assert (await me.get(f"{path}/next")).ok()["slots"] == []
        assert (await me.post(f"{path}/runs")).status == 201
    listed = (await me.get("/v1/jobs")).ok()["jobs"]
    assert {job["job_id"] for job in listed} == set(IDS)
    for job_id in IDS:
        assert (await me.ask("DELETE", f"/v1/jobs/{encoded(job_id)}")).ok()["cancelled"] == 1


async def test_what_can_be_no_id_is_refused(me: Caller) -> None:
    for segment in ["%00", "%FF", "%C3%28", "%ED%A0%80", "a%0Ab", "x" * 201, "x" * 20_000, "%20a", "%20"]:
        for method in ("GET", "PUT", "DELETE"):
            answer = await me.ask(method, f"/v1/jobs/{segment}", {"handler": "h"} if method == "PUT" else None)
            assert answer.status in (400, 422), answer.body
            assert answer.code in ("malformed", "invalid-input")


@pytest.mark.parametrize("unseen", ["\u202e", "\u200b", "\ufeff", "\u2066", "\u00ad", "\u2060"])
async def test_a_name_that_would_look_like_another_is_refused(me: Caller, unseen: str) -> None:
    for path, question in [
        (f"/v1/jobs/{encoded(f'a{unseen}b')}", {"handler": "h"}),
        ("/v1/jobs/a", {"handler": f"h{unseen}"}),
        ("/v1/jobs/a", {"handler": "h", "pool": f"p{unseen}q"}),
    ]:
        refused = await me.put(path, question)
        assert (refused.status, refused.code) == (422, "invalid-input"), path
        assert f"U+{ord(unseen):04X}" in refused.json["detail"]
    assert (await me.post("/v1/tokens", {"scopes": ["read"], "name": f"a{unseen}"})).code == "invalid-input"


async def test_a_name_that_was_made_before_such_names_were_refused_is_still_one(server: Served, me: Caller) -> None:
    await me.put_job("a-b")
    await execute(server.kit, "UPDATE rota.job SET pool = $1 WHERE job_id = 'a-b'", "p\u200bq")
    changed = {"handler": "h", "pool": "p\u200bq", "description": "changed"}
    assert (await me.put("/v1/jobs/a-b", changed)).ok()["changed"] is True
    assert (await me.ask("DELETE", "/v1/jobs/a-b")).status == 200


async def test_there_is_nothing_under_an_unknown_path(me: Caller) -> None:
    for path in ["/", "/v1", "/v1/", "/v1/jobs/", "/v1//jobs", "/v1/jobs/a/b", "/v2/jobs", "/v1/jobs/a/"]:
        assert (await me.get(path)).code == "not-found"


async def test_an_unknown_method_is_told_which_are_known(me: Caller) -> None:
    answer = await me.ask("POST", "/v1/jobs/tick")
    assert (answer.status, answer.code) == (405, "method-not-allowed")
    assert answer.headers["Allow"] == "DELETE, GET, PATCH, PUT"


async def test_what_can_be_no_run_is_refused(me: Caller) -> None:
    for run_id in ["null", "1", "..%2F", "00000000-0000-4000-8000-000000000000", "x" * 5000, "%00"]:
        assert (await me.get(f"/v1/runs/{run_id}")).status in (404, 422)


async def test_a_run_that_there_is_not(me: Caller) -> None:
    assert (await me.get(f"/v1/runs/{RUN}")).code == "not-found"


async def test_a_hostile_cursor_is_refused(me: Caller) -> None:
    await me.put_job()
    for cursor in ["", "x", "null", "%00", "=" * 900, "x" * 2000, "eyJhIjogMX0", "%F0%9F%98%80", "..", "AAAA", "-1"]:
        for path in ("/v1/jobs", "/v1/runs", "/v1/jobs/tick/runs", "/v1/audit"):
            answer = await me.get(f"{path}?cursor={cursor}")
            assert answer.status in (400, 422), (path, answer.body)


BODIES: list[tuple[bytes, int, str]] = [
    (b"", 422, "invalid-input"),
    (b"{", 400, "malformed"),
    (b'{"handler": NaN}', 400, "malformed"),
    (b"\xff", 400, "malformed"),
    (b"null", 422, "invalid-input"),
    (b"[]", 422, "invalid-input"),
    (b'"text"', 422, "invalid-input"),
    (b"[" * 100_000, 422, "invalid-input"),
    (rb'{"handler": "\u0000"}', 422, "invalid-input"),
    (rb'{"handler": "\ud800"}', 422, "invalid-input"),
    (b'{"handler": "h", "handlre": 1}', 422, "invalid-input"),
    (b'{"handler": "h", "payload": {"a": 1e999}}', 422, "invalid-input"),
    (b'{"handler": "h", "job_id": "other"}', 422, "invalid-input"),
    (b'{"handler": "h", "tenant_id": "other"}', 422, "invalid-input"),
    (b'{"handler": "h", "schedule": {"kind": "cron", "expression": "x"}}', 422, "invalid-schedule"),
]


async def test_a_hostile_body_is_refused(me: Caller) -> None:
    for body, status, code in BODIES:
        answer = await me.ask("PUT", "/v1/jobs/tick", body=body)
        assert (answer.status, answer.code) == (status, code), body[:100]


async def test_a_body_that_is_not_json_is_refused_by_its_type(me: Caller) -> None:
    answer = await me.ask("PUT", "/v1/jobs/tick", body=b"handler=h", kind="application/x-www-form-urlencoded")
    assert (answer.status, answer.code) == (415, "unsupported-media")


async def test_a_body_that_says_it_is_compressed_is_refused_and_not_read_as_if_it_were_not(me: Caller) -> None:
    answer = await me.ask("PUT", "/v1/jobs/tick", body=b'{"handler": "h"}', encoding="gzip")
    assert (answer.status, answer.code) == (415, "unsupported-media")
    plain = await me.ask("PUT", "/v1/jobs/tick", body=b'{"handler": "h"}', encoding="identity")
    assert plain.status == 200


async def test_a_body_of_ten_megabytes_is_refused_unless_it_is_a_batch(me: Caller) -> None:
    big = io.BytesIO(b'{"handler": "h", "description": "' + b"x" * 10_000_000 + b'"}')
    refused = await me.ask("PUT", "/v1/jobs/tick", body=big)
    assert (refused.status, refused.code) == (413, "too-large")
    batch = io.BytesIO(b'{"jobs": [{"job_id": "a", "handler": "h", "description": "' + b"x" * 10_000_000 + b'"}]}')
    assert (await me.ask("POST", "/v1/jobs:batch", body=batch)).code == "invalid-input"


async def test_a_body_without_a_length_is_counted_while_it_is_read(server: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    token = await server.token()
    writer.write(
        b"PUT /v1/jobs/tick HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
        b"Authorization: Bearer " + token.encode() + b"\r\n\r\n"
    )
    writer.write((b"10000\r\n" + b"x" * 0x10000 + b"\r\n") * 20)
    assert (await reader.readline()).startswith(b"HTTP/1.1 413")
    writer.close()


async def test_a_head_that_goes_on_and_on_is_not_read_to_its_end(server: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
    with suppress(ConnectionError):
        for _ in range(1000):
            writer.write(b"Cookie: " + b"x" * 0x10000 + b"\r\n")
            await writer.drain()
    with suppress(ConnectionError):
        assert (await reader.readline()).startswith(b"HTTP/1.1 400")
    writer.close()


async def test_requests_of_one_connection_are_each_read_from_their_own_beginning(server: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    authorization = b"Authorization: Bearer " + (await server.token()).encode()
    sent = b'{"handler": "h", "payload": {"a": "' + b"x" * 200_000 + b'"}}'
    for _ in range(3):
        writer.write(
            b"PUT /v1/jobs/tick HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n%s\r\n\r\n%s" % (len(sent), authorization, sent)
        )
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
    writer.close()


async def test_a_long_body_does_not_keep_others_waiting(me: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    threads, parse = [], bodies.parse

    def noted(content: bytes) -> Any:
        threads.append(get_ident())
        return parse(content)

    monkeypatch.setattr(bodies, "parse", noted)
    jobs = [{"job_id": f"{number}", "handler": "h", "description": "x" * 1000} for number in range(100)]
    (await me.post("/v1/jobs:batch", {"jobs": jobs})).ok()
    (await me.post("/v1/jobs:batch", {"jobs": jobs[:1]})).ok()
    assert [thread == get_ident() for thread in threads] == [False, True]


@pytest.mark.parametrize(
    ("path", "question"),
    [
        ("/v1/jobs:batch", {"jobs": [[]] * 100_000}),
        ("/v1/jobs:batch", {str(number): 1 for number in range(100_000)}),
        ("/v1/runs:complete", {"reports": [[]] * 100_000}),
        ("/v1/runs:complete", {"reports": [{str(number): 1 for number in range(100_000)}]}),
        ("/v1/leases:renew", {"worker_id": "w", "leases": [0] * 100_000}),
        ("/v1/claims", {"worker_id": "w", "handlers": [0] * 100_000}),
        ("/v1/tokens", {"scopes": [0] * 100_000}),
    ],
)
async def test_a_hundred_thousand_faults_are_refused_for_one(me: Caller, path: str, question: Any) -> None:
    refused = await me.ask("POST", path, body=io.BytesIO(json.dumps(question).encode()))
    assert (refused.status, refused.code) == (422, "invalid-input")
    assert "more" not in refused.json["detail"].split()


async def test_a_caller_who_leaves_in_the_middle_of_a_body_is_no_fault(server: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    token = await server.token()
    with capture_logs() as logs:
        writer.write(
            b"PUT /v1/jobs/tick HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"
            b"Authorization: Bearer " + token.encode() + b"\r\n\r\n{"
        )
        await writer.drain()
        writer.close()
        text = server.app.state.api.metrics.scrape
        left = b""

        async def look() -> None:
            nonlocal left
            left = await text()

        await soon(lambda: b'route="/v1/jobs/{job_id}",status="499"' in left, look)
    assert [entry for entry in logs if entry["event"] == "api.fault"] == []
    assert await reader.read() == b""


async def test_a_stranger_s_body_is_not_even_read(server: Served) -> None:
    answer = await server.caller().ask("PUT", "/v1/jobs/tick", body=b"{" * 1000)
    assert answer.code == "unauthorized"


async def test_a_misspelt_filter_is_refused_in_place_of_being_passed_over(me: Caller) -> None:
    refused = await me.get("/v1/runs?stat=dead")
    assert (refused.code, refused.json["field"]) == ("invalid-input", "stat")


async def test_a_query_that_is_out_of_bounds_names_its_field(me: Caller) -> None:
    for query in ["limit=0", "limit=1001", "limit=x", "state=late", "since=yesterday", "error=%00", "limit="]:
        refused = await me.get(f"/v1/runs?{query}")
        assert refused.code == "invalid-input"
        assert refused.json["field"] in (query.partition("=")[0], "query")


async def test_fields_that_are_wrong_are_named(me: Caller) -> None:
    refused = await me.post("/v1/claims", {"worker_id": "w", "limit": 501, "wait": 31})
    assert (refused.status, refused.json["field"]) == (422, "limit")
    assert "wait" in refused.json["detail"]


async def test_a_refusal_repeats_little_of_what_was_sent(me: Caller) -> None:
    refused = await me.put("/v1/jobs/tick", {"handler": "h", "overlap": "x" * 500_000})
    assert (refused.status, refused.json["field"]) == (422, "overlap")
    assert len(refused.body) < 5000


async def test_every_answer_tells_the_server_s_instant(server: Served, me: Caller) -> None:
    for path in ("/v1/me", "/healthz", "/nowhere", "/docs", "/v1/jobs/%FF"):
        assert (await me.get(path)).headers["Rota-Now"] == "2026-01-01T00:00:00Z"


async def tick_successfully(server: Served) -> None:
    """Let the timer's loop have succeeded just now, and the scheduler say so."""
    server.kit.process.loops["scheduler"].last_success = server.kit.clock.now()
    await server.kit.process.keeper.tick()


async def test_ready_means_that_schedulers_tick_and_workers_claim(server: Served, me: Caller) -> None:
    nobody = server.caller()
    assert (await nobody.get("/healthz")).ok() == {"alive": True}
    red = await nobody.get("/readyz")
    assert (red.status, red.json["ready"], red.json["tick_age"]) == (503, False, None)
    await tick_successfully(server)
    green = {"ready": True, "problems": [], "tick_age": 0.0, "claim_age": None}
    assert (await nobody.get("/readyz")).ok() == green
    await me.claim()
    server.kit.clock.advance(8)
    await tick_successfully(server)
    assert (await nobody.get("/readyz")).ok() == green | {"claim_age": 8.0}
    server.kit.clock.advance(10)
    red = await nobody.get("/readyz")
    assert (red.status, len(red.json["problems"])) == (503, 1)
    assert "scheduler" in red.json["problems"][0]


async def test_without_a_database_nothing_is_ready_and_calls_may_be_repeated(server: Served, me: Caller) -> None:
    async with outage(server.kit):
        changed = await me.put("/v1/jobs/tick", {"handler": "h"})
        assert (changed.status, changed.code, changed.headers["Retry-After"]) == (503, "database-unavailable", "1")
        assert changed.json["detail"] == "The database cannot be reached, or refuses writes, for now."
    assert (await server.caller().get("/healthz")).status == 200


async def test_an_error_has_an_entry_on_the_page_that_its_type_names(server: Served) -> None:
    page = (await server.caller().get("/errors")).body.decode()
    assert set(re.findall(r'<h2 id="([^"]+)"', page)) == {kind.code for kind in every_error()}


async def test_the_documentation_needs_nothing_from_outside(server: Served) -> None:
    page = (await server.caller().get("/docs")).body.decode()
    links = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(links) == 3
    for link in links:
        assert link.startswith("/docs/assets/")
        assert (await server.caller().get(link)).status == 200
    policy = (await server.caller().get("/docs")).headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self' 'sha256-" in policy
    assert "'unsafe-inline'" not in policy.split("script-src")[1].split(";")[0]
    schema = (await server.caller().get("/openapi.json")).ok()
    assert schema["openapi"] == "3.1.0"
    assert schema["components"]["schemas"]["Problem"]["required"]


async def test_metrics_count_calls_by_their_route(server: Served, me: Caller) -> None:
    await me.put_job("one")
    await me.put_job("two")
    await me.get("/nowhere")
    operator = server.caller(await server.token("*"))
    text = (await operator.get("/metrics")).body.decode()
    assert 'rota_http_requests_total{method="PUT",route="/v1/jobs/{job_id}",status="200"} 2.0' in text
    assert 'route="unmatched"' in text
    assert "default" not in text


async def test_a_fault_is_a_problem_too(server: Served, me: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: Fleet, *, tenant_id: str | None) -> None:
        raise LookupError("a bug with a secret in it")

    monkeypatch.setattr(Fleet, "stats", broken)
    answer = await me.get("/v1/stats")
    assert (answer.status, answer.code) == (500, "fault")
    assert "secret" not in answer.body.decode()


async def test_a_balancer_may_ask_for_the_head_alone(server: Served, me: Caller) -> None:
    assert (await me.ask("HEAD", "/healthz")).status == 200
    assert (await me.ask("HEAD", "/readyz")).status == 503


async def test_only_a_page_of_ours_may_load_anything_in_a_browser(server: Served, me: Caller) -> None:
    for path in ("/v1/me", "/healthz", "/nowhere", "/docs/assets/favicon.png"):
        assert (await me.get(path)).headers["Content-Security-Policy"].startswith("default-src 'none'; frame-ancestors")


async def test_reports_that_are_refused_are_one_line_and_no_warning(server: Served) -> None:
    said = {"lease_token": RUN.replace("-8000-", "-4000-", 1), "status": "succeeded"}
    with capture_logs() as logs:
        refused = await server.caller().post(f"/v1/callbacks/{RUN}", said)
    assert refused.code == "lease-lost"
    assert [entry["log_level"] for entry in logs if "refused" in entry["event"]] == ["info"]


async def test_another_tenant_s_job_is_looked_up_like_one_that_there_is_not(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever measures how long the refusal takes learns nothing."""
    theirs, mine = await server.tenant("acme"), await server.tenant("thieves")
    await theirs.put_job("secret")
    await theirs.trigger("secret")
    [run] = await theirs.claim()
    looked, look = [], Completion.jobs_of_tenant

    async def noted(completion: Completion, keys: Any, *, tenant_id: str) -> frozenset[int]:
        looked.append(tenant_id)
        return await look(completion, keys, tenant_id=tenant_id)

    monkeypatch.setattr(Completion, "jobs_of_tenant", noted)
    for run_id in (run["run_id"], RUN) * 2:
        assert (await mine.complete({**run, "run_id": run_id})).code == "lease-lost"
    assert looked == ["thieves"] * 4
