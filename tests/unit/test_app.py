"""Jobs as a program's own decorators define them."""

from typing import Any

import pytest

import rota
from rota.errors import InvalidInput


def defined(**fields: Any) -> rota.Job:
    app = rota.App()

    @app.job("job", **fields)
    def handler() -> None: ...

    return app.jobs["job"]


def test_the_flow_of_a_job_is_said_by_keywords() -> None:
    job = defined(
        overlap="queue_one", start_deadline=600, max_concurrency=3, concurrency_key="payload.customer",
        key_concurrency=2, limits={"crm": 2}, max_losses=7, pause_after=4,
    )  # fmt: skip
    assert job == rota.Job.from_json(
        {
            "job_id": "job", "handler": "job", "overlap": "queue_one", "start_deadline": 600, "max_concurrency": 3,
            "concurrency_key": "payload.customer", "key_concurrency": 2, "limits": {"crm": 2}, "max_losses": 7,
            "pause_after": 4,
        }
    )  # fmt: skip


def test_what_is_left_unsaid_is_the_definitions_own_default() -> None:
    assert defined() == rota.Job(job_id="job", handler="job")


@pytest.mark.parametrize("names", [["crm", "mail"], ("crm", "mail")])
def test_names_alone_are_limits_that_cost_one(names: Any) -> None:
    assert defined(limits=names).limits == {"crm": 1, "mail": 1}


@pytest.mark.parametrize("bad", ["crm", ["crm", "crm"], [3], {"crm": 0}, 5, None])
def test_bad_limits_are_refused_under_their_name(bad: Any) -> None:
    with pytest.raises(InvalidInput) as refusal:
        defined(limits=bad)
    assert refusal.value.field.startswith("limits")


@pytest.mark.parametrize("field", ["timeout", "lease_duration", "jitter", "misfire_grace", "start_deadline"])
@pytest.mark.parametrize("bad", ["10s", float("nan"), 1e300, True])
def test_what_is_no_length_of_time_is_refused_under_its_name(field: str, bad: Any) -> None:
    with pytest.raises(InvalidInput) as refusal:
        defined(**{field: bad})
    assert refusal.value.field == field
