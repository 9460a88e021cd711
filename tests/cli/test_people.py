"""`rota token`, `rota tenant`, `rota audit`, and the cluster as it is: workers, shards, stats."""

import asyncio
import uuid

import pytest

from rota.assembly import opened
from rota.settings import Settings
from rota.store import workers
from tests.cli.conftest import Cli


async def _announce(worker_id: str) -> None:
    async with opened(Settings()) as rota:
        now = rota.clock.now()
        await workers.announce(
            rota.database, instance=uuid.uuid4(), worker_id=worker_id, pool="default", handlers=["h"], concurrency=3,
            now=now, expires_at=now.replace(year=2999), version="0", tzdata="2026a", tenant_id=None,
            last_claim_at=None, claimed=None,
        )  # fmt: skip


def test_a_token_is_shown_once_listed_and_revoked(rota: Cli) -> None:
    said = rota(
        "token", "create", "--tenant", "acme", "--scope", "read", "--scope", "jobs:write", "--name", "ci",
        "--expires", "90d",
    )  # fmt: skip
    assert said.code == 0
    text = said.out.strip()
    assert text.startswith("rota_")
    assert "shown only now" in said.err
    [listed] = rota.json("token", "list", "--tenant", "acme")["tokens"]
    assert (listed["name"], listed["scopes"], listed["revoked_at"]) == ("ci", ["read", "jobs:write"], None)
    assert listed["created_by"].startswith("cli:")
    secret = text.removeprefix(f"rota_{listed['token_id']}_")
    assert secret not in rota("token", "list", "--tenant", "acme").out
    assert rota.json("token", "list")["tokens"] == []
    assert rota("token", "revoke", listed["token_id"]).code == 3
    assert rota.json("token", "revoke", listed["token_id"], "--tenant", "acme")["revoked"]
    assert rota.json("token", "list", "--tenant", "acme")["tokens"][0]["revoked_at"] is not None


def test_an_operator_s_token_belongs_to_no_tenant(rota: Cli) -> None:
    made = rota.json("token", "create", "--operator", "--scope", "admin")
    assert made["tenant_id"] == "*"
    assert [one["token_id"] for one in rota.json("token", "list", "--operator")["tokens"]] == [made["token_id"]]
    assert rota("token", "create", "--operator", "--tenant", "acme", "--scope", "admin").code == 2
    assert rota("token", "create").code == 2
    assert rota("token", "create", "--scope", "all").err.startswith("error: scope: ")
    assert rota("token", "create", "--scope", "read", "--expires", "soon").err.startswith("error: expires: ")


def test_a_tenant_has_quotas(rota: Cli) -> None:
    put = rota.json("tenant", "put", "acme", "--max-jobs", "1", "--calls-per-second", "5")
    assert (put["tenant_id"], put["max_jobs"], put["max_payload_bytes"], put["calls_per_second"]) == (
        "acme", 1, None, 5.0,
    )  # fmt: skip
    assert [one["tenant_id"] for one in rota.json("tenant", "list")["tenants"]] == ["acme"]
    assert "acme" in rota("tenant", "list").out
    rota.json("job", "put", "a", "--tenant", "acme", "--handler", "h")
    assert rota("job", "put", "b", "--tenant", "acme", "--handler", "h").code == 5
    assert rota("tenant", "put", "acme", "--max-jobs", "-1").code == 2


def test_the_audit_log_says_who_changed_what(rota: Cli) -> None:
    rota.json("job", "put", "a", "--handler", "h")
    rota.json("job", "pause", "a", "--reason", "rest")
    page = rota.json("audit", "--subject", "a", "--limit", "1")
    [latest] = page["entries"]
    assert (latest["subject"], latest["actor"].split(":")[0]) == ("a", "cli")
    [earlier] = rota.json("audit", "--subject", "a", "--cursor", page["next_cursor"])["entries"]
    assert earlier["at"] < latest["at"]
    assert "cli:" in rota("audit").out
    assert rota.json("audit", "--tenant", "acme")["entries"] == []


def test_workers_are_listed_and_drained(rota: Cli) -> None:
    assert rota("workers", "list").out == "no live workers\n"
    asyncio.run(_announce("w-1"))
    [worker] = rota.json("workers", "list")["workers"]
    assert (worker["worker_id"], worker["draining_at"]) == ("w-1", None)
    assert rota.json("workers", "drain", "w-1")["workers"][0]["draining_at"] is not None
    assert "draining" in rota("workers", "list").out
    assert rota("workers", "drain", "nobody").code == 3


def test_shards_and_counts_are_shown(rota: Cli) -> None:
    assert len(rota.json("shards")["shards"]) == 64
    said = rota("shards").out
    assert "owner" in said
    assert "0-63" in said, "shards of one owner are one row"
    rota.bury("a", error="no")
    rota.json("job", "run", "a")
    stats = rota.json("stats")
    assert (stats["jobs"], stats["running"], stats["dead"]) == (1, 0, 1)
    assert [(depth["pool"], depth["runs"]) for depth in stats["waiting"]] == [("default", 1)]
    assert "waiting" in rota("stats").out
    assert rota.json("stats", "--tenant", "acme")["jobs"] == 0


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("--url", "ftp://host", "job", "list"), "url"),
        (("--url", "https://user:secret@host", "job", "list"), "url"),
        (("--url", "https://host", "--database-url", "postgresql://host/db", "job", "list"), "url"),
        (("--url", "https://host", "job", "recompute"), "url"),
    ],
)
def test_an_address_that_is_not_meant_is_refused(bare: Cli, words: tuple[str, ...], field: str) -> None:
    said = bare(*words)
    assert (said.code, said.err.startswith(f"error: {field}: ")) == (2, True)
    assert "secret" not in said.err


def test_an_api_that_cannot_be_reached_is_the_set_up_s_fault_and_no_token_is_shown(bare: Cli) -> None:
    said = bare("job", "list", "--url", "http://127.0.0.1:1", "--token", "rota_abc_secret")
    assert said.code == 5
    assert "secret" not in said.err
