"""Limits as people put, read and delete them: versions, whose limit applies, what of it is taken, and the log."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from rota.domain.limit import Limit
from rota.errors import InvalidInput, NotFound, QuotaExceeded, VersionConflict
from rota.services import limits as service
from rota.services.hints import LIMITS
from rota.services.limits import Limits, LimitView
from rota.testing import RotaKit
from tests.services.stories import SECOND, START, execute, fetch, let_wait


@pytest_asyncio.fixture
async def limits(rota_kit: RotaKit) -> AsyncIterator[Limits]:
    yield rota_kit.rota.limits
    # These tests look at permits without the leases that would hold them.
    await execute(rota_kit, "DELETE FROM rota.permit")


async def put(limits: Limits, name: str = "crm", **given: Any) -> LimitView:
    version = given.pop("if_version", None)
    return await limits.put(Limit(**{"name": name, "tenant_id": "acme", **given}), if_version=version, actor="cli:ada")


async def hold(kit: RotaKit, key: str, *, held: int, free: int = 0) -> None:
    """Let so many permits of a limit be in use, and so many more be free."""
    await execute(
        kit,
        "INSERT INTO rota.permit (limit_key, slot, token)"
        " SELECT $1, n, CASE WHEN n <= $2 THEN gen_random_uuid() END"
        " FROM generate_series(1, $2::integer + $3::integer) n",
        key, held, free,
    )  # fmt: skip


async def drain(kit: RotaKit, key: str, *, tokens: float) -> None:
    """Let a limit's bucket hold so many tokens now."""
    await execute(kit, "INSERT INTO rota.bucket VALUES ($1, $2, $3)", key, tokens, kit.clock.now())


async def test_a_limit_is_put_edited_and_put_again_without_a_change(rota_kit: RotaKit, limits: Limits) -> None:
    hint = rota_kit.rota.hints.subscribe(LIMITS)
    made = await put(limits, rate=50)
    assert (made.version, made.kind, made.rate, made.burst, made.permits) == (1, "downstream", 50.0, 10, None)
    assert (made.created_at, made.in_use, made.waiting, made.tokens) == (START, None, 0, 10.0)
    assert hint.is_set(), "runs that wait are looked at anew"
    rota_kit.clock.advance(SECOND)
    assert await put(limits, rate=50.0, burst=10) == made
    edited = await put(limits, permits=3)
    assert (edited.version, edited.rate, edited.burst, edited.permits, edited.in_use) == (2, None, None, 3, 0)
    assert (edited.created_at, edited.updated_at) == (START, START + SECOND)
    assert await limits.get("crm", tenant_id="acme") == edited
    entries = await fetch(rota_kit, "SELECT action, subject, actor, before, after FROM rota.audit ORDER BY at")
    assert [(entry["action"], entry["subject"], entry["actor"]) for entry in entries] == [
        ("limit.put", "crm", "cli:ada")
    ] * 2
    assert entries[0]["before"] is None
    assert entries[1]["before"] == entries[0]["after"] != entries[1]["after"]


async def test_an_edit_is_guarded_by_its_version(limits: Limits) -> None:
    with pytest.raises(VersionConflict, match="no limit"):
        await put(limits, permits=1, if_version=1)
    await put(limits, permits=1, if_version=0)
    for stale in (0, 2):
        with pytest.raises(VersionConflict):
            await put(limits, permits=2, if_version=stale)
    assert (await put(limits, permits=2, if_version=1)).version == 2


async def test_of_many_who_put_a_new_limit_at_once_one_makes_it(rota_kit: RotaKit, limits: Limits) -> None:
    done = await asyncio.gather(
        *(put(limits, permits=number, if_version=0) for number in range(1, 6)), return_exceptions=True
    )
    assert sorted(type(one).__name__ for one in done) == ["LimitView"] + ["VersionConflict"] * 4
    assert len(await fetch(rota_kit, "SELECT FROM rota.audit")) == 1


async def test_a_limit_keeps_its_kind(limits: Limits) -> None:
    await put(limits, permits=1, kind="tenant")
    with pytest.raises(InvalidInput) as caught:
        await put(limits, permits=1, kind="downstream")
    assert caught.value.field == "kind"


async def test_a_tenant_has_no_more_limits_than_it_may_have(limits: Limits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "LIMITS_OF_TENANT", 2)
    await put(limits, "a", permits=1)
    await put(limits, "b", permits=1)
    with pytest.raises(QuotaExceeded):
        await put(limits, "c", permits=1)
    await put(limits, "a", permits=2)


async def test_a_tenants_own_limit_stands_before_the_operators_of_the_same_name(limits: Limits) -> None:
    await put(limits, "crm", permits=1, tenant_id="*")
    await put(limits, "all", permits=9, tenant_id="*", kind="tenant")
    await put(limits, "mail", permits=2)
    await put(limits, "theirs", permits=2, tenant_id="other")

    async def listed(tenant_id: str) -> list[tuple[str, str]]:
        return [(one.name, one.tenant_id) for one in await limits.list(tenant_id=tenant_id)]

    assert await listed("acme") == [("all", "*"), ("crm", "*"), ("mail", "acme")]
    assert await listed("*") == [("all", "*"), ("crm", "*")]
    await put(limits, "crm", permits=5)
    await put(limits, "all", permits=5)
    assert await listed("acme") == [("all", "acme"), ("all", "*"), ("crm", "acme"), ("mail", "acme")], (
        "a downstream takes no tenant limit's place"
    )
    assert (await limits.get("crm", tenant_id="acme")).permits == 5
    assert (await limits.get("crm", tenant_id="other")).permits == 1
    for name, tenant_id in (("theirs", "acme"), ("mail", "*"), ("nothing", "acme")):
        with pytest.raises(NotFound):
            await limits.get(name, tenant_id=tenant_id)


