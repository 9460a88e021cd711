"""The claim and attempt stages: taking runs under leases, renewing those, and the one way a lease ends."""

import json
from collections.abc import Callable, Container, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar
from uuid import UUID

import orjson

from rota.domain.attempt import Claim, Ended, LeaseKey, Outcome, Verdict
from rota.domain.retry import RetryPolicy
from rota.domain.run import RunState
from rota.errors import InvalidInput
from rota.store.database import Database, Lane
from rota.store.statements import claims as sql

ASKS: Final = 4
"""How often a token is asked for before it counts as lost; each miss of a good one takes another's write just then."""

T = TypeVar("T")


async def claim_runs(
    database: Database, *, pool: str, handlers: Sequence[str], worker_id: str, tokens: Sequence[UUID],
    low_water: int, now: datetime,
) -> tuple[list[Claim], int | None]:  # fmt: skip
    """Lease at most len(tokens) runs; returns them, best first, and the highest rank among them."""
    rows = await database.fetch(
        sql.claim_runs, pool=pool, handlers=handlers, worker_id=worker_id, tokens=tokens, low_water=low_water,
        limit=len(tokens), now=now,
    )  # fmt: skip
    assert len(rows) <= len(tokens), "a claim gives at most what was asked for"
    return [_claim(row, now, now + timedelta(milliseconds=row["lease_ms"])) for row in rows], (
        rows[-1]["rank"] if rows else None
    )


async def claimed_under(database: Database, tokens: Sequence[UUID], *, worker_id: str) -> list[Claim]:
    """Return what an in-doubt claim took, if it did."""
    rows = await database.fetch(sql.claimed_under, tokens=tokens, worker_id=worker_id)
    return [_claim(row, row["claimed_at"], row["expires_at"]) for row in rows]


async def renew(database: Database, keys: Sequence[LeaseKey], *, now: datetime) -> dict[UUID, datetime]:
    """Extend these leases; returns token -> expiry of those that are still held."""
    renewed: dict[UUID, datetime] = {}
    for asked in _asked(keys, renewed, token=lambda key: key.token):
        rows = await database.fetch(sql.renew_leases, lane=Lane.URGENT, now=now, **_columns(asked))
        renewed |= {row["token"]: row["expires_at"] for row in rows}
    return renewed


async def facts(
    database: Database, keys: Sequence[LeaseKey], *, told: dict[UUID, tuple[Outcome, str | None, timedelta | None]]
) -> list[Ended]:
    """Return what a decision needs on those of these attempts that are still leased."""
    rows = await database.fetch(sql.leases_with_jobs, lane=Lane.URGENT, **_columns(keys))
    return [_ended(row, *told[row["token"]]) for row in rows]


async def expired(
    database: Database, shards: Sequence[int], *, now: datetime, resumed_at: datetime, limit: int, error: str
) -> list[Ended]:
    """Return lapsed leases of these shards as lost attempts, at most `limit`.

    A lease counts as lapsed only when its holder has also had one lease's time since `resumed_at`, the end of the last
    outage, to renew it.
    """
    rows = await database.fetch(
        sql.expired_leases, lane=Lane.URGENT, shards=shards, now=now, resumed_at=resumed_at, limit=limit
    )
    return [_ended(row, Outcome.LOST, error, None) for row in rows]


async def settle(
    database: Database, verdicts: Sequence[Verdict], *, now: datetime, expired_by: datetime | None = None
) -> frozenset[UUID]:
    """Write the verdicts down; returns the tokens that were still ours. The others have lost their lease."""
    settled: set[UUID] = set()
    # Rows are locked in the order of their ctids, whatever the order here, so two batches that overlap lock alike.
    for asked in _asked(verdicts, settled, token=lambda verdict: verdict.key.token):
        rows = await database.fetch(
            sql.settle_attempts, lane=Lane.URGENT, now=now, expired_by=expired_by,
            outcomes=[verdict.outcome for verdict in asked], errors=[verdict.error for verdict in asked],
            states=[verdict.state for verdict in asked], charged=[verdict.charged for verdict in asked],
            available_ats=[verdict.available_at for verdict in asked], ranks=[verdict.rank for verdict in asked],
            gates=[verdict.gate for verdict in asked], **_columns([verdict.key for verdict in asked]),
        )  # fmt: skip
        settled |= {row["token"] for row in rows}
    waiting = [
        verdict.key for verdict in verdicts if verdict.state is RunState.PENDING and verdict.key.token in settled
    ]
    if waiting:
        keys = _columns(waiting)
        del keys["tokens"]
        await database.fetch(sql.cancel_orphans, lane=Lane.URGENT, now=now, **keys)
    return frozenset(settled)


async def recorded(database: Database, keys: Sequence[LeaseKey]) -> dict[UUID, Outcome]:
    """Return how these attempts ended, those of them that did."""
    if not keys:
        return {}
    rows = await database.fetch(sql.recorded_outcomes, lane=Lane.URGENT, **_columns(keys))
    return {row["token"]: Outcome(row["outcome"]) for row in rows}


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


def _claim(row: Any, claimed_at: datetime, expires_at: datetime) -> Claim:
    return Claim(
        key=_key(row), tenant_id=row["tenant_id"] or "", job_id=row["job_id"] or "", handler=row["handler"] or "",
        payload=json.loads(row["payload"]) if row["payload"] else {}, attempt=row["attempt"],
        max_attempts=row["max_attempts"], claimed_at=claimed_at, expires_at=expires_at,
        lease_duration=timedelta(milliseconds=row["lease_ms"]), timeout=timedelta(milliseconds=row["timeout_ms"]),
    )  # fmt: skip


def _ended(row: Any, outcome: Outcome, error: str | None, retry_after: timedelta | None) -> Ended:
    return Ended(
        key=_key(row), outcome=outcome, error=error, retry_after=retry_after, attempt=row["attempt"],
        claimed_at=row["claimed_at"], max_attempts=row["max_attempts"] or 1,
        retry=_retry(row["retry"]),
        priority=row["priority"], pool=row["pool"] or "", orphaned=row["orphaned"],
    )  # fmt: skip


def _retry(text: str | None) -> RetryPolicy:
    """Return a stored policy; the default one in place of a damaged one, which must not stop the others."""
    try:
        return RetryPolicy() if text is None else RetryPolicy.from_json(orjson.loads(text))
    except InvalidInput:
        return RetryPolicy()
