"""The claim: hands each ready run to exactly one worker, under a lease with a fresh token.

A claim can commit without its answer ever arriving: it is in doubt. It is remembered and read back, so that no run is
leased to a worker that does not know of it.
"""

import asyncio
import uuid
from collections import deque
from dataclasses import dataclass
from typing import Final

from rota.clock import Clock
from rota.domain.attempt import CLAIM_LIMIT, Claim
from rota.errors import CommitUnknown
from rota.store import claims
from rota.store.database import STATEMENT_TIMEOUT, Database, repeat

FULL_SCAN_INTERVAL: Final = 1.0
"""Seconds after which a claim looks at the whole queue again: retries and high priorities come in below the mark."""
DOUBTS: Final = 64
"""The most claims in doubt that are remembered; the oldest goes first, and its leases, should there be any, run out."""

_BOTTOM: Final = -(2**63)


class Dispatch:
    """Claims for one process. A low-water mark on rank keeps its scans off the dead entries of runs already taken."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._marks: dict[tuple[str, frozenset[str]], _Mark] = {}
        self._doubts: deque[_Doubt] = deque(maxlen=DOUBTS)

    async def claim(self, *, worker_id: str, pool: str, handlers: frozenset[str], limit: int) -> list[Claim]:
        """Return at most `limit` runs, best rank first.

        Raises DatabaseUnavailable. What earlier claims of the worker took without an answer, also those that their
        caller cancelled, comes before anything new; its leases are still ours, and may have lapsed meanwhile.
        """
        wanted = min(limit, CLAIM_LIMIT)
        if wanted <= 0 or not handlers:
            return []
        if recovered := await self._read_back(worker_id, wanted):
            return recovered
        tokens = [uuid.uuid4() for _ in range(wanted)]
        mark = self._marks.setdefault((pool, handlers), _Mark())
        low_water = mark.at(self._clock.monotonic())
        try:
            taken, highest = await claims.claim_runs(
                self._database, pool=pool, handlers=sorted(handlers), worker_id=worker_id, tokens=tokens,
                low_water=low_water, now=self._clock.now(),
            )  # fmt: skip
        except (CommitUnknown, asyncio.CancelledError) as error:
            self._doubts.append(_Doubt(worker_id, frozenset(tokens), since=self._clock.monotonic()))
            if isinstance(error, asyncio.CancelledError):
                raise
            return await repeat(lambda: self._read_back(worker_id, wanted), clock=self._clock, tries=8)
        mark.move(highest, short=len(taken) < wanted)
        if not taken and low_water != _BOTTOM:
            # Empty above the mark says nothing about below it.
            return await self.claim(worker_id=worker_id, pool=pool, handlers=handlers, limit=limit)
        return taken

    async def _read_back(self, worker_id: str, limit: int) -> list[Claim]:
        """Return at most `limit` of the runs that the worker's claims in doubt took after all; the rest comes later."""
        asked = [doubt for doubt in self._doubts if doubt.worker_id == worker_id]
        if not asked:
            return []
        asked_at = self._clock.monotonic()
        tokens = [token for doubt in asked for token in doubt.tokens]
        found = await claims.claimed_under(self._database, tokens, worker_id=worker_id)
        given: list[Claim] = []
        # Only what is still in doubt: a call beside this one may have had the same answer.
        for doubt in [doubt for doubt in asked if doubt in self._doubts]:
            leased = [claim for claim in found if claim.key.token in doubt.tokens]
            if not leased and asked_at - doubt.since < STATEMENT_TIMEOUT:
                continue  # it may commit yet
            now_given = leased[: limit - len(given)]
            given += now_given
            doubt.tokens = frozenset(claim.key.token for claim in leased[len(now_given) :])
            if not doubt.tokens:
                self._doubts.remove(doubt)
        return given


@dataclass(slots=True, eq=False)
class _Doubt:
    """A claim that got no answer; an empty look is believed once the server has had STATEMENT_TIMEOUT more for it."""

    worker_id: str
    tokens: frozenset[uuid.UUID]
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
