"""Limits as rows: what people put, and how much of it is taken at this moment."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from rota.domain.limit import Limit, LimitKind
from rota.store.database import Connection, Database
from rota.store.statements import limits as sql

WAITING_SHOWN: Final = 100_000
"""The most waiting runs that are counted of a limit."""
ROWS_SEEN: Final = 1_000_000
"""The most rows that are looked at where no index leads to those that are meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitView:
    """A limit with its use as its tenant sees it; `tenant_id` `*`: the operator's.

    `in_use` counts permits that are held, None without permits; runs that ran already when the limit was put hold none.
    `waiting` counts runs of the tenant that asked, the operator's of all, up to WAITING_SHOWN. `tokens` are left now,
    None without a rate.
    """

    tenant_id: str
    name: str
    kind: LimitKind
    rate: float | None
    burst: int | None
    permits: int | None
    version: int
    created_at: datetime
    updated_at: datetime
    in_use: int | None
    waiting: int
    tokens: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLimit:
    """A limit as it stands, and its version."""

    limit: Limit
    version: int


async def lock(tx: Connection, *, tenant_id: str, name: str) -> StoredLimit | None:
    """Return a tenant's own limit, locked until the transaction ends."""
    rows = await tx.fetch(sql.lock_limit, tenant_id=tenant_id, name=name)
    if not rows:
        return None
    row = rows[0]
    known = ("tenant_id", "name", "kind", "rate", "burst", "permits")
    return StoredLimit(limit=Limit(**{column: row[column] for column in known}), version=row["version"])


async def count(tx: Connection, tenant_id: str, *, most: int) -> int:
    """Return how many limits a tenant has of its own, at most `most`."""
    [row] = await tx.fetch(sql.count_limits, tenant_id=tenant_id, most=most)
    return int(row["limits"])


async def add(tx: Connection, limit: Limit, *, now: datetime) -> int | None:
    """Make a limit and return its version; None when there is one of this name."""
    rows = await tx.fetch(sql.add_limit, **_columns(limit), kind=limit.kind, now=now)
    return rows[0]["version"] if rows else None


async def change(tx: Connection, limit: Limit, *, version: int, now: datetime) -> int | None:
    """Give a limit of this version other numbers; returns its new version, None when it has another or is gone."""
    rows = await tx.fetch(sql.change_limit, **_columns(limit), version=version, now=now)
    return rows[0]["version"] if rows else None


async def delete(tx: Connection, *, tenant_id: str, name: str, version: int) -> bool:
    """Delete a limit of this version; False when it has another or is gone."""
    return bool(await tx.fetch(sql.delete_limit, tenant_id=tenant_id, name=name, version=version))


async def views(database: Database, tenant_id: str, *, name: str | None = None, now: datetime) -> list[LimitView]:
    """Return the limits that a tenant's runs may be under, by name: its own first, then the operator's that apply.

    With a `name`, those of that name. For the operator, use is that of all tenants.
    """
    rows = await database.fetch(sql.list_limits, tenant_id=tenant_id, name=name, now=now, most=WAITING_SHOWN)
    return [await _of_all(database, row, now=now) if _is_in_parts(tenant_id, row) else _view(row) for row in rows]


async def forget_use(database: Database, limit: Limit, *, batch: int) -> bool:
    """Delete a batch of what a deleted limit leaves behind, but permits in use; False when there may be more."""
    if limit.kind == "tenant" and limit.tenant_id == "*":
        gone = (
            await database.fetch(sql.forget_instances, name=limit.name, above=0, limit=batch),
            await database.fetch(sql.forget_buckets, name=limit.name, limit=batch),
        )
    else:
        key = str(limit.key)
        gone = (
            await database.fetch(sql.forget_permits, limit_key=key, above=0, limit=batch),
            await database.fetch(sql.forget_bucket, limit_key=key),
        )
    return max(map(len, gone)) < batch


async def forget_above(database: Database, limit: Limit, *, batch: int) -> bool:
    """Delete a batch of a limit's free permits above its cap, which no claim takes; False when there may be more."""
    if limit.key is None or limit.permits is None:
        return True
    gone = await database.fetch(sql.forget_permits, limit_key=limit.key, above=limit.permits, limit=batch)
    return len(gone) < batch


async def forget_idle_permits(
    database: Database, *, after: str, idle_since: datetime, limit: int, most: int
) -> tuple[int, str]:
    """Delete at most `most` free permits that nobody needs, of the `limit` keys after one.

    Returns how many it were, and the key behind which to go on; "" when these were the last.
    """
    [row] = await database.fetch(
        sql.forget_idle_permits, after=after, idle_since=idle_since, limit=limit, most=most
    )  # fmt: skip
    if row["rows"] >= most:
        return row["rows"], after
    return row["rows"], row["last"] if row["met"] >= limit else ""


async def forget_idle_buckets(
    database: Database, *, after: str, idle_since: datetime, now: datetime, limit: int
) -> tuple[int, str]:
    """Delete those of the `limit` buckets after one that nobody needs; returns as `forget_idle_permits` does."""
    [row] = await database.fetch(sql.forget_idle_buckets, after=after, idle_since=idle_since, now=now, limit=limit)
    return row["rows"], row["last"] if row["met"] >= limit else ""


def _is_in_parts(tenant_id: str, row: Any) -> bool:
    """Tell whether the operator asks about what each tenant has one of."""
    return tenant_id == "*" and bool(row["kind"] == "tenant")


async def _of_all(database: Database, row: Any, *, now: datetime) -> LimitView:
    [use] = await database.fetch(
        sql.instances_of_limit, name=row["name"], rate=row["rate"], burst=row["burst"], now=now, most=ROWS_SEEN
    )
    return _view({
        **dict(row),
        "in_use": None if row["permits"] is None else use["in_use"],
        "waiting": use["waiting"],
        "tokens": None if row["rate"] is None else use["tokens"] or 0.0,
    })  # fmt: skip


def _view(row: Any) -> LimitView:
    return LimitView(**{column: row[column] for column in LimitView.__dataclass_fields__})


def _columns(limit: Limit) -> dict[str, Any]:
    return {
        "tenant_id": limit.tenant_id,
        "name": limit.name,
        "rate": limit.rate,
        "burst": limit.burst,
        "permits": limit.permits,
    }
