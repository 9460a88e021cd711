"""The one table of moves, held against what decides about runs and against what the database accepts."""

import re
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.domain.attempt import Ended, LeaseKey, Outcome, after_attempt, success
from rota.domain.retry import RetryPolicy
from rota.domain.run import FINISHED, MOVES, Gate, Origin, RunState

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEY = LeaseKey(3, 3, NOW, UUID(int=5))
SCHEMA = "".join(
    step.read_text(encoding="utf-8")
    for step in sorted(files("rota.store").joinpath("migrations").iterdir(), key=lambda step: step.name)
    if step.name.endswith(".sql")
)

troubles = st.sampled_from([outcome for outcome in Outcome if outcome is not Outcome.SUCCEEDED])


@st.composite
def endings(draw: st.DrawFn) -> Ended:
    outcome = draw(troubles)
    return Ended(
        key=KEY,
        outcome=outcome,
        error=draw(st.none() | st.text(max_size=20)),
        retry_after=draw(st.none() | st.timedeltas()) if outcome is Outcome.SNOOZED else None,
        attempt=draw(st.integers(1, 2**31 - 1)),
        available_at=NOW - draw(st.timedeltas(timedelta(0), timedelta(days=7))),
        max_attempts=draw(st.integers(1, 1000)),
        retry=RetryPolicy(),
        losses=draw(st.integers(0, 1000)),
        max_losses=draw(st.integers(1, 1000)),
        pool="default",
        orphaned=draw(st.booleans()),
    )


@given(endings())
def test_every_verdict_is_a_listed_move(ended: Ended) -> None:
    verdict = after_attempt(ended, now=NOW)
    assert verdict.state in MOVES[RunState.RUNNING]
    assert 0 <= verdict.charged <= ended.attempt
    assert verdict.gate in (Gate.OPEN, Gate.TIME)


def test_success_is_a_listed_move() -> None:
    assert success(KEY, now=NOW).state in MOVES[RunState.RUNNING]


def test_each_listed_move_of_a_running_run_can_happen() -> None:
    reached = {success(KEY, now=NOW).state}
    for outcome, orphaned in ((Outcome.FAILED, False), (Outcome.GAVE_UP, False), (Outcome.LOST, True)):
        ended = Ended(
            key=KEY, outcome=outcome, error=None, retry_after=None, attempt=1, available_at=NOW, max_attempts=3,
            retry=RetryPolicy(), losses=0, max_losses=5, pool="default", orphaned=orphaned,
        )  # fmt: skip
        reached.add(after_attempt(ended, now=NOW).state)
    assert reached == MOVES[RunState.RUNNING]


def test_every_state_stands_in_the_table_and_no_move_leads_nowhere() -> None:
    assert MOVES.keys() == set(RunState)
    for state, moves in MOVES.items():
        assert state not in moves, f"{state} moves to itself"
        assert moves <= set(RunState)


def test_only_a_dead_run_ever_leaves_its_end() -> None:
    assert {state for state in FINISHED if MOVES[state]} == {RunState.DEAD}
    assert MOVES[RunState.DEAD] == {RunState.PENDING}
    assert {state for state, moves in MOVES.items() if RunState.RUNNING in moves} == {RunState.PENDING}


def words(table: str, column: str) -> set[str]:
    """Return the words that the schema's CHECK allows in a column."""
    [body] = re.findall(rf"CREATE TABLE rota\.{table} \((.*?)\n\)", SCHEMA, re.DOTALL)
    check = rf"CHECK \({column} IN\s*\(([^)]*)\)\)"
    # A later migration's word counts.
    listed = re.findall(check, body) + re.findall(rf"ALTER TABLE rota\.{table} ADD CONSTRAINT \w+ {check}", SCHEMA)
    return set(re.findall(r"'(\w+)'", listed[-1]))


@pytest.mark.parametrize(
    ("table", "column", "domain"),
    [
        ("run", "outcome", set(FINISHED)),
        ("run", "origin", set(Origin)),
        ("pending", "gate", set(Gate)),
        ("attempt", "outcome", set(Outcome)),
    ],
)
def test_the_database_accepts_the_domains_words_and_no_others(table: str, column: str, domain: set[str]) -> None:
    assert words(table, column) == domain


def test_the_view_names_no_state_that_the_domain_does_not() -> None:
    *_, view = re.findall(r"CREATE VIEW rota\.job_run AS(.*?);\n", SCHEMA, re.DOTALL)
    [computed] = re.findall(r"coalesce\(r\.outcome, CASE(.*?)END\) AS state", view, re.DOTALL)
    shown = set(re.findall(r"(?:THEN|ELSE) '(\w+)'", computed)) | words("run", "outcome")
    assert shown == set(RunState)
