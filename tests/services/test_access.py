"""Tokens and tenants: who holds what, for how long, and that a secret is shown once and kept nowhere."""

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from rota.domain.token_text import parse_token
from rota.errors import Forbidden, InvalidInput, NotFound, QuotaExceeded, Unauthorized
from rota.services.access import USE_NOTED, Access, SigningKeys
from rota.services.quota import REMEMBERED
from rota.store.database import Database, Lane
from rota.testing import RotaKit
from tests.services.stories import HOUR, START, execute, fetch


@pytest.fixture
def access(rota_kit: RotaKit) -> Access:
    return Access(rota_kit.database, rota_kit.clock)


@pytest_asyncio.fixture
async def elsewhere(rota_kit: RotaKit) -> AsyncIterator[Access]:
    """The same in another process, which shares nothing but the database."""
    async with await Database.connect(rota_kit.dsn) as database:
        yield Access(database, rota_kit.clock)


async def create(access: Access, **given: Any) -> tuple[str, str]:
    """Make a token; returns its id and its text."""
    asked = {"tenant_id": "acme", "scopes": ["read"], "name": "", "expires_at": None, "actor": "cli:ada"}
    token, text = await access.create_token(**{**asked, **given})
    return token.token_id, text


async def test_a_token_is_looked_at_while_every_usual_connection_is_taken(access: Access, rota_kit: RotaKit) -> None:
    """Renewals and reports over HTTP come with tokens, and must not wait behind others' reads."""
    _, text = await create(access)
    async with asyncio.timeout(30), AsyncExitStack() as taken:
        for _ in range(rota_kit.database.size_of(Lane.WORK)):
            await taken.enter_async_context(rota_kit.database.transaction())
        assert (await access.authenticate(text)).tenant_id == "acme"
        assert await access.quotas("acme") is None


# tokens ---------------------------------------------------------------------------------------------------------------


async def test_a_token_is_what_its_text_says_and_nothing_else(access: Access, elsewhere: Access) -> None:
    token, text = await access.create_token(
        tenant_id="acme", scopes=["worker", "read", "read"], name="the worker", expires_at=START + HOUR, actor="cli:ada"
    )
    parts = parse_token(text)
    assert parts is not None
    assert (text, parts.token_id) == (f"rota_{token.token_id}_{parts.secret}", token.token_id)
    assert parts.secret not in repr(parts)
    assert token.scopes == ("read", "worker")
    assert (token.created_at, token.created_by, token.expires_at) == (START, "cli:ada", START + HOUR)
    assert await elsewhere.authenticate(text) == token
    other, _ = await create(access)
    last = "A" if text[-1] != "A" else "B"
    for wrong in (
        "", "rota_", text[:-1], text[:-1] + last, text + "=", text + "\n", " " + text, text.upper(),
        f"rota_{other}_{parts.secret}", f"rota_{'a' * 12}_{parts.secret}", f"rota_{token.token_id}_", "x" * 10_000,
        text.replace("_", "\x00", 1), "\ud800",
    ):  # fmt: skip
        with pytest.raises(Unauthorized, match="unknown"):
            await access.authenticate(wrong)


async def test_every_token_is_another_one(access: Access) -> None:
    made = [await create(access) for _ in range(20)]
    assert len({token_id for token_id, _ in made}) == len({text.rsplit("_", 1)[1] for _, text in made}) == 20


async def test_of_a_secret_only_a_digest_is_kept(access: Access, rota_kit: RotaKit) -> None:
    _, text = await create(access, name="shown once")
    parts = parse_token(text)
    assert parts is not None
    kept = await fetch(rota_kit, "SELECT t::text AS row FROM rota.token t UNION ALL SELECT a::text FROM rota.audit a")
    assert len(kept) == 2
    assert not [row for row in kept if parts.secret in row["row"]]
    assert parts.secret_hash.hex() not in str(await fetch(rota_kit, "SELECT t::text AS row FROM rota.audit t"))


async def test_a_token_ends_at_its_expiry(access: Access, rota_kit: RotaKit) -> None:
    _, text = await create(access, expires_at=START + HOUR)
    assert await access.has_tokens()
    rota_kit.clock.advance(HOUR - timedelta(seconds=1))
    await access.authenticate(text)
    rota_kit.clock.advance(1)
    with pytest.raises(Unauthorized, match="expired at 2026-01-01T01:00:00Z"):
        await access.authenticate(text)
    assert not await access.has_tokens()


