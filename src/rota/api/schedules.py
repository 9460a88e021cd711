"""Slots: of a job, and of a schedule that is no job's yet."""

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from rota.api.calls import Caller, JobId, Routes, answer
from rota.wire.jobs import PreviewQuestion, SlotsAnswer

COUNT_LIMIT = 1000
"""The most slots of one answer."""


def register(routes: Routes) -> None:
    routes.add("GET", "/v1/jobs/{job_id:segment}/next", next_slots, needs="read", gives=SlotsAnswer, problems=(404,))
    routes.add("POST", "/v1/schedules:preview", preview, needs="read", gives=SlotsAnswer)


async def next_slots(call: Caller, job_id: JobId, count: Annotated[int, Query(ge=1, le=COUNT_LIMIT)] = 10) -> Response:
    """Return a job's next slots, each with the rule that made it: gap, fold, jitter."""
    return answer(await call.control.next_slots(job_id, count=count))


async def preview(call: Caller, question: PreviewQuestion) -> Response:
    """Return the slots of a schedule without a job."""
    slots = await call.control.preview(
        question.schedule, job_id=question.job_id, jitter=question.jitter, after=question.after, count=question.count
    )
    return answer(slots)
