"""Whose a job is: the code's that declares it, or an operator's; and what becomes of an operator's edit of the former.

The rule: a field that an operator changed stays as it is until the code gives that field another value, or until the
job is reset. All other fields are the code's.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from rota.domain.job import Job

Owner = Literal["code", "operator"]
CODE: Final = "code"
OPERATOR: Final = "operator"
Fate = Literal["kept", "overwritten", "changed"]

SHOWN: Final = 200
"""The most characters of a value that a difference shows."""
_IDENTITY: Final = frozenset({"job_id", "tenant_id"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """Whose a job is. None of all this is known of a job that was put by a version without owners.

    `source` is the app that declares it, or the import that made it. `declared` is the definition as the code gave it
    last, and `overrides` names the fields that an operator changed since.
    """

    owner: Owner | None = None
    source: str | None = None
    declared: Mapping[str, Any] | None = None
    overrides: tuple[str, ...] = ()
    orphaned_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A field in which the code's definition differs from the one that stood; both values as JSON, cut.

    `fate`: an operator's value was `kept`; it was `overwritten`, since the code's value is new or the job was not the
    code's; or the code's own earlier value was `changed`.
    """

    field: str
    code: str
    stood: str
    fate: Fate


def fields_of(job: Job) -> dict[str, Any]:
    """Return what can be changed of a job, as JSON."""
    return {name: value for name, value in job.to_json().items() if name not in _IDENTITY}


def changed_fields(before: Job | None, after: Job) -> tuple[str, ...]:
    """Return the names of the fields that differ, in the order of the definition."""
    stood = {} if before is None else fields_of(before)
    return tuple(name for name, value in fields_of(after).items() if name not in stood or stood[name] != value)


def reset_fields(before: Job, after: Job) -> tuple[str, ...]:
    """Return the names of the fields that had a value of their own and have their default now."""
    plain = fields_of(Job(job_id=after.job_id, handler=after.handler))
    return tuple(
        name for name in changed_fields(before, after) if name != "handler" and fields_of(after)[name] == plain[name]
    )


def declared_over(
    job: Job, *, standing: Job | None, whose: Ownership, source: str
) -> tuple[Job, Ownership, tuple[Difference, ...]]:
    """Decide what the code's definition does to a job that stands: the job to write, whose it is, what differs."""
    code = fields_of(job)
    if standing is None:
        return job, Ownership(owner=CODE, source=source, declared=code), ()
    stood = fields_of(standing)
    before = whose.declared or {}
    kept = tuple(
        name for name in whose.overrides
        if name in code and code[name] == before.get(name, code[name]) and code[name] != stood[name]
    ) if whose.owner == CODE else ()  # fmt: skip
    differences = tuple(
        Difference(field=name, code=_shown(value), stood=_shown(stood[name]), fate=_fate(name, kept, whose))
        for name, value in code.items() if value != stood[name]
    )  # fmt: skip
    result = job.edited(**{name: getattr(standing, name) for name in kept}) if kept else job
    return result, Ownership(owner=CODE, source=source, declared=code, overrides=kept), differences


def put_over(job: Job, *, is_new: bool, whose: Ownership, source: str | None) -> Ownership:
    """Decide whose a job is after an operator has put it: what the code declares stays the code's."""
    if is_new or whose.owner != CODE:
        return Ownership(owner=OPERATOR, source=source if is_new else whose.source)
    declared = whose.declared or {}
    overrides = tuple(name for name, value in fields_of(job).items() if declared.get(name, value) != value)
    return Ownership(
        owner=CODE, source=whose.source, declared=whose.declared, overrides=overrides, orphaned_at=whose.orphaned_at
    )  # fmt: skip


def _fate(name: str, kept: tuple[str, ...], whose: Ownership) -> Fate:
    if name in kept:
        return "kept"
    return "overwritten" if whose.owner == OPERATOR or name in whose.overrides else "changed"


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
