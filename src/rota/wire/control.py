"""All that people and programs ask of a cluster, for one tenant: spoken by the services and by the HTTP client alike.

One conformance suite proves both, so that every command works against a database as it does against a URL.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from rota.domain.job import Job
from rota.wire.access import AuditPage, NewToken, Scope, SigningSecret, TenantDocument, TenantList, TokenList
from rota.wire.document import PAGE_LIMIT
from rota.wire.freeze import FreezeDocument, FreezeList
from rota.wire.jobs import (
    DeclareAnswer,
    DeletedAnswer,
    JobDocument,
    JobFilterQuestion,
    JobPage,
    ManyAnswer,
    Missed,
    PutAnswer,
    SkippedDocument,
    SkippedPage,
    SlotsAnswer,
)
from rota.wire.limits import LimitDocument, LimitKind, LimitList, PoolDocument, PoolList
from rota.wire.runs import (
    CancelAnswer,
    CancelManyAnswer,
    MadeRun,
    ReplayAnswer,
    RunDetail,
    RunFilterQuestion,
    RunItem,
    RunOfJobItem,
    RunPage,
    TriggerAnswer,
)
from rota.wire.why import WhyDocument
from rota.wire.work import ShardList, StatsAnswer, WorkerList


class Control(Protocol):
    """Every method may raise DatabaseUnavailable, Forbidden and TooManyCalls besides what it names.

    Jobs and runs of other tenants do not exist here: asking for one raises NotFound.
    """

    # define

    async def put_job(self, job: Job, *, if_version: int | None = None) -> PutAnswer:
        """Insert or replace a job. Raises InvalidInput, VersionConflict, QuotaExceeded."""
        ...

    async def put_jobs(self, jobs: Sequence[Job]) -> list[PutAnswer]:
        """Insert or replace jobs: all of them, or none. Over HTTP at most 1,000. Raises TooLarge for more."""
        ...

    async def patch_job(
        self, job_id: str, changes: Mapping[str, Any], *, if_version: int | None = None
    ) -> PutAnswer:  # fmt: skip
        """Change what is named, as a JSON merge patch: null gives a field its default.

        Raises NotFound, InvalidInput, VersionConflict, Conflict.
        """
        ...

    async def reset_job(self, job_id: str) -> PutAnswer:
        """Give a job the definition that its code declared last. Raises NotFound, Conflict."""
        ...

    async def declare_jobs(
        self, jobs: Sequence[Job], *, source: str, every_id: Sequence[str] | None = None
    ) -> DeclareAnswer:
        """Put jobs that an app, `source`, declares; what an operator changed stays, and what differs is told.

        `every_id` names all jobs of the app; None: these are all. Raises InvalidInput, QuotaExceeded.
        """
        ...

    async def get_job(self, job_id: str) -> JobDocument:
        """Return one job. Raises NotFound."""
        ...

    async def list_jobs(
        self, *, prefix: str = "", label: str = "", handler: str = "", enabled: bool | None = None, owner: str = "",
        source: str = "", orphaned: bool | None = None, limit: int = 100, cursor: str | None = None,
    ) -> JobPage:  # fmt: skip
        """Return a page in the order of ids. `label` is `name` or `name=value`. Raises InvalidInput, InvalidCursor."""
        ...

    async def pause_job(
        self, job_id: str, *, reason: str = "", resume_at: datetime | None = None, missed: Missed = "policy"
    ) -> JobDocument:
        """Make no more runs until resumed, or until `resume_at`, with `missed` as at a resume.

        Raises NotFound, InvalidInput.
        """
        ...

    async def resume_job(self, job_id: str, *, missed: Missed = "policy") -> JobDocument:
        """Let a paused job run again. Raises NotFound."""
        ...

    async def delete_job(self, job_id: str) -> DeletedAnswer:
        """Delete a job and cancel its waiting runs. Raises NotFound."""
        ...

    async def next_slots(self, job_id: str, *, count: int = 10) -> SlotsAnswer:
        """Return a job's next slots, each with the rule that made it. Raises NotFound, InvalidInput."""
        ...

    async def preview(
        self, schedule: Mapping[str, Any], *, job_id: str = "preview", jitter: float = 0.0,
        after: datetime | None = None, count: int = 10,
    ) -> SlotsAnswer:  # fmt: skip
        """Return the slots of a schedule that is no job's yet. Raises InvalidInput."""
        ...

    # run

    async def trigger(
        self, job_id: str, *, scheduled_for: datetime | None = None, payload: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> TriggerAnswer:  # fmt: skip
        """Make one run, now or at a slot. Raises NotFound, InvalidInput, SlotTaken, KeyReused, Shed."""
        ...

    async def trigger_many(
        self, job_id: str, items: Sequence[RunItem | Mapping[str, Any]]
    ) -> list[MadeRun]:  # fmt: skip
        """Make many runs of a job, and say of each in order what it came to.

        More than 1,000 are made by several calls, each in one transaction: where a later one is refused, what was made
        before stays. With keys the same items can be given again. Raises NotFound, InvalidInput which names the item,
        TooLarge, Shed.
        """
        ...

    async def trigger_runs(self, items: Sequence[RunOfJobItem | Mapping[str, Any]]) -> list[MadeRun]:
        """Do the same with runs of several jobs, which the items name."""
        ...

    async def job_runs(self, job_id: str, *, state: str = "", limit: int = 50, cursor: str | None = None) -> RunPage:
        """Return a job's runs, newest slots first. Raises NotFound, InvalidInput, InvalidCursor."""
        ...

    async def list_runs(
        self,
        where: RunFilterQuestion | None = None,
        *,
        limit: int = 50,
        cursor: str | None = None,
    ) -> RunPage:
        """Return runs, newest slots first; without `since`, those made within the last day (dead ones: all).

        Raises InvalidInput, InvalidCursor.
        """
        ...

    async def get_run(self, run_id: UUID) -> RunDetail:
        """Return a run with its ended attempts. Raises NotFound, InvalidInput."""
        ...

    async def skipped(self, job_id: str, *, limit: int = 50) -> list[SkippedDocument]:
        """Return a job's part of the slot ledger, latest first. Raises NotFound."""
        ...

    async def skipped_slots(
        self, *, reason: str = "", since: datetime | None = None, until: datetime | None = None, limit: int = 50,
        cursor: str | None = None,
    ) -> SkippedPage:  # fmt: skip
        """Return the slots of all jobs that made no run, noted within the last day unless `since` is given.

        Raises InvalidInput, InvalidCursor.
        """
        ...

    async def replay_run(self, run_id: UUID) -> RunDetail:
        """Send one dead letter back to the queue. Raises NotFound, NotDead."""
        ...

    async def replay_runs(
        self,
        where: RunFilterQuestion,
        *,
        rate: float | None = None,
        limit: int = 1000,
    ) -> ReplayAnswer:
        """Send dead letters back, at most `limit`, `rate` a second. Raises InvalidInput."""
        ...

    async def cancel_run(self, run_id: UUID) -> CancelAnswer:
        """Cancel a run that waits, or ask the worker of one that runs to stop. Raises NotFound, RunFinished."""
        ...

    async def set_priority(self, run_id: UUID, priority: int) -> RunDetail:
        """Give a run that waits another priority. Raises NotFound, InvalidInput, Conflict, RunFinished."""
        ...

    async def why_run(self, run_id: UUID) -> WhyDocument:
        """Return the first gate that holds a run. Raises NotFound, InvalidInput."""
        ...

    async def why_job(self, job_id: str) -> WhyDocument:
        """Return why a job makes no run, or why its oldest run waits. Raises NotFound."""
        ...

    # many at once

    async def pause_jobs(
        self, where: JobFilterQuestion, *, everything: bool = False, reason: str = "",
        resume_at: datetime | None = None, missed: Missed = "policy", dry_run: bool = False, limit: int = 100,
        cursor: str | None = None,
    ) -> ManyAnswer:  # fmt: skip
        """Pause jobs that a filter means; those that are paused keep their own pause.

        An empty filter needs `everything`. Raises InvalidInput, InvalidCursor, as all of these do.
        """
        ...

    async def resume_jobs(
        self, where: JobFilterQuestion, *, everything: bool = False, missed: Missed = "policy", pause_reason: str = "",
        dry_run: bool = False, limit: int = 100, cursor: str | None = None,
    ) -> ManyAnswer:  # fmt: skip
        """Resume jobs, with a `pause_reason` only those that were paused for just that."""
        ...

    async def delete_jobs(
        self, where: JobFilterQuestion, *, everything: bool = False, dry_run: bool = False, limit: int = 100,
        cursor: str | None = None,
    ) -> ManyAnswer:  # fmt: skip
        """Delete jobs, and cancel their waiting runs."""
        ...

    async def trigger_jobs(
        self, where: JobFilterQuestion, *, everything: bool = False, payload: Mapping[str, Any] | None = None,
        scheduled_for: datetime | None = None, dry_run: bool = False, limit: int = 100, cursor: str | None = None,
    ) -> ManyAnswer:  # fmt: skip
        """Make one run of each job, now or at one slot, where a job that has a run is left."""
        ...

    async def cancel_runs(
        self, where: RunFilterQuestion, *, everything: bool = False, dry_run: bool = False, limit: int = 1000
    ) -> CancelManyAnswer:
        """Cancel runs that wait, and ask the workers of those that run; the audit log gets one entry.

        Raises Locked when other transactions hold all that are left.
        """
        ...

    async def freeze(self, *, reason: str = "") -> FreezeDocument:
        """Make no new slots and start nothing of this tenant until unfrozen; of all, for an operator's `*`."""
        ...

    async def unfreeze(self) -> FreezeDocument:
        """End the freeze; misfire policies decide on what was missed. Raises NotFound."""
        ...

    async def freezes(self) -> FreezeList:
        """Return the freezes that hold this tenant; an operator's: all."""
        ...

    # the cluster

    async def workers(self) -> WorkerList:
        """Return the live workers of this tenant; an operator's: all."""
        ...

    async def drain_worker(self, worker_id: str) -> WorkerList:
        """Let a worker claim no more; returns its processes. Raises NotFound."""
        ...

    async def shards(self) -> ShardList:
        """Return who owns which shard. An operator's question: raises Forbidden."""
        ...

    async def stats(self) -> StatsAnswer:
        """Return how much waits, runs and is dead."""
        ...

    # flow

    async def put_limit(
        self, name: str, *, kind: LimitKind = "downstream", rate: float | None = None, burst: int | None = None,
        permits: int | None = None, if_version: int | None = None,
    ) -> LimitDocument:  # fmt: skip
        """Insert or replace a limit of this tenant, or the operator's. Raises InvalidInput, VersionConflict."""
        ...

    async def limits(self) -> LimitList:
        """Return the limits that this tenant's runs may be under, with their use."""
        ...

    async def get_limit(self, name: str) -> LimitDocument:
        """Return one limit, this tenant's own or else the operator's. Raises NotFound, InvalidInput."""
        ...

    async def delete_limit(self, name: str) -> None:
        """Delete a limit of this tenant, or the operator's. Raises NotFound, InvalidInput."""
        ...

    async def pools(self) -> PoolList:
        """Return the pools with settings of their own."""
        ...

    async def put_pool(
        self, pool: str, *, ageing: float | None = None, shed_above: int | None = None
    ) -> PoolDocument:  # fmt: skip
        """Set a pool's ageing in seconds and how many runs may wait. An operator's: raises Forbidden, InvalidInput."""
        ...

    # people and tenants

    async def create_token(
        self, *, scopes: Sequence[Scope], name: str = "", expires_at: datetime | None = None
    ) -> NewToken:
        """Make a token for this tenant; its text is shown this once. It ends with the token that makes it.

        Raises InvalidInput, QuotaExceeded.
        """
        ...

    async def tokens(self, *, limit: int = PAGE_LIMIT, cursor: str | None = None) -> TokenList:
        """Return a page of this tenant's tokens, latest first, revoked ones too. Raises InvalidCursor."""
        ...

    async def revoke_token(self, token_id: str) -> None:
        """Let a token hold no longer, nor those that it made. Raises NotFound."""
        ...

    async def audit(self, *, subject: str = "", limit: int = 50, cursor: str | None = None) -> AuditPage:
        """Return what was changed, latest first. Raises InvalidCursor."""
        ...

    async def signing_secret(self) -> SigningSecret:
        """Return the key that signs the calls of this tenant's HTTP targets, and the one before as long as it does."""
        ...

    async def rotate_signing_secret(self, *, keep_seconds: float = 86_400) -> SigningSecret:
        """Make another key; calls are signed with both for that long. Raises InvalidInput."""
        ...

    async def tenants(self) -> TenantList:
        """Return all tenants with quotas of their own. An operator's question: raises Forbidden."""
        ...

    async def put_tenant(
        self, tenant_id: str, *, max_jobs: int | None = None, max_payload_bytes: int | None = None,
        calls_per_second: float | None = None, weight: int = 1,
    ) -> TenantDocument:  # fmt: skip
        """Set a tenant's quotas and its weight in pools. An operator's: raises Forbidden, InvalidInput."""
        ...

    async def close(self) -> None:
        """Give back what this holds."""
        ...
