"""Which runs are meant: the filter of lists and of replays, checked where it is made."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from rota.domain.http_target import URL_LIMIT
from rota.domain.job import NAME_LIMIT, check_name, check_text
from rota.domain.run import RunState
from rota.errors import InvalidInput

ERROR_PART_LIMIT: Final = 1000
"""The most characters of an error's part that is looked for."""

_MEANT: Final = {
    "failed": "a run that failed for good is dead; one that failed and is tried again has the filter `failed`",
    "success": "use succeeded", "completed": "use succeeded", "queued": "use pending", "canceled": "use cancelled",
}  # fmt: skip
"""Words of others for states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """What is left empty is not asked for. Raises InvalidInput, naming the field.

    `since` (inclusive) and `until` (exclusive) hold a run's `created_at`, or a dead letter's `died_at` when `state` is
    "dead". `label` is `name` or `name=value` of the run's job. `error` is a part of the last attempt's error, in any
    case. `failed` leaves runs of which an attempt has failed, timed out, given up or been lost.
    """

    job_id: str = ""
    state: str = ""
    handler: str = ""
    label: str = ""
    since: datetime | None = None
    until: datetime | None = None
    error: str = ""
    failed: bool = False

    def __post_init__(self) -> None:
        check_text("job_id", self.job_id, limit=NAME_LIMIT)
        check_text("handler", self.handler, limit=URL_LIMIT)
        check_text("error", self.error, limit=ERROR_PART_LIMIT)
        if self.state and self.state not in set(RunState):
            hint = _MEANT.get(self.state, f"use one of {', '.join(RunState)}")
            raise InvalidInput("state", f"{self.state!r} is not a state", hint=hint)
        if self.label:
            check_text("label", self.label, limit=2 * NAME_LIMIT + 1)
            check_name("label", self.label_name)
            check_text("label", self.label_value or "", limit=NAME_LIMIT)
        for field in ("since", "until"):
            object.__setattr__(self, field, _in_utc(field, getattr(self, field)))
        if self.since is not None and self.until is not None and self.since > self.until:
            raise InvalidInput("since", "lies after `until`", hint="a window begins before it ends")

    @property
    def label_name(self) -> str:
        """The label that a run's job must have; empty when none is asked for."""
        return self.label.partition("=")[0]

    @property
    def label_value(self) -> str | None:
        """The value that the label must have; None when any will do."""
        _, given, value = self.label.partition("=")
        return value if given else None


def _in_utc(field: str, instant: datetime | None) -> datetime | None:
    if instant is None:
        return None
    if instant.utcoffset() is None:
        raise InvalidInput(field, "has no zone", hint="give an aware instant such as 2026-01-01T00:00:00Z")
    try:
        return instant.astimezone(UTC)
    except OverflowError:
        raise InvalidInput(field, "lies outside the years 1 to 9999") from None
