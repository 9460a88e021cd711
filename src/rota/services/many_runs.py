"""Many runs that are asked for in one call, of one job or of several: one statement, and an outcome for each.

What could not be kept, a job that is not there and a pool that refuses end the whole call before anything is made. What
others do at the same moment, a key that stands for another request or a slot that has a run, is told of its item alone.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final
from uuid import UUID

import structlog

from rota.clock import Clock
from rota.domain.ids import slot_of
from rota.domain.job import JobName
from rota.errors import CommitUnknown, InvalidInput, NotFound, RotaError
from rota.services.hints import SCHEDULES, Hints, pool_topic
from rota.services.patience import Patience
from rota.services.quota import Quotas, check_size
from rota.services.run_request import Question, check_reach, unknown_job
from rota.services.shedding import Shedding
from rota.store import jobs, requests
from rota.store.access import TenantView
from rota.store.database import Database, Lane, repeat
from rota.store.jobs import StoredJob
from rota.store.partitions import through_attach
from rota.store.requests import KeyedRun, RunMade, RunOutcome, RunWanted

MANY_LIMIT: Final = 1000
"""The most runs of one call."""
LOOKS: Final = 5
"""How often a run that may start at any free instant is tried anew when somebody took its instant just then."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRun:
    """One of the runs that are asked for: now, or at a slot of the caller's; a payload of None is the job's own."""

    job_id: str
    scheduled_for: datetime | None = None
    payload: Mapping[str, Any] | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyMade:
    """What one of them came to. `run_id` is the run that was made, now or before, or that stands in the way."""

    job_id: str
    run_id: UUID
    scheduled_for: datetime
    outcome: RunOutcome


