"""Public bug reports on time, one test a line of tests/cases/time.jsonl: the slots, or a refusal by name."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from rota.domain.schedule import next_slots
from rota.errors import InvalidSchedule

CASES: Final[list[dict[str, Any]]] = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "cases" / "time.jsonl").read_text(encoding="utf-8").splitlines()
    if line.strip()
]


def cases_with(key: str) -> list[Any]:
    return [pytest.param(case, id=f"{case['id']}-{case['kind']}") for case in CASES if key in case]


def slots_of(case: dict[str, Any], **options: Any) -> list[datetime]:
    anchor = case.get("anchor")
    return next_slots(
        case["expr"],
        tz=case["tz"],
        after=datetime.fromisoformat(case["after"]),
        count=case.get("k", 1),
        seconds=case["dialect"] == "sec6",
        anchor=anchor and datetime.fromisoformat(anchor),
        **options,
    )


def instants(texts: list[str]) -> list[datetime]:
    return [datetime.fromisoformat(text) for text in texts]


@pytest.mark.parametrize("case", cases_with("expect"))
def test_the_default_rule_gives_the_expected_slots(case: dict[str, Any]) -> None:
    slots = slots_of(case)
    assert slots == instants(case["expect"])
    assert all(slot.tzinfo is UTC for slot in slots)


@pytest.mark.parametrize("case", cases_with("expect_wall"))
def test_dst_wall_gives_the_expected_slots(case: dict[str, Any]) -> None:
    assert slots_of(case, dst="wall") == instants(case["expect_wall"])


@pytest.mark.parametrize("case", cases_with("error"))
def test_a_wrong_schedule_is_refused_with_the_field_and_the_reason(case: dict[str, Any]) -> None:
    with pytest.raises(InvalidSchedule) as refusal:
        slots_of(case)
    assert refusal.value.field == ("tz" if case["kind"] == "bad_zone" else "expression")
    assert refusal.value.reason
