"""Many runs at once: which a filter means, and their end in one statement."""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rota.domain.ids import shard_of
from rota.domain.run_filter import RunFilter
from rota.store.database import Database
from rota.store.requests import SlotKey, filter_columns
from rota.store.statements import bulk as sql


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelledRuns:
    """How many runs that waited have ended, and of how many that run the end is asked for."""

    cancelled: int
    asked: int


async def matching_live(
    database: Database, where: RunFilter, *, tenant_id: str, since: datetime, until: datetime, limit: int
) -> list[SlotKey]:
    """Return a tenant's runs that a filter means and that wait, or run and are not asked to stop; at most `limit`."""
    rows = await database.fetch(
        sql.matching_live, tenant_id=tenant_id, job_id=where.job_id, state=where.state, since=since, until=until,
        limit=limit, **filter_columns(where),
    )  # fmt: skip
    return [SlotKey(row["job_uid"], row["scheduled_for"]) for row in rows]


async def cancel(
    database: Database, keys: Sequence[SlotKey], *, tenant_id: str, actor: str, reason: str, subject: str,
    facts: Mapping[str, Any], now: datetime,
) -> CancelledRuns:  # fmt: skip
    """End runs that wait, and ask for the end of those that run; whatever moves at this moment is left as it is."""
    rows = await database.fetch(
        sql.cancel_runs, shards=[shard_of(key.job_uid) for key in keys], job_uids=[key.job_uid for key in keys],
        slots=[key.scheduled_for for key in keys], tenant_id=tenant_id, actor=actor, reason=reason, subject=subject,
        facts=json.dumps(dict(facts), ensure_ascii=False), audit_id=uuid.uuid4(), now=now,
    )  # fmt: skip
    return CancelledRuns(**dict(rows[0]))
