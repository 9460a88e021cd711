"""The claim: hands each ready run to exactly one worker, under a lease with a fresh token.

Tenants take turns, and no run starts past a limit: the statement sees to both. What does not fit is put aside there,
and let back in when there is room; of a rate, this process remembers when that will be.

A claim can commit without its answer ever arriving: it is in doubt. It is remembered and read back, so that no run is
leased to a worker that does not know of it. A claim that its worker named by an id needs no memory of ours: its
tokens are noted in the database, where the same claim finds them again, asked of whichever process.
"""

import asyncio
import os
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import Final
from uuid import UUID
from weakref import WeakValueDictionary

from rota.clock import Clock
from rota.domain.attempt import CLAIM_LIMIT, Claim
from rota.domain.job import LONGEST_LEASE
from rota.errors import CommitUnknown, DatabaseUnavailable
from rota.services.returning import let_in_parked
from rota.services.rounds import Round
from rota.store import claims, parking
from rota.store.claims import BOTTOM, ClaimKey, ClaimRepeated, Refusal
from rota.store.database import STATEMENT_TIMEOUT, Database, repeat

LOOKS: Final = 20
"""The most looks of one claim: runs that have to wait for their limits stand in front of others that need not."""
SCAN_LIMIT: Final = 500
"""The most runs that one look reads."""
DOUBTS: Final = 256
"""The most claims in doubt that are remembered; the oldest goes first, and its leases, should there be any, run out."""
DOUBT_EAGER: Final = 2 * STATEMENT_TIMEOUT
"""Seconds for which each claim of a worker looks at what it has in doubt; later only one in DOUBT_PAUSE does."""
DOUBT_PAUSE: Final = 1.0
ROUNDS: Final = 1000
"""The most rounds that are kept; without one a claim begins with the first tenant and looks at its whole queue."""
AWAITED: Final = 1000
"""The most limits whose next token is remembered; the schedulers look after all of them."""


