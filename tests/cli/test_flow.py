"""`rota limit`, `rota pool`, and a tenant's weight."""

from tests.cli.conftest import Cli


def test_a_limit_is_put_listed_shown_and_deleted(rota: Cli) -> None:
    assert rota("limit", "list").out == "no limits\n"
    put = rota.json("limit", "put", "crm", "--rate", "50", "--burst", "12", "--permits", "20", "--tenant", "acme")
    assert (put["tenant_id"], put["rate"], put["burst"], put["permits"]) == ("acme", 50.0, 12, 20)
    assert rota.json("limit", "put", "mail", "--rate", "1", "--operator")["tenant_id"] == "*"
    assert rota.json("limit", "put", "all", "--kind", "tenant", "--permits", "5", "--operator")["kind"] == "tenant"
    listed = rota.json("limit", "list", "--tenant", "acme")["limits"]
    assert [(one["name"], one["tenant_id"]) for one in listed] == [("all", "*"), ("crm", "acme"), ("mail", "*")]
    assert "in use" in rota("limit", "list", "--operator").out
    assert "permits" in rota("limit", "show", "crm", "--tenant", "acme").out
    assert rota.json("limit", "show", "mail", "--tenant", "acme")["tokens"] == 1.0
    assert rota("limit", "delete", "mail", "--tenant", "acme").code == 3
    assert rota.json("limit", "delete", "crm", "--tenant", "acme") == {"name": "crm", "deleted": True}
    assert rota("limit", "show", "crm", "--tenant", "acme").code == 3


def test_what_no_limit_can_be_is_refused(rota: Cli) -> None:
    assert rota("limit", "put", "crm").err.startswith("error: rate: ")
    assert rota("limit", "put", "crm", "--permits", "1", "--kind", "job").err.startswith("error: kind: ")
    assert rota("limit", "put", "c/m", "--permits", "1").err.startswith("error: name: ")
    assert rota("limit", "list", "--operator", "--tenant", "acme").code == 2


def test_a_pool_has_settings_of_its_own(rota: Cli) -> None:
    assert rota("pool", "list").out == "no pool has settings of its own\n"
    put = rota.json("pool", "put", "mail", "--ageing", "5m", "--shed-above", "1000")
    assert (put["pool"], put["ageing"], put["shed_above"]) == ("mail", 300.0, 1000)
    assert "5m" in rota("pool", "list").out
    assert rota.json("pool", "put", "mail")["shed_above"] is None
    assert rota("pool", "put", "mail", "--ageing", "3d").err.startswith("error: ageing: ")


def test_a_tenant_has_a_weight(rota: Cli) -> None:
    assert rota.json("tenant", "put", "acme", "--weight", "3")["weight"] == 3
    assert [one["weight"] for one in rota.json("tenant", "list")["tenants"]] == [3]
    assert rota("tenant", "put", "acme", "--weight", "0").code == 2
