"""Runs: ask for one, look, replay, cancel."""

from typing import Annotated, Any
from uuid import UUID

from fastapi import Header, Query
from pydantic import AwareDatetime
from starlette.responses import Response

from rota.api.body import BATCH_BODY_LIMIT
from rota.api.calls import Caller, JobId, Routes, Text, answer
from rota.wire.document import PAGE_LIMIT
from rota.wire.runs import (
    CancelAnswer,
    MadeRuns,
    PriorityQuestion,
    ReplayAnswer,
    ReplayQuestion,
    RunDetail,
    RunFilterQuestion,
    RunPage,
    RunsOfJobsQuestion,
    RunsQuestion,
    TriggerAnswer,
    TriggerQuestion,
)
from rota.wire.why import WhyDocument

Limit = Annotated[int, Query(ge=1, le=PAGE_LIMIT)]
Key = Annotated[str | None, Header(alias="Idempotency-Key", description="Makes the request repeatable for 24 hours.")]


def register(routes: Routes) -> None:
    again: dict[int | str, dict[str, Any]] = {
        200: {"model": TriggerAnswer, "description": "An earlier request with this key made the run."}
    }
    routes.add(
        "POST", "/v1/jobs/{job_id:segment}/runs", trigger, needs="runs:operate", gives=TriggerAnswer, status=201,
        also=again, problems=(404, 409),
    )  # fmt: skip
    routes.add(
        "POST", "/v1/jobs/{job_id:segment}/runs:batch", trigger_many, needs="runs:operate", gives=MadeRuns,
        problems=(404,), body_limit=BATCH_BODY_LIMIT,
    )  # fmt: skip
    routes.add(
        "POST", "/v1/runs:batch", trigger_runs, needs="runs:operate", gives=MadeRuns, problems=(404,),
        body_limit=BATCH_BODY_LIMIT,
    )  # fmt: skip
    routes.add("GET", "/v1/jobs/{job_id:segment}/runs", list_job_runs, needs="read", gives=RunPage, problems=(404,))
    routes.add("GET", "/v1/runs", list_runs, needs="read", gives=RunPage)
    routes.add("POST", "/v1/runs:replay", replay_runs, needs="runs:operate", gives=ReplayAnswer)
    routes.add("GET", "/v1/runs/{run_id}", get_run, needs="read", gives=RunDetail, problems=(404,))
    routes.add("PATCH", "/v1/runs/{run_id}", edit_run, needs="runs:operate", gives=RunDetail, problems=(404, 409))
    routes.add("GET", "/v1/runs/{run_id}/why", why_run, needs="read", gives=WhyDocument, problems=(404,))
    routes.add("GET", "/v1/jobs/{job_id:segment}/why", why_job, needs="read", gives=WhyDocument, problems=(404,))
    routes.add(
        "POST", "/v1/runs/{run_id}/replay", replay_run, needs="runs:operate", gives=RunDetail, problems=(404, 409)
    )
    routes.add(
        "POST", "/v1/runs/{run_id}/cancel", cancel_run, needs="runs:operate", gives=CancelAnswer, problems=(404, 409)
    )


async def trigger(
    call: Caller, job_id: JobId, question: TriggerQuestion | None = None, idempotency_key: Key = None
) -> Response:
    """Make one run of a job, now or at a slot. A slot that has a run is refused, and the run is named."""
    asked = question or TriggerQuestion()
    made = await call.control.trigger(
        job_id, scheduled_for=asked.scheduled_for, payload=asked.payload, idempotency_key=idempotency_key
    )
    return answer(made, status=201 if made.created else 200)


async def trigger_many(call: Caller, job_id: JobId, question: RunsQuestion) -> Response:
    """Make up to 1,000 runs of a job, in one transaction, and say of each what it came to.

    An item that could not be kept, and a job that is not there, refuse the whole call; a key that stands for another
    request and a slot that has a run are told of their items. With a key for each item the call can be repeated.
    """
    made = await call.control.trigger_many(job_id, question.items)
    return answer(MadeRuns(runs=tuple(made)))


async def trigger_runs(call: Caller, question: RunsOfJobsQuestion) -> Response:
    """Make up to 1,000 runs of several jobs, in one transaction, and say of each what it came to."""
    made = await call.control.trigger_runs(question.items)
    return answer(MadeRuns(runs=tuple(made)))


async def list_job_runs(
    call: Caller, job_id: JobId, state: Text = "", limit: Limit = 50, cursor: Text | None = None
) -> Response:
    """Return a job's runs, newest slots first. New runs do not move the pages that follow."""
    return answer(await call.control.job_runs(job_id, state=state, limit=limit, cursor=cursor))


async def list_runs(
    call: Caller,
    job_id: Text = "",
    state: Text = "",
    handler: Text = "",
    label: Text = "",
    since: AwareDatetime | None = None,
    until: AwareDatetime | None = None,
    error: Text = "",
    failed: bool = False,
    tenant: Text = "",
    limit: Limit = 50,
    cursor: Text | None = None,
) -> Response:
    """Return runs, newest slots first; without `since` those of the last day, and all dead letters.

    `tenant` is for an operator, as the header Rota-Tenant is.
    """
    where = RunFilterQuestion(
        job_id=job_id,
        state=state,
        handler=handler,
        label=label,
        since=since,
        until=until,
        error=error,
        failed=failed,
    )
    return answer(await call.about(tenant).list_runs(where, limit=limit, cursor=cursor))


async def get_run(call: Caller, run_id: UUID) -> Response:
    """Return a run with its attempts."""
    return answer(await call.control.get_run(run_id))


async def edit_run(call: Caller, run_id: UUID, question: PriorityQuestion) -> Response:
    """Give a run that waits another priority; what it has waited counts. One that runs or has ended is refused."""
    return answer(await call.control.set_priority(run_id, question.priority))


async def why_run(call: Caller, run_id: UUID) -> Response:
    """Return the first gate that holds a run, in one sentence and in fields."""
    return answer(await call.control.why_run(run_id))


async def why_job(call: Caller, job_id: JobId) -> Response:
    """Return why a job makes no run; if it has one that waits, why its oldest one waits; else its next slot."""
    return answer(await call.control.why_job(job_id))


async def replay_run(call: Caller, run_id: UUID) -> Response:
    """Send a dead letter back: one more attempt on the same run."""
    return answer(await call.control.replay_run(run_id))


async def replay_runs(call: Caller, question: ReplayQuestion) -> Response:
    """Send dead letters back, spread over time by `rate`."""
    return answer(await call.control.replay_runs(question.filter, rate=question.rate, limit=question.limit))


async def cancel_run(call: Caller, run_id: UUID) -> Response:
    """Cancel a run that waits at once; of one that runs, the worker is told within a second, or at its next renewal."""
    return answer(await call.control.cancel_run(run_id))