class Dispatch:
    """Claims for one process, one at a time for each pool and tenant: two at once would scan the same rows."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._rounds: OrderedDict[tuple[str | None, str, frozenset[str]], Round] = OrderedDict()
        self._awaited: dict[tuple[str, str], _Awaited] = {}
        self._turns: WeakValueDictionary[tuple[str | None, str], asyncio.Lock] = WeakValueDictionary()
        self._doubts: deque[_Doubt] = deque(maxlen=DOUBTS)

    async def claim(
        self, *, worker_id: str, pool: str, handlers: frozenset[str], limit: int, tenant_id: str | None = None,
        claim_id: UUID | None = None,
    ) -> list[Claim]:  # fmt: skip
        """Return at most `limit` runs: those of a tenant, best rank first, or those of all, who take turns. It is fewer
        where their payloads are large, as the claim before showed.

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

    def seconds_until_token(self, pool: str) -> float:
        """Return the time until a limit that runs of this pool wait for has its next token, as far as known here."""
        soonest = min((limit.at for (of, _), limit in self._awaited.items() if of == pool), default=None)
        return inf if soonest is None else max(0.001, (soonest - self._clock.now()).total_seconds())

    async def _claim(self, asked: "_Asked") -> list[Claim]:
        """Claim; remember the claim if it stays in doubt."""
        if recovered := await self._read_back(asked):
            return recovered
        taking = _Taking()
        try:
            return await self._take(asked, taking)
        except (CommitUnknown, asyncio.CancelledError) as error:
            # Apart: what is known to be leased proves nothing of the look that got no answer.
            for tokens in ({claim.key.token for claim in taking.claims}, taking.unanswered):
                if tokens:
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
            return await self._take(asked, _Taking(), key)
        except ClaimRepeated:
            return await self._noted(key) or []
        except CommitUnknown:
            if (taken := await self._noted(key)) is None:
                # It may commit yet: who asks again finds out.
                raise
            return taken

    async def _take(self, asked: "_Asked", taking: "_Taking", key: ClaimKey | None = None) -> list[Claim]:
        """Look until there is enough, or nothing more; `taking` knows at any moment what came of it so far."""
        # A token is counted as used from here on: what it takes to let its run in would be lost to the rate.
        now = self._clock.now()
        await self._let_in(asked.pool, now=now)
        round_ = self._round(asked)
        began = self._clock.monotonic()
        if round_.is_resting(began):
            return []
        most = scan = round_.fitting(asked.limit)
        for number in range(LOOKS):
            wanted = most - len(taking.claims)
            tokens = _new_tokens(max(wanted, scan))
            if number > 0:
                now = self._clock.now()
            monotonic = self._clock.monotonic()
            place = round_.place(monotonic, limit=wanted)
            with_limits = round_.has_limited(monotonic)
            taking.unanswered = tokens
            try:
                look = await claims.claim_runs(
                    self._database, pool=asked.pool, handlers=sorted(asked.handlers), worker_id=asked.worker_id,
                    tokens=tokens, limit=wanted, place=place, turns=round_.turns(wanted), now=now, key=key,
                    with_limits=with_limits,
                )  # fmt: skip
                taking.unanswered = []
                taking.claims += look.claims
                round_.move(look, limit=wanted)
                if look.refusals:
                    await self._heed(look.refusals, pool=asked.pool, now=now)
            except CommitUnknown:
                raise
            except DatabaseUnavailable:
                # What was taken before is the worker's: nobody else would ever hear of it.
                if not taking.claims:
                    raise
                break
            if look.has_limited:
                # They are looked at by the statement that reckons with limits, which whoever has none is spared.
                round_.found_limited(monotonic)
            elif look.refusals:
                # Many that have to wait may stand in front: they are put aside by more and more.
                scan = min(SCAN_LIMIT, max(4 * scan, 32))
            elif not look.has_more and place.low_water == BOTTOM:
                if not taking.claims:
                    at = self._clock.monotonic()
                    round_.found_nothing(took=at - began, monotonic=at)
                break
            # What is noted under a claim's id is one look's, the first that takes something.
            if len(taking.claims) >= most or (taking.claims and key is not None):
                break
        return taking.claims

    async def _heed(self, refusals: Sequence[Refusal], *, pool: str, now: datetime) -> None:
        """Do what makes the next look see more: the rows of new limits, and runs that wait though there is room."""
        if met := [limit for limit in refusals if limit.is_new]:
            await parking.open_limits(self._database, met, now=now)
        if stuck := {limit.limit_key: "" for limit in refusals if limit.is_stuck}:
            await let_in_parked(self._database, stuck, now=now)
        for limit in refusals:
            if limit.next_token_at is not None:
                known = self._awaited.get((pool, limit.limit_key))
                self._await(limit.limit_key, pool, limit.next_token_at, after=known.after if known else "")

    async def _let_in(self, pool: str, *, now: datetime) -> None:
        """Let runs in whose limits have tokens about now."""
        keys = [key for (of, key), limit in self._awaited.items() if of == pool and limit.at <= now]
        if not keys:
            return
        afters = {key: self._awaited.pop((pool, key)).after for key in keys}
        for back in await let_in_parked(self._database, afters, now=now):
            if back.next_token_at is not None:
                after = afters[back.limit_key] if back.after is None else back.after
                self._await(back.limit_key, pool, back.next_token_at, after=after)

    def _await(self, limit_key: str, pool: str, at: datetime, *, after: str) -> None:
        if (pool, limit_key) in self._awaited or len(self._awaited) < AWAITED:
            self._awaited[pool, limit_key] = _Awaited(at, after)

    def _round(self, asked: "_Asked") -> Round:
        key = (asked.tenant_id, asked.pool, asked.handlers)
        round_ = self._rounds.setdefault(key, Round(asked.tenant_id))
        self._rounds.move_to_end(key)
        if len(self._rounds) > ROUNDS:
            self._rounds.popitem(last=False)
        return round_

    async def _noted(self, key: ClaimKey) -> list[Claim] | None:
        return await repeat(lambda: claims.claimed_before(self._database, key), clock=self._clock)

    async def _read_back(self, asked: "_Asked") -> list[Claim]:
        """Return at most `limit` of the runs that the worker's claims in doubt took after all; the rest comes later."""
        asked_at = self._clock.monotonic()
        doubts = [doubt for doubt in self._doubts if doubt.worker == asked.worker and doubt.is_due(asked_at)]
        if not doubts:
            return []
        tokens = [token for doubt in doubts for token in doubt.tokens]
        found = await claims.claimed_under(self._database, tokens, worker_id=asked.worker_id)
        given: list[Claim] = []
        # Only what is still in doubt: a call beside this one may have had the same answer.
        for doubt in [doubt for doubt in doubts if doubt in self._doubts]:
            leased = [claim for claim in found if claim.key.token in doubt.tokens]
            doubt.asked_at = asked_at
            if not leased and asked_at - doubt.since < LONGEST_LEASE.total_seconds():
                continue  # it may commit yet
            now_given = leased[: asked.limit - len(given)]
            given += now_given
            doubt.tokens = frozenset(claim.key.token for claim in leased[len(now_given) :])
            if not doubt.tokens:
                self._doubts.remove(doubt)
        return given


def _new_tokens(count: int) -> list[UUID]:
    """Return random UUIDs (version 4), with one question to the system for all of them."""
    chance = os.urandom(16 * count)
    return [UUID(bytes=chance[at : at + 16], version=4) for at in range(0, len(chance), 16)]


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


@dataclass(slots=True)
class _Taking:
    """What a claim has taken so far, and the tokens of a look that has no answer as yet."""

    claims: list[Claim] = field(default_factory=list)
    unanswered: list[UUID] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Doubt:
    """A claim that got no answer.

    The server ends what it waits for, but not a commit: one that waits for a standby may come through at any time. So
    an empty look is believed only when whatever lease the claim could have made has run out.
    """

    worker: tuple[str | None, str]
    tokens: frozenset[UUID]
    since: float
    """When its caller gave it up, on the stopwatch."""
    asked_at: float = -inf
    """When it was last looked at."""

    def is_due(self, now: float) -> bool:
        return now - self.since < DOUBT_EAGER or now - self.asked_at >= DOUBT_PAUSE


@dataclass(frozen=True, slots=True)
class _Awaited:
    """When a limit has its next token, and behind whom the turns for it begin."""

    at: datetime
    after: str
