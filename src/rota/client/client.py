"""The asynchronous client: all that a service, a command or a worker asks of Rota's API."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID, uuid4

from rota.client.address import segment
from rota.client.bulk import BulkCalls
from rota.client.caller import PART_BYTES, asked, guarded, in_parts, json_of
from rota.client.flow import FlowCalls
from rota.client.freeze import FreezeCalls
from rota.client.work import WorkerCalls
from rota.domain.job import DEFAULT_TENANT, Job, check_payload
from rota.errors import InvalidInput, TooLarge
from rota.wire.access import (
    AuditPage,
    NewToken,
    Scope,
    TenantDocument,
    TenantList,
    TenantQuestion,
    TokenList,
    TokenQuestion,
)
from rota.wire.document import PAGE_LIMIT, Document
from rota.wire.jobs import (
    DeclareAnswer,
    DeletedAnswer,
    JobDocument,
    JobPage,
    Missed,
    PauseQuestion,
    PreviewQuestion,
    PutAnswer,
    PutAnswers,
    ResumeQuestion,
    SkippedDocument,
    SkippedList,
    SkippedPage,
    SlotsAnswer,
)
from rota.wire.runs import (
    CancelAnswer,
    PriorityQuestion,
    ReplayAnswer,
    ReplayQuestion,
    RunDetail,
    RunFilterQuestion,
    RunPage,
    TriggerAnswer,
    TriggerQuestion,
)
from rota.wire.why import WhyDocument
from rota.wire.work import ShardList, StatsAnswer, WorkerList

PUT_BATCH: Final = 1000
"""The most jobs in one call of `put_jobs`."""

PUT_BATCH_BYTES: Final = 15 * 1024 * 1024
"""The most bytes of definitions in one call of `put_jobs`."""

CREATED: Final = 201
"""The status of a trigger that made its run; 200: an earlier one with the same key did."""


class Client(FlowCalls, BulkCalls, FreezeCalls, WorkerCalls):
    """Speaks `rota.wire.control.Control` over HTTP.

        async with rota.Client("https://rota.example.com", token) as client:
            await client.trigger("nightly-billing")

    Calls that are safe to repeat are repeated while the server is away or asks for patience, within `timeout` seconds;
    a trigger always is, under a key that the client makes unless one is given. What is not repeated (a new token, a
    replay, a cancellation, a put with `if_version`) raises CommitUnknown when its answer was lost. `tenant` is for an
    operator's token, which acts for any. A token travels over https, to this machine, or, with `insecure`, in the
    clear; no redirect is followed.
    """

    # define

    async def put_job(self, job: Job, *, if_version: int | None = None) -> PutAnswer:
        """Insert or replace a job; `if_version` 0 is for one that is not there yet.

        Raises InvalidInput, VersionConflict, QuotaExceeded.
        """
        return await self._call(
            "PUT",
            f"/v1/jobs/{segment('job_id', job.job_id)}",
            question=_definition(job),
            headers=guarded(if_version),
            answer=PutAnswer,
            repeatable=if_version is None,
        )

    async def put_jobs(self, jobs: Sequence[Job]) -> list[PutAnswer]:
        """Insert or replace jobs, at most 1,000: all of them, or none. Raises TooLarge for what no one call carries."""
        parts = list(in_parts((json_of(_definition(job)) for job in jobs), count=PUT_BATCH, size=PUT_BATCH_BYTES))
        if len(parts) > 1:
            raise TooLarge(
                "jobs",
                f"has {len(jobs)} definitions that do not fit into one call, and all are to be put or none",
                hint=f"at most {PUT_BATCH} and {PUT_BATCH_BYTES >> 20} MiB at once; see `put_jobs_in_parts`",
            )
        return await self._put(parts)

    async def put_jobs_in_parts(self, jobs: Sequence[Job]) -> list[PutAnswer]:
        """Insert or replace any number of jobs, in parts of at most 1,000, each of which is put whole or not at all.

        What was put before a part that is refused stays; put again, it is not changed.
        """
        return await self._put(in_parts((json_of(_definition(job)) for job in jobs), count=PUT_BATCH, size=PART_BYTES))

    async def _put(self, parts: Iterable[list[bytes]]) -> list[PutAnswer]:
        put: list[PutAnswer] = []
        for part in parts:
            question = b'{"jobs":[%s]}' % b",".join(part)
            said = await self._call("POST", "/v1/jobs:batch", question=question, answer=PutAnswers, repeatable=True)
            put += said.jobs
        return put

    async def patch_job(
        self, job_id: str, changes: Mapping[str, Any], *, if_version: int | None = None
    ) -> PutAnswer:  # fmt: skip
        """Change what is named, as a JSON merge patch: null gives a field its default.

            await client.patch_job("nightly", {"schedule": {"expression": "0 3 * * *"}})

        Raises NotFound, InvalidInput, VersionConflict, Conflict.
        """
        return await self._call(
            "PATCH",
            _job(job_id),
            question=changes,
            headers=guarded(if_version),
            answer=PutAnswer,
            repeatable=if_version is None,
        )

    async def reset_job(self, job_id: str) -> PutAnswer:
        """Give a job the definition that its code declared last. Raises NotFound, Conflict."""
        return await self._call("POST", f"{_job(job_id)}/reset", answer=PutAnswer, repeatable=True)

    async def declare_jobs(
        self, jobs: Sequence[Job], *, source: str, every_id: Sequence[str] | None = None
    ) -> DeclareAnswer:
        """Put jobs that an app, `source`, declares; what an operator changed stays, and what differs is told.

        `every_id` names all jobs of the app; None: these are all. More than 1,000 go in several calls, each of which is
        put whole or not at all.
        """
        named = json_of([job.job_id for job in jobs] if every_id is None else list(every_id))
        said: DeclareAnswer | None = None
        put: list[PutAnswer] = []
        for batch in list(in_parts((json_of(_definition(job)) for job in jobs), count=PUT_BATCH, size=PART_BYTES)) or [
            []
        ]:
            question = b'{"source":%s,"every_id":%s,"jobs":[%s]}' % (json_of(source), named, b",".join(batch))
            said = await self._call(
                "POST", "/v1/jobs:declare", question=question, answer=DeclareAnswer, repeatable=True
            )  # fmt: skip
            put += said.jobs
        assert said is not None, "there is always a first call"
        return said.model_copy(update={"jobs": tuple(put)})

    async def get_job(self, job_id: str) -> JobDocument:
        """Return one job. Raises NotFound."""
        return await self._call("GET", _job(job_id), answer=JobDocument)

    async def list_jobs(
        self,
        *,
        prefix: str = "",
        label: str = "",
        handler: str = "",
        enabled: bool | None = None,
        owner: str = "",
        source: str = "",
        orphaned: bool | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> JobPage:
        """Return a page in the order of ids. `label` is `name` or `name=value`. Raises InvalidInput, InvalidCursor."""
        query = {
            "prefix": prefix, "label": label, "handler": handler, "enabled": enabled, "owner": owner,
            "source": source, "orphaned": orphaned, "limit": limit, "cursor": cursor,
        }  # fmt: skip
        return await self._call("GET", "/v1/jobs", query=query, answer=JobPage)

    async def pause_job(
        self, job_id: str, *, reason: str = "", resume_at: datetime | None = None, missed: Missed = "policy"
    ) -> JobDocument:
        """Make no more runs until resumed, or until `resume_at`, with `missed` as at a resume.

        Raises NotFound, InvalidInput.
        """
        question = asked(PauseQuestion, reason=reason, resume_at=resume_at, missed=missed)
        return await self._call(
            "POST", f"{_job(job_id)}/pause", question=question, answer=JobDocument, repeatable=True
        )  # fmt: skip

    async def resume_job(self, job_id: str, *, missed: Missed = "policy") -> JobDocument:
        """Let a paused job run again. Raises NotFound."""
        question = asked(ResumeQuestion, missed=missed)
        return await self._call(
            "POST", f"{_job(job_id)}/resume", question=question, answer=JobDocument, repeatable=True
        )  # fmt: skip

    async def delete_job(self, job_id: str) -> DeletedAnswer:
        """Delete a job and cancel its waiting runs. Raises NotFound, also when a lost answer made it ask again."""
        return await self._call("DELETE", _job(job_id), answer=DeletedAnswer)

    async def next_slots(self, job_id: str, *, count: int = 10) -> SlotsAnswer:
        """Return a job's next slots, each with the rule that made it. Raises NotFound, InvalidInput."""
        return await self._call("GET", f"{_job(job_id)}/next", query={"count": count}, answer=SlotsAnswer)

    async def preview(
        self,
        schedule: Mapping[str, Any],
        *,
        job_id: str = "preview",
        jitter: float = 0.0,
        after: datetime | None = None,
        count: int = 10,
    ) -> SlotsAnswer:
        """Return the slots of a schedule that is no job's yet. Raises InvalidInput."""
        question = asked(
            PreviewQuestion, schedule=dict(schedule), job_id=job_id, jitter=jitter, after=after, count=count
        )
        return await self._call(
            "POST", "/v1/schedules:preview", question=question, answer=SlotsAnswer, repeatable=True
        )  # fmt: skip

    # run

    async def trigger(
        self,
        job_id: str,
        *,
        scheduled_for: datetime | None = None,
        payload: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> TriggerAnswer:
        """Make one run, now or at a slot. Raises NotFound, InvalidInput, SlotTaken, KeyReused, Shed."""
        if payload is not None:
            check_payload(payload)
        question = asked(
            TriggerQuestion, scheduled_for=scheduled_for, payload=None if payload is None else dict(payload)
        )
        key = str(uuid4()) if idempotency_key is None else idempotency_key
        made, status = await self._ask(
            "POST",
            f"{_job(job_id)}/runs",
            question=question,
            headers={"Idempotency-Key": _key(key)},
            answer=TriggerAnswer,
            repeatable=True,
        )
        return made.model_copy(update={"created": status == CREATED})

    async def job_runs(self, job_id: str, *, state: str = "", limit: int = 50, cursor: str | None = None) -> RunPage:
        """Return a job's runs, newest slots first. Raises NotFound, InvalidInput, InvalidCursor."""
        query = {"state": state, "limit": limit, "cursor": cursor}
        return await self._call("GET", f"{_job(job_id)}/runs", query=query, answer=RunPage)

    async def list_runs(
        self, where: RunFilterQuestion | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> RunPage:
        """Return runs, newest slots first; without `since`, those made within the last day (dead ones: all).

        Raises InvalidInput, InvalidCursor.
        """
        asked_for = where or RunFilterQuestion()
        query = {name: getattr(asked_for, name) for name in RunFilterQuestion.model_fields}
        query["failed"] = asked_for.failed or None
        return await self._call(
            "GET", "/v1/runs", query={**query, "limit": limit, "cursor": cursor}, answer=RunPage
        )  # fmt: skip

    async def get_run(self, run_id: UUID) -> RunDetail:
        """Return a run with its ended attempts. Raises NotFound, InvalidInput."""
        return await self._call("GET", f"/v1/runs/{run_id}", answer=RunDetail)

    async def skipped(self, job_id: str, *, limit: int = 50) -> list[SkippedDocument]:
        """Return a job's part of the slot ledger, latest first. Raises NotFound."""
        said = await self._call("GET", f"{_job(job_id)}/skipped", query={"limit": limit}, answer=SkippedList)
        return list(said.skipped)

    async def skipped_slots(
        self,
        *,
        reason: str = "",
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> SkippedPage:
        """Return the slots of all jobs that made no run, noted within the last day unless `since` is given.

        Raises InvalidInput, InvalidCursor.
        """
        query = {"reason": reason, "since": since, "until": until, "limit": limit, "cursor": cursor}
        return await self._call("GET", "/v1/slots/skipped", query=query, answer=SkippedPage)

    async def replay_run(self, run_id: UUID) -> RunDetail:
        """Send one dead letter back to the queue. Raises NotFound, NotDead."""
        return await self._call("POST", f"/v1/runs/{run_id}/replay", answer=RunDetail)

    async def replay_runs(
        self, where: RunFilterQuestion, *, rate: float | None = None, limit: int = 1000
    ) -> ReplayAnswer:
        """Send dead letters back, at most `limit`, `rate` a second. Raises InvalidInput."""
        question = asked(ReplayQuestion, filter=where, rate=rate, limit=limit)
        return await self._call("POST", "/v1/runs:replay", question=question, answer=ReplayAnswer)

    async def cancel_run(self, run_id: UUID) -> CancelAnswer:
        """Cancel a run that waits, or ask the worker of one that runs to stop. Raises NotFound, RunFinished."""
        return await self._call("POST", f"/v1/runs/{run_id}/cancel", answer=CancelAnswer)

    async def set_priority(self, run_id: UUID, priority: int) -> RunDetail:
        """Give a run that waits another priority. Raises NotFound, InvalidInput, Conflict, RunFinished."""
        question = asked(PriorityQuestion, priority=priority)
        return await self._call(
            "PATCH", f"/v1/runs/{run_id}", question=question, answer=RunDetail, repeatable=True
        )  # fmt: skip

    async def why_run(self, run_id: UUID) -> WhyDocument:
        """Return the first gate that holds a run. Raises NotFound, InvalidInput."""
        return await self._call("GET", f"/v1/runs/{run_id}/why", answer=WhyDocument)

    async def why_job(self, job_id: str) -> WhyDocument:
        """Return why a job makes no run, or why its oldest run waits. Raises NotFound."""
        return await self._call("GET", f"{_job(job_id)}/why", answer=WhyDocument)

    # the cluster

    async def workers(self) -> WorkerList:
        """Return the live workers of this tenant; an operator's: all."""
        return await self._call("GET", "/v1/workers", answer=WorkerList)

    async def drain_worker(self, worker_id: str) -> WorkerList:
        """Let a worker claim no more; returns its processes. Raises NotFound."""
        path = f"/v1/workers/{segment('worker_id', worker_id)}/drain"
        return await self._call("POST", path, answer=WorkerList, repeatable=True)

    async def shards(self) -> ShardList:
        """Return who owns which shard. An operator's question: raises Forbidden."""
        return await self._call("GET", "/v1/shards", answer=ShardList)

    async def stats(self) -> StatsAnswer:
        """Return how much waits, runs and is dead."""
        return await self._call("GET", "/v1/stats", answer=StatsAnswer)

    # people and tenants

    async def create_token(
        self, *, scopes: Sequence[Scope], name: str = "", expires_at: datetime | None = None
    ) -> NewToken:
        """Make a token for this tenant; its text is shown this once. Raises InvalidInput."""
        question = asked(TokenQuestion, scopes=scopes, name=name, expires_at=expires_at)
        return await self._call("POST", "/v1/tokens", question=question, answer=NewToken)

    async def tokens(self, *, limit: int = PAGE_LIMIT, cursor: str | None = None) -> TokenList:
        """Return a page of this tenant's tokens, latest first, revoked ones too. Raises InvalidInput, InvalidCursor."""
        # An API of 0.1.0 gives one page, and knows no question about it.
        query = {"limit": None if limit == PAGE_LIMIT else limit, "cursor": cursor}
        return await self._call("GET", "/v1/tokens", query=query, answer=TokenList)

    async def revoke_token(self, token_id: str) -> None:
        """Let a token hold no longer, nor those that it made. Raises NotFound."""
        await self._call("DELETE", f"/v1/tokens/{segment('token_id', token_id)}", answer=Document)

    async def audit(self, *, subject: str = "", limit: int = 50, cursor: str | None = None) -> AuditPage:
        """Return what was changed, latest first. Raises InvalidCursor."""
        query = {"subject": subject, "limit": limit, "cursor": cursor}
        return await self._call("GET", "/v1/audit", query=query, answer=AuditPage)

    async def tenants(self) -> TenantList:
        """Return all tenants with quotas of their own. An operator's question: raises Forbidden."""
        return await self._call("GET", "/v1/tenants", answer=TenantList)

    async def put_tenant(
        self,
        tenant_id: str,
        *,
        max_jobs: int | None = None,
        max_payload_bytes: int | None = None,
        calls_per_second: float | None = None,
        weight: int = 1,
    ) -> TenantDocument:
        """Set a tenant's quotas and its weight in pools. An operator's: raises Forbidden, InvalidInput."""
        question = asked(
            TenantQuestion,
            max_jobs=max_jobs,
            max_payload_bytes=max_payload_bytes,
            calls_per_second=calls_per_second,
            weight=weight,
        )
        path = f"/v1/tenants/{segment('tenant_id', tenant_id)}"
        return await self._call("PUT", path, question=question, answer=TenantDocument)


def _job(job_id: str) -> str:
    return f"/v1/jobs/{segment('job_id', job_id)}"


def _definition(job: Job) -> dict[str, Any]:
    """Return a job as it travels. One of the usual tenant goes to the token's own; any other must agree with it."""
    definition = job.to_json()
    if job.tenant_id == DEFAULT_TENANT:
        del definition["tenant_id"]
    return definition


def _key(text: str) -> str:
    """Refuse a key that no header can carry."""
    if not text or not text.isascii() or not text.isprintable() or text != text.strip():
        raise InvalidInput(
            "idempotency_key", "holds characters that no header can carry", hint="use ASCII, such as a UUID"
        )
    return text
