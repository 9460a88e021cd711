"""Monthly partitions, made ahead by upkeep. Slots of all other months share one, so no row is without a place."""

from collections.abc import Awaitable, Callable, Iterable
from datetime import MAXYEAR, date, datetime
from typing import Final, TypeVar

import asyncpg

from rota.errors import SetupFailed
from rota.store.database import Database, MissingPartition
from rota.store.statements import upkeep as sql

MONTHS_AHEAD: Final = 3
_IN_THE_WAY: Final = "RT423"

T = TypeVar("T")


async def ensure_months(database: Database, months: Iterable[date]) -> int:
    """Make the partitions of these months (UTC) unless they are there; returns how many were made.

    Rows of theirs that came while they were far move in. Raises DatabaseUnavailable when somebody's open transaction
    is in the way for longer than a second, and SetupFailed when a table is that has a month's name.
    """
    made = 0
    for month in sorted({month.replace(day=1) for month in months}):
        try:
            [row] = await database.fetch(sql.ensure_month, month=month)
        except asyncpg.PostgresError as error:
            if error.sqlstate == _IN_THE_WAY:
                raise SetupFailed(error.args[0], hint=error.hint) from error
            raise
        made += row["made"]
    return made


def months_ahead(now: datetime) -> list[date]:
    """Return the first days of this month and the next MONTHS_AHEAD ones, as far as the calendar goes."""
    # Counted from the year 1, in months.
    first = (now.year - 1) * 12 + now.month - 1
    months = range(first, min(first + MONTHS_AHEAD + 1, MAXYEAR * 12))
    return [date(month // 12 + 1, month % 12 + 1, 1) for month in months]


async def through_attach(write: Callable[[], Awaitable[T]]) -> T:
    """Run a write; once more when a slot's month got a partition of its own at this very moment."""
    try:
        return await write()
    except MissingPartition:
        return await write()
