"""What people read: runs with their attempts, dead letters, the slot ledger. Nothing here changes anything."""

from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from rota.clock import Clock
from rota.domain.ids import job_uid, slot_of
from rota.domain.run import RunState
from rota.errors import InvalidInput, NotFound
from rota.store import runs, workers
from rota.store.database import Database
from rota.store.runs import AttemptView, DeadLetter, RunView, SkippedView, SlotKey
from rota.store.workers import LiveWorker

PAGE: Final = 1000
ATTEMPTS_SHOWN: Final = 100
_FOREVER: Final = datetime.max.replace(tzinfo=UTC)


class History:
    """Reads for the command line and, later, the API."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def run(self, run_id: UUID) -> tuple[RunView, list[AttemptView]]:
        """Return a run with its ended attempts. Raises NotFound, InvalidInput."""
        key = SlotKey(*slot_of(run_id))
        view = await runs.get(self._database, key)
        if view is None:
            raise NotFound(f"there is no run {run_id}", hint="`rota run list` shows recent runs")
        return view, await runs.attempts(self._database, key, limit=ATTEMPTS_SHOWN)

    async def runs(
        self, *, tenant_id: str, job_id: str | None = None, state: str = "", within: timedelta = timedelta(days=1),
        limit: int = 50,
    ) -> list[RunView]:  # fmt: skip
        """Return runs, newest slots first: all of a job, or those that the tenant's jobs made within a time."""
        if state and state not in set(RunState):
            raise InvalidInput("state", f"{state!r} is not a state", hint=f"use one of {', '.join(RunState)}")
        bounded = min(limit, PAGE)
        if job_id is not None:
            uid = job_uid(tenant_id, job_id)
            return await runs.of_job(self._database, uid, before=_FOREVER, state=state, limit=bounded)
        since = self._clock.now() - within
        return await runs.recent(self._database, tenant_id=tenant_id, since=since, state=state, limit=bounded)

    async def dead_letters(self, *, tenant_id: str, job_id: str = "", limit: int = 50) -> list[DeadLetter]:
        """Return dead letters, latest first."""
        return await runs.dead_letters(self._database, tenant_id=tenant_id, job_id=job_id, limit=min(limit, PAGE))

    async def skipped(self, job_id: str, *, tenant_id: str, limit: int = 50) -> list[SkippedView]:
        """Return a job's slots that made no run, latest first."""
        return await runs.skipped(self._database, job_uid(tenant_id, job_id), limit=min(limit, PAGE))

    async def workers(self) -> list[LiveWorker]:
        """Return every live worker."""
        return await workers.live(self._database, now=self._clock.now())
