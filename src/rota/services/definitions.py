"""Jobs come, change, pause and go. An edit takes effect at the next tick and never fires slots of the past."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final, cast, get_args

import structlog

from rota.clock import Clock
from rota.domain import reasons
from rota.domain.addresses import NOTHING_ALLOWED, Allowed
from rota.domain.http_target import URL_LIMIT, check_target, is_target
from rota.domain.ids import job_uid
from rota.domain.instants import future_instant
from rota.domain.job import NAME_LIMIT, Job, JobName, check_name, check_text, check_visible
from rota.domain.merge_patch import patched
from rota.domain.ownership import CODE, OPERATOR
from rota.errors import Conflict, DatabaseUnavailable, InvalidInput, Locked, NotFound, VersionConflict
from rota.services.aside import Aside
from rota.services.hints import CANCELS, SCHEDULES, Hints, pool_topic
from rota.services.next_slots import recompute_shard
from rota.services.patience import Patience
from rota.services.put_plan import (
    BY_OPERATOR,
    By,
    PutResult,
    definition_of,
    pause_facts,
    plan_puts,
    version_conflict,
)
from rota.services.quota import Quotas, check_job_quota, check_size
from rota.services.resumption import Settled, drop_missed, settle_missed
from rota.store import aside, audit, freeze
from rota.store import jobs as store
from rota.store.access import TenantView
from rota.store.audit import SYSTEM, Change
from rota.store.database import Connection, Database, Lane, repeat
from rota.store.jobs import JobFilter, ScheduleRow, StoredJob
from rota.store.partitions import through_attach
from rota.wire.jobs import Missed

__all__ = ["PAGE", "PUT_BATCH", "Declared", "Definitions", "Missed", "PutResult", "StoredJob", "job_filter"]

PUT_BATCH: Final = 1000
PAGE: Final = 1000
REASON_LIMIT: Final = 1000
ORPHANS_SHOWN: Final = 20
"""The most jobs that left the code of which a declaration tells."""
RESUME_LONGEST: Final = 60.0
"""Seconds after which, at the latest, a resume that failed is tried again."""
RACES: Final = 3
"""How often a put begins again because somebody else created one of its jobs at the same moment."""
_TICK: Final = timedelta(microseconds=1)
NOBODY: Final[Mapping[str, str]] = {}
NO_QUOTAS: Final[Mapping[str, TenantView | None]] = {}

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What a declaration did, and jobs that its source declares no longer, from now or from before."""

    results: tuple[PutResult, ...]
    orphaned: tuple[str, ...]
    more_orphaned: bool


