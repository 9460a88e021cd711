"""Computed next slots anew: after new tz data, and after a clock that was ahead has been set back."""

from datetime import datetime
from typing import Final

from rota.errors import InvalidInput
from rota.store import jobs as store
from rota.store.database import Database
from rota.store.due import parse_schedule

PAGE: Final = 1000


async def recompute_shard(database: Database, shard: int, *, now: datetime) -> int:
    """Compute a shard's future next slots as the first ones after `now`; returns how many moved.

    A slot that is a run already stays that run: when it comes due again, nothing is made.
    """
    moved, after = 0, -1
    while rows := await store.stored_slots(database, shard, after=after, now=now, limit=PAGE):
        after = rows[-1].job_uid
        for row in rows:
            try:
                slot = None if row.schedule is None else parse_schedule(row.schedule).next_slot(now)
            except InvalidInput:
                continue  # the scheduler quarantines it when it comes due, with the reason
            if slot != row.next_slot and await store.move_next_slot(database, row, next_slot=slot, now=now):
                moved += 1
    return moved