async def test_what_is_taken_of_a_limit_is_told_to_a_tenant_without_others_waiting_runs(
    rota_kit: RotaKit, limits: Limits
) -> None:
    await put(limits, "crm", permits=5, rate=2, burst=4, tenant_id="*")
    await hold(rota_kit, "downstream/*/crm", held=3, free=2)
    await hold(rota_kit, "downstream/acme/crm", held=1)
    await let_wait(rota_kit, 7, tenant_id="acme", gates=["limit"], limit_key="downstream/*/crm")
    await let_wait(rota_kit, 2, tenant_id="other", gates=["limit"], limit_key="downstream/*/crm")
    await drain(rota_kit, "downstream/*/crm", tokens=-1.0)

    async def use(tenant_id: str) -> tuple[int | None, int, float | None]:
        [one] = await limits.list(tenant_id=tenant_id)
        return one.in_use, one.waiting, one.tokens

    assert [await use(tenant_id) for tenant_id in ("*", "acme", "other", "third")] == [
        (3, 9, -1.0), (3, 7, -1.0), (3, 2, -1.0), (3, 0, -1.0),
    ]  # fmt: skip
    rota_kit.clock.advance(1.5)
    assert await use("*") == (3, 9, 2.0)
    rota_kit.clock.advance(60)
    assert await use("*") == (3, 9, 4.0), "no more than its burst is saved up"


@pytest.mark.parametrize("name", ["a_b", "b", "50.b"])
async def test_what_each_tenant_has_one_of_is_told_as_its_own_and_to_the_operator_as_a_sum(
    rota_kit: RotaKit, limits: Limits, name: str
) -> None:
    await put(limits, name, permits=5, rate=2, burst=4, tenant_id="*", kind="tenant")
    await put(limits, name, permits=9, tenant_id="big/tenant", kind="tenant")
    for tenant_id, held in (("acme", 1), ("x%y/" + name, 2), ("big/tenant", 4)):
        key = f"tenant/{tenant_id}/{name}"
        await hold(rota_kit, key, held=held, free=1)
        await let_wait(rota_kit, 10 * held, tenant_id=tenant_id, gates=["limit"], limit_key=key)
        await drain(rota_kit, key, tokens=1.5)
    await hold(rota_kit, f"tenant/acme/x{name}", held=3)
    await hold(rota_kit, f"downstream/acme/{name}", held=3)

    async def use(tenant_id: str) -> tuple[int | None, int, float | None]:
        one = await limits.get(name, tenant_id=tenant_id)
        return one.in_use, one.waiting, one.tokens

    assert await use("acme") == (1, 10, 1.5)
    assert await use("big/tenant") == (4, 40, None)
    assert await use("new") == (0, 0, 4.0)
    assert await use("*") == (3, 30, 3.0)


async def test_a_deleted_limit_leaves_nothing_but_permits_that_are_in_use(
    rota_kit: RotaKit, limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "FORGET_BATCH", 3)
    await put(limits, permits=10, rate=1)
    await hold(rota_kit, "downstream/acme/crm", held=2, free=8)
    await hold(rota_kit, "downstream/acme/crm2", held=1, free=1)
    await drain(rota_kit, "downstream/acme/crm", tokens=0)
    await limits.delete("crm", tenant_id="acme", actor="cli:ada")
    left = await fetch(rota_kit, "SELECT limit_key, slot FROM rota.permit ORDER BY limit_key, slot")
    key = "downstream/acme/crm"
    assert [tuple(row) for row in left] == [(key, 1), (key, 2), (f"{key}2", 1), (f"{key}2", 2)]
    assert await fetch(rota_kit, "SELECT FROM rota.bucket") == []
    with pytest.raises(NotFound):
        await limits.delete("crm", tenant_id="acme", actor="cli:ada")
    [entry] = await fetch(rota_kit, "SELECT before, after FROM rota.audit WHERE action = 'limit.deleted'")
    assert (entry["before"] is None, entry["after"]) == (False, None)


async def test_with_the_operators_tenant_limit_every_tenants_part_of_it_goes(
    rota_kit: RotaKit, limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "FORGET_BATCH", 3)
    await put(limits, "all", permits=5, tenant_id="*", kind="tenant")
    await put(limits, "all", permits=5, tenant_id="own", kind="tenant")
    for tenant_id in ("a", "b", "own"):
        await hold(rota_kit, f"tenant/{tenant_id}/all", held=0, free=5)
        await drain(rota_kit, f"tenant/{tenant_id}/all", tokens=0)
    await limits.delete("all", tenant_id="*", actor="cli:ada")
    left = await fetch(rota_kit, "SELECT limit_key FROM rota.permit UNION SELECT limit_key FROM rota.bucket")
    assert [row["limit_key"] for row in left] == ["tenant/own/all"]
