"""Commands against a URL answer as they do against a database."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from rota.api.app import create_app
from rota.api.binding import bind
from rota.api.serving import serve
from rota.assembly import opened
from rota.settings import Settings
from tests.cli.conftest import Cli

JOBS = [
    {"job_id": "a/b ü", "handler": "h", "schedule": {"kind": "cron", "expression": "30 2 * * *"}, "labels": {"x": "y"}},
    {"job_id": "plain", "handler": "h", "payload": {"n": 123456789012345678901234567890}},
]


class Api:
    """The API of the test's database, served by a thread's own loop on a loopback port."""

    def __init__(self) -> None:
        self._bound: Future[str] = Future()
        self._stop: Callable[[], Any] = lambda: None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def begin(self) -> str:
        """Start it; returns its URL."""
        self._thread.start()
        return self._bound.result(timeout=20)

    def end(self) -> None:
        self._stop()
        self._thread.join(20)
        assert not self._thread.is_alive(), "the API did not end"

    async def _serve(self) -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        self._stop = lambda: loop.call_soon_threadsafe(stop.set)
        async with opened(Settings()) as rota:
            await serve(create_app(rota), bind("127.0.0.1", 0), stop=stop, started=self._bound.set_result)


@pytest.fixture
def url(rota: Cli) -> Iterator[str]:
    api = Api()
    yield api.begin()
    api.end()


@pytest.fixture
def remote(rota: Cli, url: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Commands with an operator's token, which need no database."""
    token = rota.json("token", "create", "--operator", "--scope", "admin")["token"]
    monkeypatch.setenv("ROTA_URL", url)
    monkeypatch.setenv("ROTA_TOKEN", token)
    return Cli()


class AtDatabase(Cli):
    """Commands that speak to the database, whatever URL the environment names."""

    def __init__(self, database_url: str) -> None:
        self._database_url = database_url

    def json(self, *words: str, typed: str | None = None) -> Any:
        return super().json(*words, "--database-url", self._database_url, typed=typed)


@pytest.fixture
def local(remote: Cli) -> AtDatabase:
    return AtDatabase(remote.environment["ROTA_DATABASE_URL"])


def test_what_is_read_over_http_is_what_the_database_says(remote: Cli, local: AtDatabase) -> None:
    put = remote.json("job", "put", "-", typed=json.dumps(JOBS))["jobs"]
    assert [one["created"] for one in put] == [True, True]
    assert [one["changed"] for one in local.json("job", "put", "-", typed=json.dumps(JOBS))["jobs"]] == [False, False]
    at = ("--at", "2035-01-01T00:00:00Z", "--payload", '{"b": 2}', "--idempotency-key", "k")
    made = remote.json("job", "run", "a/b ü", *at)
    assert local.json("job", "run", "a/b ü", *at) == {**made, "created": False}
    dead = str(remote.bury("broken", error="upstream 500"))
    for words in (
        ("job", "list"),
        ("job", "list", "--label", "x=y", "--enabled"),
        ("job", "list", "--limit", "1"),
        ("job", "show", "a/b ü"),
        ("job", "show", "plain"),
        ("job", "next", "a/b ü", "--count", "3"),
        ("run", "list"),
        ("run", "list", "--error", "upstream", "--since", "2020-01-01T00:00:00Z"),
        ("run", "show", dead),
        ("run", "show", made["run_id"]),
        ("dead", "list"),
        ("audit",),
        ("workers", "list"),
        ("shards",),
        ("stats",),
        ("tenant", "list"),
        ("token", "list"),
    ):
        assert remote.json(*words) == local.json(*words), words


def test_what_is_done_over_http_is_done(remote: Cli, local: AtDatabase) -> None:
    remote.json("job", "put", "tick", "--every", "5m", "--if-version", "0")
    assert remote("job", "put", "tick", "--every", "6m", "--if-version", "7").code == 4
    remote.json("job", "pause", "tick", "--reason", "rest", "--resume-at", "2999-01-01T00:00:00Z")
    assert local.json("job", "show", "tick")["pause_reason"] == "rest"
    assert remote.json("job", "resume", "tick", "--missed", "drop")["state"] == "active"
    run_id = remote.json("job", "run", "tick")["run_id"]
    assert remote.json("run", "cancel", run_id)["state"] == "cancelled"
    dead = str(remote.bury("broken", error="no"))
    assert remote.json("dead", "replay", dead) == {"replayed": 1, "not_dead": []}
    again = remote("dead", "replay", dead, "--json")
    assert (again.code, again.document["not_dead"]) == (1, [dead])
    remote.bury("broken-too", error="no")
    assert remote.json("dead", "replay", "--all", "--yes", "--handler", "broken-too")["replayed"] == 1
    remote.json("tenant", "put", "acme", "--max-jobs", "1")
    token = remote.json("token", "create", "--tenant", "acme", "--scope", "read")["token_id"]
    assert [one["token_id"] for one in local.json("token", "list", "--tenant", "acme")["tokens"]] == [token]
    assert remote.json("token", "revoke", token, "--tenant", "acme")["revoked"]
    assert local.json("audit", "--subject", "tick", "--limit", "1")["entries"][0]["actor"].startswith("token:")
    assert remote.json("job", "delete", "tick")["job_id"] == "tick"


def test_errors_over_http_end_a_command_as_they_do_at_the_database(remote: Cli, url: str) -> None:
    assert remote("job", "show", "nobody").code == 3
    assert remote("job", "list", "--cursor", "x").code == 2
    assert remote("job", "put", "a", "--cron", "61 * * * *").code == 2
    unknown = remote("job", "list", "--token", "rota_aaaaaaaaaaaa_bbbb", "--json")
    assert (unknown.code, unknown.document["error"]["code"]) == (5, "unauthorized")
    reader = remote.json("token", "create", "--tenant", "acme", "--scope", "read")["token"]
    assert remote.json("job", "list", "--token", reader)["jobs"] == []
    for words in (("job", "put", "a", "--handler", "h"), ("shards",), ("audit",)):
        assert remote(*words, "--token", reader, "--json").document["error"]["code"] == "forbidden", words


def test_a_tenant_s_token_needs_no_tenant_named(remote: Cli, local: AtDatabase) -> None:
    writer = remote.json("token", "create", "--tenant", "acme", "--scope", "jobs:write")["token"]
    remote.json("job", "put", "-", "--token", writer, typed=json.dumps(JOBS))
    remote.json("job", "put", "one", "--handler", "h", "--if-version", "0", "--token", writer)
    found = local.json("job", "list", "--tenant", "acme")["jobs"]
    assert [job["job_id"] for job in found] == ["a/b ü", "one", "plain"]


def test_a_token_without_an_address_is_refused_and_no_database_is_asked_instead(rota: Cli) -> None:
    refused = rota("job", "list", "--token", "rota_aaaaaaaaaaaa_bbbb", "--json")
    assert (refused.code, refused.document["error"]["field"]) == (2, "token")
