"""A request for a run as `services.on_demand` carries it out: what is wanted, checked, and what is answered."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self
from uuid import UUID

from rota.domain.idempotency import check_key
from rota.domain.ids import run_id, slot_of, to_milliseconds
from rota.domain.instants import format_instant
from rota.domain.job import NAME_LIMIT, Job, check_payload, check_text
from rota.domain.run import Gate
from rota.domain.schedule import may_name
from rota.errors import InvalidInput, KeyReused, NotFound
from rota.store import requests
from rota.store.database import Connection, Database
from rota.store.requests import KeyedRequest, KeyedRun, SlotKey

REACH: Final = timedelta(days=7305)
"""How far from now a slot may lie."""
NOW_SLOTS: Final = 50
"""How many slots a run that is wanted now tries: others of its job may have been wanted at the same instant."""
NOW_NEAR: Final = 4
"""How many of them are the very next milliseconds; the others lie anywhere within NOW_SPREAD."""
NOW_SPREAD: Final = 1000
"""Milliseconds. Callers who all took the next free slot would meet at it again, and wait for each other each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requested:
    """The run that was asked for. `created` is False when an earlier request with the same key made it."""

    run_id: UUID
    scheduled_for: datetime
    created: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a caller asks for, checked. `payload` is JSON. Raises InvalidInput, TooLarge."""

    tenant_id: str
    job_id: str
    slot: datetime | None
    payload: str | None
    key: str | None

    @classmethod
    def checked(
        cls, *, tenant_id: str, job_id: str, scheduled_for: datetime | None, payload: Mapping[str, Any] | None,
        key: str | None, key_field: str = "Idempotency-Key",
    ) -> Self:  # fmt: skip
        check_text("job_id", job_id, limit=NAME_LIMIT)
        if key is not None:
            check_key(key, field=key_field)
        return cls(
            tenant_id=tenant_id,
            job_id=job_id,
            slot=None if scheduled_for is None else slot_in_utc(scheduled_for),
            payload=None if payload is None else check_payload(payload),
            key=key,
        )

    @property
    def keyed(self) -> KeyedRequest | None:
        """The request as its key stands for it; None without a key."""
        if self.key is None:
            return None
        return KeyedRequest(
            tenant_id=self.tenant_id, key=self.key, job_id=self.job_id, scheduled_for=self.slot, payload=self.payload
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A request for a run of a job that is there. `next_slot` is the first that its schedule has not made yet."""

    question: Question
    job: Job
    job_uid: int
    next_slot: datetime | None
    actor: str
    now: datetime
    seed: float = field(default_factory=random.random)

    @property
    def slots(self) -> Sequence[datetime]:
        """The slots to try: "now" is any that is free at this instant, so two callers in one millisecond get two.

        None of them is a slot that the job's schedule is still to make: that is the scheduler's.
        """
        if self.question.slot is not None:
            return [self.question.slot]
        whole = self.now.replace(microsecond=self.now.microsecond // 1000 * 1000)
        far = random.Random(self.seed).sample(range(NOW_NEAR, NOW_SPREAD), NOW_SLOTS - NOW_NEAR)
        near = [whole + timedelta(milliseconds=later) for later in (*range(NOW_NEAR), *far)]
        return [slot for slot in near if not self._is_to_come(slot)]

    def _is_to_come(self, slot: datetime) -> bool:
        return self.next_slot is not None and slot >= self.next_slot and may_name(self.job.schedule, slot)

    def available_at(self, slot: datetime) -> datetime:
        return self.now if self.question.slot is None else max(slot, self.now)

    def waits(self, slot: datetime) -> bool:
        """Tell whether the run's time is still to come."""
        return self.available_at(slot) > self.now

    def run_id(self, slot: datetime) -> UUID:
        return run_id(self.job_uid, slot)

    async def make(self, connection: Database | Connection, slot: datetime) -> str | None:
        """Make the run at one of the slots; returns its pool, or None when the slot is taken or the job is deleted."""
        facts = {"job_id": self.job.job_id, "scheduled_for": format_instant(slot)}
        if self.question.key is not None:
            facts["idempotency_key"] = self.question.key
        return await requests.trigger(
            connection,
            SlotKey(self.job_uid, slot),
            payload=self.question.payload,
            available_at=self.available_at(slot),
            gate=Gate.TIME if self.waits(slot) else Gate.OPEN,
            actor=self.actor,
            facts=json.dumps(facts),
            now=self.now,
        )


def check_reach(slot: datetime, *, now: datetime) -> None:
    """Refuse a slot that lies too far from now."""
    if abs(slot - now) > REACH:
        raise InvalidInput("scheduled_for", f"{format_instant(slot)} lies more than twenty years from now")


def slot_in_utc(scheduled_for: datetime) -> datetime:
    """Return a slot of the caller's in UTC, whose months are those of the partitions."""
    to_milliseconds(scheduled_for)
    try:
        return scheduled_for.astimezone(UTC)
    except OverflowError:
        raise InvalidInput("scheduled_for", "lies after the year 9999") from None


def answer(found: KeyedRun, keyed: KeyedRequest, *, created: bool) -> Requested:
    if not found.is_same:
        raise KeyReused(
            f"the Idempotency-Key {keyed.key!r} stands for another request, which made run {found.run_id}",
            hint="use a new key for a new request",
        )
    return Requested(run_id=found.run_id, scheduled_for=slot_of(found.run_id)[1], created=created)


def unknown_job(job_id: str, *, place: str = "") -> NotFound:
    return NotFound(f"{place}there is no job {job_id!r}", hint="`rota job list` shows the jobs of this tenant")