class Definitions:
    """The jobs of all tenants; every change is one transaction under the jobs' row locks, with its audit entry.

    `actor` is who the audit log says it was. `targets` names the internal hosts that HTTP targets may lead to.
    """

    def __init__(self, database: Database, clock: Clock, hints: Hints, *, targets: Allowed = NOTHING_ALLOWED) -> None:
        self._targets = targets
        self._database = database.on(Lane.CALLS)
        self._wide = database.on(Lane.READS)
        self._patience = Patience()
        self._clock = clock
        self._hints = hints
        self._quotas = Quotas(database, clock)
        self.unresumed = Aside()

    async def put(
        self, jobs: Sequence[Job], *, if_version: int | None = None, pause_new: Mapping[str, str] = NOBODY,
        actor: str = SYSTEM, source: str | None = None,
    ) -> list[PutResult]:  # fmt: skip
        """Insert or replace jobs, in transactions of PUT_BATCH; the same definition again changes nothing.

        Those named in `pause_new` (job id -> reason) are paused from the start, if they are new. New jobs are an
        operator's, made by `source`; what code declares stays the code's, with the fields that differ as overrides.

        A new job's first slot, and the first one after a changed schedule, lies after this instant; a pause outlives
        an edit. Raises InvalidInput when a job stands twice among `jobs`, VersionConflict when `if_version` is given
        and is not the version that stands there, QuotaExceeded, and TooLarge for a payload past its tenant's quota.
        """
        if source is not None:
            check_name("source", source)
        by = BY_OPERATOR if source is None else By(source=source)
        return await self._put_all(jobs, if_version=if_version, pause_new=pause_new, actor=actor, by=by)

    async def declare(
        self, jobs: Sequence[Job], *, source: str, tenant_id: str, every_id: Sequence[str] | None = None,
        actor: str = SYSTEM,
    ) -> Declared:  # fmt: skip
        """Put the jobs that an app, `source`, declares in its code: they are the code's from then on.

        A field that an operator changed stays as it is, until the code gives it another value than it had before; what
        differs is in each result. `every_id` names all jobs of the app, these and those of other calls (None: these are
        all): jobs that it declared before and that are not among them are marked as orphaned, and go on as they are.
        Raises what `put` raises.
        """
        check_name("source", source)
        for job in jobs:
            if job.tenant_id != tenant_id:
                raise InvalidInput("tenant_id", f"job {job.job_id!r} is {job.tenant_id!r}'s, not {tenant_id!r}'s")
        by = By(is_code=True, source=source)
        results = await self._put_all(jobs, if_version=None, pause_new=NOBODY, actor=actor, by=by)
        declared = [job.job_id for job in jobs] if every_id is None else every_id
        await self._mark_orphans(declared, source=source, tenant_id=tenant_id, actor=actor)
        left = JobFilter(source=source, owner=CODE, orphaned=True)
        orphans = await store.page(self._database, tenant_id=tenant_id, where=left, after="", limit=ORPHANS_SHOWN + 1)
        return Declared(
            results=tuple(results), orphaned=tuple(job.job_id for job in orphans[:ORPHANS_SHOWN]),
            more_orphaned=len(orphans) > ORPHANS_SHOWN,
        )  # fmt: skip

    async def patch(
        self, job_id: str, changes: Mapping[str, Any], *, tenant_id: str, if_version: int | None = None,
        actor: str = SYSTEM,
    ) -> PutResult:  # fmt: skip
        """Change what is named of a job, as a JSON merge patch: null gives a field its default.

        A schedule or misfire policy of another kind replaces the one that stands. Raises NotFound, InvalidInput,
        VersionConflict, QuotaExceeded, TooLarge, and Conflict for a job that cannot be read.
        """

        def edited(stored: StoredJob) -> Job:
            if stored.job is None:
                raise Conflict(f"job {job_id!r} cannot be read: {stored.problem}", hint="put it whole")
            wanted = Job.from_json(patched(stored.job.to_json(), changes))
            for name in ("tenant_id", "job_id"):
                if getattr(wanted, name) != getattr(stored, name):
                    raise InvalidInput(name, "cannot be changed", hint="leave it out")
            if is_target(wanted.handler):
                check_target(wanted.handler, self._targets)
            return wanted

        return await self._edit(job_id, edited, tenant_id=tenant_id, if_version=if_version, actor=actor)

    async def reset(
        self, job_id: str, *, tenant_id: str, if_version: int | None = None, actor: str = SYSTEM
    ) -> PutResult:
        """Give a job the definition that its code declared last. Raises NotFound, Conflict for one that has none."""

        def declared(stored: StoredJob) -> Job:
            if stored.declared is None:
                raise Conflict(f"job {job_id!r} is declared in no code", hint="there is nothing to go back to")
            return Job.from_json({**stored.declared, "job_id": job_id, "tenant_id": tenant_id})

        return await self._edit(job_id, declared, tenant_id=tenant_id, if_version=if_version, actor=actor)

    async def get(self, job_id: str, *, tenant_id: str) -> StoredJob:
        """Return one job. Raises NotFound."""
        stored = await store.find(self._database, JobName(tenant_id, job_id))
        if stored is None:
            raise _unknown(job_id)
        return stored

    async def set_aside(self, stored: StoredJob) -> str | None:
        """Return what of a job schedulers have set aside, and why; None: nothing."""
        held = await aside.of_job(self._database, stored.job_uid, now=self._clock.now())
        return reasons.aside_words({what: view.reason for what, view in held.items()})

    async def page(
        self, *, tenant_id: str, prefix: str = "", after: str = "", limit: int = 100, label: str = "",
        handler: str = "", enabled: bool | None = None, owner: str = "", source: str = "",
        orphaned: bool | None = None,
    ) -> list[StoredJob]:  # fmt: skip
        """Return a tenant's jobs in the order of their ids, after an id, at most PAGE.

        `label` is `name` or `name=value`. `enabled` True leaves jobs that are neither paused nor quarantined, False the
        others. `owner` is code or operator. `orphaned` True leaves jobs that their source declares no longer. Raises
        InvalidInput for what is no text.
        """
        check_text("after", after, limit=NAME_LIMIT)
        where = job_filter(
            prefix=prefix, handler=handler, label=label, enabled=enabled, owner=owner, source=source, orphaned=orphaned
        )
        return await store.page(
            self._wide, tenant_id=tenant_id, where=where, after=after, limit=max(0, min(limit, PAGE))
        )

    async def pause(
        self, job_id: str, *, tenant_id: str, reason: str, resume_at: datetime | None = None,
        missed: Missed = "policy", actor: str = SYSTEM,
    ) -> StoredJob:  # fmt: skip
        """Make no more runs of a job until it is resumed, or until `resume_at`; runs that wait or run go on.

        What was missed by then is treated as `resume` does with the same `missed`. A job that is paused gets the new
        reason, end and choice. Raises NotFound, and InvalidInput for an end that does not lie in the future, or a
        choice without an end.
        """
        check_text("reason", reason, limit=REASON_LIMIT)
        _check_missed(missed)
        if missed != "policy" and resume_at is None:
            raise InvalidInput(
                "missed", "is for a pause that ends by itself", hint="give resume_at, or choose at the resume"
            )
        now = self._clock.now()
        until = None if resume_at is None else future_instant(resume_at, "resume_at", now=now)
        await self._patience.ask(
            lambda: self._pause(
                job_id, tenant_id=tenant_id, reason=reason, until=until, missed=missed, actor=actor, now=now
            ),
            what=f"job {job_id!r}", turn=(tenant_id, job_id),
        )  # fmt: skip
        return await self.get(job_id, tenant_id=tenant_id)

    async def _pause(
        self, job_id: str, *, tenant_id: str, reason: str, until: datetime | None, missed: Missed, actor: str,
        now: datetime,
    ) -> None:  # fmt: skip
        choice = None if missed == "policy" else missed
        async with self._database.transaction() as tx:
            stored = await _locked(tx, tenant_id, job_id)
            uid = stored.job_uid
            if stored.paused_at is None:
                version = await store.set_pause(
                    tx, uid, paused_at=now, reason=reason, resume_at=until, missed=choice, now=now
                )
                await _reschedule(tx, stored, version=version, next_run_at=None, next_slot=stored.next_slot, now=now)
            elif (stored.pause_reason, stored.resume_at, stored.resume_missed) == (reason, until, choice):
                return
            else:
                amended = await store.amend_pause(tx, uid, reason=reason, resume_at=until, missed=choice, now=now)
                assert amended, "the job's row is locked, so its pause cannot have gone"
            change = _pause_change(stored, "job.paused", after=pause_facts(now, reason, until, choice))
            await audit.note(tx, [change], actor=actor, now=now)

    async def resume(self, job_id: str, *, tenant_id: str, missed: Missed = "policy", actor: str = SYSTEM) -> StoredJob:
        """Let a paused job run again. Raises NotFound, InvalidInput.

        What was missed is left to the job's misfire policy; with "drop" it goes into the slot ledger; "once" makes one
        run at the latest missed slot, and "catch_up" one each, bounded as the job's own policy or to the latest 100.
        """
        _check_missed(missed)
        now = self._clock.now()
        await self._patience.ask(
            lambda: self._resume(job_id, tenant_id=tenant_id, missed=missed, actor=actor, now=now),
            what=f"job {job_id!r}", turn=(tenant_id, job_id),
        )  # fmt: skip
        return await self.get(job_id, tenant_id=tenant_id)

    async def resume_due(self, *, limit: int = 100) -> int:
        """Resume jobs whose time to run again has come, at most `limit`; returns how many. Many may do so at once.

        One that somebody's open transaction holds, or that cannot be resumed for another reason, waits for a later
        call, and the others do not wait for it.
        """
        now, monotonic, resumed = self._clock.now(), self._clock.monotonic(), 0
        left_out = self.unresumed.out(monotonic=monotonic)
        for tenant_id, job_id, uid in await store.due_resumes(self._database, now=now, limit=limit, aside=left_out):
            try:
                resumed += await self._resume(
                    job_id, tenant_id=tenant_id, missed="policy", actor=SYSTEM, now=now, due_uid=uid
                )
            except NotFound:
                continue  # deleted meanwhile
            except Exception as error:
                if isinstance(error, DatabaseUnavailable) and not isinstance(error, Locked):
                    raise
                reason = "an open transaction holds the job" if isinstance(error, Locked) else repr(error)
                is_news = self.unresumed.put(uid, reason, first=1.0, longest=RESUME_LONGEST, monotonic=monotonic)
                if is_news and not isinstance(error, Locked):  # another scheduler's resume holds it, too
                    log.warning("job.not_resumed", job_id=job_id, tenant_id=tenant_id, error=repr(error))
        self.unresumed.forget_back(monotonic=monotonic)
        return resumed

    async def delete(self, job_id: str, *, tenant_id: str, actor: str = SYSTEM) -> int:
        """Delete a job and cancel its waiting runs; what runs ends by itself. Returns the number of runs cancelled."""
        cancelled = await self._patience.ask(
            lambda: self._delete(job_id, tenant_id=tenant_id, actor=actor), what=f"job {job_id!r}",
            turn=(tenant_id, job_id),
        )  # fmt: skip
        log.info("job.deleted", job_id=job_id, tenant_id=tenant_id, cancelled=cancelled)
        return cancelled

    async def _delete(self, job_id: str, *, tenant_id: str, actor: str) -> int:
        now = self._clock.now()
        async with self._database.transaction() as tx:
            stored = await _locked(tx, tenant_id, job_id)
            cancelled = await store.delete(tx, stored.job_uid, now=now, reason="job deleted")
            assert cancelled is not None, "the job's row is locked, so it cannot have gone"
            gone = Change(tenant_id=tenant_id, action="job.deleted", subject=job_id, before=definition_of(stored))
            await audit.note(tx, [gone], actor=actor, now=now)
        return cancelled

    async def recompute(self, shards: Sequence[int]) -> int:
        """Compute all future next slots of these shards anew, after new tz data; returns how many moved.

        Raises Conflict when some are left, such as those that a transaction holds; the others have moved by then.
        """
        now = self._clock.now()
        done = [await recompute_shard(self._database, shard, now=now) for shard in shards]
        moved, left = sum(one.moved for one in done), sum(one.left for one in done)
        if moved:
            self._hints.publish(SCHEDULES)
        if left:
            raise Conflict(
                f"{left} next slots could not be computed anew; {moved} have moved",
                hint="ask again: another transaction holds these schedules, or the log says why",
            )
        return moved

    async def _put_all(
        self, jobs: Sequence[Job], *, if_version: int | None, pause_new: Mapping[str, str], actor: str, by: By
    ) -> list[PutResult]:
        seen: set[JobName] = set()
        for job in jobs:
            if job.name in seen:
                raise InvalidInput("job_id", f"{job.job_id!r} stands twice in one request")
            seen.add(job.name)
            if is_target(job.handler):
                check_target(job.handler, self._targets)
        results: list[PutResult] = []
        remaining = iter(jobs)
        while batch := list(islice(remaining, PUT_BATCH)):
            same = {} if if_version is not None else await self._unchanged(batch, by=by)
            rest = [job for job in batch if job.name not in same]
            if rest:
                done = await self._put_whole(rest, if_version=if_version, pause_new=pause_new, actor=actor, by=by)
                same |= {job.name: result for job, result in zip(rest, done, strict=True)}
            results += [same[job.name] for job in batch]
        if any(result.changed for result in results):
            self._hints.publish(SCHEDULES)
        return results

    async def _unchanged(self, jobs: Sequence[Job], *, by: By) -> dict[JobName, PutResult]:
        """Return the answers for jobs that stand as they are to stand: whoever holds their rows is not waited for."""
        standing = await store.find_all(self._database, [job.name for job in jobs])
        known = [job for job in jobs if job.name in standing]
        plan = plan_puts(known, standing, {}, if_version=None, pause_new=NOBODY, now=self._clock.now(), by=by)
        return {
            name: result
            for name, result in plan.results.items()
            if not result.changed and standing[name].job_uid not in plan.owners
        }

    async def _edit(
        self, job_id: str, edited: Callable[[StoredJob], Job], *, tenant_id: str, if_version: int | None, actor: str
    ) -> PutResult:
        """Put what `edited` makes of a job that stands, under its lock. Once more, it would change nothing."""

        async def once() -> PutResult:
            quotas = {tenant_id: await self._quotas.of(tenant_id)}
            async with self._database.transaction() as tx:
                stored = await _locked(tx, tenant_id, job_id)
                if if_version not in (None, stored.version):
                    raise version_conflict(stored.job_id, standing=stored.version, wanted=if_version)
                [result] = await self._put_batch(
                    tx, [edited(stored)], if_version=if_version, pause_new=NOBODY, actor=actor, quotas=quotas
                )
                return result

        async def patiently() -> PutResult:
            return await self._patience.ask(once, what=f"job {job_id!r}", turn=(tenant_id, job_id))

        result = await (patiently() if if_version is not None else repeat(patiently, clock=self._clock))
        if result.changed:
            self._hints.publish(SCHEDULES)
        return result

    async def _mark_orphans(self, declared: Sequence[str], *, source: str, tenant_id: str, actor: str) -> None:
        """Mark what a source declares no longer, batch by batch; what somebody edits just then waits for the next."""
        now = self._clock.now()
        while True:
            async with self._database.transaction() as tx:
                gone = await store.mark_orphans(
                    tx, tenant_id=tenant_id, source=source, declared=declared, now=now, limit=PUT_BATCH
                )
                after = {"source": source}
                changes = [Change(tenant_id=tenant_id, action="job.orphaned", subject=i, after=after) for i in gone]
                await audit.note(tx, changes, actor=actor, now=now)
            if len(gone) < PUT_BATCH:
                return

    async def _put_whole(
        self, jobs: Sequence[Job], *, if_version: int | None, pause_new: Mapping[str, str], actor: str, by: By
    ) -> list[PutResult]:
        """Put a batch in one transaction. It can be repeated, unless it depends on a version that it changes itself."""

        async def once() -> list[PutResult]:
            quotas = {tenant: await self._quotas.of(tenant) for tenant in {job.tenant_id for job in jobs}}
            async with self._database.transaction() as tx:
                return await self._put_batch(
                    tx, jobs, if_version=if_version, pause_new=pause_new, actor=actor, quotas=quotas, by=by
                )

        one = jobs[0] if len(jobs) == 1 else None

        async def patiently() -> list[PutResult]:
            return await self._patience.ask(
                once, what=f"job {one.job_id!r}" if one else "one of these jobs",
                turn=(one.tenant_id, one.job_id) if one else None,
            )  # fmt: skip

        if if_version is not None:
            return await patiently()
        for _ in range(RACES):
            try:
                return await repeat(patiently, clock=self._clock)
            except _CreatedMeanwhile:
                continue  # the next look at the rows sees what somebody else has just created
        return await patiently()

    async def _put_batch(
        self, tx: Connection, jobs: Sequence[Job], *, if_version: int | None, pause_new: Mapping[str, str],
        actor: str = SYSTEM, quotas: Mapping[str, TenantView | None] = NO_QUOTAS, by: By = BY_OPERATOR,
    ) -> list[PutResult]:  # fmt: skip
        now = self._clock.now()
        ordered = sorted(jobs, key=lambda job: job_uid(*job.name))
        standing = await store.lock_live(tx, [job.name for job in ordered])
        new = [job.name for job in ordered if job.name not in standing]
        last = await store.last_generations(tx, new) if new else {}
        plan = plan_puts(ordered, standing, last, if_version=if_version, pause_new=pause_new, now=now, by=by)
        for job in (write.job for write in plan.writes):
            check_size(job.payload, quotas.get(job.tenant_id), of_job="" if len(jobs) == 1 else job.job_id)
        for job in plan.created:
            for field_name, value in (("job_id", job.job_id), ("tenant_id", job.tenant_id), ("pool", job.pool)):
                check_visible(field_name, value)
            check_visible("handler", job.handler)
        if plan.created:
            await check_job_quota(tx, Counter(job.tenant_id for job in plan.created))
        for before in plan.overtaken:
            # The old schedule's slots that nobody has looked at yet never run, and leave their trace.
            await drop_missed(tx, before, policy={"edit": "schedule"}, upto=now, now=now)
        if plan.writes:
            if edits := [write for write in plan.writes if write.job.name in standing]:
                await store.keep_payloads(tx, edits)
            written = await store.write(tx, plan.writes, now=now)
            if written is None or len(written) < len(plan.writes):
                if written is not None and (clash := await store.clash(tx, plan.writes)) is not None:
                    # A number is a digest: whoever looks for a collision finds one, and must not get another's job.
                    raise Conflict(f"the id {clash.job_id!r} cannot be used", hint="choose another id for the job")
                raise _CreatedMeanwhile("a job was created by somebody else at this moment", hint="put it again")
            for uid, reason in plan.pauses.items():
                await store.set_pause(tx, uid, paused_at=now, reason=reason, now=now)
            await store.write_schedules(tx, plan.schedules)
        if plan.owners:
            owned = await store.write_owners(tx, plan.owners)
            assert owned == len(plan.owners), "these rows are locked, or written by this very transaction"
        if plan.reroutes:
            await store.reroute_pending(tx, plan.reroutes)
        await audit.note(tx, plan.changes, actor=actor, now=now)
        return [plan.results[job.name] for job in jobs]

    async def _resume(
        self, job_id: str, *, tenant_id: str, missed: Missed, actor: str, now: datetime, due_uid: int | None = None
    ) -> bool:
        """Resume a job in a transaction of its own; False when it is not paused.

        With `due_uid` it is that one, if its time has come; Locked is raised at once where somebody else has it.
        """

        async def once() -> frozenset[str]:
            async with self._database.transaction() as tx:
                if due_uid is None:
                    stored = await _locked(tx, tenant_id, job_id)
                else:
                    stored = await _locked_free(tx, due_uid, job_id)
                if stored.paused_at is None or (due_uid is not None and not _is_due(stored, now=now)):
                    return frozenset()
                # A slot at the end of a pause that has one was not held back by it.
                upto = stored.resume_at - _TICK if due_uid is not None and stored.resume_at is not None else now
                choice = cast(Missed, stored.resume_missed or missed) if due_uid is not None else missed
                is_frozen = choice != "drop" and bool(await freeze.holding(tx, stored.tenant_id, limit=1))
                if is_frozen and choice != "policy":
                    raise Conflict(
                        f"job {job_id!r} is frozen, so no runs are made of what it missed",
                        hint="resume it after the freeze, or leave what it missed to its misfire policy",
                    )
                # In a freeze the scheduler puts off what is due: the misfire policy decides at its end.
                settled = (
                    Settled(next_slot=stored.next_slot)
                    if is_frozen
                    else await settle_missed(tx, stored, missed=choice, upto=upto, now=now)
                )
                version = await store.set_pause(tx, stored.job_uid, paused_at=None, reason=None, now=now)
                slot = settled.next_slot
                await _reschedule(tx, stored, version=version, next_run_at=slot, next_slot=slot, now=now)
                after = pause_facts(None) | {"missed": choice, "runs": settled.runs}
                change = _pause_change(stored, "job.resumed", after=after)
                await audit.note(tx, [change], actor=actor, now=now)
                topics = {SCHEDULES}
                if settled.opened and stored.job is not None:
                    topics.add(pool_topic(stored.job.pool))
                if settled.replaces:
                    topics.add(CANCELS)
                return frozenset(topics)

        topics = await through_attach(once)
        for topic in topics:
            self._hints.publish(topic)
        return bool(topics)


