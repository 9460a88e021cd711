"""The audit log: who changed what, and how it stood before and after. Written by the transaction of the change."""

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from rota.domain.json_value import stored_json
from rota.store.database import Connection, Database
from rota.store.statements import audit as sql

SYSTEM: Final = "system"
"""The actor of what Rota does by itself."""
LATEST: Final = (datetime.max.replace(tzinfo=UTC), UUID(int=2**128 - 1))
"""The place before the first entry of a list that begins with the latest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change. `before` and `after` are JSON, None where there was or is nothing."""

    tenant_id: str
    action: str
    subject: str
    before: Any = None
    after: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditView:
    """An entry as people read it."""

    at: datetime
    audit_id: UUID
    actor: str
    action: str
    subject: str
    before: Any
    after: Any


async def note(tx: Connection, changes: Sequence[Change], *, actor: str, now: datetime) -> None:
    """Enter changes into the log, in the transaction that makes them; it shows them in the order given."""
    if not changes:
        return
    # They share their instant, so that their ids tell which came first.
    audit_ids = sorted(uuid.uuid4() for _ in changes)
    await tx.fetch(
        sql.note_changes, now=now, actor=actor, tenant_ids=[change.tenant_id for change in changes],
        audit_ids=audit_ids, actions=[change.action for change in changes],
        subjects=[change.subject for change in changes], befores=[_json(change.before) for change in changes],
        afters=[_json(change.after) for change in changes],
    )  # fmt: skip


async def page(
    database: Database, *, tenant_id: str, subject: str, before: tuple[datetime, UUID], limit: int
) -> list[AuditView]:
    """Return a tenant's entries, latest first, before a place in the list; `subject` empty means all."""
    place: dict[str, Any] = {"tenant_id": tenant_id, "before_at": before[0], "before_id": before[1], "limit": limit}
    if subject:
        rows = await database.fetch(sql.list_changes_of, subject=subject, **place)
    else:
        rows = await database.fetch(sql.list_changes, **place)
    return [AuditView(**{**dict(row), "before": _value(row["before"]), "after": _value(row["after"])}) for row in rows]


def _json(value: Any) -> str | None:
    # As for payloads: only the standard library's encoder keeps whole numbers of any size.
    return None if value is None else json.dumps(value, ensure_ascii=False, allow_nan=False)


def _value(text: str | None) -> Any:
    return None if text is None else stored_json(text)