async def test_a_revoked_token_holds_no_longer_and_stays_revoked(
    access: Access, elsewhere: Access, rota_kit: RotaKit
) -> None:
    token_id, text = await create(access)
    kept, _ = await create(access)
    rota_kit.clock.advance(60)
    await access.revoke(token_id, tenant_id="acme", actor="cli:ada")
    with pytest.raises(Unauthorized, match="revoked"):
        await elsewhere.authenticate(text)
    rota_kit.clock.advance(60)
    await access.revoke(token_id, tenant_id="acme", actor="cli:eve")
    found = {token.token_id: token.revoked_at for token in await access.tokens("acme")}
    assert found == {token_id: START + timedelta(seconds=60), kept: None}
    assert await access.has_tokens()


async def test_another_tenants_token_is_not_found(access: Access) -> None:
    token_id, text = await create(access)
    for tenant_id in ("other", "*"):
        assert await access.tokens(tenant_id) == []
        with pytest.raises(NotFound):
            await access.revoke(token_id, tenant_id=tenant_id, actor="cli:eve")
    for unknown in ("", "a" * 12, "a\x00", "\ud800", token_id.upper()):
        with pytest.raises(NotFound):
            await access.revoke(unknown, tenant_id="acme", actor="cli:ada")
    await access.authenticate(text)


async def test_what_a_token_made_ends_with_it(access: Access, elsewhere: Access, rota_kit: RotaKit) -> None:
    parent, _ = await create(access, scopes=["admin"])
    child, child_text = await create(access, scopes=["admin"], parent_id=parent)
    grandchild, grandchild_text = await create(access, parent_id=child)
    other, other_text = await create(access)
    await elsewhere.authenticate(grandchild_text)
    await access.revoke(parent, tenant_id="acme", actor="cli:ada")
    for text in (child_text, grandchild_text):
        with pytest.raises(Unauthorized, match="revoked"):
            await elsewhere.authenticate(text)
    await access.authenticate(other_text)
    listed = {token.token_id: (token.parent_id, token.revoked_at) for token in await access.tokens("acme")}
    assert listed == {
        parent: (None, START), child: (parent, START), grandchild: (child, START), other: (None, None),
    }  # fmt: skip
    with pytest.raises(Unauthorized):
        await create(access, parent_id=child)


async def test_a_parent_that_somebody_revokes_in_the_old_way_ends_its_child(access: Access, rota_kit: RotaKit) -> None:
    """As a process of 0.1.0 does, which knows of no children."""
    parent, _ = await create(access, scopes=["admin"])
    _, text = await create(access, parent_id=parent)
    await execute(rota_kit, "UPDATE rota.token SET revoked_at = created_at WHERE token_id = $1", parent)
    with pytest.raises(Unauthorized, match="revoked"):
        await access.authenticate(text)


async def test_a_child_does_not_outlive_its_parent(access: Access, rota_kit: RotaKit) -> None:
    end = START + timedelta(hours=1)
    parent, _ = await create(access, scopes=["admin"], expires_at=end)
    _, text = await create(access, parent_id=parent)
    assert (await access.authenticate(text)).expires_at == end
    with pytest.raises(InvalidInput, match="2026-01-01T01:00:00Z") as refusal:
        await create(access, parent_id=parent, expires_at=end + timedelta(seconds=1))
    assert refusal.value.field == "expires_at"
    rota_kit.clock.advance(3600)
    with pytest.raises(Unauthorized, match="expired"):
        await access.authenticate(text)


async def test_tokens_that_make_tokens_come_to_an_end(access: Access) -> None:
    token_id, _ = await create(access, scopes=["admin"])
    for _ in range(4):
        token_id, _ = await create(access, scopes=["admin"], parent_id=token_id)
    with pytest.raises(Forbidden):
        await create(access, parent_id=token_id)


