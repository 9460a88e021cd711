"""The part of the local control that is about many jobs or runs at once."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rota.control.answering import Answering
from rota.control.cursors import Cursors
from rota.control.documents import document, documents
from rota.control.pages import check_limit
from rota.domain.run_filter import RunFilter
from rota.errors import InvalidInput
from rota.services.bulk import BulkDone
from rota.services.definitions import job_filter
from rota.services.many_runs import AskedRun
from rota.store.jobs import JobFilter
from rota.wire.access import Scope
from rota.wire.jobs import JobFilterQuestion, LeftDocument, ManyAnswer, Missed
from rota.wire.runs import (
    RUNS_LIMIT,
    CancelManyAnswer,
    MadeRun,
    RunFilterQuestion,
    RunItem,
    RunOfJobItem,
    run_items,
)


class BulkControl(Answering):
    """Jobs and runs of the principal's tenant that a filter means."""

    async def pause_jobs(
        self, where: JobFilterQuestion, *, everything: bool = False, reason: str = "",
        resume_at: datetime | None = None, missed: Missed = "policy", dry_run: bool = False, limit: int = 100,
        cursor: str | None = None,
    ) -> ManyAnswer:  # fmt: skip
        asked = self._asked(where, "pause", scope="jobs:write", everything=everything, limit=limit, cursor=cursor)
        if dry_run:
            return await self._counted(asked)
        done = await self._parts.bulk.pause(
            asked.where, tenant_id=asked.tenant_id, reason=reason, resume_at=resume_at, missed=missed,
            after=asked.after, limit=limit, actor=self._principal.actor,
        )  # fmt: skip
        return _done(done, asked)

    async def resume_jobs(
        self, where: JobFilterQuestion, *, everything: bool = False, missed: Missed = "policy", pause_reason: str = "",
        dry_run: bool = False, limit: int = 100, cursor: str | None = None,
    ) -> ManyAnswer:  # fmt: skip
        asked = self._asked(where, "resume", scope="jobs:write", everything=everything, limit=limit, cursor=cursor)
        if dry_run:
            return await self._counted(asked)
        done = await self._parts.bulk.resume(
            asked.where, tenant_id=asked.tenant_id, missed=missed, pause_reason=pause_reason, after=asked.after,
            limit=limit, actor=self._principal.actor,
        )  # fmt: skip
        return _done(done, asked)

    async def delete_jobs(
        self, where: JobFilterQuestion, *, everything: bool = False, dry_run: bool = False, limit: int = 100,
        cursor: str | None = None,
    ) -> ManyAnswer:  # fmt: skip
        asked = self._asked(where, "delete", scope="jobs:write", everything=everything, limit=limit, cursor=cursor)
        if dry_run:
            return await self._counted(asked)
        done = await self._parts.bulk.delete(
            asked.where, tenant_id=asked.tenant_id, after=asked.after, limit=limit, actor=self._principal.actor
        )
        return _done(done, asked)

    async def trigger_jobs(
        self, where: JobFilterQuestion, *, everything: bool = False, payload: Mapping[str, Any] | None = None,
        scheduled_for: datetime | None = None, dry_run: bool = False, limit: int = 100, cursor: str | None = None,
    ) -> ManyAnswer:  # fmt: skip
        asked = self._asked(where, "trigger", scope="runs:operate", everything=everything, limit=limit, cursor=cursor)
        if dry_run:
            return await self._counted(asked)
        done = await self._parts.bulk.trigger(
            asked.where, tenant_id=asked.tenant_id, payload=payload, scheduled_for=scheduled_for, after=asked.after,
            limit=limit, actor=self._principal.actor,
        )  # fmt: skip
        return _done(done, asked)

    async def trigger_many(
        self, job_id: str, items: Sequence[RunItem | Mapping[str, Any]]
    ) -> list[MadeRun]:  # fmt: skip
        return await self._trigger([(job_id, item) for item in run_items(RunItem, items)])

    async def trigger_runs(self, items: Sequence[RunOfJobItem | Mapping[str, Any]]) -> list[MadeRun]:
        return await self._trigger([(item.job_id, item) for item in run_items(RunOfJobItem, items)])

    async def _trigger(self, items: Sequence[tuple[str, RunItem]]) -> list[MadeRun]:
        tenant_id = self._tenant("runs:operate")
        asked = [
            AskedRun(
                job_id=job_id, scheduled_for=item.scheduled_for, payload=item.payload,
                idempotency_key=item.idempotency_key,
            )
            for job_id, item in items
        ]  # fmt: skip
        made: list[MadeRun] = []
        # Once for none, which is refused.
        for start in range(0, max(1, len(asked)), RUNS_LIMIT):
            part = asked[start : start + RUNS_LIMIT]
            done = await self._parts.on_demand.request_many(part, tenant_id=tenant_id, actor=self._principal.actor)
            made += documents(MadeRun, done)
        return made

    async def cancel_runs(
        self, where: RunFilterQuestion, *, everything: bool = False, dry_run: bool = False, limit: int = 1000
    ) -> CancelManyAnswer:
        tenant_id = self._tenant("runs:operate")
        check_limit(limit)
        if where == RunFilterQuestion() and not everything:
            raise InvalidInput("filter", "is empty", hint="name what is meant, or say that all runs are")
        chosen = RunFilter(**where.model_dump())
        if dry_run:
            count = await self._parts.bulk.count_runs(chosen, tenant_id=tenant_id)
            return CancelManyAnswer(matched=count.matched, cancelled=0, asked=0, more=count.more)
        done = await self._parts.bulk.cancel(
            chosen, tenant_id=tenant_id, limit=limit, actor=self._principal.actor
        )  # fmt: skip
        return document(CancelManyAnswer, done)

    def _asked(
        self, where: JobFilterQuestion, verb: str, *, scope: Scope, everything: bool, limit: int, cursor: str | None
    ) -> "_Asked":
        tenant_id = self._tenant(scope)
        check_limit(limit)
        if where == JobFilterQuestion() and not everything:
            raise InvalidInput("filter", "is empty", hint="name what is meant, or say that all jobs are")
        cursors = Cursors(kind=f"{verb} jobs", chosen_by=(tenant_id, *where.model_dump().values()))
        after = "" if cursor is None else cursors.job(cursor)
        return _Asked(job_filter(**where.model_dump()), tenant_id, cursors, after)

    async def _counted(self, asked: "_Asked") -> ManyAnswer:
        count = await self._parts.bulk.count(asked.where, tenant_id=asked.tenant_id)
        return ManyAnswer(matched=count.matched, done=0, more=count.more)


class _Asked:
    """Which jobs are meant, whose, and from where on."""

    def __init__(self, where: JobFilter, tenant_id: str, cursors: Cursors, after: str) -> None:
        self.where = where
        self.tenant_id = tenant_id
        self.cursors = cursors
        self.after = after


def _done(done: BulkDone, asked: _Asked) -> ManyAnswer:
    return ManyAnswer(
        matched=done.matched, done=done.done, left=documents(LeftDocument, done.left), more=done.after is not None,
        next_cursor=None if done.after is None else asked.cursors.after_job(done.after),
    )  # fmt: skip
