"""The claim and attempt stages: taking runs under leases, renewing those, and the one way a lease ends."""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, TypeVar
from uuid import UUID

import asyncpg

from rota.domain.attempt import ANY_HANDLER, Claim, Ended, Lease, LeaseKey, Outcome, Verdict
from rota.domain.json_value import stored_json
from rota.domain.progress import Progress
from rota.domain.retry import RetryPolicy
from rota.domain.run import RunState
from rota.errors import InvalidInput
from rota.store.database import Database, Lane
from rota.store.statements import claims as sql

ASKS: Final = 2
"""How often a token is asked for before it is only looked whether its lease is there as yet."""

BOTTOM: Final = -(2**63)
"""The rank from which a look sees everything."""

NO_NEWS: Final[Mapping[UUID, Progress]] = {}

T = TypeVar("T")


class ClaimRepeated(Exception):
    """A call of the same claim was first: what it took is to be read back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimKey:
    """A claim that can be asked for again, as its worker names it; `tenant_id` is empty for workers of all tenants."""

    tenant_id: str
    worker_id: str
    claim_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where in the round of tenants a claim begins: behind `after`, or with him while he is `owed` runs.

    His runs are looked at from rank `low_water` on. `alone`: nobody else's are.
    """

    after: str = ""
    owed: int = 0
    low_water: int = BOTTOM
    alone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A limit that let some runs not go.

    `is_new`: its rows are to be made. `is_stuck`: it has room for runs that wait for it. `next_token_at`: when its rate
    allows the next one.
    """

    limit_key: str
    is_new: bool
    is_stuck: bool
    permits: int | None
    burst: int | None
    next_token_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a claim took, in the order of the turns, what it was refused, and where the round goes on.

    `highest` is the last one's highest rank. `has_more`: there may be more than a short claim took. `has_limited`: runs
    under limits stood in front, and were left where they are. `characters` is the length of all payloads.
    """

    claims: list[Claim]
    after: str
    owed: int
    highest: int | None
    has_more: bool
    refusals: Sequence[Refusal] = ()
    has_limited: bool = False
    characters: int = 0


_CLAIMED: Final = itemgetter(
    "shard", "job_uid", "scheduled_for", "token", "tenant_id", "job_id", "handler", "payload", "attempt",
    "max_attempts", "claimed_at", "lease_ms", "timeout_ms", "losses", "available_at",
)  # fmt: skip

_REFUSAL: Final = tuple(spec.name for spec in fields(Refusal))


async def claim_runs(
    database: Database, *, pool: str, handlers: Sequence[str], worker_id: str, tokens: Sequence[UUID], limit: int,
    place: Place, turns: int, now: datetime, key: ClaimKey | None = None, with_limits: bool = True,
) -> Taken:  # fmt: skip
    """Lease at most `limit` runs, of at most `turns` tenants, after a look at no more runs than there are tokens.

    Those under limits are left alone unless asked for `with_limits`. A key is noted with the tokens if there were runs.
    Raises ClaimRepeated, and takes nothing, if it was noted before.
    """
    values: dict[str, Any] = {
        "pool": pool, "handlers": handlers, "any_handler": ANY_HANDLER in handlers, "worker_id": worker_id,
        "tokens": tokens, "scan": len(tokens), "limit": limit, "turns": turns, "now": now, "after": place.after,
        "owed": place.owed, "low_water": place.low_water, "alone": place.alone,
        "claim_tenant_id": None if key is None else key.tenant_id, "claim_id": None if key is None else key.claim_id,
    }  # fmt: skip
    try:
        rows = await database.fetch(sql.claim_limited if with_limits else sql.claim_runs, **values)
    except asyncpg.UniqueViolationError as error:
        if error.constraint_name != "claim_pkey":
            raise
        raise ClaimRepeated from error
    # The runs come first, then where the round ended, then the limits that refused some.
    count = next(number for number, row in enumerate(rows) if row["token"] is None)
    assert count <= limit, "a claim gives at most what was asked for"
    runs, end, refusals = rows[:count], rows[count], rows[count + 1 :]
    # Whoever was cut off goes on where he was; a short claim saw the end of all who had a turn.
    last = runs[-1] if count == limit else None
    return Taken(
        claims=[_claim(row, now + _milliseconds(row["lease_ms"])) for row in runs],
        refusals=[Refusal(**{name: row[name] for name in _REFUSAL}) for row in refusals],
        after=(last or end)["queued_by"],
        owed=0 if last is None else -last["number"] % last["weight"],
        highest=None if last is None else last["rank"],
        has_more=end["has_more"],
        has_limited=not with_limits and end["has_limited"],
        characters=sum(len(row["payload"] or "") for row in runs),
    )


