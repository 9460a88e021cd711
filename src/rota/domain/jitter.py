"""Jitter: a delay of a slot's start that spreads a herd, the same on every node."""

from datetime import datetime, timedelta
from hashlib import blake2b

from rota.domain.ids import run_id


def jitter_of(job_uid: int, slot: datetime, *, width: timedelta) -> timedelta:
    """Return a delay from 0 up to `width`, in whole milliseconds, by a hash of the run's identity."""
    milliseconds = width // timedelta(milliseconds=1)
    if not milliseconds:
        return timedelta(0)
    digest = blake2b(run_id(job_uid, slot).bytes, digest_size=8).digest()
    return timedelta(milliseconds=int.from_bytes(digest) % (milliseconds + 1))
