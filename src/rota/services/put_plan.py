"""What a put is to do with each of its jobs, decided from the rows that stand there; the service writes it down."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from rota.domain.ids import job_uid
from rota.domain.instants import format_instant
from rota.domain.job import Job, JobName
from rota.domain.ownership import Difference, Ownership, changed_fields, declared_over, put_over, reset_fields
from rota.errors import VersionConflict
from rota.store.audit import Change
from rota.store.jobs import JobWrite, LastGeneration, Reroute, ScheduleRow, StoredJob


@dataclass(frozen=True, slots=True, kw_only=True)
class PutResult:
    """What an upsert did. `changed` is False when the very same definition stood there; `created` means it is new.

    `fields` names what changed of a job that stood there, and `reset` those of them that went back to their defaults.
    `differs`: where the code's definition and the one that stood there are not the same.
    """

    job_id: str
    version: int
    changed: bool
    created: bool
    next_run_at: datetime | None
    next_slot: datetime | None
    warnings: tuple[str, ...]
    fields: tuple[str, ...] = ()
    reset: tuple[str, ...] = ()
    differs: tuple[Difference, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class By:
    """Who puts: an operator, or code that declares its jobs. `source` is the app, or the import that makes jobs."""

    is_code: bool = False
    source: str | None = None


BY_OPERATOR: Final = By()


@dataclass(slots=True)
class PutPlan:
    """The writes of a batch, and its results by name."""

    writes: list[JobWrite] = field(default_factory=list)
    schedules: list[ScheduleRow] = field(default_factory=list)
    reroutes: list[Reroute] = field(default_factory=list)
    overtaken: list[StoredJob] = field(default_factory=list)
    """Jobs as they stood whose schedule changes: their slots that nobody has looked at never run."""
    created: list[Job] = field(default_factory=list)
    pauses: dict[int, str] = field(default_factory=dict)
    """Jobs of these that are paused as soon as they are written, with the reason."""
    results: dict[JobName, PutResult] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    owners: dict[int, Ownership] = field(default_factory=dict)
    """Whose jobs are that were another's before."""


def plan_puts(
    jobs: Sequence[Job], standing: Mapping[JobName, StoredJob], last: Mapping[JobName, LastGeneration], *,
    if_version: int | None, pause_new: Mapping[str, str], now: datetime, by: By = BY_OPERATOR,
) -> PutPlan:  # fmt: skip
    """Decide a batch, given the jobs that live and the last deleted ones of the other names. Raises VersionConflict."""
    plan = PutPlan()
    for asked in jobs:
        job = asked
        live = standing.get(job.name)
        _check_version(job, live, if_version)
        job, whose, differs = _owned(job, live, by=by)
        write = _write(job, live, last.get(job.name))
        if live is None or whose != live.ownership:
            plan.owners[write.job_uid] = whose
        if live is not None and live.job == job and live.quarantined is None:
            row = ScheduleRow(
                job_uid=live.job_uid, next_run_at=live.next_run_at, next_slot=live.next_slot, version=live.version,
                since=live.since or now,
            )  # fmt: skip
            plan.results[job.name] = _result(job, row, live, changed=False, differs=differs)
            continue
        row = _schedule_row(write, live, now=now)
        plan.writes.append(write)
        plan.changes.append(_change(job, live))
        if live is not None and row.since != live.since:
            plan.overtaken.append(live)
        if live is not None and (reroute := _reroute(job, live)):
            plan.reroutes.append(reroute)
        if live is None:
            plan.created.append(job)
            if (reason := pause_new.get(job.job_id)) is not None:
                plan.pauses[write.job_uid] = reason
                plan.changes.append(_paused_from_the_start(job, reason, now=now))
                # Its pause is an edit of its own, right after the write.
                row = replace(row, next_run_at=None, version=write.version + 1)
        plan.schedules.append(row)
        plan.results[job.name] = _result(job, row, live, changed=True, differs=differs)
    return plan


def pause_facts(
    paused_at: datetime | None,
    reason: str | None = None,
    resume_at: datetime | None = None,
    missed: str | None = None,
) -> dict[str, object]:
    """Return what the audit log says of a job's pause; None: it is not paused."""
    if paused_at is None:
        return {"paused": False}
    end = None if resume_at is None else format_instant(resume_at)
    facts: dict[str, object] = {"paused": True, "reason": reason, "resume_at": end}
    return facts if missed is None else facts | {"missed": missed}


def definition_of(stored: StoredJob) -> dict[str, object]:
    """Return what the audit log says of a job: its definition, or why that cannot be read."""
    return {"problem": stored.problem} if stored.job is None else stored.job.to_json()


