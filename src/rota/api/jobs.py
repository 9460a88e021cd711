"""Jobs: define, look, pause, delete."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Body, Query
from pydantic import AwareDatetime, WithJsonSchema
from starlette.responses import Response

from rota.api.body import BATCH_BODY_LIMIT
from rota.api.calls import Call, Caller, JobId, Routes, Text, answer
from rota.api.guard import Guard, version_meant
from rota.api.job_schema import CHANGES, DEFINITION
from rota.domain.job import Job
from rota.errors import InvalidInput, TooLarge
from rota.wire.document import PAGE_LIMIT
from rota.wire.jobs import (
    DeclareAnswer,
    DeclareQuestion,
    DeletedAnswer,
    JobDocument,
    JobPage,
    JobsBatch,
    PauseQuestion,
    PutAnswer,
    PutAnswers,
    ResumeQuestion,
    SkippedList,
    SkippedPage,
)
from rota.wire.work import BATCH_LIMIT

Definition = Annotated[dict[str, Any], Body(), WithJsonSchema(DEFINITION)]
Changes = Annotated[dict[str, Any], Body(), WithJsonSchema(CHANGES)]


def register(routes: Routes) -> None:
    routes.add("GET", "/v1/jobs", list_jobs, needs="read", gives=JobPage)
    routes.add(
        "POST", "/v1/jobs:batch", put_jobs, needs="jobs:write", gives=PutAnswers, problems=(409,),
        body_limit=BATCH_BODY_LIMIT,
    )  # fmt: skip
    routes.add("PUT", "/v1/jobs/{job_id:segment}", put_job, needs="jobs:write", gives=PutAnswer, problems=(409, 412))
    routes.add(
        "PATCH", "/v1/jobs/{job_id:segment}", patch_job, needs="jobs:write", gives=PutAnswer, problems=(404, 409, 412),
    )  # fmt: skip
    routes.add(
        "POST", "/v1/jobs/{job_id:segment}/reset", reset_job, needs="jobs:write", gives=PutAnswer, problems=(404, 409)
    )
    routes.add(
        "POST", "/v1/jobs:declare", declare_jobs, needs="jobs:write", gives=DeclareAnswer, problems=(409,),
        body_limit=BATCH_BODY_LIMIT,
    )  # fmt: skip
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
    routes.add("GET", "/v1/slots/skipped", list_skipped_of_all, needs="read", gives=SkippedPage)
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
    put = await call.control.put_jobs(await _jobs(call, batch.jobs))
    return answer(PutAnswers(jobs=tuple(put)))


async def declare_jobs(call: Caller, question: DeclareQuestion) -> Response:
    """Put the jobs that an app declares in its code: they are the code's.

    A field that an operator changed stays as it is, until the code gives it another value than it had before. Jobs that
    the app declared before, and does not now, are marked as orphaned and go on.
    """
    jobs = await _jobs(call, question.jobs)
    said = await call.control.declare_jobs(jobs, source=question.source, every_id=question.every_id)
    return answer(said)


async def patch_job(
    call: Caller, job_id: JobId, changes: Changes, if_match: Guard = None, if_none_match: Guard = None
) -> Response:
    """Change what is named of a job, as a JSON merge patch (RFC 7396): null gives a field its default.

    A schedule or misfire policy of another kind than the one that stands replaces it. `If-Match` as with PUT.
    """

    async def standing() -> int:
        return (await call.control.get_job(job_id)).version

    if if_none_match is not None:
        raise InvalidInput("If-None-Match", "is for a PUT", hint="only a job that is there can be changed")
    version = await version_meant(f"job {job_id!r}", if_match, None, standing=standing)
    done = await call.control.patch_job(job_id, changes, if_version=version)
    return answer(done, version=done.version)


async def reset_job(call: Caller, job_id: JobId) -> Response:
    """Give a job the definition that its code declared last."""
    done = await call.control.reset_job(job_id)
    return answer(done, version=done.version)


async def get_job(call: Caller, job_id: JobId) -> Response:
    """Return one job; its ETag is its version."""
    return _shown(await call.control.get_job(job_id))


async def list_jobs(
    call: Caller,
    prefix: Text = "",
    label: Text = "",
    handler: Text = "",
    enabled: bool | None = None,
    owner: Text = "",
    source: Text = "",
    orphaned: bool | None = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_LIMIT)] = 100,
    cursor: Text | None = None,
) -> Response:
    """Return a page of jobs in the order of their ids. `label` is `name` or `name=value`, `owner` code or operator."""
    page = await call.control.list_jobs(
        prefix=prefix, label=label, handler=handler, enabled=enabled, owner=owner, source=source, orphaned=orphaned,
        limit=limit, cursor=cursor,
    )  # fmt: skip
    return answer(page)


async def list_skipped_of_all(
    call: Caller,
    reason: Text = "",
    since: AwareDatetime | None = None,
    until: AwareDatetime | None = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_LIMIT)] = 50,
    cursor: Text | None = None,
) -> Response:
    """Return the slots of all jobs that made no run, latest entries first; without `since` those of the last day."""
    return answer(await call.control.skipped_slots(reason=reason, since=since, until=until, limit=limit, cursor=cursor))


async def pause_job(call: Caller, job_id: JobId, question: PauseQuestion | None = None) -> Response:
    """Make no more runs of a job until it is resumed, or until `resume_at`. What waits or runs goes on."""
    asked = question or PauseQuestion()
    return _shown(
        await call.control.pause_job(job_id, reason=asked.reason, resume_at=asked.resume_at, missed=asked.missed)
    )


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


async def _jobs(call: Call, definitions: Sequence[dict[str, Any]]) -> list[Job]:
    """Read a batch of definitions. Raises TooLarge, and InvalidInput with the place of the definition."""
    if len(definitions) > BATCH_LIMIT:
        raise TooLarge("jobs", f"has {len(definitions)} definitions", hint=f"at most {BATCH_LIMIT} at once")

    def read() -> list[Job]:
        jobs = []
        for number, definition in enumerate(definitions):
            try:
                jobs.append(_job(call, definition))
            except InvalidInput as error:
                raise error.at(f"jobs[{number}]") from None
        return jobs

    # A thousand definitions take up to a second, which nobody else of this process waits for.
    return await asyncio.to_thread(read)


def _job(call: Call, definition: dict[str, Any], *, job_id: str | None = None) -> Job:
    """Read a definition for the caller's tenant. Raises InvalidInput."""
    job = Job.from_json({"tenant_id": call.principal.tenant_id, **definition})
    if job_id is not None and job.job_id != job_id:
        raise InvalidInput("job_id", f"is {job.job_id!r}, and the path says {job_id!r}", hint="leave it out")
    return job
