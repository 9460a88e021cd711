"""A limit is refused for what it cannot hold, and fills in what is left out."""

from typing import Any

import pytest

from rota.domain.limit import Limit
from rota.errors import InvalidInput


def test_a_rate_is_saved_up_for_a_fifth_of_a_second_unless_a_burst_is_given() -> None:
    assert [Limit(name="crm", rate=rate).burst for rate in (0.1, 1, 5, 50, 51)] == [1, 1, 1, 10, 11]
    assert Limit(name="crm", rate=50, burst=3).burst == 3
    assert Limit(name="crm", permits=0).burst is None


def test_a_limit_reads_as_it_was_written() -> None:
    for limit in (
        Limit(name="crm", rate=50),
        Limit(name="a.B_c-9", permits=20, rate=0.5, burst=7, tenant_id="acme", kind="tenant"),
        Limit(name="x" * 100, permits=100_000),
    ):
        assert Limit.from_json(limit.to_json()) == limit
    assert Limit.from_json({"name": "crm", "permits": 1}).to_json() == {
        "name": "crm", "tenant_id": "default", "kind": "downstream", "rate": None, "burst": None, "permits": 1,
    }  # fmt: skip
    assert isinstance(Limit(name="crm", rate=50).rate, float), "as the database will give it back"


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("name", {"name": "", "permits": 1}),
        ("name", {"name": "a/b", "permits": 1}),
        ("name", {"name": "a b", "permits": 1}),
        ("name", {"name": "crm\n", "permits": 1}),
        ("name", {"name": "x" * 101, "permits": 1}),
        ("name", {"name": 7, "permits": 1}),
        ("name", {"permits": 1}),
        ("tenant_id", {"name": "crm", "permits": 1, "tenant_id": ""}),
        ("kind", {"name": "crm", "permits": 1, "kind": "job"}),
        ("kind", {"name": "crm", "permits": 1, "kind": None}),
        ("rate", {"name": "crm"}),
        ("rate", {"name": "crm", "rate": 0}),
        ("rate", {"name": "crm", "rate": -1.0}),
        ("rate", {"name": "crm", "rate": float("nan")}),
        ("rate", {"name": "crm", "rate": float("inf")}),
        ("rate", {"name": "crm", "rate": 1e-300}),
        ("rate", {"name": "crm", "rate": True}),
        ("rate", {"name": "crm", "rate": "50"}),
        ("burst", {"name": "crm", "rate": 1, "burst": 0}),
        ("burst", {"name": "crm", "rate": 1, "burst": 1.5}),
        ("burst", {"name": "crm", "permits": 1, "burst": 5}),
        ("permits", {"name": "crm", "permits": -1}),
        ("permits", {"name": "crm", "permits": 100_001}),
        ("permits", {"name": "crm", "permits": True}),
        ("weight", {"name": "crm", "permits": 1, "weight": 2}),
        ("limit", []),
    ],
)
def test_what_no_limit_can_be_is_refused_by_name(field: str, given: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        Limit.from_json(given)
    assert caught.value.field == field