class ManyRuns:
    """Makes them."""

    def __init__(self, database: Database, clock: Clock, hints: Hints, *, quotas: Quotas, shedding: Shedding) -> None:
        self._database = database.on(Lane.CALLS)
        self._clock = clock
        self._hints = hints
        self._quotas = quotas
        self._shedding = shedding
        self._patience = Patience()

    async def request(self, asked: Sequence[AskedRun], *, tenant_id: str, actor: str) -> list[ManyMade]:
        """Make runs, from 1 to MANY_LIMIT, and say of each in order what it came to. One audit entry for each job.

        The same request under the same key gives the same run, for a day at least, alone or among many.

        Raises NotFound, InvalidInput and TooLarge, which name the item, and Shed while a pool is too deep with runs of
        this tenant: nothing is made then. But where every item has a key and was made before, it is told again.
        """
        now = self._clock.now()
        if not 1 <= len(asked) <= MANY_LIMIT:
            raise InvalidInput("items", f"has {len(asked)} of them", hint=f"give from 1 to {MANY_LIMIT} in one call")
        quotas = await self._quotas.of(tenant_id)
        # A thousand large payloads take a tenth of a second, which nobody else of this process waits for.
        questions = await asyncio.to_thread(_checked, asked, tenant_id=tenant_id, quotas=quotas, now=now)
        names = {one.job_id: JobName(tenant_id, one.job_id) for one in asked}
        found = await jobs.find_all(self._database, list(names.values()))
        stored = {job_id: found[name] for job_id, name in names.items() if name in found}
        if refusal := await self._refusal(asked, stored, tenant_id=tenant_id):
            if before := await self._made_before(questions):
                return before
            raise refusal
        wanted = [
            RunWanted(
                job_uid=stored[question.job_id].job_uid, slot=question.slot, payload=question.payload, key=question.key
            )
            for question in questions
        ]  # fmt: skip
        # Whoever asks again under the same keys waits beside the database for whoever asked first.
        turn = None if (key := questions[0].key) is None else (tenant_id, key)
        try:
            made = await self._make(wanted, turn=turn, actor=actor, now=now)
        except CommitUnknown:
            # The keys tell, if all are there. If not, the caller asks again and finds out.
            before = await repeat(partial(self._made_before, questions, created_at=now), clock=self._clock)
            if before is None:
                raise
            return before
        if made is None:
            # Which of them is gone meanwhile is told to whoever asks again.
            raise NotFound("one of the jobs is deleted at this very moment, and nothing was made", hint="ask again")
        self._tell(wanted, made, stored, now=now)
        created = sum(one.outcome == "created" for one in made)
        log.info("runs.triggered", tenant_id=tenant_id, asked=len(made), created=created, jobs=len(names), actor=actor)
        return [
            ManyMade(job_id=one.job_id, run_id=run.run_id, scheduled_for=run.scheduled_for, outcome=run.outcome)
            for one, run in zip(asked, made, strict=True)
        ]

    async def _refusal(
        self, asked: Sequence[AskedRun], stored: Mapping[str, StoredJob], *, tenant_id: str
    ) -> RotaError | None:
        """Return why nothing is made: a job is not there or cannot be read, or its pool is too deep. None: it is."""
        for number, one in enumerate(asked):
            if (found := stored.get(one.job_id)) is None:
                return unknown_job(one.job_id, place=f"items[{number}]: ")
            if found.job is None:
                return NotFound(
                    f"items[{number}]: job {one.job_id!r} cannot be read: {found.problem}", hint="put it again"
                )
        for pool in dict.fromkeys(job.job.pool for job in stored.values() if job.job is not None):
            if refusal := await self._shedding.refusal(pool, tenant_id=tenant_id):
                return refusal
        return None

    async def _make(
        self, wanted: Sequence[RunWanted], *, turn: tuple[str, str] | None, actor: str, now: datetime
    ) -> list[RunMade] | None:
        """Make them; those that may start at any instant are tried anew at others. None: a job is deleted."""
        made = await self._make_once(wanted, turn=turn, actor=actor, now=now)
        if made is None:
            return None
        for _ in range(LOOKS - 1):
            left = [n for n, one in enumerate(made) if one.outcome == "taken" and wanted[n].slot is None]
            if not left:
                break
            again = await self._make_once([wanted[n] for n in left], turn=turn, actor=actor, now=now)
            if again is None:
                break
            for n, one in zip(left, again, strict=True):
                made[n] = one
        return made

    async def _make_once(
        self, wanted: Sequence[RunWanted], *, turn: tuple[str, str] | None, actor: str, now: datetime
    ) -> list[RunMade] | None:
        make = partial(requests.make_many, self._database, wanted, actor=actor, now=now)
        return await self._patience.ask(
            lambda: through_attach(make), what="one of these jobs, keys or slots", turn=turn
        )  # fmt: skip

    async def _made_before(
        self, questions: Sequence[Question], *, created_at: datetime | None = None
    ) -> list[ManyMade] | None:
        """Return what the keys stand for, if each of the questions has a key that stands for a run.

        Those that were made at `created_at` are the caller's own.
        """
        keyed = [one for question in questions if (one := question.keyed) is not None]
        if len(keyed) < len(questions):
            return None
        found = await requests.find_keys(self._database, keyed)
        if len(found) < len(questions):
            return None
        return [
            _told(question.job_id, found[number], created_at=created_at) for number, question in enumerate(questions)
        ]

    def _tell(
        self, wanted: Sequence[RunWanted], made: Sequence[RunMade], stored: Mapping[str, StoredJob], *, now: datetime
    ) -> None:
        pools = {job.job_uid: job.job.pool for job in stored.values() if job.job is not None}
        topics = {
            SCHEDULES if one.slot is not None and one.slot > now else pool_topic(pools[one.job_uid])
            for one, run in zip(wanted, made, strict=True)
            if run.outcome == "created"
        }
        for topic in topics:
            self._hints.publish(topic)


def _checked(asked: Sequence[AskedRun], *, tenant_id: str, quotas: TenantView | None, now: datetime) -> list[Question]:
    """Return what is asked for. Raises InvalidInput and TooLarge, which name the item."""
    questions = []
    for number, one in enumerate(asked):
        try:
            question = Question.checked(
                tenant_id=tenant_id, job_id=one.job_id, scheduled_for=one.scheduled_for, payload=one.payload,
                key=one.idempotency_key, key_field="idempotency_key",
            )  # fmt: skip
            if question.slot is not None:
                check_reach(question.slot, now=now)
            if one.payload is not None:
                check_size(one.payload, quotas)
        except InvalidInput as error:
            raise error.at(f"items[{number}]") from None
        questions.append(question)
    return questions


def _told(job_id: str, found: KeyedRun, *, created_at: datetime | None) -> ManyMade:
    outcome: RunOutcome = "reused"
    if found.is_same:
        outcome = "created" if found.created_at == created_at else "repeated"
    return ManyMade(
        job_id=job_id, run_id=found.run_id, scheduled_for=slot_of(found.run_id)[1], outcome=outcome
    )  # fmt: skip
