"""What follows for a job whose runs are buried: after `pause_after` dead letters in a row it is paused."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

import structlog

from rota.domain.attempt import LeaseKey
from rota.errors import DatabaseUnavailable
from rota.services.put_plan import pause_facts
from rota.store import audit, jobs
from rota.store.audit import SYSTEM, Change
from rota.store.database import Database
from rota.store.failing import Streak, dead_streaks, forget_pauses, pauses_wanted, want_pause
from rota.store.jobs import ScheduleRow

PAUSE_BATCH: Final = 20
"""The most jobs that one look comes back to."""

ERROR_SHOWN: Final = 200
"""The most characters of the last error that a pause's reason quotes."""

log = structlog.get_logger()


async def pause_failing(database: Database, buried: Sequence[LeaseKey], *, now: datetime) -> list[str]:
    """Pause the jobs of these buried runs whose dead letters in a row are as many as they allow; returns their ids.

    Whoever buries runs says so after that is committed. Said twice it does nothing more; if it is never said, the
    next dead letter finds the same row of them. Nobody waits for a lock here: a job that somebody else has, such as a
    transaction that has triggered a run of it, is noted for `pause_noted`. Raises DatabaseUnavailable.
    """
    uids = sorted({key.job_uid for key in buried})
    try:
        failing = [streak.job_uid for streak in await dead_streaks(database, uids)] if uids else []
        pauses = [await _pause_alone(database, uid, now=now) for uid in failing]
    except DatabaseUnavailable as error:
        log.warning("jobs.paused_later", jobs=len(uids), error=str(error))
        await want_pause(database, uids, now=now)
        return []
    if locked := [pause.job_uid for pause in pauses if pause.is_locked]:
        await want_pause(database, locked, now=now)
    return [pause.job_id for pause in pauses if pause.job_id is not None]


async def pause_noted(database: Database, shards: Sequence[int], *, now: datetime) -> None:
    """Come back to jobs of these shards that were to be paused while somebody had them locked."""
    noted = await pauses_wanted(database, shards, limit=PAUSE_BATCH)
    if not noted:
        return
    pauses = [await _pause_alone(database, uid, now=now) for uid in noted]
    if done := {pause.job_uid: noted[pause.job_uid] for pause in pauses if not pause.is_locked}:
        await forget_pauses(database, done)
    if locked := [pause.job_uid for pause in pauses if pause.is_locked]:
        await want_pause(database, locked, now=now)


class _Pause(NamedTuple):
    """What became of a pause: the id of the job that is paused, or that somebody else has it locked."""

    job_uid: int
    job_id: str | None = None
    is_locked: bool = False


async def _pause_alone(database: Database, uid: int, *, now: datetime) -> _Pause:
    """Pause one job; whatever is wrong with it, it costs the others nothing. Raises DatabaseUnavailable."""
    try:
        return await _pause(database, uid, now=now)
    except DatabaseUnavailable:
        raise
    except Exception as error:
        log.error("job.not_paused", job_uid=uid, error=repr(error))
        return _Pause(uid)


async def _pause(database: Database, uid: int, *, now: datetime) -> _Pause:
    """Pause one job under its row's lock, if it is free, and if it is still to be paused then."""
    async with database.transaction() as tx:
        stored = await jobs.lock_if_free(tx, uid)
        if stored is None:
            return _Pause(uid, is_locked=True)
        # Somebody may have resumed, edited or deleted it, or a run of it may have succeeded.
        again = await dead_streaks(tx, [uid])
        if not again:
            return _Pause(uid)
        reason = _reason(again[0])
        version = await jobs.set_pause(tx, stored.job_uid, paused_at=now, reason=reason, now=now)
        assert version is not None, "the job's row is locked, so it cannot have gone"
        row = ScheduleRow(
            job_uid=stored.job_uid, next_run_at=None, next_slot=stored.next_slot, version=version,
            since=stored.since or now,
        )  # fmt: skip
        await jobs.write_schedules(tx, [row])
        change = Change(
            tenant_id=stored.tenant_id, action="job.paused", subject=stored.job_id, before=pause_facts(None),
            after=pause_facts(now, reason),
        )  # fmt: skip
        await audit.note(tx, [change], actor=SYSTEM, now=now)
    log.warning("job.paused", job_id=stored.job_id, tenant_id=stored.tenant_id, reason=reason)
    return _Pause(uid, stored.job_id)


def _reason(streak: Streak) -> str:
    """Return the reason in words; of the last error its first line."""
    counted = f"{streak.dead} dead letter{'s' if streak.dead > 1 else ''} in a row"
    error = next((line.strip() for line in streak.error.splitlines() if line.strip()), "")
    if not error:
        return counted
    return f"{counted}, the last: {error if len(error) <= ERROR_SHOWN else error[: ERROR_SHOWN - 1] + '…'}"
