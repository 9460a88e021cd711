"""HTTP targets: what a call says, what its answer means, and that no call leads inside. B103."""

import asyncio
import contextlib
import gzip
import json
import ssl
import subprocess
from collections.abc import AsyncIterator
from datetime import timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver
from standardwebhooks import Webhook
from standardwebhooks.webhooks import WebhookVerificationError

from rota.clock import ManualClock, SystemClock
from rota.domain.addresses import Allowed
from rota.domain.attempt import Outcome
from rota.domain.http_target import check_target
from rota.domain.job import Job
from rota.errors import DatabaseUnavailable, InvalidInput
from rota.settings import Settings
from rota.testing import RotaKit, TestCluster
from rota.worker.context import RunContext
from rota.worker.handlers import HandlerRegistry
from rota.worker.http_target import HttpHandler
from tests.worker.fake_desk import SLOT, FakeDesk, FakeRun
from tests.worker.kit import NotingHeart, at_work
from tests.worker.targets import ChangingNames, never, saying, says, serving, streams

SECRET = "whsec_" + "c2VjcmV0IG9mIGRlZmF1bHQ="
PUBLIC_URL = "https://rota.example/base/"


async def secrets_of(tenant_id: str) -> list[str]:
    assert tenant_id == "default"
    return [SECRET]


def handler(
    allow: str = "127.0.0.1", *, public_url: str | None = None, resolver: AbstractResolver | None = None
) -> HttpHandler:
    return HttpHandler(
        secrets=secrets_of,
        clock=SystemClock(),
        allowed=Allowed.parse(allow),
        public_url=public_url,
        resolver=resolver,
    )


@contextlib.asynccontextmanager
async def calling(desk: FakeDesk, http: HttpHandler | None = None) -> AsyncIterator[NotingHeart]:
    """A worker at work that calls targets and nothing else."""
    async with at_work(desk, HandlerRegistry(), http=http or handler()) as (_, heart):
        yield heart


async def ended(desk: FakeDesk, run: FakeRun) -> Outcome:
    """Return how the run's first attempt ended."""
    await desk.until(lambda: run.attempts)
    return run.attempts[0].outcome


async def test_a_run_of_a_url_waits_where_targets_are_not_allowed(desk: FakeDesk, registry: HandlerRegistry) -> None:
    async def other() -> None: ...

    registry.register("other", other)
    run, other_run = desk.add("https://example.com/"), desk.add("other")
    async with at_work(desk, registry):
        await desk.until(lambda: other_run.state == "succeeded")
    assert (run.state, run.claims) == ("pending", 0)
    assert registry.names == {"other"}


@pytest.mark.parametrize("name", ["http", "http://example.com/", "https://example.com/"])
def test_no_function_can_stand_in_the_place_of_targets(registry: HandlerRegistry, name: str) -> None:
    with pytest.raises(InvalidInput, match="reserved for HTTP targets"):
        registry.register(name, lambda: None)


async def test_a_call_says_which_run_it_is_and_proves_who_makes_it(desk: FakeDesk) -> None:
    payload = {"customer": "Zoë", "cents": 12345678901234567890}
    async with serving(says(200)) as target, calling(desk):
        run = desk.add(target.url, payload)
        run.job_id = "数据/100% of it"
        assert await ended(desk, run) is Outcome.SUCCEEDED
    [call] = target.calls
    assert (call.method, call.path, json.loads(call.body)) == ("POST", "/hook?from=rota", payload)
    told = call.headers
    run_id = told["Rota-Run-Id"]
    assert told["Idempotency-Key"] == told["webhook-id"] == run_id
    assert (told["Rota-Attempt"], told["Rota-Scheduled-For"]) == ("1", SLOT.isoformat())
    assert unquote(told["Rota-Job-Id"]) == run.job_id
    assert told["Content-Type"] == "application/json"
    assert told["User-Agent"].startswith("rota/")
    assert not {"Rota-Callback", "Rota-Lease-Token", "Cookie", "Authorization"} & told.keys()
    assert Webhook(SECRET).verify(call.body, dict(told)) == payload
    with pytest.raises(WebhookVerificationError):
        Webhook("whsec_" + "b3RoZXI=").verify(call.body, dict(told))
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(call.body + b" ", dict(told))


