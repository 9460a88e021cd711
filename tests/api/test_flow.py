"""Limits and pools over HTTP."""

from tests.api.conftest import Caller, Served


async def test_a_limit_is_put_read_guarded_and_deleted(me: Caller) -> None:
    made = await me.put("/v1/limits/crm", {"rate": 50, "permits": 20})
    assert made.headers["ETag"] == '"1"'
    assert made.ok() | {"created_at": None, "updated_at": None} == {
        "tenant_id": "default", "name": "crm", "kind": "downstream", "rate": 50.0, "burst": 10, "permits": 20,
        "version": 1, "created_at": None, "updated_at": None, "in_use": 0, "waiting": 0, "tokens": 10.0,
    }  # fmt: skip
    guarded = me.with_headers(If_Match='"1"')
    assert (await guarded.put("/v1/limits/crm", {"permits": 5})).ok()["version"] == 2
    stale = await guarded.put("/v1/limits/crm", {"permits": 6})
    assert (stale.status, stale.code) == (412, "version-conflict")
    new_only = me.with_headers(If_None_Match="*")
    assert (await new_only.put("/v1/limits/crm", {"permits": 6})).status == 412
    existing_only = me.with_headers(If_Match="*")
    assert (await existing_only.put("/v1/limits/crm", {"permits": 7})).headers["ETag"] == '"3"'
    assert (await existing_only.put("/v1/limits/nowhere", {"permits": 7})).status == 412
    read = await me.get("/v1/limits/crm")
    assert (read.headers["ETag"], read.ok()["permits"]) == ('"3"', 7)
    assert [limit["name"] for limit in (await me.get("/v1/limits")).ok()["limits"]] == ["crm"]
    assert (await me.ask("DELETE", "/v1/limits/crm")).status == 204
    assert (await me.get("/v1/limits/crm")).code == "not-found"


async def test_what_no_limit_can_be_is_refused_by_field(me: Caller) -> None:
    for field, question in (
        ("rate", {}),
        ("rate", {"rate": "fast"}),
        ("rate", {"rate": True}),
        ("permits", {"permits": -1}),
        ("permits", {"permits": "3"}),
        ("permits", {"permits": True}),
        ("burst", {"permits": 1, "burst": 1}),
        ("kind", {"permits": 1, "kind": "job"}),
        ("weight", {"permits": 1, "weight": 3}),
    ):
        refused = await me.put("/v1/limits/crm", question)
        assert (refused.status, refused.json["field"]) == (422, field)
    assert (await me.put("/v1/limits/a%2Fb", {"permits": 1})).json["field"] == "name"


async def test_the_operator_speaks_for_all_tenants_with_a_header(server: Served, me: Caller) -> None:
    operator = server.caller(await server.token("*"), Rota_Tenant="*")
    assert (await operator.put("/v1/limits/all", {"kind": "tenant", "permits": 9})).ok()["tenant_id"] == "*"
    assert (await operator.put("/v1/limits/crm", {"permits": 9})).ok()["tenant_id"] == "*"
    assert [limit["tenant_id"] for limit in (await me.get("/v1/limits")).ok()["limits"]] == ["*", "*"]
    only_existing = me.with_headers(If_Match="*")
    assert (await only_existing.put("/v1/limits/crm", {"permits": 1})).status == 412, "that one is the operator's"
    for_acme = server.caller(await server.token("*"), Rota_Tenant="acme")
    assert (await for_acme.put("/v1/limits/all", {"kind": "tenant", "permits": 1})).ok()["tenant_id"] == "acme"
    assert (await me.put("/v1/limits/own", {"kind": "tenant", "permits": 9})).code == "forbidden"
    acme = await server.tenant("acme")
    assert (await acme.ask("DELETE", "/v1/limits/all")).code == "forbidden"
    assert (await acme.get("/v1/limits/all")).ok()["permits"] == 1


async def test_pools_are_the_operators_to_set_and_a_deep_one_refuses(server: Served, me: Caller) -> None:
    operator = server.caller(await server.token("*"))
    put = (await operator.put("/v1/pools/default", {"ageing": 300, "shed_above": 0})).ok()
    assert (put["pool"], put["ageing"], put["shed_above"]) == ("default", 300.0, 0)
    assert (await me.get("/v1/pools")).ok()["pools"] == [put]
    assert (await me.put("/v1/pools/default", {})).code == "forbidden"
    await me.put_job()
    await me.trigger()
    server.kit.clock.advance(1)
    refused = await me.post("/v1/jobs/tick/runs")
    assert (refused.status, refused.code) == (429, "shed")
    assert (refused.headers["Retry-After"], refused.json["retry_after"]) == ("5", 5.0)
    assert (await operator.put("/v1/tenants/acme", {"weight": 3})).ok()["weight"] == 3
    assert (await operator.put("/v1/tenants/acme", {"weight": 0})).json["field"] == "weight"
