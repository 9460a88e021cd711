"""What the client sends, to whom, and how often."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from rota.client import Client
from rota.client.transport import LONGEST_PAUSE, TRIES
from rota.domain.job import Job
from rota.errors import (
    CommitUnknown,
    DatabaseUnavailable,
    InvalidInput,
    NotFound,
    RotaError,
    ServerUnavailable,
    SetupFailed,
    Shed,
    TooLarge,
    TooManyCalls,
    Unauthorized,
)
from tests.client.stub import HastyClock, Stub, answer, no_answer, problem

RUN_ID = UUID("019b76da-a800-8000-8000-000000000001")
TRIGGERED = {
    "run_id": str(RUN_ID), "job_id": "j", "scheduled_for": "2026-01-01T00:00:00Z", "state": "pending", "created": True,
}  # fmt: skip
PUT = {
    "job_id": "j", "version": 1, "next_run_at": None, "next_slot": None, "changed": True, "created": True,
    "warnings": [],
}  # fmt: skip
CANCELLED = {"run_id": str(RUN_ID), "state": "cancelled", "cancel_requested": False}


async def test_a_trigger_is_sent_again_under_the_key_that_it_had(client: Client, stub: Stub) -> None:
    stub.say(no_answer, problem(503, "commit-unknown"), answer(TRIGGERED))
    assert (await client.trigger("j", payload={"n": 10**30})).run_id == RUN_ID
    assert len(stub.asked) == 3
    assert len({asked.headers["Idempotency-Key"] for asked in stub.asked}) == 1
    assert stub.asked[0].document["payload"] == {"n": 10**30}
    await client.trigger("j", idempotency_key="mine")
    assert stub.asked[-1].headers["Idempotency-Key"] == "mine"


async def test_two_triggers_have_two_keys(client: Client, stub: Stub) -> None:
    stub.say(answer(TRIGGERED))
    await client.trigger("j")
    await client.trigger("j")
    assert len({asked.headers["Idempotency-Key"] for asked in stub.asked}) == 2


async def test_what_cannot_be_repeated_is_sent_once(client: Client, stub: Stub) -> None:
    stub.say(no_answer)
    for call in (
        client.cancel_run(RUN_ID),
        client.replay_run(RUN_ID),
        client.create_token(scopes=["read"]),
    ):
        with pytest.raises(CommitUnknown):
            await call
    assert len(stub.asked) == 3


async def test_a_refusal_for_now_of_what_cannot_be_repeated_is_raised(client: Client, stub: Stub) -> None:
    stub.say(problem(503, "database-unavailable"), problem(429, "too-many-calls", retry_after=2.5))
    with pytest.raises(DatabaseUnavailable):
        await client.cancel_run(RUN_ID)
    with pytest.raises(TooManyCalls) as refused:
        await client.cancel_run(RUN_ID)
    assert refused.value.retry_after == 2.5
    assert len(stub.asked) == 2


async def test_a_guarded_put_is_sent_once_since_its_own_success_would_refuse_it(client: Client, stub: Stub) -> None:
    stub.say(problem(503, "commit-unknown"))
    with pytest.raises(CommitUnknown):
        await client.put_job(Job(job_id="j", handler="h"), if_version=3)
    assert [asked.headers["If-Match"] for asked in stub.asked] == ['"3"']


async def test_waits_as_long_as_the_server_asks(client: Client, stub: Stub, clock: HastyClock) -> None:
    stub.say(problem(429, "too-many-calls", retry_after=7), answer({}, status=503, Retry_After="3"), answer(PUT))
    await client.put_job(Job(job_id="j", handler="h"))
    first, second = clock.slept
    assert 7 <= first < 8
    assert 3 <= second < 4


async def test_who_is_shed_is_told_at_once(client: Client, stub: Stub, clock: HastyClock) -> None:
    stub.say(problem(429, "shed", retry_after=5))
    with pytest.raises(Shed) as refused:
        await client.trigger("j", idempotency_key="k")
    assert (refused.value.retry_after, len(stub.asked), clock.slept) == (5, 1, [])


async def test_a_wait_that_is_longer_than_the_call_may_take_is_not_begun(
    client: Client, stub: Stub, clock: HastyClock
) -> None:
    stub.say(problem(429, "too-many-calls", retry_after=60))
    with pytest.raises(TooManyCalls):
        await client.stats()
    assert clock.slept == []


async def test_tries_are_bounded_and_further_and_further_apart(client: Client, stub: Stub, clock: HastyClock) -> None:
    stub.say(no_answer)
    with pytest.raises(ServerUnavailable):
        await client.put_job(Job(job_id="j", handler="h"))
    assert len(clock.slept) == TRIES - 1
    for number, pause in enumerate(clock.slept):
        full = min(LONGEST_PAUSE, 0.1 * 2**number)
        assert full / 2 <= pause <= full


async def test_a_server_that_is_away_is_asked_again_whatever_the_call(clock: HastyClock) -> None:
    """What did not reach it cannot have been carried out."""
    async with Client("http://127.0.0.1:9", clock=clock) as client:
        with pytest.raises(ServerUnavailable):
            await client.create_token(scopes=["read"])
    assert len(clock.slept) == TRIES - 1


async def test_a_redirect_is_not_followed(client: Client, stub: Stub) -> None:
    stub.say(answer(status=307, Location="http://other.example/v1/stats"))
    with pytest.raises(SetupFailed, match=r"other\.example"):
        await client.stats()
    assert len(stub.asked) == 1


async def test_cookies_are_not_kept(client: Client, stub: Stub) -> None:
    stub.say(answer({"tokens": []}, Set_Cookie="a=b"))
    await client.tokens()
    await client.tokens()
    assert "Cookie" not in stub.asked[1].headers


async def test_the_token_and_the_tenant_go_with_every_call(stub: Stub) -> None:
    stub.say(answer({"tokens": []}))
    async with Client(stub.url, "rota_abc_secret", tenant="acme") as client:
        await client.tokens()
    headers = stub.asked[0].headers
    assert (headers["Authorization"], headers["Rota-Tenant"]) == ("Bearer rota_abc_secret", "acme")


@pytest.mark.parametrize(
    ("url", "is_allowed"),
    [
        ("https://rota.example.com", True),
        ("http://rota.example.com", False),
        ("http://127.0.0.1:8000", True),
        ("http://[::1]:8000/prefix/", True),
        ("http://localhost:8000", True),
        ("http://localhost.example.com", False),
        ("http://10.0.0.1", False),
    ],
)
def test_a_token_travels_in_the_clear_to_this_machine_only(url: str, is_allowed: bool) -> None:
    Client(url)
    Client(url, "token", insecure=True)
    if is_allowed:
        Client(url, "token")
    else:
        with pytest.raises(InvalidInput, match="in the clear"):
            Client(url, "token")


@pytest.mark.parametrize(
    "url",
    ["", "rota.example.com", "ftp://h", "http://", "https://u:p@h", "https://h?x=1", "https://h#x", "http://h:x", "http://["],
)  # fmt: skip
def test_what_is_no_address_is_refused_without_being_quoted(url: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Client(url)
    assert refused.value.field == "url"
    assert "u:p" not in str(refused.value)


def test_a_token_that_no_header_carries_is_refused_without_being_quoted() -> None:
    with pytest.raises(InvalidInput) as refused:
        Client("https://h", "geheim\r\nX: y")
    assert "geheim" not in str(refused.value)


@pytest.mark.parametrize("job_id", ["a/b", ".", "..", "null", "ä ö", "a%2Fb", "x" * 200, "?a=b#c", "a:b", "runs", "\\"])
async def test_every_id_is_one_segment(client: Client, stub: Stub, job_id: str) -> None:
    from urllib.parse import unquote

    stub.say(answer(TRIGGERED))
    await client.trigger(job_id)
    path = stub.asked[0].path
    empty, v1, jobs, one, runs = path.split("/")
    assert (empty, v1, jobs, unquote(one), runs) == ("", "v1", "jobs", job_id, "runs")
    assert one.strip(".")


async def test_what_is_no_text_is_refused_before_it_is_sent(client: Client, stub: Stub) -> None:
    for call in (
        client.get_job("\ud800"),
        client.get_job(""),
        client.list_jobs(prefix="\ud800"),
        client.trigger("j", payload={"a": float("nan")}),
        client.trigger("j", idempotency_key="ä"),
        client.trigger("j", scheduled_for=datetime(2026, 1, 1)),
        client.claim(worker_id="w", limit=501),
    ):
        with pytest.raises(InvalidInput):
            await call
    assert stub.asked == []


async def test_a_query_holds_what_is_asked_for_and_nothing_else(client: Client, stub: Stub) -> None:
    from rota.wire.runs import RunFilterQuestion

    stub.say(answer({"jobs": [], "next_cursor": None}), answer({"runs": [], "next_cursor": None}))
    await client.list_jobs(prefix="a&b", enabled=False, limit=5)
    assert stub.asked[0].path == "/v1/jobs?prefix=a%26b&enabled=false&limit=5"
    since = datetime(2026, 1, 1, 1, tzinfo=UTC)
    await client.list_runs(RunFilterQuestion(state="dead", since=since))
    assert stub.asked[1].path == "/v1/runs?state=dead&since=2026-01-01T01%3A00%3A00%2B00%3A00&limit=50"


async def test_the_servers_clock_is_read_off_every_answer(client: Client, stub: Stub) -> None:
    with pytest.raises(RuntimeError):
        client.server_clock.now()
    ahead = HastyClock().now() + timedelta(hours=3)
    stub.say(problem(404, "not-found"), answer({"tokens": []}, Rota_Now="rubbish"))
    with pytest.raises(NotFound):
        await client.get_job("j")
    await client.tokens()
    stub.say(answer({"tokens": []}, Rota_Now=ahead.isoformat()))
    await client.tokens()
    await client.tokens()
    assert timedelta(0) <= client.server_clock.now() - ahead < timedelta(minutes=1)


async def test_an_answer_that_is_none_of_rotas_says_so(client: Client, stub: Stub) -> None:
    stub.say(answer({"detail": "Not Found"}, status=404), answer([1]), answer({"no": "token"}, status=401))
    with pytest.raises(RotaError, match="is this the address"):
        await client.stats()
    with pytest.raises(RotaError, match="is no StatsAnswer"):
        await client.stats()
    with pytest.raises(Unauthorized):
        await client.stats()


async def test_jobs_are_put_in_batches_that_are_neither_too_many_nor_too_large(client: Client, stub: Stub) -> None:
    stub.say(answer({"jobs": [PUT]}))
    small = [Job(job_id=f"j{number}", handler="h") for number in range(1001)]
    large = [Job(job_id=f"k{number}", handler="h", payload={"x": "x" * 200_000}) for number in range(11)]
    assert len(await client.put_jobs_in_parts([*small, *large])) == 3
    assert [len(asked.document["jobs"]) for asked in stub.asked] == [1000, 11, 1]
    assert "tenant_id" not in stub.asked[0].document["jobs"][0]


async def test_many_runs_are_made_in_calls_that_are_neither_too_many_nor_too_large(client: Client, stub: Stub) -> None:
    run = {"run_id": str(UUID(int=1)), "job_id": "j", "scheduled_for": "2026-01-01T00:00:00Z", "outcome": "created"}
    stub.say(no_answer, answer({"runs": [run]}))
    small: list[dict[str, Any]] = [{} for _ in range(1001)]
    large = [{"payload": {"x": "x" * 200_000}, "idempotency_key": f"k{number}"} for number in range(11)]
    assert len(await client.trigger_many("j", [*small, *large])) == 3
    lost, *parts = stub.asked
    assert [len(asked.document["items"]) for asked in parts] == [1000, 11, 1]
    # A lost answer is asked for again, under the very keys that the client made.
    assert lost.document == parts[0].document
    keys = [item["idempotency_key"] for asked in parts for item in asked.document["items"]]
    assert len(set(keys)) == 1012
    assert keys[-11:] == [item["idempotency_key"] for item in large]


async def test_a_refusal_of_a_later_part_names_the_item_in_the_whole_list(client: Client, stub: Stub) -> None:
    run = {"run_id": str(UUID(int=1)), "job_id": "j", "scheduled_for": "2026-01-01T00:00:00Z", "outcome": "created"}
    stub.say(
        answer({"runs": [run] * 1000}), problem(422, "invalid-input", "items[7].payload: no", field="items[7].payload")
    )
    with pytest.raises(InvalidInput) as refused:
        await client.trigger_many("j", [{}] * 1500)
    assert refused.value.field == "items[1007].payload"


async def test_a_put_that_no_one_call_carries_is_refused_before_any_job_of_it_is_put(
    client: Client, stub: Stub
) -> None:
    with pytest.raises(TooLarge, match="all are to be put or none"):
        await client.put_jobs([Job(job_id=f"j{number}", handler="h") for number in range(1001)])
    assert stub.asked == []


async def test_a_job_of_a_named_tenant_says_so(client: Client, stub: Stub) -> None:
    stub.say(answer(PUT))
    await client.put_job(Job(job_id="j", handler="h", tenant_id="acme"))
    assert stub.asked[0].document["tenant_id"] == "acme"