async def test_while_a_secret_is_rotated_both_prove_who_calls(desk: FakeDesk) -> None:
    new = "whsec_" + "bmV3IHNlY3JldCBvZiB0aGVpcnM="

    async def both(_: str) -> list[str]:
        return [new, SECRET]

    http = HttpHandler(secrets=both, clock=SystemClock(), allowed=Allowed.parse("127.0.0.1"))
    async with serving(says(200)) as target, calling(desk, http):
        assert await ended(desk, desk.add(target.url, {"a": 1})) is Outcome.SUCCEEDED
    [call] = target.calls
    for secret in (SECRET, new):
        assert Webhook(secret).verify(call.body, dict(call.headers)) == {"a": 1}


@pytest.mark.parametrize(
    ("status", "outcome", "error"),
    [
        (200, Outcome.SUCCEEDED, None),
        (201, Outcome.SUCCEEDED, None),
        (202, Outcome.SUCCEEDED, None),
        (204, Outcome.SUCCEEDED, None),
        (304, Outcome.FAILED, "answered 304 Not Modified: redirects are not followed"),
        (400, Outcome.GAVE_UP, "answered 400 Bad Request: it says why"),
        (401, Outcome.GAVE_UP, "answered 401 Unauthorized: it says why"),
        (404, Outcome.GAVE_UP, "answered 404 Not Found: it says why"),
        (410, Outcome.GAVE_UP, "answered 410 Gone: it says why"),
        (408, Outcome.FAILED, "answered 408 Request Timeout: it says why"),
        (425, Outcome.FAILED, "answered 425 Too Early: it says why"),
        (429, Outcome.FAILED, "answered 429 Too Many Requests: it says why"),
        (500, Outcome.FAILED, "answered 500 Internal Server Error: it says why"),
        (503, Outcome.FAILED, "answered 503 Service Unavailable: it says why"),
        (999, Outcome.FAILED, "answered 999: it says why"),
    ],
)
async def test_an_answer_s_status_decides(desk: FakeDesk, status: int, outcome: Outcome, error: str | None) -> None:
    body = "" if status in (204, 304) else " it says why\n"
    async with serving(says(status, body)) as target, calling(desk):
        run = desk.add(target.url, max_attempts=1)
        assert await ended(desk, run) is outcome
    assert run.last.error == error
    assert run.state == ("succeeded" if outcome is Outcome.SUCCEEDED else "dead")
    assert len(target.calls) == 1


async def test_a_target_that_recovers_is_called_again_with_the_same_key(desk: FakeDesk) -> None:
    async with serving(says(503), says(200)) as target, calling(desk):
        run = desk.add(target.url)
        await desk.until(lambda: run.state == "succeeded")
    first, second = target.calls
    assert first.headers["Idempotency-Key"] == second.headers["Idempotency-Key"]
    assert (first.headers["Rota-Attempt"], second.headers["Rota-Attempt"]) == ("1", "2")


@pytest.mark.parametrize("status", [429, 503])
async def test_a_wait_that_the_target_asks_for_goes_with_the_report(desk: FakeDesk, status: int) -> None:
    at = format_datetime(desk.clock.now() + timedelta(minutes=10), usegmt=True)
    async with (
        serving(says(status, Retry_After="120")) as by_seconds,
        serving(says(status, Retry_After=at)) as by_date,
        serving(says(status, Retry_After="soon")) as by_nothing,
        calling(desk),
    ):
        for target in (by_seconds, by_date, by_nothing):
            await ended(desk, desk.add(target.url, max_attempts=1))
    waits = [report.retry_after for report in desk.accepted]
    assert {report.outcome for report in desk.accepted} == {Outcome.FAILED}
    assert waits[0] == timedelta(seconds=120)
    assert waits[1] is not None
    assert timedelta(minutes=9) < waits[1] <= timedelta(minutes=10)
    assert waits[2] is None


@pytest.mark.parametrize(
    ("text", "kind", "result"),
    [
        ('{"invoices": 3}', "application/json", {"invoices": 3}),
        ("[1, null]", "application/problem+json; charset=utf-8", [1, None]),
        ('{"invoices": 3}', "text/plain", None),
        ("{", "application/json", None),
        ("[NaN]", "application/json", None),
        ('"\\u0000"', "application/json", None),
        ("[" * 60_000, "application/json", None),
        (json.dumps("x" * 70_000), "application/json", None),
        ("", "application/json", None),
    ],
    ids=["json", "problem", "text", "broken", "nan", "nul", "deep", "large", "empty"],
)
async def test_a_small_json_answer_is_the_result_and_any_other_is_none(
    desk: FakeDesk, text: str, kind: str, result: Any
) -> None:
    async with serving(says(200, text, Content_Type=kind)) as target, calling(desk):
        assert await ended(desk, desk.add(target.url)) is Outcome.SUCCEEDED
    assert desk.accepted[0].result == result


