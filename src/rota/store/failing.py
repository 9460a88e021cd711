"""Jobs whose runs die one after another: which of them are to be paused for it."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from rota.domain.ids import shard_of
from rota.store.database import Connection, Database, Lane
from rota.store.statements import jobs as sql

WINDOW: Final = 2000
"""How many of a job's latest finished slots are looked at: twice what `pause_after` may say."""


class Streak(NamedTuple):
    """A job that is to be paused: so many dead letters in a row, and what the last one died of."""

    tenant_id: str
    job_id: str
    job_uid: int
    dead: int
    error: str


async def dead_streaks(database: Database | Connection, uids: Sequence[int]) -> list[Streak]:
    """Return those of these jobs that are to be paused, since their latest `pause_after` runs are all dead."""
    rows = await database.fetch(
        sql.dead_streaks, shards=[shard_of(uid) for uid in uids], job_uids=list(uids), window=WINDOW
    )
    return [Streak._make(row) for row in rows]


async def want_pause(database: Database, uids: Sequence[int], *, now: datetime) -> None:
    """Note jobs that are to be paused as soon as nobody else has them locked."""
    await database.fetch(
        sql.want_pause, lane=Lane.URGENT, shards=[shard_of(uid) for uid in uids], job_uids=list(uids), now=now
    )


async def pauses_wanted(database: Database, shards: Sequence[int], *, limit: int) -> dict[int, datetime]:
    """Return jobs of these shards that are to be paused, and when that was noted; the oldest note first."""
    rows = await database.fetch(sql.pauses_wanted, shards=shards, limit=limit)
    return {row["job_uid"]: row["noted_at"] for row in rows}


async def forget_pauses(database: Database, noted: Mapping[int, datetime]) -> None:
    """Forget these notes, unless somebody has noted a job anew."""
    await database.fetch(
        sql.forget_pauses, shards=[shard_of(uid) for uid in noted], job_uids=list(noted), noted_ats=list(noted.values())
    )
