"""The claim: hands each ready run to exactly one worker, under a lease with a fresh token."""

import uuid
from collections.abc import Sequence
from typing import Final

from rota.clock import Clock
from rota.domain.attempt import Claim
from rota.errors import CommitUnknown
from rota.store import claims
from rota.store.database import Database, repeat

CLAIM_LIMIT: Final = 500
"""The most runs that one claim gives."""
FULL_SCAN_INTERVAL: Final = 1.0
"""Seconds after which a claim looks at the whole queue again: retries and high priorities come in below the mark."""

_BOTTOM: Final = -(2**63)


class Dispatch:
    """Claims for one process. A low-water mark on rank keeps its scans off the dead entries of runs already taken."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._marks: dict[tuple[str, frozenset[str]], _Mark] = {}

    async def claim(self, *, worker_id: str, pool: str, handlers: frozenset[str], limit: int) -> list[Claim]:
        """Return at most `limit` runs, best rank first.

        Raises DatabaseUnavailable. A claim whose commit is in doubt is read back by its tokens, so nothing is leased
        to a worker that does not know of it.
        """
        wanted = min(limit, CLAIM_LIMIT)
        if wanted <= 0 or not handlers:
            return []
        tokens = [uuid.uuid4() for _ in range(wanted)]
        mark = self._marks.setdefault((pool, handlers), _Mark())
        low_water = mark.at(self._clock.monotonic())
        try:
            taken, highest = await claims.claim_runs(
                self._database, pool=pool, handlers=sorted(handlers), worker_id=worker_id, tokens=tokens,
                low_water=low_water, now=self._clock.now(),
            )  # fmt: skip
        except CommitUnknown:
            return await self._read_back(tokens, worker_id=worker_id)
        mark.move(highest, short=len(taken) < wanted)
        if not taken and low_water != _BOTTOM:
            # Empty above the mark says nothing about below it.
            return await self.claim(worker_id=worker_id, pool=pool, handlers=handlers, limit=limit)
        return taken

    async def _read_back(self, tokens: Sequence[uuid.UUID], *, worker_id: str) -> list[Claim]:
        async def read() -> list[Claim]:
            return await claims.claimed_under(self._database, tokens, worker_id=worker_id)

        return await repeat(read, clock=self._clock, tries=8)


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
