"""What shared loops leave out for a while, written down where people can read of it."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, Literal, NamedTuple

from rota.domain.ids import shard_of
from rota.store.database import Database
from rota.store.statements import aside as sql

What = Literal["slot", "runs", "leases", "resume"]
"""What of a job is set aside: its due slot, waiting runs, lapsed leases, or the end of its pause."""

REASON_LIMIT: Final = 1000


class AsideKey(NamedTuple):
    what: What
    job_uid: int


class AsideView(NamedTuple):
    """Why something of a job is set aside, and since when."""

    what: What
    reason: str
    since: datetime


class AsideJob(NamedTuple):
    """The same with whose job it is."""

    tenant_id: str
    job_id: str
    what: What
    reason: str
    since: datetime


async def tell(
    database: Database, reasons: Mapping[AsideKey, str], *, epochs: Mapping[int, int], now: datetime
) -> None:
    """Write down why jobs of these owned shards are set aside."""
    keys = list(reasons)
    shards = [shard_of(key.job_uid) for key in keys]
    await database.fetch(
        sql.tell_set_aside, shards=shards, job_uids=[key.job_uid for key in keys], whats=[key.what for key in keys],
        epochs=[epochs[shard] for shard in shards],
        reasons=[reasons[key].replace("\0", "")[:REASON_LIMIT] for key in keys], now=now,
    )  # fmt: skip


async def forget(database: Database, keys: Sequence[AsideKey], *, epochs: Mapping[int, int]) -> None:
    """Remove what was told of jobs of these owned shards."""
    shards = [shard_of(key.job_uid) for key in keys]
    await database.fetch(
        sql.forget_set_aside, shards=shards, job_uids=[key.job_uid for key in keys],
        whats=[key.what for key in keys], epochs=[epochs[shard] for shard in shards],
    )  # fmt: skip


async def forget_untrue(database: Database, *, limit: int) -> int:
    """Remove what former owners of shards told, at most `limit`; returns how many."""
    return len(await database.fetch(sql.forget_untrue, limit=limit))


async def of_job(database: Database, uid: int, *, now: datetime) -> dict[What, AsideView]:
    """Return what of a job is set aside, with the reasons."""
    rows = await database.fetch(sql.set_aside_of, shard=shard_of(uid), job_uid=uid, now=now)
    return {row["what"]: AsideView._make(row) for row in rows}


async def since(database: Database, instant: datetime, *, now: datetime, limit: int) -> list[AsideJob]:
    """Return jobs that have been set aside since an instant or longer, at most `limit`."""
    rows = await database.fetch(sql.all_set_aside, since=instant, now=now, limit=limit)
    return [AsideJob._make(row) for row in rows]
