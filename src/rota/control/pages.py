"""Pages: how many entries one has, and whether there may be more."""

from collections.abc import Sequence
from typing import Final, TypeVar

from rota.errors import InvalidInput
from rota.wire.document import PAGE_LIMIT, Document

PAGE_BYTES: Final = 300_000
"""The most bytes of a page with more than one entry: it ends before its limit, and has a cursor."""

T = TypeVar("T")
D = TypeVar("D", bound=Document)


def check_limit(limit: int) -> None:
    """Raise InvalidInput for a page that nobody would give."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= PAGE_LIMIT:
        raise InvalidInput("limit", f"must be a whole number from 1 to {PAGE_LIMIT}")


def cut(found: list[T], limit: int) -> tuple[list[T], bool]:
    """Return one page of what was found when one entry more was asked for, and whether there may be more."""
    # A service gives no more than a whole page, so after a whole page nobody knows.
    return found[:limit], len(found) > limit or len(found) == limit == PAGE_LIMIT


def within_bytes(entries: Sequence[D], more: bool) -> tuple[tuple[D, ...], bool]:
    """Return as many of a page's entries as have PAGE_BYTES together, one at least, and whether there may be more."""
    size = 0
    for place, entry in enumerate(entries):
        size += len(entry.model_dump_json())
        if size > PAGE_BYTES and place > 0:
            return tuple(entries[:place]), True
    return tuple(entries), more