def _check_missed(missed: object) -> None:
    if missed not in get_args(Missed):
        raise InvalidInput("missed", f"{missed!r} is no choice", hint=f"use one of {', '.join(get_args(Missed))}")


class _CreatedMeanwhile(VersionConflict):
    """Two put a new job at once, and this one comes second."""


def job_filter(
    *, prefix: str = "", label: str = "", handler: str = "", enabled: bool | None = None, owner: str = "",
    source: str = "", orphaned: bool | None = None,
) -> JobFilter:  # fmt: skip
    """Return which jobs are meant; `label` is `name` or `name=value`. Raises InvalidInput naming the field."""
    for name, value in (("prefix", prefix), ("label", label), ("source", source)):
        check_text(name, value, limit=2 * NAME_LIMIT + 1)
    check_text("handler", handler, limit=URL_LIMIT)
    label_name, is_pair, label_value = label.partition("=")
    if is_pair and not label_name:
        raise InvalidInput("label", f"{label!r} names no label", hint="use name or name=value")
    if owner not in ("", CODE, OPERATOR):
        raise InvalidInput("owner", f"{owner!r} owns no job", hint=f"use {CODE} or {OPERATOR}")
    return JobFilter(
        prefix=prefix, handler=handler, label=label_name, label_value=label_value if is_pair else None,
        enabled=enabled, owner=owner, source=source, orphaned=orphaned,
    )  # fmt: skip


