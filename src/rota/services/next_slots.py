"""Computed next slots anew: after new tz data, and after a clock that was ahead has been set back."""

from datetime import datetime
from typing import Final, NamedTuple

import structlog

from rota.errors import DatabaseUnavailable, InvalidInput
from rota.store import jobs as store
from rota.store.database import Database
from rota.store.due import parse_schedule

PAGE: Final = 1000
FIRST: Final = -1
"""The place before all jobs."""

log = structlog.get_logger()


class Recomputed(NamedTuple):
    """How many next slots moved, and how many are left for another look: not computed, or held by a transaction.

    `after` is the job behind which the next page begins; None: there is none.
    """

    moved: int
    left: int
    after: int | None = None


async def recompute_shard(database: Database, shard: int, *, now: datetime) -> Recomputed:
    """Compute all future next slots of a shard as `recompute_page` does."""
    moved, left = 0, 0
    after: int | None = FIRST
    while after is not None:
        page = await recompute_page(database, shard, after=after, now=now)
        moved, left, after = moved + page.moved, left + page.left, page.after
    return Recomputed(moved=moved, left=left)


async def recompute_page(database: Database, shard: int, *, after: int | None, now: datetime) -> Recomputed:
    """Compute a page of a shard's future next slots as the first ones after `now`.

    A slot that is a run already stays that run: when it comes due again, nothing is made. Whatever is wrong with one
    job, the others move on. Raises DatabaseUnavailable.
    """
    moved, left = 0, 0
    rows = await store.stored_slots(
        database, shard, after=FIRST if after is None else after, now=now, limit=PAGE
    )  # fmt: skip
    for row in rows:
        try:
            slot = None if row.schedule is None else parse_schedule(row.schedule).next_slot(now)
            if slot == row.next_slot:
                continue
            # Whoever holds it is not waited for. If it has moved on instead, another look finds nothing to do.
            is_moved = await store.move_next_slot(database, row, next_slot=slot, now=now)
            moved += is_moved
            left += not is_moved
        except InvalidInput:
            continue  # the scheduler quarantines it when it comes due, with the reason
        except DatabaseUnavailable:
            raise
        except Exception as error:
            left += 1
            log.warning("slot.not_recomputed", job_id=row.job_id, error=repr(error))
    return Recomputed(moved=moved, left=left, after=rows[-1].job_uid if len(rows) == PAGE else None)
