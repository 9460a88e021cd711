"""Errors say what happened and what to do, keep their code, and survive the way between processes."""

import copy
import pickle
from datetime import timedelta

import pytest

from rota import errors
from rota.errors import GiveUp, InvalidInput, InvalidSchedule, LeaseLost, RetryLater, RotaError


def kinds(base: type[RotaError] = RotaError) -> set[type[RotaError]]:
    below = {kind for kind in base.__subclasses__() if kind.__module__ == errors.__name__}
    return below.union(*(kinds(kind) for kind in below))


def test_every_error_has_a_code_of_its_own() -> None:
    found = kinds()
    assert len(found) > 10
    assert len({kind.code for kind in found}) == len(found)
    for kind in found:
        assert kind.code.replace("-", "").islower(), f"{kind.__name__} has the code {kind.code!r}"
        assert kind.__doc__


def test_a_refusal_names_the_field_the_reason_and_what_to_do() -> None:
    refusal = InvalidInput("priority", "must be from 0 to 9, not 11", hint="leave it out for 5")
    assert str(refusal) == "priority: must be from 0 to 9, not 11 (leave it out for 5)"
    assert (refusal.field, refusal.reason, refusal.hint) == (
        "priority",
        "must be from 0 to 9, not 11",
        "leave it out for 5",
    )
    assert str(InvalidInput("priority", "is bad")) == "priority: is bad"


@pytest.mark.parametrize(
    "error",
    [
        InvalidInput("job_id", "is empty", hint="give one"),
        InvalidSchedule("tz", "is unknown"),
        RetryLater(timedelta(seconds=90), "busy"),
        RetryLater(5),
        GiveUp("no such customer"),
    ],
)
def test_an_error_crosses_to_another_process_whole(error: Exception) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301 - our own bytes
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)


def test_a_lost_lease_says_what_to_do() -> None:
    assert "stop, and report nothing" in str(LeaseLost("r-1"))


def test_retry_later_takes_seconds_or_a_timedelta_and_nothing_negative() -> None:
    assert RetryLater(1.5).delay == timedelta(seconds=1.5)
    assert RetryLater(timedelta(minutes=1), "later").reason == "later"
    with pytest.raises(InvalidInput) as refusal:
        RetryLater(-1)
    assert refusal.value.field == "delay"
