"""A job: the definition of what runs, when, and how trouble is met. Everything that a user can set is checked here."""

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import Any, Final, Literal, NamedTuple, get_args

from rota.domain.duration import duration_words
from rota.domain.http_target import HTTP, looks_like_a_url, parse_target
from rota.domain.json_value import DEPTH_LIMIT, has_half_pair, json_text
from rota.domain.misfire import DEFAULT_GRACE, FireOnce, Misfire, misfire_from_json, misfire_to_json
from rota.domain.retry import RetryPolicy
from rota.domain.schedule import Schedule, schedule_from_json, schedule_to_json
from rota.errors import InvalidInput

LONGEST_LEASE: Final = timedelta(hours=1)
NAME_LIMIT: Final = 200
JOINERS: Final = "\u200c\u200d"
"""Unseen characters that belong to a script or to an emoji."""
"""The most characters in a tenant's, job's, pool's or handler's name."""
PAYLOAD_LIMIT: Final = 256 * 1024
"""The most bytes of a payload, as compact JSON in UTF-8."""
PAYLOAD_DEPTH: Final = DEPTH_LIMIT
LABEL_LIMIT: Final = 64
DESCRIPTION_LIMIT: Final = 4000
MAX_ATTEMPTS_LIMIT: Final = 1000
MAX_LOSSES_LIMIT: Final = 1000
PAUSE_AFTER_LIMIT: Final = 1000
CONCURRENCY_LIMIT: Final = 100_000
LIMITS_LIMIT: Final = 16
"""The most limits that a job names."""
COST_LIMIT: Final = 1000
"""The most permits or tokens of a limit that one run costs."""
LIMIT_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
PRIORITIES: Final = range(10)
_MILLISECOND: Final = timedelta(milliseconds=1)

DEFAULT_TENANT: Final = "default"
DEFAULT_POOL: Final = "default"

DEFAULT_RETRY: Final = RetryPolicy()
DEFAULT_MISFIRE: Final = FireOnce()

Overlap = Literal["allow", "skip", "queue", "queue_one", "replace"]
ONE_WAITS: Final[frozenset[str]] = frozenset({"queue_one", "replace"})
"""Overlap policies under which only the newest slot waits for its turn."""


