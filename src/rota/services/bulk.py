"""Many at once: jobs that a filter means are paused, resumed, deleted or triggered, runs are cancelled.

Each job is a transaction of its own: one that another transaction holds, or that refuses, keeps no other. A call is
bounded in number and in time, and says where to go on.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from rota.clock import Clock
from rota.domain.job import NAME_LIMIT, check_text, check_whole
from rota.domain.run import RunState
from rota.domain.run_filter import RunFilter
from rota.errors import Conflict, InvalidInput, Locked, NotFound, QuotaExceeded, TooManyCalls
from rota.services.definitions import Definitions, Missed, StoredJob
from rota.services.hints import CANCELS, Hints
from rota.services.on_demand import OnDemand
from rota.services.patience import Patience
from rota.services.turns import TURN_WAIT, Turns
from rota.store import bulk as store
from rota.store import jobs as stored_jobs
from rota.store.audit import SYSTEM
from rota.store.database import Database, Lane
from rota.store.jobs import JobFilter
from rota.store.requests import SlotKey

BULK_LIMIT: Final = 1000
"""The most jobs or runs of one call."""
BULK_TIME: Final = 5.0
"""Seconds after which a call does no more: who asks goes on where it ended."""
COUNT_LIMIT: Final = 10_000
"""The most that are counted before anything is done."""
COUNT_PAGE: Final = 1000

CANCELLABLE: Final = frozenset({"", RunState.PENDING, RunState.RUNNING, RunState.BLOCKED})

_EVER: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FOREVER: Final = datetime.max.replace(tzinfo=UTC)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A job that was left as it is, and why."""

    job_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkDone:
    """What a call did. `matched` of a filter's jobs were looked at, and `done` of those are changed.

    The others were so already, or are in `left`. `after` is the id to go on after; None: there are no more.
    """

    matched: int
    done: int
    left: tuple[Left, ...]
    after: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How many a filter means, counted up to COUNT_LIMIT."""

    matched: int
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelledMany:
    """How many runs ended, and of how many the workers are told; `more`: ask again for the others."""

    cancelled: int
    asked: int
    more: bool


class Bulk:
    """Many jobs or runs of one tenant."""

    def __init__(
        self, database: Database, clock: Clock, hints: Hints, *, definitions: Definitions, on_demand: OnDemand
    ) -> None:
        self._database = database.on(Lane.CALLS)
        self._wide = database.on(Lane.READS)
        self._clock = clock
        self._hints = hints
        self._definitions = definitions
        self._on_demand = on_demand
        self._turns = Turns(patience=TURN_WAIT)
        self._patience = Patience()

    async def count(self, where: JobFilter, *, tenant_id: str) -> Count:
        """Return how many jobs a filter means."""
        matched, after = 0, ""
        async with self._turns.of(tenant_id):
            while matched <= COUNT_LIMIT:
                page = await stored_jobs.page(
                    self._wide, tenant_id=tenant_id, where=where, after=after, limit=COUNT_PAGE
                )
                matched += len(page)
                if len(page) < COUNT_PAGE:
                    break
                after = page[-1].job_id
        return Count(matched=min(matched, COUNT_LIMIT), more=matched > COUNT_LIMIT)

    async def pause(
        self, where: JobFilter, *, tenant_id: str, reason: str, resume_at: datetime | None = None,
        missed: Missed = "policy", after: str = "", limit: int = 100, actor: str = SYSTEM,
    ) -> BulkDone:  # fmt: skip
        """Pause jobs; one that is paused keeps its own pause. Raises InvalidInput."""

        async def pause(job: StoredJob) -> bool:
            if job.paused_at is not None:
                return False
            await self._definitions.pause(
                job.job_id, tenant_id=tenant_id, reason=reason, resume_at=resume_at, missed=missed, actor=actor
            )  # fmt: skip
            return True

        return await self._each(where, pause, tenant_id=tenant_id, after=after, limit=limit)

    async def resume(
        self, where: JobFilter, *, tenant_id: str, missed: Missed = "policy", pause_reason: str = "", after: str = "",
        limit: int = 100, actor: str = SYSTEM,
    ) -> BulkDone:  # fmt: skip
        """Resume paused jobs; with a `pause_reason` only those that were paused for just that. Raises InvalidInput."""

        async def resume(job: StoredJob) -> bool:
            if job.paused_at is None or pause_reason not in ("", job.pause_reason):
                return False
            await self._definitions.resume(job.job_id, tenant_id=tenant_id, missed=missed, actor=actor)
            return True

        return await self._each(where, resume, tenant_id=tenant_id, after=after, limit=limit)

    async def delete(
        self, where: JobFilter, *, tenant_id: str, after: str = "", limit: int = 100, actor: str = SYSTEM
    ) -> BulkDone:
        """Delete jobs, and cancel their waiting runs."""

        async def delete(job: StoredJob) -> bool:
            await self._definitions.delete(job.job_id, tenant_id=tenant_id, actor=actor)
            return True

        return await self._each(where, delete, tenant_id=tenant_id, after=after, limit=limit)

    async def trigger(
        self, where: JobFilter, *, tenant_id: str, payload: Mapping[str, Any] | None = None,
        scheduled_for: datetime | None = None, after: str = "", limit: int = 100, actor: str = SYSTEM,
    ) -> BulkDone:  # fmt: skip
        """Make one run of each job, now or at one slot; a job that has a run there is left."""

        async def trigger(job: StoredJob) -> bool:
            await self._on_demand.request(
                job.job_id, tenant_id=tenant_id, payload=payload, scheduled_for=scheduled_for, actor=actor
            )
            return True

        return await self._each(where, trigger, tenant_id=tenant_id, after=after, limit=limit)

    async def count_runs(self, where: RunFilter, *, tenant_id: str) -> Count:
        """Return how many runs `cancel` would end. Raises InvalidInput."""
        found = len(await self._live(where, tenant_id=tenant_id, limit=COUNT_LIMIT + 1))
        return Count(matched=min(found, COUNT_LIMIT), more=found > COUNT_LIMIT)

    async def cancel(
        self, where: RunFilter, *, tenant_id: str, limit: int = BULK_LIMIT, actor: str = SYSTEM
    ) -> CancelledMany:
        """Cancel runs that wait, at once, and ask the workers of those that run; one audit entry. Raises InvalidInput.

        `more` tells that the limit was reached, or that runs were on the move; asked again, it goes on with those.
        Raises Locked where nothing could be done, since other transactions hold all of them.
        """
        check_whole("limit", limit, 1, BULK_LIMIT)
        facts = filter_facts(where)

        async def once() -> CancelledMany:
            keys = await self._live(where, tenant_id=tenant_id, limit=limit)
            if not keys:
                return CancelledMany(cancelled=0, asked=0, more=False)
            done = await store.cancel(
                self._database, keys, tenant_id=tenant_id, actor=actor, reason=f"cancelled by {actor}",
                subject=_subject(facts), facts={"filter": facts}, now=self._clock.now(),
            )  # fmt: skip
            changed = done.cancelled + done.asked
            if not changed:
                raise Locked("other transactions hold all of these runs")
            more = len(keys) == limit or changed < len(keys)
            return CancelledMany(cancelled=done.cancelled, asked=done.asked, more=more)

        done = await self._patience.ask(once, what="each of these runs")
        if done.asked:
            self._hints.publish(CANCELS)
        log.info("runs.cancelled", tenant_id=tenant_id, cancelled=done.cancelled, asked=done.asked, actor=actor)
        return done

    async def _live(self, where: RunFilter, *, tenant_id: str, limit: int) -> list[SlotKey]:
        if where.state not in CANCELLABLE:
            raise InvalidInput("state", f"runs that are {where.state} have ended", hint="name pending or running")
        async with self._turns.of(tenant_id):
            return await store.matching_live(
                self._wide, where, tenant_id=tenant_id, since=where.since or _EVER,
                until=where.until or _FOREVER, limit=limit,
            )  # fmt: skip

    async def _each(
        self, where: JobFilter, act: Callable[[StoredJob], Awaitable[bool]], *, tenant_id: str, after: str, limit: int
    ) -> BulkDone:
        """Do it to one page of jobs, for BULK_TIME at most."""
        check_whole("limit", limit, 1, BULK_LIMIT)
        check_text("after", after, limit=NAME_LIMIT)
        page = await stored_jobs.page(self._wide, tenant_id=tenant_id, where=where, after=after, limit=limit)
        began = self._clock.monotonic()
        left: list[Left] = []
        matched = done = 0
        for job in page:
            matched += 1
            try:
                done += await act(job)
            except NotFound:
                pass  # deleted meanwhile
            except (Locked, Conflict, QuotaExceeded, TooManyCalls) as error:
                left.append(Left(job_id=job.job_id, reason=str(error)))
            if self._clock.monotonic() - began > BULK_TIME:
                break
        is_last = matched == len(page) < limit
        return BulkDone(
            matched=matched, done=done, left=tuple(left), after=None if is_last else page[matched - 1].job_id
        )


def filter_facts(where: RunFilter) -> dict[str, str]:
    """Return what a filter asks for, as the audit log keeps it."""
    values = {name: getattr(where, name) for name in where.__slots__}
    return {name: value if isinstance(value, str) else str(value) for name, value in values.items() if value}


def _subject(facts: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in facts.items())[:1000] or "all runs"