async def test_a_tenant_has_so_many_tokens_that_hold(
    access: Access, rota_kit: RotaKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.services.access.TOKENS_LIMIT", 3)
    made = [(await create(access))[0] for _ in range(3)]
    with pytest.raises(QuotaExceeded):
        await create(access)
    await create(access, tenant_id="other")
    await access.revoke(made[0], tenant_id="acme", actor="cli:ada")
    await create(access)


async def test_of_tokens_made_at_once_no_more_are_kept_than_may_be(
    access: Access, elsewhere: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.services.access.TOKENS_LIMIT", 3)
    made = await asyncio.gather(*(create(place) for place in (access, elsewhere) * 4), return_exceptions=True)
    assert sum(isinstance(one, QuotaExceeded) for one in made) == 5
    assert len(await access.tokens("acme")) == 3


async def test_a_token_that_ended_long_ago_is_forgotten(access: Access, rota_kit: RotaKit) -> None:
    old, _ = await create(access)
    parent, _ = await create(access, scopes=["admin"])
    await create(access, parent_id=parent)
    for token_id in (old, parent):
        await access.revoke(token_id, tenant_id="acme", actor="cli:ada")
    rota_kit.clock.advance(timedelta(days=90, seconds=1).total_seconds())
    new, _ = await create(access)
    assert {token.token_id for token in await access.tokens("acme")} == {new, parent}, "its child was forgotten first"
    newer, _ = await create(access)
    assert {token.token_id for token in await access.tokens("acme")} == {new, newer}


async def test_an_operators_token_belongs_to_no_tenant(access: Access) -> None:
    token_id, text = await create(access, tenant_id="*", scopes=["admin"])
    assert (await access.authenticate(text)).tenant_id == "*"
    assert [token.token_id for token in await access.tokens("*")] == [token_id]


async def test_tokens_are_listed_latest_first(access: Access, rota_kit: RotaKit) -> None:
    names = ["first", "second", "third"]
    for name in names:
        await create(access, name=name)
        rota_kit.clock.advance(1)
    assert [token.name for token in await access.tokens("acme")] == names[::-1]


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("scopes", {"scopes": []}),
        ("scopes", {"scopes": ["read", "everything"]}),
        ("scopes", {"scopes": "read"}),
        ("scopes", {"scopes": [["read"]]}),
        ("tenant_id", {"tenant_id": ""}),
        ("tenant_id", {"tenant_id": "a\x00b"}),
        ("tenant_id", {"tenant_id": "x" * 201}),
        ("name", {"name": "x" * 201}),
        ("name", {"name": "\ud800"}),
        ("expires_at", {"expires_at": START}),
        ("expires_at", {"expires_at": datetime(2027, 1, 1)}),
    ],
)
async def test_what_cannot_be_a_token_is_refused(access: Access, field: str, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as refusal:
        await create(access, **given)
    assert refusal.value.field == field
    assert await access.tokens("acme") == []


async def test_a_last_use_is_known_to_the_minute(access: Access, elsewhere: Access, rota_kit: RotaKit) -> None:
    token_id, _ = await create(access)
    other, _ = await create(access)

    async def last_use() -> datetime | None:
        return {token.token_id: token.last_used_at for token in await access.tokens("acme")}[token_id]

    assert await last_use() is None
    await access.note_used([token_id, token_id, "unknown"])
    assert await last_use() == START
    rota_kit.clock.advance(USE_NOTED - timedelta(seconds=1))
    await access.note_used([token_id])
    assert await last_use() == START, "this process noted it within the minute"
    rota_kit.clock.advance(1)
    await access.note_used({token_id})
    assert await last_use() == START + USE_NOTED
    await elsewhere.note_used([token_id, other])
    assert {token.last_used_at for token in await access.tokens("acme")} == {START + USE_NOTED}
    await access.note_used([])


# tenants --------------------------------------------------------------------------------------------------------------


async def put(access: Access, tenant_id: str = "acme", **given: Any) -> Any:
    asked = {"max_jobs": None, "max_payload_bytes": None, "calls_per_second": None, "actor": "cli:ada"}
    return await access.put_tenant(tenant_id, **{**asked, **given})


async def test_a_tenants_quotas_are_what_was_set_last(access: Access, elsewhere: Access, rota_kit: RotaKit) -> None:
    assert await access.quotas("acme") is None
    await put(access, max_jobs=10, calls_per_second=2.5)
    rota_kit.clock.advance(60)
    changed = await put(access, max_jobs=20)
    assert (changed.max_jobs, changed.calls_per_second) == (20, None)
    assert (changed.created_at, changed.updated_at) == (START, START + timedelta(seconds=60))
    assert await access.quotas("acme") == await elsewhere.quotas("acme") == changed
    rota_kit.clock.advance(60)
    assert await put(access, max_jobs=20) == changed, "what is set again is not changed"
    await put(access, "zeta")
    assert [tenant.tenant_id for tenant in await access.tenants()] == ["acme", "zeta"]


async def test_a_quota_that_is_changed_elsewhere_holds_here_soon(
    access: Access, elsewhere: Access, rota_kit: RotaKit
) -> None:
    await put(access, max_jobs=10)
    assert (await elsewhere.quotas("acme")) == (await access.quotas("acme"))
    after = await put(access, max_jobs=20)
    assert await access.quotas("acme") == after
    rota_kit.clock.advance(REMEMBERED)
    assert await elsewhere.quotas("acme") == after


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("tenant_id", {"tenant_id": "*"}),
        ("tenant_id", {"tenant_id": " a"}),
        ("max_jobs", {"max_jobs": -1}),
        ("max_jobs", {"max_jobs": 10**12}),
        ("max_jobs", {"max_jobs": True}),
        ("max_payload_bytes", {"max_payload_bytes": 1}),
        ("max_payload_bytes", {"max_payload_bytes": 262_145}),
        ("calls_per_second", {"calls_per_second": 0}),
        ("calls_per_second", {"calls_per_second": float("nan")}),
        ("calls_per_second", {"calls_per_second": float("inf")}),
        ("calls_per_second", {"calls_per_second": "many"}),
    ],
)
async def test_what_cannot_be_a_quota_is_refused(access: Access, field: str, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as refusal:
        await put(access, **given)
    assert refusal.value.field == field
    assert await access.tenants() == []


async def test_a_signing_key_is_made_once_whoever_asks_first(access: Access, elsewhere: Access) -> None:
    asked = await asyncio.gather(*(place.signing_keys("acme") for place in (access, elsewhere) * 10))
    [keys] = set(asked)
    assert len(b64decode(keys.secret.removeprefix("whsec_"), validate=True)) == 32
    assert (keys.former, keys.former_until) == (None, None)
    await put(access, max_jobs=1)
    assert await access.signing_keys("acme") == keys
    assert (await access.signing_keys("other")).secret != keys.secret
    assert "whsec_" not in repr(await access.tenants())
    with pytest.raises(InvalidInput):
        await access.signing_keys("*")


async def test_a_rotated_signing_key_signs_beside_the_new_one_for_a_while(access: Access, rota_kit: RotaKit) -> None:
    before = (await access.signing_keys("acme")).secret
    rotated = await access.rotate_signing_secret("acme", keep=timedelta(hours=1), actor="cli:ada")
    assert rotated.secret != before
    assert (rotated.former, rotated.former_until) == (before, START + timedelta(hours=1))
    rota_kit.clock.advance(3599)
    assert await access.signing_keys("acme") == rotated
    rota_kit.clock.advance(1)
    assert await access.signing_keys("acme") == SigningKeys(rotated.secret, None, None)
    at_once = await access.rotate_signing_secret("acme", keep=timedelta(), actor="cli:ada")
    assert (at_once.former, at_once.former_until) == (None, None)
    [last, *_] = await access.changes("acme", subject="acme", before=None, limit=10)
    assert (last.action, last.after) == ("tenant.secret_rotated", {"former_until": None})
    assert "whsec_" not in repr(await access.changes("acme", subject="", before=None, limit=10))
    with pytest.raises(InvalidInput):
        await access.rotate_signing_secret("acme", keep=timedelta(days=31), actor="cli:ada")


async def test_quotas_set_at_once_are_one_after_the_other(access: Access, elsewhere: Access) -> None:
    await asyncio.gather(*(put(place, max_jobs=number) for number, place in enumerate((access, elsewhere) * 5)))
    entries = await access.changes("acme", subject="acme", before=None, limit=100)
    assert sorted(entry.action for entry in entries) == ["tenant.changed"] * 9 + ["tenant.created"]
    [tenant] = await access.tenants()
    assert tenant.max_jobs in range(10)