class JobName(NamedTuple):
    """What people call a job. At most one that lives has it; which one that is, the store tells."""

    tenant_id: str
    job_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job's definition. Raises InvalidInput, naming the field, for anything that could not be kept.

    `schedule` None is a job that only runs when somebody asks. `priority` 9 goes before 0. `jitter` delays each
    start by up to that much, the same for a slot on every node; the slot itself never moves.

    At most `max_concurrency` runs of it run at once, and at most `key_concurrency` with one value of what
    `concurrency_key` names in the payload, such as `payload.customer`. `limits` says what a run costs of limits, by
    their names. After `pause_after` dead letters in a row it is paused.
    """

    job_id: str
    handler: str
    schedule: Schedule | None = None
    tenant_id: str = DEFAULT_TENANT
    payload: Mapping[str, Any] = field(default_factory=dict)
    pool: str = DEFAULT_POOL
    priority: int = 5
    max_attempts: int = 3
    retry: RetryPolicy = DEFAULT_RETRY
    misfire: Misfire = DEFAULT_MISFIRE
    misfire_grace: timedelta = DEFAULT_GRACE
    timeout: timedelta = timedelta(hours=1)
    lease_duration: timedelta = timedelta(seconds=60)
    jitter: timedelta = timedelta(0)
    overlap: Overlap = "allow"
    start_deadline: timedelta | None = None
    max_concurrency: int | None = None
    concurrency_key: str | None = None
    key_concurrency: int = 1
    limits: Mapping[str, int] = field(default_factory=dict)
    max_losses: int = 5
    pause_after: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    description: str = ""

    def __post_init__(self) -> None:
        for name in ("tenant_id", "job_id", "pool"):
            check_name(name, getattr(self, name))
        check_handler(self.handler)
        # Our own copy, of what JSON knows: a tuple would come back from the database as a list, and look like an edit.
        object.__setattr__(self, "payload", json.loads(check_payload(self.payload)))
        for name, kinds in _KINDS.items():
            if not isinstance(value := getattr(self, name), kinds):
                raise InvalidInput(name, f"{value!r} is of no known kind", hint=_KIND_HINTS[name])
        check_whole("priority", self.priority, PRIORITIES.start, PRIORITIES.stop - 1)
        for name, high in _COUNTS.items():
            value = getattr(self, name)
            if value is not None or name not in _OPTIONAL_COUNTS:
                check_whole(name, value, 1, high)
        _check_key(self.concurrency_key)
        object.__setattr__(self, "limits", _check_limits(self.limits))
        _check_duration("misfire_grace", self.misfire_grace, timedelta(0), timedelta(days=31))
        _check_duration("timeout", self.timeout, timedelta(milliseconds=1), timedelta(days=7))
        _check_duration("lease_duration", self.lease_duration, timedelta(seconds=1), LONGEST_LEASE)
        _check_duration("jitter", self.jitter, timedelta(0), timedelta(days=1))
        if self.start_deadline is not None:
            _check_duration("start_deadline", self.start_deadline, timedelta(milliseconds=1), timedelta(days=31))
        if self.overlap not in get_args(Overlap):
            known = ", ".join(get_args(Overlap))
            raise InvalidInput("overlap", f"{self.overlap!r} is not a policy", hint=f"use one of {known}")
        _check_labels(self.labels)
        check_text("description", self.description, limit=DESCRIPTION_LIMIT)

    @property
    def name(self) -> JobName:
        return JobName(self.tenant_id, self.job_id)

    def to_json(self) -> dict[str, Any]:
        """Return the definition as JSON: durations in seconds, instants in ISO 8601."""
        values = {spec.name: getattr(self, spec.name) for spec in fields(self)}
        values["schedule"] = None if self.schedule is None else schedule_to_json(self.schedule)
        values["retry"] = self.retry.to_json()
        values["misfire"] = misfire_to_json(self.misfire)
        values |= {name: dict(getattr(self, name)) for name in ("payload", "limits", "labels")}
        return {name: v.total_seconds() if isinstance(v, timedelta) else v for name, v in values.items()}

    @classmethod
    def from_json(cls, value: Any) -> "Job":
        """Read a definition. Raises InvalidInput naming the field that is missing, unknown or out of bounds."""
        if not isinstance(value, dict):
            raise InvalidInput("job", "must be an object", hint='such as {"job_id": "...", "handler": "..."}')
        known = {spec.name for spec in fields(cls)}
        for name in value.keys() - known:
            raise InvalidInput(str(name), "is not a field of a job", hint=f"known are {', '.join(sorted(known))}")
        for name in ("job_id", "handler"):
            if name not in value:
                raise InvalidInput(name, "is missing")
        parts = dict(value)
        if parts.get("schedule") is not None:
            try:
                parts["schedule"] = schedule_from_json(parts["schedule"])
            except InvalidInput as error:
                raise error if error.field == "schedule" else error.at("schedule") from None
        if "misfire" in parts:
            parts["misfire"] = misfire_from_json(parts["misfire"])
        if "retry" in parts:
            parts["retry"] = RetryPolicy.from_json(parts["retry"])
        if isinstance(parts.get("limits"), list):
            parts["limits"] = costs_of_one(parts["limits"])
        for name in _DURATIONS & parts.keys():
            if name != "start_deadline" or parts[name] is not None:
                parts[name] = seconds(name, parts[name])
        return cls(**parts)

    def edited(self, **changes: Any) -> "Job":
        """Return a copy with the changes, checked again."""
        return replace(self, **changes)


_KINDS: Final[dict[str, Any]] = {"schedule": Schedule | None, "retry": RetryPolicy, "misfire": Misfire}
_KIND_HINTS: Final = {
    "schedule": "use rota.cron, rota.every or rota.once",
    "retry": "use rota.retry(...)",
    "misfire": "use rota.skip(), rota.fire_once() or rota.catch_up(...)",
}
_COUNTS: Final = {
    "max_attempts": MAX_ATTEMPTS_LIMIT,
    "max_losses": MAX_LOSSES_LIMIT,
    "pause_after": PAUSE_AFTER_LIMIT,
    "max_concurrency": CONCURRENCY_LIMIT,
    "key_concurrency": CONCURRENCY_LIMIT,
}
_OPTIONAL_COUNTS: Final = frozenset({"pause_after", "max_concurrency"})
_DURATIONS: Final = frozenset({"misfire_grace", "timeout", "lease_duration", "jitter", "start_deadline"})


def check_text(name: str, value: object, *, limit: int) -> None:
    """Refuse what is not text, is too long, or holds characters that no store can keep."""
    if not isinstance(value, str):
        raise InvalidInput(name, f"must be text, not {type(value).__name__}")
    if len(value) > limit:
        raise InvalidInput(name, f"has {len(value)} characters", hint=f"at most {limit}")
    if "\x00" in value:
        raise InvalidInput(name, "holds a NUL character")
    if has_half_pair(value):
        raise InvalidInput(name, "holds half of a surrogate pair, which is not text")


def check_name(name: str, value: object) -> None:
    """Refuse a name that is empty, longer than NAME_LIMIT, or holds control characters or outer blanks."""
    check_text(name, value, limit=NAME_LIMIT)
    assert isinstance(value, str)
    if not value:
        raise InvalidInput(name, "is empty")
    if value != value.strip():
        raise InvalidInput(name, "begins or ends with a blank")
    if any(unicodedata.category(character) in ("Cc", "Zl", "Zp") for character in value):
        raise InvalidInput(name, "holds a control character")


def check_visible(name: str, value: str) -> None:
    """Refuse a name with characters that nobody sees, or that turn the text around them: it would look like another.

    Asked of what is new alone: what has such a name already can be looked at, changed and deleted.
    """
    for character in value:
        if unicodedata.category(character) == "Cf" and character not in JOINERS:
            raise InvalidInput(name, f"holds U+{ord(character):04X}, which cannot be seen")


def check_limit_name(field_name: str, value: object) -> None:
    """Refuse what cannot be a limit's name."""
    if not isinstance(value, str) or not LIMIT_NAME.fullmatch(value):
        hint = "1 to 100 letters, digits, dots, dashes and underlines, the first of them a letter or a digit"
        raise InvalidInput(field_name, f"{value!r} cannot be a limit's name", hint=hint)


