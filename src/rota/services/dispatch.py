"""The claim: hands each ready run to exactly one worker, under a lease with a fresh token.

A claim can commit without its answer ever arriving: it is in doubt. It is remembered and read back, so that no run is
leased to a worker that does not know of it. A claim that its worker named by an id needs no memory of ours: its
tokens are noted in the database, where the same claim finds them again, asked of whichever process.
"""

import asyncio
import uuid
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Final
from uuid import UUID
from weakref import WeakValueDictionary

from rota.clock import Clock
from rota.domain.attempt import CLAIM_LIMIT, Claim
from rota.errors import CommitUnknown
from rota.store import claims
from rota.store.claims import ClaimKey, ClaimRepeated
from rota.store.database import STATEMENT_TIMEOUT, Database, repeat

FULL_SCAN_INTERVAL: Final = 1.0
"""Seconds after which a claim looks at the whole queue again: retries and high priorities come in below the mark."""
DOUBTS: Final = 64
"""The most claims in doubt that are remembered; the oldest goes first, and its leases, should there be any, run out."""
MARKS: Final = 1000
"""The most low-water marks that are kept; without one a claim looks at the whole queue."""

_BOTTOM: Final = -(2**63)


class Dispatch:
    """Claims for one process, one at a time for each pool and tenant: two at once would scan the same rows.

    A low-water mark on rank keeps the scans off the dead entries of runs already taken.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._marks: OrderedDict[tuple[str | None, str, frozenset[str]], _Mark] = OrderedDict()
        self._turns: WeakValueDictionary[tuple[str | None, str], asyncio.Lock] = WeakValueDictionary()
        self._doubts: deque[_Doubt] = deque(maxlen=DOUBTS)

    async def claim(
        self, *, worker_id: str, pool: str, handlers: frozenset[str], limit: int, tenant_id: str | None = None,
        claim_id: UUID | None = None,
    ) -> list[Claim]:  # fmt: skip
        """Return at most `limit` runs, best rank first: those of a tenant, or of all tenants.

        A handler `*` means any but shell commands and HTTP targets, `http` means all HTTP targets. The same `claim_id`
        of the same worker gives what its first call took, as far as it is still leased, whatever else is asked. Raises
        DatabaseUnavailable; with a `claim_id`, ask again. Without one, what earlier claims of the worker took without
        an answer, also those that their caller cancelled, comes before anything new; its leases are still ours, and may
        have lapsed meanwhile.
        """
        asked = _Asked(worker_id, pool, handlers, min(limit, CLAIM_LIMIT), tenant_id)
        if asked.limit <= 0 or not handlers:
            return []
        turn = self._turns.setdefault((tenant_id, pool), asyncio.Lock())
        async with turn:
            if claim_id is None:
                return await self._claim(asked)
            return await self._claim_once(
                asked, ClaimKey(tenant_id=tenant_id or "", worker_id=worker_id, claim_id=claim_id)
            )

    async def _claim(self, asked: "_Asked") -> list[Claim]:
        """Claim; remember the claim if it stays in doubt."""
        if recovered := await self._read_back(asked):
            return recovered
        tokens = [uuid.uuid4() for _ in range(asked.limit)]
        try:
            return await self._take(asked, tokens)
        except (CommitUnknown, asyncio.CancelledError) as error:
            self._doubts.append(_Doubt(asked.worker, frozenset(tokens), since=self._clock.monotonic()))
            if isinstance(error, asyncio.CancelledError):
                raise
            return await repeat(lambda: self._read_back(asked), clock=self._clock, tries=8)

    async def _claim_once(self, asked: "_Asked", key: ClaimKey) -> list[Claim]:
        """Claim, unless this very claim has taken runs before: then give those. Raises CommitUnknown."""
        before = await claims.claimed_before(self._database, key)
        if before is not None:
            return before
        try:
            return await self._take(asked, [uuid.uuid4() for _ in range(asked.limit)], key)
        except ClaimRepeated:
            return await self._noted(key) or []
        except CommitUnknown:
            if (taken := await self._noted(key)) is None:
                # It may commit yet: who asks again finds out.
                raise
            return taken

    async def _take(self, asked: "_Asked", tokens: list[UUID], key: ClaimKey | None = None) -> list[Claim]:
        """Take what stands above the mark, and if that is nothing, what stands below."""
        mark = self._mark(asked)
        while True:
            low_water = mark.at(self._clock.monotonic())
            taken, highest = await claims.claim_runs(
                self._database, pool=asked.pool, handlers=sorted(asked.handlers), worker_id=asked.worker_id,
                tokens=tokens, low_water=low_water, now=self._clock.now(), tenant_id=asked.tenant_id, key=key,
            )  # fmt: skip
            mark.move(highest, short=len(taken) < asked.limit)
            if taken or low_water == _BOTTOM:
                return taken

    def _mark(self, asked: "_Asked") -> "_Mark":
        key = (asked.tenant_id, asked.pool, asked.handlers)
        mark = self._marks.setdefault(key, _Mark())
        self._marks.move_to_end(key)
        if len(self._marks) > MARKS:
            self._marks.popitem(last=False)
        return mark

    async def _noted(self, key: ClaimKey) -> list[Claim] | None:
        return await repeat(lambda: claims.claimed_before(self._database, key), clock=self._clock)

    async def _read_back(self, asked: "_Asked") -> list[Claim]:
        """Return at most `limit` of the runs that the worker's claims in doubt took after all; the rest comes later."""
        doubts = [doubt for doubt in self._doubts if doubt.worker == asked.worker]
        if not doubts:
            return []
        asked_at = self._clock.monotonic()
        tokens = [token for doubt in doubts for token in doubt.tokens]
        found = await claims.claimed_under(self._database, tokens, worker_id=asked.worker_id)
        given: list[Claim] = []
        # Only what is still in doubt: a call beside this one may have had the same answer.
        for doubt in [doubt for doubt in doubts if doubt in self._doubts]:
            leased = [claim for claim in found if claim.key.token in doubt.tokens]
            if not leased and asked_at - doubt.since < STATEMENT_TIMEOUT:
                continue  # it may commit yet
            now_given = leased[: asked.limit - len(given)]
            given += now_given
            doubt.tokens = frozenset(claim.key.token for claim in leased[len(now_given) :])
            if not doubt.tokens:
                self._doubts.remove(doubt)
        return given


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a claim asks for."""

    worker_id: str
    pool: str
    handlers: frozenset[str]
    limit: int
    tenant_id: str | None

    @property
    def worker(self) -> tuple[str | None, str]:
        """Two tenants may call their workers alike."""
        return (self.tenant_id, self.worker_id)


@dataclass(slots=True, eq=False)
class _Doubt:
    """A claim that got no answer; an empty look is believed once the server has had STATEMENT_TIMEOUT more for it."""

    worker: tuple[str | None, str]
    tokens: frozenset[UUID]
    since: float
    """When its caller gave it up, on the stopwatch."""


class _Mark:
    """The highest rank taken so far, and when the whole queue was last looked at."""

    def __init__(self) -> None:
        self._rank = _BOTTOM
        self._full_scan_at = float("-inf")

    def at(self, monotonic: float) -> int:
        """Return the rank to scan from now."""
        if self._rank == _BOTTOM or monotonic - self._full_scan_at >= FULL_SCAN_INTERVAL:
            self._rank, self._full_scan_at = _BOTTOM, monotonic
        return self._rank

    def move(self, highest: int | None, *, short: bool) -> None:
        """Take note of a scan: a short one saw the end of the queue, so the next starts from the bottom."""
        self._rank = _BOTTOM if short or highest is None else max(self._rank, highest)
