"""A job's definition: every field's bounds, and the way to JSON and back."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.domain.ids import job_uid
from rota.domain.job import (
    DESCRIPTION_LIMIT,
    LABEL_LIMIT,
    LIMIT_NAME,
    MAX_ATTEMPTS_LIMIT,
    NAME_LIMIT,
    PAYLOAD_DEPTH,
    PAYLOAD_LIMIT,
    Job,
)
from rota.domain.misfire import CatchUp, FireOnce, Misfire, Skip
from rota.domain.retry import RetryPolicy
from rota.domain.schedule import Schedule, cron, every, once
from rota.errors import InvalidInput

MILLISECOND = timedelta(milliseconds=1)
NAN = float("nan")

PLAIN = {"job_id": "nightly-billing", "handler": "billing"}


def job(**changes: Any) -> Job:
    return Job(**{**PLAIN, **changes})


def refused(field: str, **changes: Any) -> None:
    with pytest.raises(InvalidInput) as refusal:
        job(**changes)
    assert refusal.value.field == field


def refused_json(field: str, **changes: Any) -> None:
    with pytest.raises(InvalidInput) as refusal:
        Job.from_json({**PLAIN, **changes})
    assert refusal.value.field == field


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"deeper": value}
    return value


def sized(size: int) -> dict[str, str]:
    """Return a payload of exactly that many bytes, half of its characters of two bytes."""
    room = size - len(json.dumps({"k": ""}, separators=(",", ":")))
    return {"k": "é" * (room // 4) + "x" * (room - room // 4 * 2)}


NAMES = ["tenant_id", "job_id", "handler", "pool"]


@pytest.mark.parametrize("field", NAMES)
@pytest.mark.parametrize(
    "bad",
    [
        "", "x" * (NAME_LIMIT + 1), "a\x00b", "a\ud800b", "a\nb", "a\x1bb", "a\x7fb", "a\x85b", "a\u2028b", " a", "a ",
        "\ta", None, 3, True, NAN, b"bytes", ["list"],
    ],
)  # fmt: skip
def test_a_bad_name_is_refused_under_its_field(field: str, bad: object) -> None:
    refused(field, **{field: bad})


@pytest.mark.parametrize("field", NAMES)
@pytest.mark.parametrize(
    "good",
    ["x", "x" * NAME_LIMIT, "é" * NAME_LIMIT, "batch-test", "00000000-0000-8000-8000-000000000000", "null", "true",
     "123", "a b", "数据/导入", "../etc", "%00", "'; DROP TABLE job; --", "👩‍🚀"],
)  # fmt: skip
def test_an_id_is_a_plain_string_whatever_it_looks_like(field: str, good: str) -> None:
    """B86: nothing is read into a name."""
    assert getattr(job(**{field: good}), field) == good
    assert getattr(Job.from_json({**PLAIN, field: good}), field) == good


@pytest.mark.parametrize("bad", [0, -1, MAX_ATTEMPTS_LIMIT + 1, 2**31, 2**63, None, "3", 3.5, 3.0, NAN, True])
def test_a_bad_number_of_attempts_is_refused(bad: object) -> None:
    """B48: 0 is not 1 and not for ever."""
    refused("max_attempts", max_attempts=bad)
    refused_json("max_attempts", max_attempts=bad)


def test_a_missing_number_of_attempts_is_three() -> None:
    """B48: the documented default."""
    assert Job.from_json(PLAIN).max_attempts == 3


@pytest.mark.parametrize("bad", [-1, 10, 2**31, None, "3", 3.5, NAN, True])
def test_a_bad_priority_is_refused(bad: object) -> None:
    refused("priority", priority=bad)
    refused_json("priority", priority=bad)


@pytest.mark.parametrize("field", ["timeout", "lease_duration", "misfire_grace", "jitter", "start_deadline"])
@pytest.mark.parametrize("bad", [-1, 2**31, 1e300, float("inf"), "3", NAN, True, [], {}, 0.0005])
def test_a_bad_duration_is_refused(field: str, bad: object) -> None:
    refused_json(field, **{field: bad})


@pytest.mark.parametrize("field", ["timeout", "lease_duration", "start_deadline"])
def test_what_must_last_cannot_be_zero(field: str) -> None:
    refused_json(field, **{field: 0})


@pytest.mark.parametrize("field", ["timeout", "lease_duration", "misfire_grace", "jitter"])
@pytest.mark.parametrize("bad", [None, 60, "60", -MILLISECOND, timedelta.max, timedelta.min])
def test_a_duration_in_python_is_a_timedelta_within_its_bounds(field: str, bad: object) -> None:
    refused(field, **{field: bad})


@pytest.mark.parametrize("field", ["timeout", "lease_duration", "misfire_grace", "jitter", "start_deadline"])
def test_a_duration_finer_than_it_can_be_stored_is_refused(field: str) -> None:
    refused(field, **{field: timedelta(seconds=5, microseconds=1)})


def test_only_a_start_deadline_can_be_left_open() -> None:
    assert Job.from_json({**PLAIN, "start_deadline": None}).start_deadline is None
    refused_json("timeout", timeout=None)


@pytest.mark.parametrize("bad", [None, "skip it", "", 3, True, [], NAN])
def test_a_bad_overlap_is_refused(bad: object) -> None:
    refused("overlap", overlap=bad)
    refused_json("overlap", overlap=bad)


COUNTS = {
    "max_losses": (1000, 5), "pause_after": (1000, None), "max_concurrency": (100_000, None),
    "key_concurrency": (100_000, 1),
}  # fmt: skip


@pytest.mark.parametrize("field", COUNTS)
def test_a_count_of_the_flow_has_bounds_and_a_default(field: str) -> None:
    high, default = COUNTS[field]
    assert getattr(Job.from_json(PLAIN), field) == default
    assert [getattr(job(**{field: value}), field) for value in (1, high)] == [1, high]
    bad: object
    for bad in (0, -1, high + 1, 2**31, "3", 3.0, True, NAN, []):
        refused(field, **{field: bad})
        refused_json(field, **{field: bad})


@pytest.mark.parametrize("field", ["max_losses", "key_concurrency"])
def test_a_count_that_always_holds_cannot_be_null(field: str) -> None:
    refused(field, **{field: None})


@pytest.mark.parametrize(
    "bad",
    ["", "payload", "payload.", "payload..a", "payload.a.", ".a", "customer", "Payload.a", "payload.a\x00", 3, [], True,
     "payload." + "x" * 193],
)  # fmt: skip
def test_a_concurrency_key_is_a_path_in_the_payload(bad: object) -> None:
    refused("concurrency_key", concurrency_key=bad)
    refused_json("concurrency_key", concurrency_key=bad)
    for good in (None, "payload.customer", "payload.order.customer-id", "payload.é", "payload." + "x" * 192):
        assert job(concurrency_key=good).concurrency_key == good


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        (None, "limits"), ("crm", "limits"), (3, "limits"), ({"": 1}, "limits"), ({"a b": 1}, "limits"),
        ({"ü": 1}, "limits"), ({"crm\n": 1}, "limits"), ({"x" * 101: 1}, "limits"), ({3: 1}, "limits"),
        ({"crm": 0}, "limits.crm"), ({"crm": 1001}, "limits.crm"), ({"crm": 1.0}, "limits.crm"),
        ({"crm": True}, "limits.crm"), ({"crm": None}, "limits.crm"), ({f"l{n}": 1 for n in range(17)}, "limits"),
    ],
)  # fmt: skip
def test_bad_limits_are_refused(limits: object, field: str) -> None:
    refused(field, limits=limits)
    refused_json(field, limits=limits)


def test_a_list_of_limits_costs_one_of_each() -> None:
    assert Job.from_json({**PLAIN, "limits": ["crm", "mail.eu-1"]}).limits == {"crm": 1, "mail.eu-1": 1}
    for bad in (["crm", "crm"], ["crm", 3], [["crm"]], [None], [f"l{n}" for n in range(17)]):
        refused_json("limits", limits=bad)


def test_limits_are_a_copy() -> None:
    given_limits = {"crm": 1}
    kept = job(limits=given_limits)
    given_limits["crm"] = 0
    assert kept.limits == {"crm": 1}


@pytest.mark.parametrize("policy", ["allow", "skip", "queue", "queue_one", "replace"])
def test_an_overlap_policy_is_one_of_five(policy: Any) -> None:
    assert job(overlap=policy).overlap == policy


@pytest.mark.parametrize("field", ["schedule", "retry", "misfire"])
@pytest.mark.parametrize("bad", [0, "often", True, 3.5, {}, object()])
def test_a_rule_of_no_known_kind_is_refused(field: str, bad: object) -> None:
    refused(field, **{field: bad})


@pytest.mark.parametrize(("field", "bad"), [("retry", None), ("misfire", None)])
def test_a_rule_cannot_be_null(field: str, bad: object) -> None:
    refused(field, **{field: bad})
    refused_json(field, **{field: bad})


@pytest.mark.parametrize(
    ("schedule", "field"),
    [
        ({"kind": "cron", "expression": "61 * * * *"}, "schedule.expression"),
        ({"kind": "cron", "expression": "0 0 30 2 *"}, "schedule.expression"),
        ({"kind": "cron", "expression": "* * * * *", "tz": "America/New_Yrok"}, "schedule.tz"),
        ({"kind": "cron", "expression": "* * * * *", "tz": "UTC+3"}, "schedule.tz"),
        ({"kind": "cron", "expression": "* * * * *", "tz": ""}, "schedule.tz"),
        ({"kind": "weekly"}, "schedule.kind"),
        ("* * * * *", "schedule"),
        ([], "schedule"),
    ],
)
def test_a_bad_schedule_is_refused_under_its_part(schedule: object, field: str) -> None:
    """B92: a typo in a zone is never stored."""
    refused_json(field, schedule=schedule)


@pytest.mark.parametrize("bad", [None, [], "{}", 3, True, NAN])
def test_a_payload_is_an_object(bad: object) -> None:
    refused("payload", payload=bad)
    refused_json("payload", payload=bad)


@pytest.mark.parametrize("size", [9_000, PAYLOAD_LIMIT])
def test_a_payload_up_to_the_limit_is_kept(size: int) -> None:
    payload = sized(size)
    assert len(json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()) == size
    assert job(payload=payload).payload == payload


@pytest.mark.parametrize("size", [PAYLOAD_LIMIT + 1, 1_000_000, 10_000_000])
def test_a_greater_payload_is_refused_with_its_size(size: int) -> None:
    """B59: the limit is in bytes of UTF-8."""
    with pytest.raises(InvalidInput, match=f"has {size} bytes") as refusal:
        job(payload=sized(size))
    assert refusal.value.field == "payload"


@pytest.mark.parametrize(
    "bad",
    [
        {"k": NAN}, {"k": float("inf")}, {"k": "a\x00b"}, {"a\x00b": 1}, {"k": "\ud800"}, {"\udfff": 1}, {1: "k"},
        {None: 1}, {"k": object()}, {"k": {1, 2}}, {"k": b"bytes"}, {"k": [{"deep": ["a\x00"]}]},
        {"k": datetime(2026, 1, 1, tzinfo=UTC)}, {"k": 10**5000},
    ],
)  # fmt: skip
def test_a_payload_that_cannot_be_kept_as_json_is_refused(bad: dict[Any, Any]) -> None:
    refused("payload", payload=bad)


def test_a_payload_is_a_copy_of_what_json_knows() -> None:
    given_payload: dict[str, Any] = {"list": (1, 2), "deep": {"n": 1.0}}
    kept = job(payload=given_payload)
    given_payload["deep"]["n"] = object()
    assert kept.payload == {"list": [1, 2], "deep": {"n": 1.0}}


def test_a_payload_has_a_depth() -> None:
    assert job(payload=nested(PAYLOAD_DEPTH)).payload == nested(PAYLOAD_DEPTH)
    refused("payload", payload=nested(PAYLOAD_DEPTH + 1))
    refused("payload", payload=nested(100_000))
    circle: dict[str, Any] = {}
    circle["again"] = circle
    refused("payload", payload=circle)


@pytest.mark.parametrize(
    ("labels", "field"),
    [
        (None, "labels"), ([], "labels"), ({"": "v"}, "labels"), ({"k": 3}, "labels.k"), ({"k": None}, "labels.k"),
        ({3: "v"}, "labels"), ({"k": "a\x00"}, "labels.k"), ({"k": "v" * (NAME_LIMIT + 1)}, "labels.k"),
        ({f"k{n}": "v" for n in range(LABEL_LIMIT + 1)}, "labels"),
    ],
)  # fmt: skip
def test_bad_labels_are_refused(labels: object, field: str) -> None:
    refused(field, labels=labels)


@pytest.mark.parametrize("bad", [None, 3, "x" * (DESCRIPTION_LIMIT + 1), "a\x00b", "\ud800"])
def test_a_bad_description_is_refused(bad: object) -> None:
    refused("description", description=bad)


@pytest.mark.parametrize("field", ["retries", "max_attempt", "Job_id", "", "schedule "])
def test_an_unknown_field_is_named(field: str) -> None:
    refused_json(field, **{field: 1})


@pytest.mark.parametrize("field", ["job_id", "handler"])
def test_a_missing_field_is_named(field: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        Job.from_json({name: value for name, value in PLAIN.items() if name != field})
    assert refusal.value.field == field


@pytest.mark.parametrize("bad", [None, [], "job", 3, NAN])
def test_what_is_no_object_is_no_job(bad: object) -> None:
    with pytest.raises(InvalidInput) as refusal:
        Job.from_json(bad)
    assert refusal.value.field == "job"


def test_an_edit_is_checked_again() -> None:
    assert job().edited(priority=9).priority == 9
    with pytest.raises(InvalidInput):
        job().edited(priority=10)


names = st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"]), min_size=1, max_size=20)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
numbers = st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
paths = st.lists(names.filter(lambda name: "." not in name), min_size=1, max_size=3).map(
    lambda parts: ".".join(["payload", *parts])
)
values = st.recursive(
    numbers | texts, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=8
)


def whole(low: timedelta, high: timedelta) -> st.SearchStrategy[timedelta]:
    return st.integers(low // MILLISECOND, high // MILLISECOND).map(lambda count: count * MILLISECOND)


schedules: st.SearchStrategy[Schedule | None] = st.sampled_from(
    [
        None,
        cron("0 2 * * *", tz="Europe/Berlin"),
        cron("*/5 9-17 * * 1-5", dst="wall", start=datetime(2026, 1, 1, tzinfo=UTC)),
        cron("30 0 2 * * *", seconds=True, end=datetime(2030, 1, 1, tzinfo=UTC)),
        every("1h30m", anchor=datetime(2026, 1, 1, 0, 0, 0, 1000, tzinfo=UTC)),
        every("1500ms"),
        once(datetime(2038, 1, 19, 3, 14, 8, tzinfo=UTC)),
    ]
)
misfires: st.SearchStrategy[Misfire] = st.one_of(
    st.just(Skip()),
    st.just(FireOnce()),
    st.builds(CatchUp, st.integers(1, 1000), whole(MILLISECOND, timedelta(days=900))),
)


@given(
    st.builds(
        Job,
        job_id=names,
        handler=names,
        tenant_id=names,
        pool=names,
        schedule=schedules,
        payload=st.dictionaries(texts, values, max_size=4),
        priority=st.integers(0, 9),
        max_attempts=st.integers(1, 1000),
        retry=st.builds(
            RetryPolicy,
            initial=whole(timedelta(0), timedelta(hours=1)),
            cap=whole(timedelta(hours=1), timedelta(days=30)),
            factor=st.floats(1, 100),
            jitter=st.floats(0, 1),
        ),
        misfire=misfires,
        misfire_grace=whole(timedelta(0), timedelta(days=31)),
        timeout=whole(MILLISECOND, timedelta(days=7)),
        lease_duration=whole(timedelta(seconds=1), timedelta(hours=1)),
        jitter=whole(timedelta(0), timedelta(days=1)),
        overlap=st.sampled_from(["allow", "skip", "queue", "queue_one", "replace"]),
        start_deadline=st.none() | whole(MILLISECOND, timedelta(days=31)),
        max_concurrency=st.none() | st.integers(1, 100_000),
        concurrency_key=st.none() | paths,
        key_concurrency=st.integers(1, 100_000),
        limits=st.dictionaries(st.from_regex(LIMIT_NAME, fullmatch=True), st.integers(1, 1000), max_size=16),
        max_losses=st.integers(1, 1000),
        pause_after=st.none() | st.integers(1, 1000),
        labels=st.dictionaries(names, texts, max_size=3),
        description=texts,
    )
)
@settings(max_examples=150)
def test_json_text_brings_the_same_job_back(given_job: Job) -> None:
    text = json.dumps(given_job.to_json(), allow_nan=False)
    again = Job.from_json(json.loads(text))
    assert again == given_job
    assert job_uid(*again.name) == job_uid(*given_job.name)
