"""What people read: runs with their attempts, dead letters, the slot ledger. Nothing here changes anything."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from rota.clock import Clock
from rota.domain.ids import slot_of
from rota.domain.job import JobName
from rota.domain.run import RunState
from rota.domain.run_filter import RunFilter
from rota.errors import InvalidCursor, InvalidInput, NotFound
from rota.services.turns import TURN_WAIT, Turns
from rota.store import jobs, runs, workers
from rota.store.database import Database, Lane
from rota.store.runs import AttemptView, DeadLetter, Place, RunView, SkippedCount, SkippedOfJob, SkippedView, SlotKey
from rota.store.workers import LiveWorker

PAGE: Final = 1000
"""The most entries of a list; `find` gives one more, which tells its caller that the list goes on."""
ATTEMPTS_SHOWN: Final = 100
"""The most attempts that a run is shown with: the last ones."""
GENERATIONS_SHOWN: Final = 20
"""Of so many jobs that had one id, one after the other, the runs are listed by it; the latest ones."""
RECENT: Final = timedelta(days=1)
"""How far back a list of runs goes that names no beginning."""

SKIP_REASONS: Final = ("misfire", "overlap", "start_deadline", "paused")

_INSTANT: Final = timedelta(microseconds=1)
_EVER: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FOREVER: Final = datetime.max.replace(tzinfo=UTC)
_NEWEST: Final = Place(_FOREVER, 0)


class History:
    """Reads for the command line and the API. Runs of other tenants than the one that is named do not exist."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._wide = database.on(Lane.READS)
        self._clock = clock
        self._turns = Turns(patience=TURN_WAIT)

    async def run(self, run_id: UUID, *, tenant_id: str | None = None) -> tuple[RunView, list[AttemptView]]:
        """Return a run with its ended attempts, oldest first. Raises NotFound, InvalidInput."""
        key = SlotKey(*slot_of(run_id))
        view = await runs.get(self._database, key, tenant_id=tenant_id)
        if view is None:
            raise NotFound(f"there is no run {run_id}", hint="`rota run list` shows recent runs")
        return view, await runs.attempts(self._database, key, limit=ATTEMPTS_SHOWN)

    async def find(
        self, where: RunFilter, *, tenant_id: str, before: tuple[datetime, UUID] | None = None, limit: int = 50,
        whole: bool = False,
    ) -> list[RunView]:  # fmt: skip
        """Return runs, newest first by (scheduled_for, run_id), at most PAGE + 1, from strictly `before` a place on.

        Without `since` they are those made within the last day of the window; all of them, if a job or dead letters are
        asked for. Payloads and results are left out, and errors cut, unless the runs are read `whole`. Raises
        InvalidCursor for a place that is no run's.
        """
        place = _NEWEST if before is None else _place(before)
        async with self._turns.of(tenant_id):
            return await self._find(where, tenant_id=tenant_id, place=place, limit=limit, whole=whole)

    async def _find(self, where: RunFilter, *, tenant_id: str, place: Place, limit: int, whole: bool) -> list[RunView]:
        bounded = max(0, min(limit, PAGE + 1))
        window: dict[str, Any] = {"since": where.since or _EVER, "until": where.until or _FOREVER}
        asked: dict[str, Any] = {"tenant_id": tenant_id, "limit": bounded, "whole": whole}
        if where.state == RunState.DEAD:
            return await runs.dead(self._wide, where, before=place, **asked, **window)
        if where.job_id:
            found: list[RunView] = []
            for uid in await self._generations(where.job_id, tenant_id):
                # Of a job there is one run at a slot, and it lies before the place if its job's number does.
                slot = place.scheduled_for + _INSTANT if uid < place.job_uid else place.scheduled_for
                found += await runs.of_job(self._wide, uid, where, before=slot, **asked, **window)
            return sorted(found, key=_newest_first)[:bounded]
        if where.since is None:
            window["since"] = min(self._clock.now(), window["until"]) - RECENT
        return await runs.recent(self._wide, where, before=place, **asked, **window)

    async def runs(
        self, *, tenant_id: str, job_id: str | None = None, state: str = "", within: timedelta = RECENT, limit: int = 50
    ) -> list[RunView]:
        """Return whole runs, newest slots first: all of a job, or those that the tenant's jobs made within a time."""
        where = RunFilter(job_id=job_id or "", state=state)
        if job_id is None:
            where = replace(where, since=self._clock.now() - within)
        return await self.find(where, tenant_id=tenant_id, limit=min(limit, PAGE), whole=True)

    async def dead_letters(self, *, tenant_id: str, job_id: str = "", limit: int = 50) -> list[DeadLetter]:
        """Return dead letters, latest first."""
        return await runs.dead_letters(self._wide, tenant_id=tenant_id, job_id=job_id, limit=min(limit, PAGE))

    async def skipped(self, job_id: str, *, tenant_id: str, limit: int = 50) -> list[SkippedView]:
        """Return a job's slots that made no run, latest first."""
        found: list[SkippedView] = []
        for uid in await self._generations(job_id, tenant_id):
            found += await runs.skipped(self._wide, uid, limit=min(limit, PAGE))
        return sorted(found, key=lambda entry: entry.first_slot, reverse=True)[: min(limit, PAGE)]

    async def skipped_of_all(
        self, *, tenant_id: str, reason: str = "", since: datetime | None = None, until: datetime | None = None,
        before: tuple[datetime, UUID] | None = None, limit: int = 50,
    ) -> list[SkippedOfJob]:  # fmt: skip
        """Return a tenant's slots that made no run, latest entries first, at most PAGE + 1.

        Without `since` they are those of the last day of the window. `before` is the place after an entry: when it was
        made, and the id that a run of its first slot would have. Raises InvalidInput, InvalidCursor.
        """
        if reason not in ("", *SKIP_REASONS):
            raise InvalidInput("reason", f"{reason!r} is no reason", hint=f"use one of {', '.join(SKIP_REASONS)}")
        end = until or _FOREVER
        start = since or min(self._clock.now(), end) - RECENT
        place = (_FOREVER, 0, _FOREVER)
        if before is not None:
            try:
                place = (before[0], *slot_of(before[1]))
            except InvalidInput:
                raise InvalidCursor("cursor", "names no slot", hint="begin without a cursor") from None
        async with self._turns.of(tenant_id):
            return await runs.skipped_of_all(
                self._database, tenant_id=tenant_id, reason=reason, since=start, until=end, before=place,
                limit=max(0, min(limit, PAGE + 1)),
            )  # fmt: skip

    async def skipped_counts(self, *, since: datetime, until: datetime) -> list[SkippedCount]:
        """Return how many slots of all tenants made no run, by reason; they were noted within a window."""
        return await runs.skipped_counts(self._database, since=since, until=until)

    async def workers(self) -> list[LiveWorker]:
        """Return every live worker."""
        return await workers.live(self._database, now=self._clock.now())

    async def _generations(self, job_id: str, tenant_id: str) -> list[int]:
        """Return the numbers of all jobs that had an id: whoever asks by the id asks for the history of them all."""
        return await jobs.generations(self._wide, JobName(tenant_id, job_id), limit=GENERATIONS_SHOWN)


def _newest_first(run: RunView) -> int:
    # A run's id begins with its slot, and ends with its job's number.
    return -run.run_id.int


def _place(before: tuple[datetime, UUID]) -> Place:
    scheduled_for, run_id = before
    try:
        uid, slot = slot_of(run_id)
    except InvalidInput:
        raise InvalidCursor("cursor", "names no run", hint="begin without a cursor") from None
    if slot != scheduled_for:
        raise InvalidCursor("cursor", "names a run and a slot that is not its", hint="begin without a cursor")
    return Place(slot, uid)
