"""Pages: how many entries one has, and whether there may be more."""

from typing import TypeVar

from rota.errors import InvalidInput
from rota.wire.document import PAGE_LIMIT

T = TypeVar("T")


def check_limit(limit: int) -> None:
    """Raise InvalidInput for a page that nobody would give."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= PAGE_LIMIT:
        raise InvalidInput("limit", f"must be a whole number from 1 to {PAGE_LIMIT}")


def cut(found: list[T], limit: int) -> tuple[list[T], bool]:
    """Return one page of what was found when one entry more was asked for, and whether there may be more."""
    # A service gives no more than a whole page, so after a whole page nobody knows.
    return found[:limit], len(found) > limit or len(found) == limit == PAGE_LIMIT
