"""Every error of the services comes out of the client as it went into the server."""

import json
from collections.abc import Iterator
from uuid import UUID

import pytest

from rota.client.problems import problem_of
from rota.errors import InvalidInput, LeaseLocked, LeaseLost, RotaError, TooManyCalls


def kinds(kind: type[RotaError] = RotaError) -> Iterator[type[RotaError]]:
    yield kind
    for narrower in kind.__subclasses__():
        if narrower.__module__ == "rota.errors":
            yield from kinds(narrower)


def example(kind: type[RotaError]) -> RotaError:
    if issubclass(kind, InvalidInput):
        return kind("priority", "must be from 0 to 9", hint="9 goes first")
    if issubclass(kind, LeaseLost):
        return kind("019b")
    if issubclass(kind, LeaseLocked):
        return kind([UUID(int=7)])
    if issubclass(kind, TooManyCalls):
        return kind("too many", retry_after=1.5, hint="slower")
    return kind("it went wrong", hint="mend it")


@pytest.mark.parametrize("kind", list(kinds()), ids=lambda kind: kind.code)
def test_an_error_survives_the_way(kind: type[RotaError]) -> None:
    error = example(kind)
    document = {"code": kind.code, "detail": str(error), "status": 400}
    parts = ("field", "hint", "retry_after")
    document |= {name: getattr(error, name) for name in parts if getattr(error, name, None) is not None}
    found = problem_of(400, json.dumps(document).encode(), {}).error
    assert type(found) is kind
    assert str(found) == str(error)
    for name in (*parts, "reason"):
        assert getattr(found, name, None) == getattr(error, name, None)


def test_a_code_of_a_later_version_is_an_error_of_rota_all_the_same() -> None:
    found = problem_of(418, b'{"code": "teapot", "detail": "short and stout"}', {})
    assert (type(found.error), str(found.error), found.retry_after) == (RotaError, "short and stout", None)


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b"[" * 100_000, b"<html>busy</html>", b'{"code'])
def test_whatever_comes_in_place_of_a_problem_is_an_error(body: bytes) -> None:
    assert isinstance(problem_of(500, body, {}).error, RotaError)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("3", 3.0), ("0.5", 0.5), ("-1", None), ("nan", None), ("Wed, 21 Oct 2026 07:28:00 GMT", None)],
)
def test_a_wait_is_read_from_the_header_in_seconds(text: str, seconds: float | None) -> None:
    assert problem_of(503, b"", {"Retry-After": text}).retry_after == seconds
