"""How commands speak: one JSON document, or lines and tables for people. Both go to standard output."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TextIO

from rota.domain.duration import format_duration
from rota.domain.instants import format_instant

NOTHING: Final = "–"
PIPE_WIDTH: Final = 240
"""Columns of a table that no terminal shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table for people; cells are any values, see `cell`. `right` names the columns of numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str | None = None
    right: frozenset[str] = field(default_factory=frozenset)


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


def rich_table(table: Table) -> Any:
    """Return the table as Rich draws it."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(box=SIMPLE_HEAD, title=table.title, title_justify="left", pad_edge=False)
    for number, column in enumerate(table.columns):
        justify: Any = "right" if column in table.right else "left"
        drawn.add_column(column, justify=justify, overflow="fold" if number == 0 else "ellipsis")
    for row in table.rows:
        drawn.add_row(*(Text(cell(value)) for value in row))
    return drawn


def _print_table(table: Table) -> None:
    console().print(rich_table(table))


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
