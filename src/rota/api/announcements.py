"""Which worker processes live: they say so themselves, or by claiming."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import NAMESPACE_URL, UUID, uuid5

from rota.api.recent import Recent
from rota.clock import Clock
from rota.domain.job import check_name
from rota.errors import InvalidInput
from rota.services.fleet import Fleet
from rota.wire.work import AnnounceQuestion, ClaimQuestion

ANNOUNCE_INTERVAL: Final = 5.0
"""Seconds between two announcements of a worker that claims."""
WORKERS_KEPT: Final = 10_000
MADE_OF_NAMES: Final = 5
"""The version of the UUIDs that `instance_of` makes."""


class Announcements:
    """Announces workers, and remembers what they said so that claims do not write every time."""

    def __init__(self, fleet: Fleet, clock: Clock) -> None:
        self._fleet = fleet
        self._clock = clock
        self._known: Recent[tuple[str | None, UUID], _Known] = Recent(WORKERS_KEPT)

    async def by_itself(self, question: AnnounceQuestion, *, tenant_id: str | None) -> bool:
        """Announce a worker that says so. True asks it to drain. Raises InvalidInput, Conflict."""
        _check_instance(question.instance)
        return await self._announce(question, tenant_id=tenant_id)

    async def by_claim(self, question: ClaimQuestion, *, tenant_id: str | None) -> bool:
        """Announce a worker that claims, unless it is known well enough. True: it drains, so it gets nothing.

        Raises InvalidInput, Conflict.
        """
        if question.instance is not None:
            _check_instance(question.instance)
        instance = instance_of(question, tenant_id=tenant_id)
        known = self._known.get((tenant_id, instance))
        said = AnnounceQuestion(
            worker_id=question.worker_id,
            instance=instance,
            pool=question.pool,
            handlers=question.handlers,
            concurrency=question.concurrency or (known.said.concurrency if known else max(1, question.limit)),
        )
        if known is not None and known.said == said and self._clock.monotonic() - known.at < ANNOUNCE_INTERVAL:
            return known.drains
        return await self._announce(said, tenant_id=tenant_id)

    def note_claim(self, question: ClaimQuestion, *, tenant_id: str | None) -> None:
        """Note that a claim of this worker has just succeeded; its next announcement says so."""
        known = self._known.get((tenant_id, instance_of(question, tenant_id=tenant_id)))
        if known is not None:
            known.claimed_at = self._clock.now()

    async def retire(self, instance: UUID, *, tenant_id: str | None) -> None:
        """Forget a worker that leaves."""
        self._known.forget((tenant_id, instance))
        await self._fleet.retire(instance, tenant_id=tenant_id)

    async def _announce(self, said: AnnounceQuestion, *, tenant_id: str | None) -> bool:
        for name, value in (("worker_id", said.worker_id), ("pool", said.pool)):
            check_name(name, value)
        for handler in said.handlers:
            check_name("handlers", handler)
        before = self._known.get((tenant_id, said.instance))
        # A worker that is new here is about to claim: nobody is to take it for one that cannot.
        claimed_at = self._clock.now() if before is None else before.claimed_at
        drains = await self._fleet.announce(
            instance=said.instance, worker_id=said.worker_id, pool=said.pool, handlers=said.handlers,
            concurrency=said.concurrency, tenant_id=tenant_id, last_claim_at=claimed_at, claimed=said.claimed,
        )  # fmt: skip
        # Without the count, of which a claim has no news: what is compared is what changes seldom.
        kept = said.model_copy(update={"claimed": None})
        known = _Known(said=kept, at=self._clock.monotonic(), drains=drains, claimed_at=claimed_at)
        self._known.put((tenant_id, said.instance), known)
        return drains


@dataclass(slots=True, kw_only=True, eq=False)
class _Known:
    """What a worker said last, at an instant of the stopwatch, and when a claim of its last succeeded."""

    said: AnnounceQuestion
    at: float
    drains: bool
    claimed_at: datetime | None


def _check_instance(instance: UUID) -> None:
    """Refuse an instance such as `instance_of` makes of names: whoever guesses a name must not come by its instance."""
    if instance.version == MADE_OF_NAMES:
        raise InvalidInput("instance", "is made of a name", hint="choose a random UUID for every process")


def instance_of(question: ClaimQuestion, *, tenant_id: str | None) -> UUID:
    """Return a claiming worker's instance; without one of its own, its name stands for its process."""
    return question.instance or uuid5(NAMESPACE_URL, f"{tenant_id or ''}\0{question.worker_id}")
