"""How commands speak: one JSON document, or lines and tables for people. Both go to standard output."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TextIO
from uuid import UUID

from rota.domain.duration import format_duration
from rota.domain.instants import format_instant

NOTHING: Final = "–"
PIPE_WIDTH: Final = 240
"""Columns of a table that no terminal shows."""
TEXT_WIDTH: Final = 10
"""Columns that a text gets at least before lesser columns are left out."""
SHORTEST_TEXT: Final = 4
"""The same where the columns that cannot be left out have no room."""
ID_WIDTH: Final = 32
"""The same for the first text of a row, which is an id or a name."""
COLUMN_GAP: Final = 3
EDGES: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table for people; cells are any values, see `cell`.

    `right` names the columns of numbers. `lesser` names those that go first, in this order, where the terminal is too
    narrow for all: ids and instants are shown whole or not at all.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str | None = None
    right: frozenset[str] = field(default_factory=frozenset)
    lesser: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Where a command's answer goes, and in which shape."""

    as_json: bool

    def answer(self, document: Any, *parts: str | Table) -> None:
        """Give the answer: the document, or for people its parts, lines and tables."""
        if self.as_json:
            print(to_json(document, indent=2), flush=True)
            return
        for part in parts:
            if isinstance(part, Table):
                _print_table(part)
            else:
                print(plain(part, keep="\n"), flush=True)

    def warn(self, text: str) -> None:
        """Tell people something beside the answer; with JSON the document says it."""
        if not self.as_json:
            print(plain(text), file=sys.stderr, flush=True)


def to_json(document: Any, *, indent: int | None = None) -> str:
    """Return a document as JSON: instants in ISO 8601 UTC with Z, lengths of time in seconds."""
    # The standard library's encoder keeps whole numbers of any size, which a payload may hold.
    return json.dumps(document, ensure_ascii=False, indent=indent, default=_json_value)


def counted(number: int, noun: str) -> str:
    """Return "1 job", "2 jobs"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def cell(value: object) -> str:
    """Return a value as the text of a table's cell, on one line."""
    match value:
        case None | "":
            return NOTHING
        case bool():
            return "yes" if value else "no"
        case datetime():
            return instant(value)
        case timedelta():
            return format_duration(timedelta(milliseconds=value // timedelta(milliseconds=1)))
        case dict() | list() | tuple():
            return plain(to_json(value))
    return plain(str(value))


def instant(value: datetime) -> str:
    """Return an instant for people: ISO 8601 UTC with Z, in whole milliseconds."""
    finest = "milliseconds" if value.microsecond >= 1000 else "seconds"
    return value.astimezone(UTC).isoformat(timespec=finest).removesuffix("+00:00") + "Z"


def plain(text: str, *, keep: str = "") -> str:
    """Return a text that moves no cursor and sets no colour, whoever wrote it."""
    return "".join(
        character if character.isprintable() or character in keep else _escaped(character) for character in text
    )


def summary(error: str | None) -> str | None:
    """Return an error's first line, which says what happened; a traceback may follow it."""
    return error.strip().split("\n", 1)[0] if error else None


def console(file: TextIO | None = None) -> Any:
    """Return a Rich console that takes texts as they are."""
    from rich.console import Console

    target = file or sys.stdout
    width = None if target.isatty() else PIPE_WIDTH
    return Console(file=target, width=width, markup=False, emoji=False, highlight=False)


def rich_table(table: Table, *, width: int) -> Any:
    """Return the table as Rich draws it in so many columns, without those of its lesser ones that have no room."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    widths = _fitting(table, width)
    left_out = [column for number, column in enumerate(table.columns) if number not in widths]
    caption = f"no room for {', '.join(left_out)}; --json has all" if left_out else None
    drawn = RichTable(
        box=SIMPLE_HEAD,
        title=table.title,
        title_justify="left",
        pad_edge=False,
        caption=caption,
        caption_justify="left",
    )
    for number, room in widths.items():
        column = table.columns[number]
        justify: Any = "right" if column in table.right else "left"
        overflow: Any = "fold" if number == 0 else "ellipsis"
        drawn.add_column(
            plain(column), width=room, justify=justify, overflow=overflow, no_wrap=_is_whole(table, number)
        )
    for row in table.rows:
        drawn.add_row(*(Text(cell(row[number])) for number in widths))
    return drawn


def _fitting(table: Table, width: int) -> dict[int, int]:
    """Return how wide each column is that has room, by its number: lesser ones go until the others have what they need.

    What is left then goes to texts that are cut short, from the left; what lacks then is taken from them.
    """
    from rich.cells import cell_len

    wanted: dict[int, int] = {}
    widths: dict[int, int] = {}
    for number, column in enumerate(table.columns):
        longest = max((cell_len(cell(row[number])) for row in table.rows), default=0)
        wanted[number] = max(cell_len(column), longest)
        least = TEXT_WIDTH if number else ID_WIDTH
        widths[number] = wanted[number] if _is_whole(table, number) else min(wanted[number], least)

    def left() -> int:
        return width - EDGES - COLUMN_GAP * (len(widths) - 1) - sum(widths.values())

    for lesser in table.lesser:
        if left() >= 0:
            break
        del widths[table.columns.index(lesser)]
    for number in widths:
        if not _is_whole(table, number):
            widths[number] += min(left(), wanted[number] - widths[number])
            widths[number] = max(widths[number], SHORTEST_TEXT)
    return widths


def _is_whole(table: Table, number: int) -> bool:
    """Whether a column holds what is of no use when it is cut: ids, instants, lengths of time."""
    return any(isinstance(row[number], UUID | datetime | timedelta) for row in table.rows)


def _print_table(table: Table) -> None:
    screen = console()
    screen.print(rich_table(table, width=screen.width))


def _escaped(character: str) -> str:
    return " " if character in "\n\r\t" else repr(character)[1:-1]


def _json_value(value: object) -> Any:
    match value:
        case datetime():
            return format_instant(value) if value.tzinfo else format_instant(value.replace(tzinfo=UTC))
        case timedelta():
            return value.total_seconds()
        case set() | frozenset():
            return sorted(str(member) for member in value)
    return str(value)