def _change(job: Job, live: StoredJob | None) -> Change:
    return Change(
        tenant_id=job.tenant_id,
        action="job.created" if live is None else "job.changed",
        subject=job.job_id,
        before=None if live is None else definition_of(live),
        after=job.to_json(),
    )


def _paused_from_the_start(job: Job, reason: str, *, now: datetime) -> Change:
    return Change(
        tenant_id=job.tenant_id, action="job.paused", subject=job.job_id, before=pause_facts(None),
        after=pause_facts(now, reason),
    )  # fmt: skip


def _write(job: Job, live: StoredJob | None, last: LastGeneration | None) -> JobWrite:
    """Return what becomes of a definition: an edit of the job that lives, or a new job, its id's first or next one.

    Versions of an id go on: who read one of a deleted job cannot take it for the next job's.
    """
    if live is not None:
        return JobWrite(job=job, job_uid=live.job_uid, generation=live.generation, version=live.version + 1)
    if last is None:
        return JobWrite(job=job, job_uid=job_uid(*job.name), generation=0, version=1)
    generation = last.generation + 1
    return JobWrite(
        job=job, job_uid=job_uid(*job.name, generation), generation=generation, version=last.version + 1
    )  # fmt: skip


def _schedule_row(write: JobWrite, live: StoredJob | None, *, now: datetime) -> ScheduleRow:
    """Return what schedulers are to see: an unchanged schedule goes on where it stood, a changed one starts now."""
    job = write.job
    if (
        live is not None
        and live.quarantined is None
        and live.job is not None
        and live.job.schedule == job.schedule
        and live.since is not None
    ):
        next_slot, since = live.next_slot, live.since
    else:
        next_slot, since = (None if job.schedule is None else job.schedule.next_slot(now)), now
    paused = live is not None and live.paused_at is not None
    return ScheduleRow(
        job_uid=write.job_uid,
        next_run_at=None if paused else next_slot,
        next_slot=next_slot,
        version=write.version,
        since=since,
    )


def _reroute(job: Job, before: StoredJob) -> Reroute | None:
    was = before.job
    if was is not None and _in_queue(was) == _in_queue(job):
        return None
    changed = was is not None and was.priority != job.priority
    return Reroute(job=job, job_uid=before.job_uid, priority=job.priority if changed else None)


def _in_queue(job: Job) -> tuple[object, ...]:
    """Return what of a job its waiting runs follow: where they wait, in which order, and under which limits."""
    return (
        job.pool, job.handler, job.priority, job.overlap, job.max_concurrency, job.concurrency_key, job.key_concurrency,
        job.limits,
    )  # fmt: skip


def _owned(job: Job, live: StoredJob | None, *, by: By) -> tuple[Job, Ownership, tuple[Difference, ...]]:
    """Return the job to write, whose it is from now on, and where the code's definition differs."""
    whose = Ownership() if live is None else live.ownership
    if by.is_code:
        assert by.source is not None, "code that declares has a name"
        return declared_over(job, standing=None if live is None else live.job, whose=whose, source=by.source)
    return job, put_over(job, is_new=live is None, whose=whose, source=by.source), ()


def _result(
    job: Job, row: ScheduleRow, live: StoredJob | None, *, changed: bool, differs: tuple[Difference, ...]
) -> PutResult:
    before = None if live is None else live.job
    warnings = list(job.schedule.warnings) if job.schedule is not None else []
    if job.schedule is not None and row.next_slot is None:
        warnings.append("the schedule has no slot after now: this job is finished")
    return PutResult(
        job_id=job.job_id,
        version=row.version,
        changed=changed,
        created=live is None,
        next_run_at=row.next_run_at,
        next_slot=row.next_slot,
        warnings=tuple(warnings),
        fields=() if before is None or not changed else changed_fields(before, job),
        reset=() if before is None or not changed else reset_fields(before, job),
        differs=differs,
    )


def _check_version(job: Job, live: StoredJob | None, if_version: int | None) -> None:
    standing = live.version if live is not None else 0
    if if_version is None or if_version == standing:
        return
    if live is None:
        raise VersionConflict(f"there is no job {job.job_id!r}, so none at version {if_version}")
    if if_version == 0:
        raise VersionConflict(f"job {job.job_id!r} is there already, at version {standing}")
    raise version_conflict(job.job_id, standing=standing, wanted=if_version)


def version_conflict(job_id: str, *, standing: int, wanted: int | None) -> VersionConflict:
    """Return the refusal of an edit of a version that does not stand there."""
    return VersionConflict(f"job {job_id!r} is at version {standing}, not {wanted}", hint="read it again, then edit")
