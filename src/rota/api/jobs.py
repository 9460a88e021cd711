"""Jobs: define, look, pause, delete."""

import asyncio
from typing import Annotated, Any

from fastapi import Body, Query
from pydantic import WithJsonSchema
from starlette.responses import Response

from rota.api.body import BATCH_BODY_LIMIT
from rota.api.calls import Call, Caller, JobId, Routes, Text, answer
from rota.api.guard import Guard, version_meant
from rota.api.job_schema import DEFINITION
from rota.domain.job import Job
from rota.errors import InvalidInput, TooLarge
from rota.wire.document import PAGE_LIMIT
from rota.wire.jobs import (
    DeletedAnswer,
    JobDocument,
    JobPage,
    JobsBatch,
    PauseQuestion,
    PutAnswer,
    PutAnswers,
    ResumeQuestion,
    SkippedList,
)
from rota.wire.work import BATCH_LIMIT

Definition = Annotated[dict[str, Any], Body(), WithJsonSchema(DEFINITION)]


def register(routes: Routes) -> None:
    routes.add("GET", "/v1/jobs", list_jobs, needs="read", gives=JobPage)
    routes.add(
        "POST", "/v1/jobs:batch", put_jobs, needs="jobs:write", gives=PutAnswers, problems=(409,),
        body_limit=BATCH_BODY_LIMIT,
    )  # fmt: skip
    routes.add("PUT", "/v1/jobs/{job_id:segment}", put_job, needs="jobs:write", gives=PutAnswer, problems=(409, 412))
    routes.add("GET", "/v1/jobs/{job_id:segment}", get_job, needs="read", gives=JobDocument, problems=(404,))
    routes.add(
        "DELETE", "/v1/jobs/{job_id:segment}", delete_job, needs="jobs:write", gives=DeletedAnswer, problems=(404, 409)
    )
    routes.add(
        "POST", "/v1/jobs/{job_id:segment}/pause", pause_job, needs="jobs:write", gives=JobDocument, problems=(404, 409)
    )
    routes.add(
        "POST", "/v1/jobs/{job_id:segment}/resume", resume_job, needs="jobs:write", gives=JobDocument,
        problems=(404, 409),
    )  # fmt: skip
    routes.add(
        "GET", "/v1/jobs/{job_id:segment}/skipped", list_skipped, needs="read", gives=SkippedList, problems=(404,)
    )


async def put_job(
    call: Caller, job_id: JobId, definition: Definition, if_match: Guard = None, if_none_match: Guard = None
) -> Response:
    """Insert or replace a job. The same definition again changes nothing.

    `If-Match` with the ETag of what was read guards against lost updates; `If-None-Match: *` puts only a new job.
    """
    job = _job(call, {"job_id": job_id, **definition}, job_id=job_id)

    async def standing() -> int:
        return (await call.control.get_job(job_id)).version

    version = await version_meant(f"job {job_id!r}", if_match, if_none_match, standing=standing)
    put = await call.control.put_job(job, if_version=version)
    return answer(put, version=put.version)


async def put_jobs(call: Caller, batch: JobsBatch) -> Response:
    """Insert or replace at most 1,000 jobs: all of them, or none."""
    if len(batch.jobs) > BATCH_LIMIT:
        raise TooLarge("jobs", f"has {len(batch.jobs)} definitions", hint=f"at most {BATCH_LIMIT} at once")
    # A thousand definitions take up to a second, which nobody else of this process waits for.
    jobs = await asyncio.to_thread(lambda: [_job(call, definition) for definition in batch.jobs])
    put = await call.control.put_jobs(jobs)
    return answer(PutAnswers(jobs=tuple(put)))


async def get_job(call: Caller, job_id: JobId) -> Response:
    """Return one job; its ETag is its version."""
    return _shown(await call.control.get_job(job_id))


async def list_jobs(
    call: Caller,
    prefix: Text = "",
    label: Text = "",
    handler: Text = "",
    enabled: bool | None = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_LIMIT)] = 100,
    cursor: Text | None = None,
) -> Response:
    """Return a page of jobs in the order of their ids. `label` is `name` or `name=value`."""
    page = await call.control.list_jobs(
        prefix=prefix, label=label, handler=handler, enabled=enabled, limit=limit, cursor=cursor
    )
    return answer(page)


async def pause_job(call: Caller, job_id: JobId, question: PauseQuestion | None = None) -> Response:
    """Make no more runs of a job until it is resumed, or until `resume_at`. What waits or runs goes on."""
    asked = question or PauseQuestion()
    return _shown(await call.control.pause_job(job_id, reason=asked.reason, resume_at=asked.resume_at))


async def resume_job(call: Caller, job_id: JobId, question: ResumeQuestion | None = None) -> Response:
    """Let a paused job run again; `missed` says what becomes of the slots that passed meanwhile."""
    return _shown(await call.control.resume_job(job_id, missed=(question or ResumeQuestion()).missed))


async def delete_job(call: Caller, job_id: JobId) -> Response:
    """Delete a job and cancel its waiting runs. Its history stays."""
    return answer(await call.control.delete_job(job_id))


async def list_skipped(call: Caller, job_id: JobId, limit: Annotated[int, Query(ge=1, le=PAGE_LIMIT)] = 50) -> Response:
    """Return a job's slots that made no run, latest first."""
    return answer(SkippedList(skipped=tuple(await call.control.skipped(job_id, limit=limit))))


def _shown(job: JobDocument) -> Response:
    return answer(job, version=job.version)


def _job(call: Call, definition: dict[str, Any], *, job_id: str | None = None) -> Job:
    """Read a definition for the caller's tenant. Raises InvalidInput."""
    job = Job.from_json({"tenant_id": call.principal.tenant_id, **definition})
    if job_id is not None and job.job_id != job_id:
        raise InvalidInput("job_id", f"is {job.job_id!r}, and the path says {job_id!r}", hint="leave it out")
    return job