async def _locked(tx: Connection, tenant_id: str, job_id: str) -> StoredJob:
    name = JobName(tenant_id, job_id)
    if store.shard_of_name(name) is None:
        raise _unknown(job_id)
    stored = (await store.lock_live(tx, [name])).get(name)
    if stored is None:
        raise _unknown(job_id)
    return stored


async def _locked_free(tx: Connection, uid: int, job_id: str) -> StoredJob:
    stored = await store.lock_free(tx, uid)
    if stored is None:
        raise Locked(f"an open transaction holds the job {job_id!r}")
    if stored.deleted:
        raise _unknown(job_id)
    return stored


async def _reschedule(
    tx: Connection, stored: StoredJob, *, version: int | None, next_run_at: datetime | None,
    next_slot: datetime | None, now: datetime,
) -> None:  # fmt: skip
    assert version is not None, "the job's row is locked, so it cannot have gone"
    row = ScheduleRow(
        job_uid=stored.job_uid, next_run_at=next_run_at, next_slot=next_slot, version=version, since=stored.since or now
    )
    await store.write_schedules(tx, [row])


def _pause_change(stored: StoredJob, action: str, *, after: dict[str, Any]) -> Change:
    before = pause_facts(stored.paused_at, stored.pause_reason, stored.resume_at, stored.resume_missed)
    return Change(tenant_id=stored.tenant_id, action=action, subject=stored.job_id, before=before, after=after)


def _is_due(stored: StoredJob, *, now: datetime) -> bool:
    return stored.resume_at is not None and stored.resume_at <= now


def _unknown(job_id: str) -> NotFound:
    return NotFound(f"there is no job {job_id!r}", hint="`rota job list` shows the jobs of this tenant")