async def claimed_before(database: Database, key: ClaimKey) -> list[Claim] | None:
    """Return what an earlier call of this claim took and still holds; None if there was none that took runs."""
    rows = await database.fetch(
        sql.tokens_of_claim, claim_tenant_id=key.tenant_id, worker_id=key.worker_id, claim_id=key.claim_id
    )
    return await claimed_under(database, rows[0]["tokens"], worker_id=key.worker_id) if rows else None


async def forget_claims(database: Database, *, before: datetime, limit: int) -> int:
    """Forget claims made up to an instant, at most `limit`; returns how many."""
    return len(await database.fetch(sql.forget_claims, before=before, limit=limit))


async def claimed_under(database: Database, tokens: Sequence[UUID], *, worker_id: str) -> list[Claim]:
    """Return what a claim took under these tokens, if anything, and still holds."""
    rows = await database.fetch(sql.claimed_under, tokens=tokens, worker_id=worker_id)
    return [_claim(row, row["expires_at"]) for row in rows]


async def jobs_of_tenant(database: Database, keys: Sequence[LeaseKey], *, tenant_id: str) -> frozenset[int]:
    """Return the jobs of these leases that are a tenant's, deleted ones too."""
    rows = await database.fetch(
        sql.jobs_of_tenant, lane=Lane.URGENT, shards=[key.shard for key in keys],
        job_uids=[key.job_uid for key in keys], tenant_id=tenant_id,
    )  # fmt: skip
    return frozenset(row["job_uid"] for row in rows)


async def renew(
    database: Database, keys: Sequence[LeaseKey], *, now: datetime, progress: Mapping[UUID, Progress] = NO_NEWS
) -> dict[UUID, Lease]:
    """Extend these leases, and note the progress of some; returns token -> lease of those that are still held.

    One that another transaction has locked is held, and keeps its expiry and progress until a later renewal.
    """
    renewed: dict[UUID, Lease] = {}
    # Most have no news, and cost no more than their renewal.
    for asked in _asked([key for key in keys if key.token not in progress], renewed, token=lambda key: key.token):
        renewed |= _leases(await database.fetch(sql.renew_leases, lane=Lane.URGENT, now=now, **_columns(asked)))
    for asked in _asked([key for key in keys if key.token in progress], renewed, token=lambda key: key.token):
        said = [progress[key.token] for key in asked]
        news: dict[str, Any] = {"values": [each.value for each in said], "notes": [each.note for each in said]}
        renewed |= _leases(
            await database.fetch(sql.renew_with_progress, lane=Lane.URGENT, now=now, **news, **_columns(asked))
        )
    return renewed | await held(database, [key for key in keys if key.token not in renewed])


def _leases(rows: Sequence[Any]) -> dict[UUID, Lease]:
    return {row["token"]: Lease(expires_at=row["expires_at"], cancel=row["cancel"]) for row in rows}


async def note_progress(database: Database, key: LeaseKey, said: Progress) -> bool:
    """Note how far a run is; False when its lease is gone. Of one that is locked nothing is noted, until later."""
    rows = await database.fetch(
        sql.note_progress, lane=Lane.URGENT, shard=key.shard, job_uid=key.job_uid, scheduled_for=key.scheduled_for,
        token=key.token, progress=said.value, note=said.note,
    )  # fmt: skip
    return bool(rows) or bool(await held(database, [key]))


