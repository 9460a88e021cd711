"""Monthly partitions: made ahead by upkeep, and on the spot for a row that comes sooner than upkeep."""

from collections.abc import Awaitable, Callable, Iterable
from datetime import MAXYEAR, UTC, date, datetime
from typing import Final, TypeVar

from rota.store.database import Database, MissingPartition
from rota.store.statements import upkeep as sql

MONTHS_AHEAD: Final = 3

T = TypeVar("T")


async def ensure_months(database: Database, months: Iterable[date]) -> int:
    """Make the partitions of these months (UTC) unless they are there; returns how many were made."""
    made = 0
    for month in sorted({month.replace(day=1) for month in months}):
        [row] = await database.fetch(sql.ensure_month, month=month)
        made += row["made"]
    return made


def months_ahead(now: datetime) -> list[date]:
    """Return the first days of this month and the next MONTHS_AHEAD ones, as far as the calendar goes."""
    # Counted from the year 1, in months.
    first = (now.year - 1) * 12 + now.month - 1
    months = range(first, min(first + MONTHS_AHEAD + 1, MAXYEAR * 12))
    return [date(month // 12 + 1, month % 12 + 1, 1) for month in months]


async def with_partitions(database: Database, slots: Iterable[datetime], write: Callable[[], Awaitable[T]]) -> T:
    """Run a write; when a slot's month has no partition yet, make it and write again, once."""
    try:
        return await write()
    except MissingPartition:
        await ensure_months(database, (slot.astimezone(UTC).date() for slot in slots))
        return await write()
