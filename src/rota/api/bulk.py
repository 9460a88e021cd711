"""Many at once: jobs that a filter means are paused, resumed, deleted or triggered, runs are cancelled."""

from starlette.responses import Response

from rota.api.calls import Caller, Routes, answer
from rota.wire.jobs import ManyAnswer, ManyQuestion, PauseManyQuestion, ResumeManyQuestion, TriggerManyQuestion
from rota.wire.runs import CancelManyAnswer, CancelManyQuestion


def register(routes: Routes) -> None:
    routes.add("POST", "/v1/jobs:pause", pause_jobs, needs="jobs:write", gives=ManyAnswer)
    routes.add("POST", "/v1/jobs:resume", resume_jobs, needs="jobs:write", gives=ManyAnswer)
    routes.add("POST", "/v1/jobs:delete", delete_jobs, needs="jobs:write", gives=ManyAnswer)
    routes.add("POST", "/v1/jobs:trigger", trigger_jobs, needs="runs:operate", gives=ManyAnswer)
    routes.add("POST", "/v1/runs:cancel", cancel_runs, needs="runs:operate", gives=CancelManyAnswer)


async def pause_jobs(call: Caller, question: PauseManyQuestion) -> Response:
    """Pause jobs that a filter means; those that are paused keep their own pause."""
    done = await call.control.pause_jobs(
        question.filter, everything=question.all, reason=question.reason, resume_at=question.resume_at,
        missed=question.missed, dry_run=question.dry_run, limit=question.limit, cursor=question.cursor,
    )  # fmt: skip
    return answer(done)


async def resume_jobs(call: Caller, question: ResumeManyQuestion) -> Response:
    """Resume jobs that a filter means; with a `pause_reason` only those that were paused for just that."""
    done = await call.control.resume_jobs(
        question.filter, everything=question.all, missed=question.missed, pause_reason=question.pause_reason,
        dry_run=question.dry_run, limit=question.limit, cursor=question.cursor,
    )  # fmt: skip
    return answer(done)


async def delete_jobs(call: Caller, question: ManyQuestion) -> Response:
    """Delete jobs that a filter means, and cancel their waiting runs."""
    done = await call.control.delete_jobs(
        question.filter, everything=question.all, dry_run=question.dry_run, limit=question.limit,
        cursor=question.cursor,
    )  # fmt: skip
    return answer(done)


async def trigger_jobs(call: Caller, question: TriggerManyQuestion) -> Response:
    """Make one run of each job that a filter means, now or at one slot, where a job that has a run is left."""
    done = await call.control.trigger_jobs(
        question.filter, everything=question.all, payload=question.payload, scheduled_for=question.scheduled_for,
        dry_run=question.dry_run, limit=question.limit, cursor=question.cursor,
    )  # fmt: skip
    return answer(done)


async def cancel_runs(call: Caller, question: CancelManyQuestion) -> Response:
    """Cancel runs that wait, at once, and tell the workers of those that run; the audit log gets one entry."""
    done = await call.control.cancel_runs(
        question.filter, everything=question.all, dry_run=question.dry_run, limit=question.limit
    )
    return answer(done)
