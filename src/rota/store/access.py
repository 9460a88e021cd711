"""People and tenants as rows: tokens, quotas and the keys that sign."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rota.store.database import Connection, Database, Lane
from rota.store.statements import access as sql


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenView:
    """A token as people read it; of its secret only a hash is kept, and that stays in the store."""

    token_id: str
    tenant_id: str
    name: str
    scopes: tuple[str, ...]
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    parent_id: str | None = None
    depth: int = 1
    """How many tokens it comes from, itself included; known where it is read alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantView:
    """A tenant's quotas, None for the installation's own, and its weight: its share of a pool beside others'."""

    tenant_id: str
    max_jobs: int | None
    max_payload_bytes: int | None
    calls_per_second: float | None
    weight: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class SigningKeys:
    """The key that signs, and the one before it with the instant up to which it signs too."""

    secret: str
    former: str | None
    former_until: datetime | None


async def has_tokens(database: Database, *, now: datetime) -> bool:
    """Whether anybody has a token that still holds."""
    [row] = await database.fetch(sql.has_tokens, now=now)
    return bool(row["found"])


async def add_token(tx: Connection, token: TokenView, *, secret_hash: bytes, most: int) -> bool:
    """Keep a new token; False when its tenant has `most` that hold."""
    await tx.fetch(sql.lock_tokens_of, tenant_id=token.tenant_id)
    rows = await tx.fetch(
        sql.add_token, token_id=token.token_id, tenant_id=token.tenant_id, name=token.name, scopes=token.scopes,
        secret_hash=secret_hash, now=token.created_at, created_by=token.created_by, expires_at=token.expires_at,
        parent_id=token.parent_id, most=most,
    )  # fmt: skip
    return bool(rows)


async def forget_tokens(tx: Connection, tenant_id: str, *, before: datetime, limit: int) -> int:
    """Forget some of a tenant's tokens that ended before an instant; returns how many."""
    return len(await tx.fetch(sql.forget_tokens, tenant_id=tenant_id, before=before, limit=limit))


async def token(database: Database, token_id: str, *, lane: Lane = Lane.WORK) -> tuple[TokenView, bytes] | None:
    """Return a token with its secret's hash, whether it holds or not; None when it is unknown.

    It ends when the first of those ends that it comes from.
    """
    rows = await database.fetch(sql.get_token, lane=lane, token_id=token_id)
    if not rows:
        return None
    values = dict(rows[0])
    secret_hash: bytes = values.pop("secret_hash")
    return _token(values), secret_hash


async def tokens(database: Database, tenant_id: str, *, before: tuple[datetime, str], limit: int) -> list[TokenView]:
    """Return a tenant's tokens, latest first, revoked and expired ones too, before a place in this list."""
    at, token_id = before
    rows = await database.fetch(sql.list_tokens, tenant_id=tenant_id, before=at, before_id=token_id, limit=limit)
    return [_token(row) for row in rows]


async def revoke(tx: Connection, token_id: str, *, tenant_id: str, now: datetime) -> list[TokenView]:
    """Revoke a tenant's token and all that it made; returns them, none if it was revoked before."""
    return [_token(row) for row in await tx.fetch(sql.revoke_token, token_id=token_id, tenant_id=tenant_id, now=now)]


async def note_used(database: Database, token_ids: Sequence[str], *, now: datetime, before: datetime) -> int:
    """Note that tokens were used, where that was not noted since `before`; returns how many were."""
    return len(await database.fetch(sql.note_used, token_ids=token_ids, now=now, before=before))


async def ensure_tenant(where: Connection | Database, tenant_id: str, *, signing_secret: str, now: datetime) -> bool:
    """Make a tenant's row with this key; False when it is there already, with a key of its own."""
    return bool(await where.fetch(sql.ensure_tenant, tenant_id=tenant_id, signing_secret=signing_secret, now=now))


async def lock_tenant(tx: Connection, tenant_id: str) -> TenantView | None:
    """Return a tenant's quotas, locked until the transaction ends."""
    rows = await tx.fetch(sql.lock_tenant, tenant_id=tenant_id)
    return TenantView(**dict(rows[0])) if rows else None


async def set_quotas(
    tx: Connection, tenant_id: str, *, max_jobs: int | None, max_payload_bytes: int | None,
    calls_per_second: float | None, weight: int, now: datetime,
) -> TenantView:  # fmt: skip
    """Set the quotas of a tenant whose row is locked."""
    [row] = await tx.fetch(
        sql.set_quotas, tenant_id=tenant_id, max_jobs=max_jobs, max_payload_bytes=max_payload_bytes,
        calls_per_second=calls_per_second, weight=weight, now=now,
    )  # fmt: skip
    return TenantView(**dict(row))


async def tenant(database: Database, tenant_id: str) -> TenantView | None:
    """Return a tenant's quotas; None when it has no row."""
    rows = await database.fetch(sql.get_tenant, lane=Lane.URGENT, tenant_id=tenant_id)
    return TenantView(**dict(rows[0])) if rows else None


async def tenants(database: Database, *, limit: int) -> list[TenantView]:
    """Return the tenants that have a row, by name."""
    return [TenantView(**dict(row)) for row in await database.fetch(sql.list_tenants, limit=limit)]


async def signing_keys(database: Database, tenant_id: str) -> SigningKeys | None:
    """Return the keys that sign calls of a tenant's HTTP targets; None when it has none yet."""
    rows = await database.fetch(sql.get_signing_secret, tenant_id=tenant_id)
    return SigningKeys(*rows[0]) if rows else None


async def rotate_signing_secret(
    tx: Connection, tenant_id: str, *, secret: str, until: datetime | None, now: datetime
) -> SigningKeys:
    """Give a tenant that has a row another key, beside which the one before signs until an instant."""
    [row] = await tx.fetch(sql.rotate_signing_secret, tenant_id=tenant_id, secret=secret, until=until, now=now)
    return SigningKeys(*row)


async def lock_job_quotas(tx: Connection, tenant_ids: Sequence[str]) -> list[tuple[str, int]]:
    """Return (tenant, most jobs) of those with such a quota, locked until the transaction ends."""
    rows = await tx.fetch(sql.lock_job_quotas, tenant_ids=tenant_ids)
    return [(row["tenant_id"], row["max_jobs"]) for row in rows]


def _token(row: Any) -> TokenView:
    return TokenView(**{**dict(row), "scopes": tuple(row["scopes"])})
