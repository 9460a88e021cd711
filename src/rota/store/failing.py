"""Jobs whose runs die one after another: which of them are to be paused for it."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from rota.domain.ids import shard_of
from rota.store.database import Connection, Database
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
