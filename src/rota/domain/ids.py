"""Identities that any node can compute before it touches the database.

`job_uid` is 62 bits of BLAKE2b over (tenant, job), and over the generation too of a job that was put under the id of a
deleted one. `run_id` is a UUID version 8 (RFC 9562) that *is* the slot:

    48 bits  scheduled_for, milliseconds since 1970
     4 bits  version, 8
    12 bits  zero, reserved
     2 bits  variant, binary 10
    62 bits  job_uid

so ids sort by time, an in-doubt retry makes the same id, and an id leads to its row without an index of its own.
"""

from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Final
from uuid import UUID

from rota.errors import InvalidInput

SHARD_COUNT: Final = 64
"""Shards of a new cluster; fixed when its database is created."""

assert SHARD_COUNT & (SHARD_COUNT - 1) == 0, "a number's low bits are its shard"

_JOB_UID_BITS: Final = 62
_JOB_UID_MASK: Final = (1 << _JOB_UID_BITS) - 1
_VARIANT: Final = 0b10 << _JOB_UID_BITS
_VERSION: Final = 0x8 << 76
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def job_uid(tenant_id: str, job_id: str, generation: int = 0) -> int:
    """Return the job's number, 0 <= uid < 2**62: the same on every node.

    `generation` says how many jobs of this id were deleted before it. Each has a number of its own, all in one shard:
    there an id is looked up.
    """
    # NUL cannot occur in any part, so no two lists of parts run together to the same text.
    first = _digest(f"{tenant_id}\0{job_id}")
    if generation == 0:
        return first
    own = _digest(f"{tenant_id}\0{job_id}\0{generation}")
    return own - own % SHARD_COUNT + first % SHARD_COUNT


def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) & _JOB_UID_MASK


def shard_of(uid: int, *, shard_count: int = SHARD_COUNT) -> int:
    """Return the shard that holds a job: the same on every machine, for ever."""
    # job_uid is a digest, so its low bits are already evenly spread.
    return uid % shard_count


def to_milliseconds(instant: datetime, *, field: str = "scheduled_for") -> int:
    """Return whole milliseconds since 1970.

    Raises InvalidInput for a naive instant, one before 1970, or one with a part finer than a millisecond.
    """
    if instant.tzinfo is None:
        raise InvalidInput(field, "has no zone", hint="give an aware instant such as 2026-01-01T00:00:00Z")
    since = instant - _EPOCH
    milliseconds, finer = divmod(since.microseconds, 1000)
    milliseconds += since.seconds * 1000 + since.days * 86_400_000
    if finer:
        raise InvalidInput(field, "has a part finer than a millisecond", hint="slots are whole milliseconds")
    if milliseconds < 0:
        raise InvalidInput(field, "lies before 1970", hint="give an instant from 1970-01-01T00:00:00Z on")
    return milliseconds


def run_id(uid: int, scheduled_for: datetime) -> UUID:
    """Return the run's id. Raises InvalidInput for an instant that cannot be a slot."""
    return UUID(int=to_milliseconds(scheduled_for) << 80 | _VERSION | _VARIANT | uid)


def slot_of(run: UUID) -> tuple[int, datetime]:
    """Return (job_uid, scheduled_for) of a run id. Raises InvalidInput for a UUID that Rota did not make."""
    reserved = run.int >> 64 & 0xFFFF
    if reserved != 0x8000 or run.int >> _JOB_UID_BITS & 0b11 != 0b10:
        raise InvalidInput("run_id", f"{run} is not a run's id", hint="take ids from `rota run list`")
    try:
        scheduled_for = _EPOCH + (run.int >> 80) * _MILLISECOND
    except OverflowError:
        raise InvalidInput("run_id", f"{run} names an instant after the year 9999") from None
    return run.int & _JOB_UID_MASK, scheduled_for
