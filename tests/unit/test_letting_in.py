"""Whom a limit lets in, and whom it saves for: decided from numbers alone."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rota.domain.letting_in import FIRST_SPAN, LONGEST_SPAN, LetIn, Parked, Room, Saving, whom_to_let_in

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def parked(number: int, tenant_id: str, *, cost: int = 1, pool: str = "p") -> Parked:
    return Parked(shard=0, job_uid=number, scheduled_for=NOW, tenant_id=tenant_id, pool=pool, cost=cost)


def room(free: int, **given: Any) -> Room:
    permits = given.pop("permits", 10)
    fields = {"rate": None, "burst": None, "held": (permits or 0) - free, "slow": 0, "tokens": None, "there": 0}
    return Room(permits=permits, free=free, **{**fields, **given})


def saving_for(run: Parked, *, saves: bool, span: timedelta = SECOND, is_parked: bool = True) -> Saving:
    return Saving(parked=run, saves=saves, since=NOW, until=NOW + span, is_parked=is_parked)


def numbers(decided: LetIn) -> list[int]:
    return [run.job_uid for run in decided.runs]


def decide(space: Room, waiting: Iterable[Parked], saving: Saving | None = None, *, after: timedelta = SECOND) -> LetIn:
    return whom_to_let_in(space, list(waiting), saving, now=NOW + after)


def test_who_does_not_fit_stops_those_behind_it_in_its_tenant_and_pool_alone() -> None:
    waiting = [
        parked(1, "a", cost=5), parked(2, "b"), parked(3, "a"), parked(4, "a", pool="q"), parked(5, "b", cost=2),
    ]  # fmt: skip
    decided = decide(room(4), waiting)
    assert numbers(decided) == [2, 4, 5]
    assert decided.waits == 5


def test_who_is_under_the_limit_no_more_goes_whatever_stands_before_it() -> None:
    assert numbers(decide(room(0), [parked(1, "a"), parked(2, "a", cost=0)])) == [2]


def test_a_limit_that_is_no_more_lets_all_go_and_saves_for_nobody() -> None:
    gone = room(500, permits=None, held=0)
    decided = decide(gone, [parked(1, "a", cost=0), parked(2, "a", cost=0)], saving_for(parked(3, "b"), saves=True))
    assert (numbers(decided), decided.saving) == ([1, 2], None)


def test_the_first_in_turn_that_takes_much_is_passed_for_a_span_at_first() -> None:
    decided = decide(room(1), [parked(1, "a"), parked(2, "b", cost=3), parked(3, "c", cost=4)])
    assert decided.saving == Saving(
        parked=parked(2, "b", cost=3), saves=False, since=NOW + SECOND, until=NOW + SECOND + FIRST_SPAN
    )
    assert decide(room(0), [parked(1, "a")]).saving is None, "who takes one gets the next that is free"
    assert decide(room(0, permits=0, held=0), [parked(1, "a", cost=3)]).saving is None, "a closed limit saves nothing"


def test_what_is_saved_is_for_the_run_alone() -> None:
    heavy = parked(9, "z", cost=3)
    saving = saving_for(heavy, saves=True, span=2 * SECOND)
    for free, going in ((2, []), (3, [9]), (4, [9, 1])):
        assert numbers(decide(room(free), [heavy, parked(1, "a"), parked(2, "b")], saving)) == going
    let_in_already = saving_for(heavy, saves=True, span=2 * SECOND, is_parked=False)
    assert numbers(decide(room(1), [parked(1, "a"), parked(2, "b")], let_in_already)) == [1], (
        "what is there for it already is not counted twice"
    )


@pytest.mark.parametrize(("slow", "saves"), [(7, True), (8, False)])
def test_it_saves_only_if_those_that_come_and_go_hold_enough(slow: int, saves: bool) -> None:
    heavy = parked(9, "z", cost=3)
    decided = decide(room(0, slow=slow), [heavy], saving_for(heavy, saves=False))
    assert decided.saving is not None
    assert decided.saving.saves is saves
    assert decided.saving.until - decided.saving.since == (SECOND if saves else 2 * SECOND)


def test_a_saving_that_was_too_short_is_followed_by_a_longer_one_as_often_as_needed() -> None:
    heavy = parked(9, "z", cost=3)
    saving: Saving | None = saving_for(heavy, saves=True)
    spans = []
    for _ in range(40):
        assert saving is not None
        saving = whom_to_let_in(room(0), [heavy], saving, now=saving.until).saving
        assert saving is not None
        spans.append((saving.saves, saving.until - saving.since))
    assert spans[:4] == [(False, 2 * SECOND), (True, 2 * SECOND), (False, 4 * SECOND), (True, 4 * SECOND)]
    assert spans[-1] == (True, LONGEST_SPAN)


def test_nothing_changes_before_the_span_is_over() -> None:
    heavy = parked(9, "z", cost=3)
    saving = saving_for(heavy, saves=False, span=2 * SECOND)
    assert decide(room(0), [heavy], saving).saving is saving


def test_tokens_are_saved_for_as_long_as_they_take_to_come() -> None:
    heavy = parked(9, "z", cost=3)
    slow = room(0, permits=None, held=0, rate=0.1, burst=3, tokens=1.0)
    decided = decide(slow, [heavy], saving_for(heavy, saves=False))
    assert decided.saving is not None
    assert decided.saving.until - decided.saving.since == 21 * SECOND


def test_a_run_that_takes_another_part_by_now_is_thought_of_anew() -> None:
    saving = saving_for(parked(9, "z", cost=3), saves=True, span=9 * SECOND)
    assert decide(room(0), [parked(9, "z", cost=2)], saving).saving == Saving(
        parked=parked(9, "z", cost=2), saves=False, since=NOW + SECOND, until=NOW + SECOND + FIRST_SPAN
    )
    assert decide(room(0), [parked(9, "z", cost=1)], saving).saving is None
