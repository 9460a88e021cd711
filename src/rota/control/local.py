"""The control protocol over the services of this process, for one principal.

Here is where scopes are asked for and where every question gets its tenant: the API and the command line only carry
questions in and documents out.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from rota.control.bulk import BulkControl
from rota.control.cursors import Cursors
from rota.control.documents import document, documents, extended, job_document, listed_job
from rota.control.flow import FlowControl
from rota.control.freeze import FreezeControl
from rota.control.pages import check_limit, cut, within_bytes
from rota.control.slots import preview_slots, stored_slots
from rota.domain.ids import run_id
from rota.domain.job import Job
from rota.domain.run import RunState
from rota.domain.run_filter import RunFilter
from rota.errors import Forbidden, InvalidInput, NotDead
from rota.wire.access import (
    OPERATOR,
    AuditDocument,
    AuditPage,
    NewToken,
    Scope,
    SigningSecret,
    TenantDocument,
    TenantList,
    TokenDocument,
    TokenList,
)
from rota.wire.document import PAGE_LIMIT
from rota.wire.jobs import (
    DeclareAnswer,
    DeletedAnswer,
    JobDocument,
    JobPage,
    Missed,
    PutAnswer,
    SkippedDocument,
    SkippedOfJobDocument,
    SkippedPage,
    SlotsAnswer,
)
from rota.wire.runs import (
    AttemptDocument,
    CancelAnswer,
    ReplayAnswer,
    RunDetail,
    RunDocument,
    RunFilterQuestion,
    RunPage,
    TriggerAnswer,
)
from rota.wire.why import WhyDocument
from rota.wire.work import ShardDocument, ShardList, StatsAnswer, WorkerDocument, WorkerList


class LocalControl(FlowControl, BulkControl, FreezeControl):
    """`wire.control.Control` for one principal: his tenant's rows, within his scopes, under his name."""

    # define

    async def put_job(self, job: Job, *, if_version: int | None = None) -> PutAnswer:
        [answer] = await self._put([job], if_version=if_version)
        return answer

    async def put_jobs(self, jobs: Sequence[Job]) -> list[PutAnswer]:
        return await self._put(jobs, if_version=None)

    async def patch_job(
        self, job_id: str, changes: Mapping[str, Any], *, if_version: int | None = None
    ) -> PutAnswer:  # fmt: skip
        done = await self._parts.definitions.patch(
            job_id, changes, tenant_id=self._tenant("jobs:write"), if_version=if_version, actor=self._principal.actor
        )
        return document(PutAnswer, done)

    async def reset_job(self, job_id: str) -> PutAnswer:
        done = await self._parts.definitions.reset(
            job_id, tenant_id=self._tenant("jobs:write"), actor=self._principal.actor
        )
        return document(PutAnswer, done)

    async def declare_jobs(
        self, jobs: Sequence[Job], *, source: str, every_id: Sequence[str] | None = None
    ) -> DeclareAnswer:
        tenant_id = self._tenant("jobs:write")
        self._check_tenant(jobs, tenant_id)
        done = await self._parts.definitions.declare(
            jobs, source=source, tenant_id=tenant_id, every_id=every_id, actor=self._principal.actor
        )
        return DeclareAnswer(
            jobs=documents(PutAnswer, done.results), orphaned=done.orphaned, more_orphaned=done.more_orphaned
        )

    async def get_job(self, job_id: str) -> JobDocument:
        stored = await self._parts.definitions.get(job_id, tenant_id=self._tenant("read"))
        return job_document(stored, set_aside=await self._parts.definitions.set_aside(stored))

    async def list_jobs(
        self, *, prefix: str = "", label: str = "", handler: str = "", enabled: bool | None = None, owner: str = "",
        source: str = "", orphaned: bool | None = None, limit: int = 100, cursor: str | None = None,
    ) -> JobPage:  # fmt: skip
        tenant_id = self._tenant("read")
        check_limit(limit)
        cursors = Cursors(kind="jobs", chosen_by=(tenant_id, prefix, label, handler, enabled, owner, source, orphaned))
        after = "" if cursor is None else cursors.job(cursor)
        found = await self._parts.definitions.page(
            tenant_id=tenant_id, prefix=prefix, after=after, limit=limit + 1, label=label, handler=handler,
            enabled=enabled, owner=owner, source=source, orphaned=orphaned,
        )  # fmt: skip
        page, more = cut(found, limit)
        jobs, more = within_bytes([listed_job(stored) for stored in page], more)
        return JobPage(jobs=jobs, next_cursor=cursors.after_job(jobs[-1].job_id) if more else None)

    async def pause_job(
        self, job_id: str, *, reason: str = "", resume_at: datetime | None = None, missed: Missed = "policy"
    ) -> JobDocument:
        stored = await self._parts.definitions.pause(
            job_id, tenant_id=self._tenant("jobs:write"), reason=reason, resume_at=resume_at,
            missed=missed, actor=self._principal.actor,
        )  # fmt: skip
        return job_document(stored)

    async def resume_job(self, job_id: str, *, missed: Missed = "policy") -> JobDocument:
        stored = await self._parts.definitions.resume(
            job_id, tenant_id=self._tenant("jobs:write"), missed=missed, actor=self._principal.actor
        )
        return job_document(stored)

    async def delete_job(self, job_id: str) -> DeletedAnswer:
        cancelled = await self._parts.definitions.delete(
            job_id, tenant_id=self._tenant("jobs:write"), actor=self._principal.actor
        )
        return DeletedAnswer(job_id=job_id, cancelled=cancelled)

    async def next_slots(self, job_id: str, *, count: int = 10) -> SlotsAnswer:
        stored = await self._parts.definitions.get(job_id, tenant_id=self._tenant("read"))
        # A thousand slots of a rare rule take a third of a second, which nobody else of this process waits for.
        return await asyncio.to_thread(stored_slots, stored, after=self._parts.clock.now(), count=count)

    async def preview(
        self, schedule: Mapping[str, Any], *, job_id: str = "preview", jitter: float = 0.0,
        after: datetime | None = None, count: int = 10,
    ) -> SlotsAnswer:  # fmt: skip
        # A job that is never put: it is refused for whatever would refuse the real one.
        definition = {"job_id": job_id, "handler": "preview", "schedule": schedule, "jitter": jitter}
        job = Job.from_json({**definition, "tenant_id": self._tenant("read")})
        start = self._parts.clock.now() if after is None else after
        return await asyncio.to_thread(preview_slots, job, after=start, count=count)

    # run

    async def trigger(
        self, job_id: str, *, scheduled_for: datetime | None = None, payload: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> TriggerAnswer:  # fmt: skip
        tenant_id = self._tenant("runs:operate")
        made = await self._parts.on_demand.request(
            job_id, tenant_id=tenant_id, scheduled_for=scheduled_for, payload=payload, idempotency_key=idempotency_key,
            actor=self._principal.actor,
        )  # fmt: skip
        return extended(TriggerAnswer, made, job_id=job_id, state=RunState.PENDING)

    async def job_runs(self, job_id: str, *, state: str = "", limit: int = 50, cursor: str | None = None) -> RunPage:
        # A job that is unknown has no empty list of runs: it has none.
        await self._parts.definitions.get(job_id, tenant_id=self._tenant("read"))
        return await self.list_runs(RunFilterQuestion(job_id=job_id, state=state), limit=limit, cursor=cursor)

    async def list_runs(
        self,
        where: RunFilterQuestion | None = None,
        *,
        limit: int = 50,
        cursor: str | None = None,
    ) -> RunPage:
        tenant_id = self._tenant("read")
        check_limit(limit)
        asked = (where or RunFilterQuestion()).model_dump()
        chosen = RunFilter(**asked)
        cursors = Cursors(kind="runs", chosen_by=(tenant_id, *asked.values()))
        before = None if cursor is None else cursors.run(cursor)
        found = await self._parts.history.find(chosen, tenant_id=tenant_id, before=before, limit=limit + 1)
        page, more = cut(found, limit)
        runs, more = within_bytes(documents(RunDocument, page), more)
        return RunPage(runs=runs, next_cursor=cursors.after_run(runs[-1].run_id) if more else None)

    async def get_run(self, run_id: UUID) -> RunDetail:
        return await self._run(run_id, self._tenant("read"))

    async def skipped(self, job_id: str, *, limit: int = 50) -> list[SkippedDocument]:
        tenant_id = self._tenant("read")
        check_limit(limit)
        await self._parts.definitions.get(job_id, tenant_id=tenant_id)
        found = await self._parts.history.skipped(job_id, tenant_id=tenant_id, limit=limit)
        return list(documents(SkippedDocument, found))

    async def skipped_slots(
        self, *, reason: str = "", since: datetime | None = None, until: datetime | None = None, limit: int = 50,
        cursor: str | None = None,
    ) -> SkippedPage:  # fmt: skip
        tenant_id = self._tenant("read")
        check_limit(limit)
        window = RunFilter(since=since, until=until)
        cursors = Cursors(kind="skipped", chosen_by=(tenant_id, reason, window.since, window.until))
        found = await self._parts.history.skipped_of_all(
            tenant_id=tenant_id, reason=reason, since=window.since, until=window.until,
            before=None if cursor is None else cursors.entry(cursor), limit=limit + 1,
        )  # fmt: skip
        page, more = cut(found, limit)
        return SkippedPage(
            skipped=documents(SkippedOfJobDocument, page),
            next_cursor=cursors.after_entry(page[-1].recorded_at, run_id(page[-1].job_uid, page[-1].first_slot))
            if more
            else None,
        )

    async def replay_run(self, run_id: UUID) -> RunDetail:
        tenant_id = self._tenant("runs:operate")
        replayed = await self._parts.on_demand.replay([run_id], tenant_id=tenant_id, actor=self._principal.actor)
        run = await self._run(run_id, tenant_id)
        if run_id not in replayed:
            raise NotDead(f"run {run_id} is {run.state}", hint="only dead letters are sent back")
        return run

    async def replay_runs(
        self,
        where: RunFilterQuestion,
        *,
        rate: float | None = None,
        limit: int = 1000,
    ) -> ReplayAnswer:
        tenant_id = self._tenant("runs:operate")
        check_limit(limit)
        if where.state not in ("", RunState.DEAD):
            raise InvalidInput("state", f"{where.state!r} runs are not sent back", hint="dead ones are: leave it out")
        chosen = RunFilter(**{**where.model_dump(), "state": RunState.DEAD})
        done = await self._parts.on_demand.replay_matching(
            chosen, tenant_id=tenant_id, rate=rate, limit=limit, actor=self._principal.actor
        )
        return document(ReplayAnswer, done)

    async def cancel_run(self, run_id: UUID) -> CancelAnswer:
        done = await self._parts.on_demand.cancel(
            run_id, tenant_id=self._tenant("runs:operate"), actor=self._principal.actor
        )
        return CancelAnswer.model_validate({"run_id": run_id, "state": done.state, "cancel_requested": done.requested})

    async def set_priority(self, run_id: UUID, priority: int) -> RunDetail:
        tenant_id = self._tenant("runs:operate")
        await self._parts.on_demand.reprioritise(
            run_id, priority, tenant_id=tenant_id, actor=self._principal.actor
        )  # fmt: skip
        return await self._run(run_id, tenant_id)

    async def why_run(self, run_id: UUID) -> WhyDocument:
        return document(WhyDocument, await self._parts.why.run(run_id, tenant_id=self._tenant("read")))

    async def why_job(self, job_id: str) -> WhyDocument:
        return document(WhyDocument, await self._parts.why.job(job_id, tenant_id=self._tenant("read")))

    # the cluster

    async def workers(self) -> WorkerList:
        self._principal.require("read")
        found = await self._parts.fleet.workers(tenant_id=self._seen)
        return WorkerList(workers=documents(WorkerDocument, found))

    async def drain_worker(self, worker_id: str) -> WorkerList:
        self._principal.require("admin")
        drained = await self._parts.fleet.drain(worker_id, tenant_id=self._seen, actor=self._principal.actor)
        return WorkerList(workers=documents(WorkerDocument, drained))

    async def shards(self) -> ShardList:
        self._principal.require("read")
        self._principal.require_operator()
        return ShardList(shards=documents(ShardDocument, await self._parts.fleet.shards()))

    async def stats(self) -> StatsAnswer:
        self._principal.require("read")
        every = self._principal.is_operator and self._principal.tenant_id == OPERATOR
        stats = await self._parts.fleet.stats(tenant_id=None if every else self._principal.tenant_id)
        return document(StatsAnswer, stats)

    # people and tenants

    async def create_token(
        self, *, scopes: Sequence[Scope], name: str = "", expires_at: datetime | None = None
    ) -> NewToken:
        if self._principal.is_unproven:
            # What lasts is not to be had for nothing: the door that is open now may be shut tomorrow.
            raise Forbidden(
                "whoever has no token makes none", hint="`rota token create` beside the database makes the first one"
            )
        view, text = await self._parts.access.create_token(
            tenant_id=self._tenant("admin", or_operator=True), scopes=scopes, name=name, expires_at=expires_at,
            actor=self._principal.actor, parent_id=self._principal.token_id,
        )  # fmt: skip
        return extended(NewToken, view, token=text)

    async def tokens(self, *, limit: int = PAGE_LIMIT, cursor: str | None = None) -> TokenList:
        tenant_id = self._tenant("admin", or_operator=True)
        check_limit(limit)
        cursors = Cursors(kind="tokens", chosen_by=(tenant_id,))
        before = None if cursor is None else cursors.token(cursor)
        found = await self._parts.access.tokens(tenant_id, before=before, limit=limit + 1)
        page, more = cut(found, limit)
        return TokenList(
            tokens=documents(TokenDocument, page),
            next_cursor=cursors.after_token(page[-1].created_at, page[-1].token_id) if more else None,
        )

    async def revoke_token(self, token_id: str) -> None:
        await self._parts.access.revoke(
            token_id, tenant_id=self._tenant("admin", or_operator=True), actor=self._principal.actor
        )

    async def audit(self, *, subject: str = "", limit: int = 50, cursor: str | None = None) -> AuditPage:
        tenant_id = self._tenant("admin", or_operator=True)
        check_limit(limit)
        cursors = Cursors(kind="audit", chosen_by=(tenant_id, subject))
        before = None if cursor is None else cursors.entry(cursor)
        found = await self._parts.access.changes(tenant_id, subject=subject, before=before, limit=limit + 1)
        page, more = cut(found, limit)
        return AuditPage(
            entries=documents(AuditDocument, page),
            next_cursor=cursors.after_entry(page[-1].at, page[-1].audit_id) if more else None,
        )

    async def signing_secret(self) -> SigningSecret:
        return document(SigningSecret, await self._parts.access.signing_keys(self._tenant("worker")))

    async def rotate_signing_secret(self, *, keep_seconds: float = 86_400) -> SigningSecret:
        rotated = await self._parts.access.rotate_signing_secret(
            self._tenant("admin"), keep=timedelta(seconds=keep_seconds), actor=self._principal.actor
        )
        return document(SigningSecret, rotated)

    async def tenants(self) -> TenantList:
        self._principal.require("admin")
        self._principal.require_operator()
        return TenantList(tenants=documents(TenantDocument, await self._parts.access.tenants()))

    async def put_tenant(
        self, tenant_id: str, *, max_jobs: int | None = None, max_payload_bytes: int | None = None,
        calls_per_second: float | None = None, weight: int = 1,
    ) -> TenantDocument:  # fmt: skip
        self._principal.require("admin")
        self._principal.require_operator()
        put = await self._parts.access.put_tenant(
            tenant_id, max_jobs=max_jobs, max_payload_bytes=max_payload_bytes, calls_per_second=calls_per_second,
            weight=weight, actor=self._principal.actor,
        )  # fmt: skip
        return document(TenantDocument, put)

    async def close(self) -> None:
        """Give back nothing: the services are their owner's."""

    # what several have in common

    async def _put(self, jobs: Sequence[Job], *, if_version: int | None) -> list[PutAnswer]:
        tenant_id = self._tenant("jobs:write")
        self._check_tenant(jobs, tenant_id)
        results = await self._parts.definitions.put(jobs, if_version=if_version, actor=self._principal.actor)
        return list(documents(PutAnswer, results))

    def _check_tenant(self, jobs: Sequence[Job], tenant_id: str) -> None:
        for job in jobs:
            if job.tenant_id != tenant_id:
                raise InvalidInput(
                    "tenant_id",
                    f"job {job.job_id!r} is {job.tenant_id!r}'s, and this is for {tenant_id!r}",
                    hint="leave it out, or speak for that tenant",
                )

    async def _run(self, run_id: UUID, tenant_id: str) -> RunDetail:
        run, attempts = await self._parts.history.run(run_id, tenant_id=tenant_id)
        last = attempts[-1].error if attempts else None
        return extended(RunDetail, run, attempts=documents(AttemptDocument, attempts), error=last)
