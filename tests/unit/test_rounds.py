"""How often a worker looks that knows nothing of what waits in front of its runs."""

from rota.services.rounds import LONG_LOOK, LONGEST_REST, REST, Round


def test_a_look_through_others_backlog_that_found_nothing_is_not_repeated_at_once() -> None:
    round_ = Round(None)
    assert not round_.is_resting(0.0)
    round_.found_nothing(took=LONG_LOOK / 2, monotonic=1.0)
    assert not round_.is_resting(1.0), "one that costs little may be had with every hint"
    round_.found_nothing(took=0.1, monotonic=2.0)
    assert round_.is_resting(2.0 + REST * 0.09)
    assert not round_.is_resting(2.0 + REST * 0.1)


def test_nobody_rests_for_longer_than_a_second() -> None:
    round_ = Round(None)
    round_.found_nothing(took=60.0, monotonic=0.0)
    assert not round_.is_resting(LONGEST_REST)
