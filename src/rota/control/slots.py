"""A schedule's slots as documents: each with the rule that made it, and the instant at which its run starts."""

from datetime import UTC, datetime, timedelta
from typing import Final

from rota.domain.ids import job_uid
from rota.domain.instants import format_instant, utc_instant
from rota.domain.jitter import jitter_of
from rota.domain.job import Job
from rota.domain.slot_rule import local_time, slot_rule, zone_of
from rota.errors import InvalidInput
from rota.store.jobs import StoredJob
from rota.wire.document import PAGE_LIMIT
from rota.wire.jobs import SlotDocument, SlotsAnswer

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def stored_slots(stored: StoredJob, *, after: datetime, count: int) -> SlotsAnswer:
    """Return a job's next slots; those of a paused job make no runs, which `state` tells. Raises InvalidInput."""
    _check_count(count)
    if stored.job is None:
        words, slots, warnings = f"cannot be read: {stored.problem}", (), ()
        return SlotsAnswer.model_validate({"words": words, "slots": slots, "warnings": warnings, "state": stored.state})
    return _answer(stored.job, stored.job_uid, after=after, count=count).model_copy(update={"state": stored.state})


def preview_slots(job: Job, *, after: datetime, count: int) -> SlotsAnswer:
    """Return the slots that a job would have after an instant. Raises InvalidInput."""
    _check_count(count)
    after = utc_instant(after, "after")
    if after < _EPOCH:
        raise InvalidInput("after", "lies before 1970", hint="no run has such a slot")
    return _answer(job, job_uid(*job.name), after=after, count=count)


def _answer(job: Job, uid: int, *, after: datetime, count: int) -> SlotsAnswer:
    schedule = job.schedule
    if schedule is None:
        return SlotsAnswer(words="on demand", slots=(), warnings=())
    slots: list[SlotDocument] = []
    warnings = list(schedule.warnings)
    slot = schedule.next_slot(after)
    while slot is not None:
        slots.append(_document(job, uid, slot))
        slot = schedule.next_slot(slot) if len(slots) < count else None
    if not slots:
        warnings.append(f"the schedule has no slot after {format_instant(after)}")
    return SlotsAnswer(words=schedule.describe(), slots=tuple(slots), warnings=tuple(warnings))


def _document(job: Job, uid: int, slot: datetime) -> SlotDocument:
    assert job.schedule is not None, "only a schedule has slots"
    return SlotDocument(
        slot=slot,
        local=local_time(slot, zone_of(job.schedule)),
        rule=slot_rule(job.schedule, slot),
        starts_at=slot + _jitter(job, uid, slot),
    )


def _jitter(job: Job, uid: int, slot: datetime) -> timedelta:
    # The calendar ends before the last slots could be delayed.
    return min(jitter_of(uid, slot, width=job.jitter), datetime.max.replace(tzinfo=UTC) - slot)


def _check_count(count: int) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= PAGE_LIMIT:
        raise InvalidInput("count", f"must be a whole number from 1 to {PAGE_LIMIT}")