async def test_of_an_error_s_body_the_beginning_is_kept_without_passwords(desk: FakeDesk) -> None:
    body = "cannot reach postgresql://u:s3cret@db/x " + "\x00é" + "x" * 1_000_000
    async with serving(says(500, body)) as target, calling(desk):
        run = desk.add(target.url, max_attempts=1)
        await ended(desk, run)
    error = run.last.error or ""
    assert error.startswith("answered 500 Internal Server Error: cannot reach postgresql://u:***@db/x \\x00é")
    assert 8000 < len(error) < 8400


@pytest.mark.parametrize(("status", "outcome"), [(200, Outcome.SUCCEEDED), (404, Outcome.GAVE_UP)])
async def test_an_endless_answer_is_left_in_its_middle(desk: FakeDesk, status: int, outcome: Outcome) -> None:
    endless = streams(status, b"x" * 65536, content_type="application/json")
    async with serving(endless) as target, calling(desk):
        run = desk.add(target.url, max_attempts=1)
        assert await ended(desk, run) is outcome
        assert await SystemClock().wait(target.is_left, 5)


async def test_an_answer_that_stops_in_its_middle_counts_by_its_status(
    desk: FakeDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.worker.http_target.BODY_TIME", 0.1)
    async with (
        serving(streams(503, b"the first half", for_ever=False)) as failing,
        serving(streams(200, b"[1", content_type="application/json", for_ever=False)) as succeeding,
        calling(desk),
    ):
        failed, succeeded = desk.add(failing.url, max_attempts=1), desk.add(succeeding.url)
        assert await ended(desk, failed) is Outcome.FAILED
        assert await ended(desk, succeeded) is Outcome.SUCCEEDED
    assert failed.last.error == "answered 503 Service Unavailable: the first half"


CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n"
DONE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


async def test_a_few_informational_answers_are_passed_over(desk: FakeDesk) -> None:
    async with saying(CONTINUE + HINTS * 3 + DONE) as target, calling(desk):
        assert await ended(desk, desk.add(target.url)) is Outcome.SUCCEEDED
    assert desk.accepted[0].result == {}


@pytest.mark.parametrize(
    ("before", "again"),
    [
        (b"", CONTINUE * 5000),
        (b"", HINTS * 5000),
        (b"HTTP/1.1 ", b"2" * 65536),
        (b"HTTP/1.1 200 OK\r\n", b"X-More: 1\r\n" * 5000),
    ],
    ids=["continue", "hints", "status", "headers"],
)
async def test_a_target_that_never_comes_to_its_answer_is_left(desk: FakeDesk, before: bytes, again: bytes) -> None:
    async with saying(before, again) as target, calling(desk):
        run = desk.add(target.url, max_attempts=1, timeout=600)
        assert await ended(desk, run) is Outcome.FAILED
        assert await SystemClock().wait(target.is_left, 10)
    assert (run.last.error or "").startswith("no answer from 127.0.0.1: ")


async def test_what_a_target_says_behind_its_answer_is_not_read(desk: FakeDesk) -> None:
    async with saying(DONE, DONE * 5000) as target, calling(desk):
        assert await ended(desk, desk.add(target.url)) is Outcome.SUCCEEDED
        assert await SystemClock().wait(target.is_left, 10)


async def test_while_a_target_informs_without_end_its_neighbours_are_at_work(desk: FakeDesk) -> None:
    """However often it is called: no call holds the loop for longer than a bounded answer takes."""
    async with saying(b"", CONTINUE * 20_000) as target, serving(says(200)) as good, calling(desk):
        bad = [desk.add(target.url, max_attempts=3) for _ in range(5)]
        assert await ended(desk, desk.add(good.url)) is Outcome.SUCCEEDED
        await desk.until(lambda: all(run.state == "dead" for run in bad))


async def test_an_error_does_not_tell_where_a_name_leads(desk: FakeDesk) -> None:
    async with serving(says(200)) as target:
        port = target.port
    names = ChangingNames(["127.0.0.1"])
    async with calling(desk, handler("billing.internal", resolver=names)):
        run = desk.add(f"http://billing.internal:{port}/", max_attempts=1)
        assert await ended(desk, run) is Outcome.FAILED
    assert run.last.error == "no connection to billing.internal: Connection refused"


async def test_a_compressed_answer_is_not_unpacked(desk: FakeDesk) -> None:
    async def bomb(request: web.Request) -> web.Response:
        assert request.headers["Accept-Encoding"] == "identity"
        headers = {"Content-Encoding": "gzip"}
        return web.Response(status=500, body=gzip.compress(b"0" * 10_000_000), headers=headers)

    async with serving(bomb) as target, calling(desk):
        run = desk.add(target.url, max_attempts=1)
        await ended(desk, run)
    assert "0000000000" not in (run.last.error or "")


async def test_a_call_past_its_timeout_is_ended(desk: FakeDesk) -> None:
    async with serving(never) as target, calling(desk):
        run = desk.add(target.url, timeout=0.2, max_attempts=1)
        assert await ended(desk, run) is Outcome.TIMED_OUT
        assert await SystemClock().wait(target.is_left, 5)
    assert run.last.error == "no result within 0.2 s: the handler was cancelled"


@pytest.mark.parametrize("word", ["lost", "cancelled"])
async def test_a_call_ends_when_its_lease_is_lost_or_somebody_cancels(desk: FakeDesk, word: str) -> None:
    async with serving(never) as target, calling(desk) as heart:
        run = desk.add(target.url)
        await desk.until(lambda: target.calls)
        assert run.lease is not None
        heart.learn(**{word: [run.lease.token]})
        assert await SystemClock().wait(target.is_left, 5)
        await desk.until(lambda: not heart.held or run.claims > 1)
    assert Outcome.SUCCEEDED not in run.outcomes


async def test_a_target_that_nobody_serves_fails_the_attempt(desk: FakeDesk) -> None:
    async with serving(says(200)) as target:
        pass
    async with calling(desk):
        run = desk.add(target.url, max_attempts=1)
        assert await ended(desk, run) is Outcome.FAILED
    assert (run.last.error or "").startswith("no connection to 127.0.0.1: ")


async def test_a_target_that_hangs_up_fails_the_attempt(desk: FakeDesk) -> None:
    async def hang_up(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        raise web.HTTPOk

    async with serving(hang_up) as target, calling(desk):
        run = desk.add(target.url, max_attempts=1)
        assert await ended(desk, run) is Outcome.FAILED
    assert (run.last.error or "").startswith("no answer from 127.0.0.1: ")
    assert len(target.calls) == 1, "a call is not repeated behind the run's back"


async def test_a_name_that_nobody_knows_fails_the_attempt(desk: FakeDesk) -> None:
    async with calling(desk, handler(resolver=ChangingNames([]))):
        run = desk.add("http://gone.example/", max_attempts=1)
        assert await ended(desk, run) is Outcome.FAILED
    assert run.last.error == "no connection to gone.example: there is no such name"


async def test_a_connection_that_does_not_come_is_not_waited_for(
    desk: FakeDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(ChangingNames):
        async def resolve(self, *_: Any) -> Any:
            await asyncio.Event().wait()

    monkeypatch.setattr("rota.worker.http_target.CONNECT_TIME", 0.1)
    async with calling(desk, handler(resolver=Slow([]))):
        run = desk.add("http://slow.example/", max_attempts=1)
        assert await ended(desk, run) is Outcome.FAILED
    assert run.last.error == "no connection to slow.example within 0.1 s"


async def test_a_signing_secret_that_cannot_be_read_costs_no_attempt(desk: FakeDesk) -> None:
    async def away(_: str) -> list[str]:
        raise DatabaseUnavailable("the database is away")

    async with calling(desk, HttpHandler(secrets=away, clock=SystemClock(), allowed=Allowed.parse("127.0.0.1"))):
        run = desk.add("http://127.0.0.1:9/")
        assert await ended(desk, run) is Outcome.SNOOZED
    assert run.charged == 0


async def test_a_signing_secret_is_asked_for_once_a_minute(desk: FakeDesk) -> None:
    clock, asked = ManualClock(), 0

    async def count(tenant_id: str) -> list[str]:
        nonlocal asked
        asked += 1
        return await secrets_of(tenant_id)

    http = HttpHandler(secrets=count, clock=clock, allowed=Allowed.parse("127.0.0.1"))
    async with serving(says(200)) as target, calling(desk, http):
        for wait, times in ((0, 1), (59, 1), (2, 2)):
            clock.advance(wait)
            await ended(desk, desk.add(target.url))
            assert asked == times
    assert int(target.calls[-1].headers["webhook-timestamp"]) == clock.now().timestamp()


# Answers that come later


async def test_a_202_keeps_the_lease_until_the_callback_has_ended_the_run(desk: FakeDesk) -> None:
    async with serving(says(202)) as target, calling(desk, handler(public_url=PUBLIC_URL)) as heart:
        run, probe = desk.add(target.url), desk.add(target.url)
        await desk.until(lambda: len(target.calls) == 2)
        told = target.calls[0].headers
        assert run.lease is not None
        assert told["Rota-Callback"] == f"https://rota.example/base/v1/callbacks/{told['Rota-Run-Id']}"
        assert told["Rota-Lease-Token"] == str(run.lease.token)
        assert (run.state, probe.state) == ("running", "running")
        # The API takes the callback's word; the worker finds its lease gone.
        token, run.lease, run.state = run.lease.token, None, "succeeded"
        heart.learn(lost=[token])
        await desk.until(lambda: token not in heart.held)
        assert (run.state, run.attempts) == ("succeeded", [])


async def test_a_202_without_a_callback_times_out(desk: FakeDesk) -> None:
    async with serving(says(202)) as target, calling(desk, handler(public_url=PUBLIC_URL)):
        run = desk.add(target.url, timeout=0.3, max_attempts=1)
        assert await ended(desk, run) is Outcome.TIMED_OUT


@pytest.mark.parametrize("url", ["rota.example", "ftp://rota.example", "https://u:p@rota.example", "https://a b"])
def test_a_public_url_that_no_target_could_call_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="public_url"):
        handler(public_url=url)


# B103: nothing leads inside


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.1", "2130706433", "0x7f.1", "0177.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "localhost",
     "127。0。0。1"],
)  # fmt: skip
async def test_an_inner_address_is_not_called_unless_it_is_allowed(desk: FakeDesk, host: str) -> None:
    async with serving(says(200)) as target, calling(desk, handler("")):
        run = desk.add(f"http://{host}:{target.port}/")
        assert await ended(desk, run) is Outcome.GAVE_UP
    assert target.calls == []
    assert "a loopback address, which is not called" in (run.last.error or "")