def check_handler(value: object) -> None:
    """Refuse what is neither a name nor the URL of an HTTP target. Whom a URL may lead to is not asked here."""
    if isinstance(value, str) and looks_like_a_url(value):
        parse_target(value)
        return
    check_name("handler", value)
    if value == HTTP:
        raise InvalidInput("handler", f"{HTTP!r} is no function's name", hint="give the URL that is to be called")


def check_whole(name: str, value: object, low: int, high: int) -> None:
    """Refuse what is not a whole number from low to high; True and 3.0 are not whole numbers here."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(name, f"must be a whole number, not {value!r}")
    if not low <= value <= high:
        raise InvalidInput(name, f"must be from {low} to {high}, not {value}")


def check_payload(payload: object) -> str:
    """Return a payload as JSON text.

    Refuses one that is not a JSON object of at most PAYLOAD_LIMIT bytes, or that text columns cannot keep.
    """
    _object("payload", payload)
    return json_text("payload", payload, limit=PAYLOAD_LIMIT)


def costs_of_one(names: Sequence[Any]) -> dict[str, int]:
    """Return a job's limits from a list of their names: a run costs one of each."""
    if isinstance(names, str):
        raise InvalidInput("limits", "must be a list of names, not one", hint=f"such as [{names!r}]")
    if not isinstance(names, Sequence):
        raise InvalidInput("limits", f"must be an object or a list, not {names!r}", hint='such as {"crm": 1}')
    for name in names:
        check_limit_name("limits", name)
    costs = dict.fromkeys(names, 1)
    if len(costs) < len(names):
        raise InvalidInput("limits", "names one of them twice", hint='give an object to cost more: {"crm": 2}')
    return costs


def _check_key(path: object) -> None:
    """Refuse what does not lead to a value in a payload: payload, then names, joined by dots."""
    if path is None:
        return
    check_text("concurrency_key", path, limit=NAME_LIMIT)
    assert isinstance(path, str)
    root, *names = path.split(".")
    if root != "payload" or not names or not all(names):
        raise InvalidInput("concurrency_key", f"{path!r} names no value", hint="such as payload.customer")


def _check_limits(limits: object) -> dict[str, int]:
    """Return our own copy of limits and costs."""
    if not isinstance(limits, Mapping):
        raise InvalidInput("limits", f"must be an object or a list, not {limits!r}", hint='such as {"crm": 1}')
    costs = dict(limits)
    if len(costs) > LIMITS_LIMIT:
        raise InvalidInput("limits", f"are {len(costs)}", hint=f"at most {LIMITS_LIMIT}")
    for name, cost in costs.items():
        check_limit_name("limits", name)
        check_whole(f"limits.{name}", cost, 1, COST_LIMIT)
    return costs


def _check_labels(labels: object) -> None:
    entries = _object("labels", labels)
    if len(entries) > LABEL_LIMIT:
        raise InvalidInput("labels", f"are {len(entries)}", hint=f"at most {LABEL_LIMIT}")
    for key, value in entries.items():
        check_name("labels", key)
        check_text(f"labels.{key}", value, limit=NAME_LIMIT)


def _check_duration(name: str, value: object, low: timedelta, high: timedelta) -> None:
    if not isinstance(value, timedelta):
        raise InvalidInput(name, f"must be a timedelta, not {value!r}")
    if not low <= value <= high:
        raise InvalidInput(
            name, f"must be from {duration_words(low)} to {duration_words(high)}, not {duration_words(value)}"
        )
    if value % _MILLISECOND:
        # What a column would cut off would look like an edit at every put of the same definition.
        raise InvalidInput(name, "has a part finer than a millisecond", hint="durations are whole milliseconds")


def _object(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidInput(name, "must be an object", hint='such as {"key": "value"}')
    return dict(value)


def seconds(name: str, value: object) -> timedelta:
    """Read a length of time in seconds. Raises InvalidInput that names the field."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(name, f"must be seconds as a number, not {value!r}")
    try:
        return timedelta(seconds=value)
    except (OverflowError, ValueError):
        raise InvalidInput(name, f"{value!r} is out of bounds") from None
