"""What follows for a job whose runs are buried: after `pause_after` dead letters in a row it is paused."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import structlog

from rota.domain.attempt import LeaseKey
from rota.services.put_plan import pause_facts
from rota.store import audit, jobs
from rota.store.audit import SYSTEM, Change
from rota.store.database import Database
from rota.store.failing import Streak, dead_streaks
from rota.store.jobs import ScheduleRow

ERROR_SHOWN: Final = 200
"""The most characters of the last error that a pause's reason quotes."""

log = structlog.get_logger()


async def pause_failing(database: Database, buried: Sequence[LeaseKey], *, now: datetime) -> list[str]:
    """Pause the jobs of these buried runs whose dead letters in a row are as many as they allow; returns their ids.

    Whoever buries runs says so after that is committed. Said twice it does nothing more; if it is never said, the
    next dead letter finds the same row of them. Raises DatabaseUnavailable.
    """
    if not buried:
        return []
    streaks = await dead_streaks(database, sorted({key.job_uid for key in buried}))
    return [streak.job_id for streak in streaks if await _pause(database, streak, now=now)]


async def _pause(database: Database, streak: Streak, *, now: datetime) -> bool:
    """Pause one job under its row's lock, if it is still to be paused then."""
    async with database.transaction() as tx:
        stored = (await jobs.lock(tx, [streak.job_uid])).get(streak.job_uid)
        # Somebody may have resumed, edited or deleted it, or a run of it may have succeeded.
        again = await dead_streaks(tx, [streak.job_uid])
        if stored is None or not again:
            return False
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
    log.warning("job.paused", job_id=streak.job_id, tenant_id=streak.tenant_id, reason=reason)
    return True


def _reason(streak: Streak) -> str:
    """Return the reason in words; of the last error its first line."""
    counted = f"{streak.dead} dead letter{'s' if streak.dead > 1 else ''} in a row"
    error = next((line.strip() for line in streak.error.splitlines() if line.strip()), "")
    if not error:
        return counted
    return f"{counted}, the last: {error if len(error) <= ERROR_SHOWN else error[: ERROR_SHOWN - 1] + '…'}"