@pytest.mark.parametrize(
    "address", ["169.254.169.254", "100.100.100.200", "fd00:ec2::254", "::ffff:10.0.0.1", "0.0.0.0", "10.0.0.1", "::1"]
)
async def test_a_name_that_leads_inside_is_not_called(desk: FakeDesk, address: str) -> None:
    names = ChangingNames([address])
    async with calling(desk, handler("", resolver=names)):
        run = desk.add("https://inside.example/")
        assert await ended(desk, run) is Outcome.GAVE_UP
    assert names.asked == ["inside.example"]
    error = run.last.error or ""
    assert error.startswith("handler: inside.example leads to a")
    assert address not in error, "whoever may name a target may not look into the network with it"


async def test_a_name_that_is_public_at_the_put_and_inner_at_the_call_is_not_called(desk: FakeDesk) -> None:
    """B103: DNS rebinding. What counts is the address of this very connection."""
    async with serving(says(503)) as target:
        url = f"http://rebound.example:{target.port}/"
        check_target(url)
        # Allowed for once, as a public address would be; then the name turns to one that is not.
        names = ChangingNames(["127.0.0.1"], ["127.0.0.2"])
        async with calling(desk, handler("127.0.0.1", resolver=names)):
            run = desk.add(url)
            await desk.until(lambda: run.state == "dead")
    assert run.outcomes == [Outcome.FAILED, Outcome.GAVE_UP]
    assert len(target.calls) == 1
    assert len(names.asked) == 2


