"""The part of the client that is about many jobs or runs at once."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from rota.client.caller import Caller, asked
from rota.wire.jobs import (
    JobFilterQuestion,
    ManyAnswer,
    ManyQuestion,
    Missed,
    PauseManyQuestion,
    ResumeManyQuestion,
    TriggerManyQuestion,
)
from rota.wire.runs import CancelManyAnswer, CancelManyQuestion, RunFilterQuestion


class BulkCalls(Caller):
    """Calls about jobs and runs that a filter means. An empty filter needs `everything`; a dry run only counts."""

    async def pause_jobs(
        self, where: JobFilterQuestion, *, everything: bool = False, reason: str = "",
        resume_at: datetime | None = None, missed: Missed = "policy", dry_run: bool = False, limit: int = 100,
        cursor: str | None = None,
    ) -> ManyAnswer:  # fmt: skip
        """Pause jobs; those that are paused keep their own pause. Raises InvalidInput, InvalidCursor."""
        question = asked(
            PauseManyQuestion, filter=where, all=everything, reason=reason, resume_at=resume_at, missed=missed,
            dry_run=dry_run, limit=limit, cursor=cursor,
        )  # fmt: skip
        return await self._call("POST", "/v1/jobs:pause", question=question, answer=ManyAnswer, repeatable=True)

    async def resume_jobs(
        self, where: JobFilterQuestion, *, everything: bool = False, missed: Missed = "policy", pause_reason: str = "",
        dry_run: bool = False, limit: int = 100, cursor: str | None = None,
    ) -> ManyAnswer:  # fmt: skip
        """Resume jobs, with a `pause_reason` only those that were paused for just that."""
        question = asked(
            ResumeManyQuestion, filter=where, all=everything, missed=missed, pause_reason=pause_reason,
            dry_run=dry_run, limit=limit, cursor=cursor,
        )  # fmt: skip
        return await self._call("POST", "/v1/jobs:resume", question=question, answer=ManyAnswer, repeatable=True)

    async def delete_jobs(
        self, where: JobFilterQuestion, *, everything: bool = False, dry_run: bool = False, limit: int = 100,
        cursor: str | None = None,
    ) -> ManyAnswer:  # fmt: skip
        """Delete jobs, and cancel their waiting runs."""
        question = asked(ManyQuestion, filter=where, all=everything, dry_run=dry_run, limit=limit, cursor=cursor)
        return await self._call("POST", "/v1/jobs:delete", question=question, answer=ManyAnswer)

    async def trigger_jobs(
        self, where: JobFilterQuestion, *, everything: bool = False, payload: Mapping[str, Any] | None = None,
        scheduled_for: datetime | None = None, dry_run: bool = False, limit: int = 100, cursor: str | None = None,
    ) -> ManyAnswer:  # fmt: skip
        """Make one run of each job, now or at one slot, where a job that has a run is left."""
        question = asked(
            TriggerManyQuestion, filter=where, all=everything, payload=None if payload is None else dict(payload),
            scheduled_for=scheduled_for, dry_run=dry_run, limit=limit, cursor=cursor,
        )  # fmt: skip
        return await self._call("POST", "/v1/jobs:trigger", question=question, answer=ManyAnswer)

    async def cancel_runs(
        self, where: RunFilterQuestion, *, everything: bool = False, dry_run: bool = False, limit: int = 1000
    ) -> CancelManyAnswer:
        """Cancel runs that wait, and ask the workers of those that run; the audit log gets one entry."""
        question = asked(CancelManyQuestion, filter=where, all=everything, dry_run=dry_run, limit=limit)
        return await self._call("POST", "/v1/runs:cancel", question=question, answer=CancelManyAnswer)
