"""The table of cases in docs/known-gaps.md: complete by the tests' own words, and pointing at tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "known-gaps.md").read_text(encoding="utf-8").splitlines()
    if re.match(r"\| B\d", line)
]
STATES = {case: state for case, _, state in ROWS}
CASE = re.compile(r"\bB(?:0[1-9]|[1-9]\d|10\d)\b")
"""B01 to B109."""


def named_in_tests() -> dict[str, set[str]]:
    """Return the cases that tests name, each with the files that do."""
    found: dict[str, set[str]] = {}
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        if file != Path(__file__):
            for case in CASE.findall(file.read_text(encoding="utf-8")):
                found.setdefault(case, set()).add(file.relative_to(ROOT).as_posix())
    return found


def test_the_table_lists_each_case_once_in_order() -> None:
    cases = [case for case, *_ in ROWS]
    assert len(cases) > 50
    assert cases == sorted(set(cases), key=lambda case: int(case[1:]))
    assert all(CASE.fullmatch(case) for case in cases)


def test_every_case_that_a_test_names_stands_in_the_table_with_that_tests_file() -> None:
    for case, files in named_in_tests().items():
        assert case in STATES, f"{case} is named in {sorted(files)} and is no row of docs/known-gaps.md"
        for file in files:
            assert file in STATES[case], f"{file} names {case}, and its row does not say so"


@pytest.mark.parametrize("case", STATES)
def test_a_case_is_tested_by_tests_that_exist_or_says_what_is_missing(case: str) -> None:
    state = STATES[case]
    assert state.startswith(("tested by ", "gap: "))
    for path in re.findall(r"tests/[\w/]+\.py", state):
        assert (ROOT / path).is_file(), f"{path} does not exist"
    if state.startswith("tested by "):
        assert "tests/" in state
    else:
        assert len(state) > len("gap: ") + 20, "a gap has a reason"