async def test_what_a_name_may_be_called_at_is_called(desk: FakeDesk) -> None:
    """Of its addresses only those that are permitted."""
    async with serving(says(200)) as target:
        names = ChangingNames(["127.0.0.2", "10.0.0.1", "127.0.0.1"])
        async with calling(desk, handler("127.0.0.1", resolver=names)):
            assert await ended(desk, desk.add(f"http://both.example:{target.port}/")) is Outcome.SUCCEEDED


async def test_a_name_is_allowed_inside_but_not_to_metadata(desk: FakeDesk) -> None:
    async with serving(says(200)) as target:
        names = ChangingNames(["127.0.0.1"], ["169.254.169.254"])
        async with calling(desk, handler("billing.internal", resolver=names)):
            run, second = (desk.add(f"http://billing.internal:{target.port}/") for _ in range(2))
            await desk.until(lambda: run.attempts and second.attempts)
    assert [run.last.outcome, second.last.outcome] == [Outcome.SUCCEEDED, Outcome.GAVE_UP]
    assert "a metadata address" in (second.last.error or "")


async def test_the_socket_s_maker_refuses_what_no_resolver_saw(desk: FakeDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last word is at the connection, whatever was overlooked before."""
    monkeypatch.setattr("rota.domain.http_target.ban", lambda _: None)
    async with serving(says(200)) as target, calling(desk, handler("")):
        run = desk.add(target.url)
        assert await ended(desk, run) is Outcome.GAVE_UP
    assert target.calls == []
    assert "127.0.0.1 is a loopback address" in (run.last.error or "")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_no_redirect_is_followed(desk: FakeDesk, status: int) -> None:
    """B103: also not to an address that could be called, which would get the signature and the token."""
    async with serving(says(200)) as elsewhere:
        metadata = says(status, Location="http://169.254.169.254/latest/meta-data/")
        async with serving(metadata, says(status, Location=elsewhere.url)) as target, calling(desk):
            run = desk.add(target.url, max_attempts=2)
            await desk.until(lambda: run.state == "dead")
    assert run.outcomes == [Outcome.FAILED, Outcome.FAILED]
    assert "to http://169.254.169.254/latest/meta-data/: redirects are not followed" in (run.attempts[0].error or "")
    assert (len(target.calls), elsewhere.calls) == (2, [])


async def test_no_proxy_of_the_environment_and_no_cookie_is_used(
    desk: FakeDesk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login rota password s3cret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    async with serving(says(200)) as proxy, serving(says(200, Set_Cookie="a=b; Path=/")) as target:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        async with calling(desk):
            for _ in range(2):
                await ended(desk, desk.add(target.url))
    assert (len(target.calls), proxy.calls) == (2, [])
    assert not {"Cookie", "Authorization"} & target.calls[1].headers.keys()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate that nobody has signed, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    files = (folder / "certificate.pem", folder / "key.pem")
    try:
        command = ["openssl", *words.split(), "-out", str(files[0]), "-keyout", str(files[1])]
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no openssl here to make a certificate with")
    return files


async def test_a_certificate_that_nobody_vouches_for_is_not_believed(
    desk: FakeDesk, certificate: tuple[Path, Path]
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    async with serving(says(200), tls=context) as target, calling(desk):
        run = desk.add(f"https://127.0.0.1:{target.port}/", max_attempts=1)
        assert await ended(desk, run) is Outcome.FAILED
    assert target.calls == []
    assert "certificate verify failed" in (run.last.error or "")


# With the database


async def test_a_target_s_wait_and_result_reach_its_run(rota_cluster: TestCluster) -> None:
    async with rota_cluster.kit(settings=Settings(http_allow="127.0.0.1")) as kit:
        await _story_of_a_wait_and_a_result(kit)
        await kit.check()


async def _story_of_a_wait_and_a_result(rota_kit: RotaKit) -> None:
    await rota_kit.tick()
    http = HttpHandler(secrets=secrets_of, clock=rota_kit.clock, allowed=Allowed.parse("127.0.0.1"))
    others, caller = rota_kit.worker("w-1", handlers=["invoices"]), rota_kit.worker("w-2", handlers=["http"])
    async with serving(says(503, Retry_After="600"), says(200, "[7]", Content_Type="application/json")) as target:
        await rota_kit.put(Job(job_id="hook", handler=target.url))
        run_id = await rota_kit.on_demand.trigger("hook", tenant_id="default")
        await caller.announce()
        await rota_kit.tick()
        assert await others.claim() == []
        for state in ("pending", "succeeded"):
            work = await caller.claim_one()
            assert work.claim.handler == target.url
            ending = await http(work.claim, RunContext.of(work.claim))
            await work.report(ending.outcome, error=ending.error, retry_after=ending.retry_after, result=ending.result)
            [run] = await rota_kit.runs("hook")
            assert (run.run_id, run.state) == (run_id, state)
            if state == "pending":
                await rota_kit.advance(599)
                await caller.announce()
                assert await caller.claim() == []
                await rota_kit.advance(1)
    await http.close()
    assert (run.attempt, run.result) == (2, [7])
