"""The lines of a crontab as cron(8) takes them apart: environment, entries, and what a line may not hold.

Follows Vixie cron's own reading (load_env, load_entry and do_command of ISC cron): blanks are spaces and tabs, a `#`
begins a comment only at a line's start, and a line is a variable when it has the shape of one. Knows no schedule and
no user; `crontab.py` makes the meaning.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rota.importers.result import excerpt

LINE_LIMIT: Final = 998
"""The most characters of a line, its end not counted."""

_BLANKS: Final = re.compile(r"[ \t]+")
_VARIABLE: Final = re.compile(r"""("[^"]*"|'[^']*'|[^ \t="'@*]+)[ \t]*=[ \t]*(.*)""", re.DOTALL)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DATE_FORMAT: Final = re.compile(r"\bdate\b[^|;&]*\+\S*$|\bprintf[ \t]+\S*$")
_SETS_ZONE: Final = re.compile(r"[^A-Za-z0-9*@#]*CRON_TZ\W*=")


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment, without its `#`."""

    text: str


@dataclass(frozen=True, slots=True)
class Variable:
    """NAME=value: the environment of the entries below it."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Entry:
    """Five time fields, one blank apart, or a macro; and the rest of the line: user and command, or command."""

    expression: str
    rest: str
    quiet: bool = False  # SUSE's leading "-": do not log


@dataclass(frozen=True, slots=True)
class Bad:
    """A line that cannot be read. `sets_zone`: it meant to set CRON_TZ, so the zone below it is unknown."""

    reason: str
    sets_zone: bool = False


Line = Comment | Variable | Entry | Bad


def read_lines(data: bytes) -> Iterator[tuple[int, Line]]:
    """Yield every line that is not blank, with its number from 1. Never raises, whatever the bytes."""
    start, number = 0, 0
    while start < len(data):
        # Only a newline ends a line: str.splitlines would also cut at form feeds and other scripts' separators.
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        number += 1
        line = _read_line(data[start:end].removesuffix(b"\r"))
        if line is not None:
            yield number, line
        start = end + 1


def _read_line(raw: bytes) -> Line | None:
    text = raw.decode("utf-8", errors="replace")
    fault = _fault_of(raw, text)
    if fault is not None:
        return Bad(fault, sets_zone=_SETS_ZONE.match(text[:LINE_LIMIT].replace("\x00", "")) is not None)
    text = text.lstrip(" \t")
    if not text:
        return None
    if text.startswith("#"):
        return Comment(text[1:])
    shape = _VARIABLE.fullmatch(text)
    return _read_entry(text) if shape is None else _read_variable(shape[1], shape[2].rstrip(" \t"))


def _fault_of(raw: bytes, text: str) -> str | None:
    if b"\x00" in raw:
        return "the line holds a NUL byte"
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"the line is not UTF-8: byte 0x{raw[error.start]:02x} at position {error.start + 1}"
    if "\ufeff" in text:
        return "the line holds a byte order mark (save the file as UTF-8 without one)"
    if "\r" in text:
        return "the line holds a carriage return (end lines with LF or CRLF)"
    if len(text) > LINE_LIMIT:
        return f"the line has {len(text)} characters, and cron reads at most {LINE_LIMIT} (put the command in a script)"
    return None


def _read_variable(name: str, value: str) -> Variable | Bad:
    name = name[1:-1] if name[0] in "\"'" else name
    sets_zone = name == "CRON_TZ"
    if not _NAME.fullmatch(name):
        return Bad(f"{excerpt(name)} is no name of an environment variable (letters, digits, '_')")
    if value[:1] in ("'", '"'):
        if len(value) < 2 or value.find(value[0], 1) != len(value) - 1:
            return Bad(f"the value of {name} has an open quote, or text after the closing one", sets_zone=sets_zone)
        value = value[1:-1]
    return Variable(name, value)


def _read_entry(text: str) -> Entry | Bad:
    quiet = len(text) > 1 and text[0] == "-" and (text[1].isdigit() or text[1] in "*@")
    text = text[1:] if quiet else text
    wanted = 1 if text.startswith("@") else 5
    parts = _BLANKS.split(text, maxsplit=wanted)
    if len(parts) <= wanted or not parts[wanted]:
        have = len([part for part in parts if part])
        what = "a macro and a command" if wanted == 1 else f"five time fields and a command; it has {have} parts"
        return Bad(f"{excerpt(text)} is no entry of a crontab: an entry is {what}")
    return Entry(" ".join(parts[:wanted]), parts[wanted], quiet=quiet)


def first_word(text: str) -> tuple[str, str]:
    """Return the text's first word and what follows it, cut at blanks."""
    word, *rest = _BLANKS.split(text, maxsplit=1)
    return word, rest[0] if rest else ""


def cut_at_percent(text: str) -> tuple[str, str | None]:
    r"""Return the command that cron runs and its standard input; None when no unescaped `%` cuts the text.

    `\%` is a literal `%` in both; every other backslash stays. In the input a bare `%` is a newline, and the last
    line is ended with one, as do_command does.
    """
    head: list[str] = []
    tail, escaped = None, False
    for position, character in enumerate(text):
        if escaped and character == "%":
            head[-1] = "%"
        elif character == "%":
            tail = text[position + 1 :]
            break
        else:
            head.append(character)
        escaped = character == "\\" and not escaped
    if tail is None:
        return "".join(head), None
    given = re.sub(r"\\%|%", lambda match: "%" if match[0] == "\\%" else "\n", tail)
    return "".join(head), given if not given or given.endswith("\n") else given + "\n"


def why_cut_short(command: str) -> str | None:
    """Say why a command that a `%` ended looks like one that was meant to go on; None when it looks whole."""
    closer = _open_at_end(command)
    if closer is not None:
        return f"a {closer} is still open there"
    return "a format is cut in two" if _DATE_FORMAT.search(command) else None


def _open_at_end(command: str) -> str | None:
    """Return the innermost quote or bracket of the shell that is open at the end. Rough: it only feeds a warning."""
    stack: list[str] = []
    skip = False
    for position, character in enumerate(command):
        top = stack[-1] if stack else ""
        if skip:
            skip = False
        elif top == "'":
            if character == "'":
                stack.pop()
        elif character == "\\":
            skip = True
        elif (character in '"`' and character == top) or (character == ")" and top == "("):
            stack.pop()
        elif _opens(character, top=top, before=command[position - 1 : position]):
            stack.append(character)
    return repr(stack[-1]) if stack else None


def _opens(character: str, *, top: str, before: str) -> bool:
    if top == '"':
        return character == "`" or (character == "(" and before == "$")
    return character in "\"'`("