async def held(database: Database, keys: Sequence[LeaseKey]) -> dict[UUID, Lease]:
    """Return token -> lease of those of these that are there, whoever has them locked."""
    return _leases(await database.fetch(sql.held_leases, lane=Lane.URGENT, **_columns(keys))) if keys else {}


async def facts(
    database: Database, keys: Sequence[LeaseKey], *, told: dict[UUID, tuple[Outcome, str | None, timedelta | None]],
    took_worker: Container[UUID] = frozenset(),
) -> list[Ended]:  # fmt: skip
    """Return what a decision needs on those of these attempts that are still leased."""
    rows = await database.fetch(sql.leases_with_jobs, lane=Lane.URGENT, **_columns(keys))
    return [_ended(row, *told[row["token"]], took_worker=row["token"] in took_worker) for row in rows]


async def expired(
    database: Database, shards: Sequence[int], *, now: datetime, resumed_at: datetime, limit: int, error: str,
    aside: Sequence[int] = (),
) -> list[Ended]:  # fmt: skip
    """Return lapsed leases of these shards as lost attempts, at most `limit`; those of the jobs `aside` are left out.

    A lease counts as lapsed only when its holder has also had one lease's time since `resumed_at`, the end of the last
    outage, to renew it.
    """
    rows = await database.fetch(
        sql.expired_leases, lane=Lane.URGENT, shards=shards, now=now, resumed_at=resumed_at, limit=limit, aside=aside
    )
    return [_ended(row, Outcome.LOST, error, None) for row in rows]


