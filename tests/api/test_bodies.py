"""Bodies and paths: what can be read, what is refused before anybody looks at it."""

import json
import tracemalloc
from dataclasses import fields

import pytest

from rota.api.body import parse
from rota.api.job_schema import DEFINITION
from rota.api.paths import canonical
from rota.api.problems import Malformed
from rota.domain.job import Job
from rota.errors import InvalidInput, TooLarge


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"nonsense",
        b"{'a': 1}",
        b'{"a": NaN}',
        b"[Infinity]",
        b"-Infinity",
        b"\xff\xfe",
        b"{}{}",
    ],
)
def test_what_is_not_json_is_malformed(text: bytes) -> None:
    with pytest.raises(Malformed):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        rb'{"a": "\u0000"}',
        rb'{"\u0000": 1}',
        rb'["\ud800"]',
        b'{"a": 1e999}',
        b'{"a": ' + b"1" * 5000 + b"}",
        b"[" * 102 + b"]" * 102,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
    ],
)
def test_what_no_store_can_hold_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidInput):
        parse(text)


@pytest.mark.parametrize(
    "values",
    [b"[]," * 600_000 + b"[]", b"1," * 600_000 + b"1", b'"",' * 600_000 + b'""', b'{"a":1},' * 600_000 + b"1"],
    ids=["lists", "numbers", "texts", "objects"],
)
def test_too_many_values_are_not_even_made(values: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge, match="values"):
            parse(b'{"jobs":[' + values + b"]}")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * len(values)


@pytest.mark.parametrize("text", [",{[" * 1_000_000, '\\",[' * 500_000, "\\\\" * 1_000_000 + '\\"' + "," * 600_000])
def test_what_looks_like_values_in_a_text_is_none(text: str) -> None:
    assert parse(json.dumps({"a": text}).encode()) == {"a": text}


def test_json_keeps_what_it_says() -> None:
    text = '{"a": [1, 2.5, null, true, "ü😀"], "big": 123456789012345678901234567890}'
    assert parse(text.encode()) == {"a": [1, 2.5, None, True, "ü😀"], "big": 123456789012345678901234567890}


def test_the_error_text_of_a_report_may_hold_anything() -> None:
    assert parse(rb'{"error": "\u0000 \ud800"}') == {"error": "\x00 \ud800"}


@pytest.mark.parametrize(
    ("sent", "routed"),
    [
        (b"/v1/jobs/a%2Fb/next", "/v1/jobs/a%2Fb/next"),
        (b"/v1/jobs/a%2fb", "/v1/jobs/a%2Fb"),
        (b"/v1/jobs%3Abatch", "/v1/jobs:batch"),
        (b"/v1/%6Aobs/%2E%2E", "/v1/jobs/.."),
        (b"/v1/jobs/%E2%82%AC", "/v1/jobs/%E2%82%AC"),
        (b"/v1/jobs/100%25", "/v1/jobs/100%25"),
        (b"/v1/jobs/100%", "/v1/jobs/100%25"),
        (b"/v1/jobs/a%0Ab", "/v1/jobs/a%0Ab"),
    ],
)
def test_a_path_is_routed_in_one_spelling(sent: bytes, routed: str) -> None:
    assert canonical(sent) == routed


def test_a_path_that_is_no_text_is_refused() -> None:
    with pytest.raises(UnicodeDecodeError):
        canonical(b"/v1/jobs/%FF")


def test_openapi_knows_the_fields_of_a_job() -> None:
    assert DEFINITION["properties"].keys() == {spec.name for spec in fields(Job)}


@pytest.mark.parametrize(
    ("text", "field", "reason"),
    [
        (b'{"handler": "a", "pool": "p", "handler": "b"}', "handler", "is given twice"),
        (b'{"jobs": [{"job_id": "a"}, {"payload": {"n": 1, "n": 2}}]}', "jobs[1].payload.n", "is given twice"),
        (b'{"jobs": [{"payload": {"text": "a\\u0000"}}]}', "jobs[0].payload.text", "holds a NUL"),
        (b'{"payload": {"n": [1, 1e999]}}', "payload.n[1]", "too large"),
        (b'"\\ud800"', "body", "surrogate"),
    ],
)
def test_a_refusal_names_the_path_in_the_body(text: bytes, field: str, reason: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        parse(text)
    assert (refusal.value.field, reason in refusal.value.reason) == (field, True)