async def hold(database: Database, key: LeaseKey, *, reason: str, now: datetime, until: datetime) -> bool:
    """Leave a lapsed lease alone until an instant, with the reason on it; False when it is not there, or not lapsed."""
    rows = await database.fetch(
        sql.hold_lease, lane=Lane.URGENT, shard=key.shard, job_uid=key.job_uid, scheduled_for=key.scheduled_for,
        token=key.token, reason=reason, now=now, until=until,
    )  # fmt: skip
    return bool(rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """How attempts were ended: token -> state of the run, and which limits that others wait for are freer now.

    `awaited` tells with each limit whose run let it go. `locked` are leases that are there, and that another
    transaction holds, or their job: to be asked for again.
    """

    states: dict[UUID, RunState]
    awaited: dict[str, str]
    locked: frozenset[UUID] = frozenset()


async def settle(
    database: Database, verdicts: Sequence[Verdict], *, now: datetime, expired_by: datetime | None = None
) -> Settled:
    """Write the verdicts down; the answer has the state, as written, of those that were still ours.

    The others have lost their lease, or are `locked`. With `expired_by` only leases that lapsed by then are ended. A
    run that somebody wants cancelled is cancelled in place of waiting again or being buried, and one whose job is
    deleted in place of waiting again.
    """
    settled: dict[UUID, RunState] = {}
    awaited: dict[str, str] = {}
    # Rows are locked in the order of their ctids, whatever the order here, so two batches that overlap lock alike.
    for asked in _asked(verdicts, settled, token=lambda verdict: verdict.key.token):
        values: dict[str, Any] = {
            "now": now, "outcomes": [verdict.outcome for verdict in asked],
            "errors": [verdict.error for verdict in asked], "states": [verdict.state for verdict in asked],
            "charged": [verdict.charged for verdict in asked],
            "losses": [verdict.losses for verdict in asked],
            "available_ats": [verdict.available_at for verdict in asked],
            "reasons": [verdict.reason for verdict in asked], "gates": [verdict.gate for verdict in asked],
            "results": [verdict.result for verdict in asked],
            **_columns([verdict.key for verdict in asked]),
        }  # fmt: skip
        if expired_by is None:
            rows = await database.fetch(sql.settle_attempts, lane=Lane.URGENT, **values)
        else:
            rows = await database.fetch(sql.reap_attempts, lane=Lane.URGENT, expired_by=expired_by, **values)
        settled |= {row["token"]: RunState(row["state"]) for row in rows}
        awaited |= {key: row["tenant_id"] or "" for row in rows for key in row["awaited"] or ()}
    missing = [verdict.key for verdict in verdicts if verdict.key.token not in settled]
    locked = await held(database, missing) if expired_by is None else {}
    return Settled(states=settled, awaited=awaited, locked=frozenset(locked))


async def recorded(database: Database, keys: Sequence[LeaseKey]) -> dict[UUID, tuple[Outcome, RunState]]:
    """Return how these attempts ended, those of them that did, and where their runs stand now."""
    if not keys:
        return {}
    rows = await database.fetch(sql.recorded_outcomes, lane=Lane.URGENT, **_columns(keys))
    return {row["token"]: (Outcome(row["outcome"]), RunState(row["state"])) for row in rows}


def _asked(items: Sequence[T], found: Container[UUID], *, token: Callable[[T], UUID]) -> Iterator[list[T]]:
    """Yield all items, then again those whose token the caller has not `found`, at most ASKS times in all.

    A row that another transaction updates between a statement's snapshot and its lock is locked but no longer found
    under its old ctid, so it comes back missing although the token is good; a new snapshot sees it.
    """
    missing = list(items)
    for _ in range(ASKS):
        if not missing:
            return
        yield missing
        missing = [item for item in missing if token(item) not in found]


def _columns(keys: Sequence[LeaseKey]) -> dict[str, Any]:
    return {
        "shards": [key.shard for key in keys],
        "job_uids": [key.job_uid for key in keys],
        "slots": [key.scheduled_for for key in keys],
        "tokens": [key.token for key in keys],
    }


def _key(row: Any) -> LeaseKey:
    return LeaseKey(row["shard"], row["job_uid"], row["scheduled_for"], row["token"])


def _payload(text: str | None) -> dict[str, Any]:
    # Not orjson: a payload may hold numbers of any length. What is damaged must not cost the others of a claim theirs.
    payload = stored_json(text) if text and text != "{}" else {}
    return payload if isinstance(payload, dict) else {"damaged payload": payload}


def _claim(row: Any, expires_at: datetime) -> Claim:
    (
        shard, job_uid, scheduled_for, token, tenant_id, job_id, handler, payload, attempt, max_attempts, claimed_at,
        lease_ms, timeout_ms, losses, available_at,
    ) = _CLAIMED(row)  # fmt: skip
    return Claim(
        key=LeaseKey(shard, job_uid, scheduled_for, token), tenant_id=tenant_id or "", job_id=job_id or "",
        handler=handler or "", payload=_payload(payload), attempt=attempt, max_attempts=max_attempts,
        claimed_at=claimed_at, expires_at=expires_at, lease_duration=_milliseconds(lease_ms),
        timeout=_milliseconds(timeout_ms), losses=losses, available_at=available_at,
    )  # fmt: skip


@lru_cache(1024)
def _milliseconds(count: int) -> timedelta:
    return timedelta(milliseconds=count)


def _ended(
    row: Any, outcome: Outcome, error: str | None, retry_after: timedelta | None, took_worker: bool = False
) -> Ended:  # fmt: skip
    return Ended(
        key=_key(row), outcome=outcome, error=error, retry_after=retry_after, attempt=row["attempt"],
        available_at=row["available_at"], losses=row["losses"], max_attempts=row["max_attempts"] or 1,
        max_losses=row["max_losses"] or 1, retry=_retry(row["retry"]), pool=row["pool"] or "", orphaned=row["orphaned"],
        took_worker=took_worker,
    )  # fmt: skip


def _retry(text: str | None) -> RetryPolicy:
    """Return a stored policy; the default one in place of a damaged one, which must not stop the others."""
    try:
        return RetryPolicy() if text is None else RetryPolicy.from_json(stored_json(text))
    except InvalidInput:
        return RetryPolicy()
