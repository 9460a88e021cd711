"""YAML from strangers as plain values with their lines, in memory that grows with the text and no faster.

Values are built from the parser's events as they come, and an alias (the bricks of a "billion laughs"), a tag that is
no plain type, nesting past DEPTH_LIMIT or too many values stop the document at once. Documents are parsed one by
one, so that a broken one leaves the others readable.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import yaml
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

SIZE_LIMIT: Final = 4 << 20
"""The most bytes of a YAML file."""
DOCUMENT_LIMIT: Final = 1000
DEPTH_LIMIT: Final = 50
VALUE_LIMIT: Final = 500_000
"""The most values of a document, keys among them."""

_CORE: Final = "tag:yaml.org,2002:"
_NUMBER_LIMIT: Final = 100
_MARK: Final = re.compile(r"^---(?=[ \t\r\n]|$)", re.MULTILINE)
_NOTHING: Final = re.compile(r"[ \t\r]*([#%].*)?")
_SAFE: Final = SafeConstructor()
# Dates and the like stay text: only JSON's own kinds of values are wanted.
_SCALARS: Final[dict[str, Callable[[yaml.ScalarNode], Any]]] = {
    "int": _SAFE.construct_yaml_int,
    "float": _SAFE.construct_yaml_float,
    "bool": _SAFE.construct_yaml_bool,
    "null": _SAFE.construct_yaml_null,
}
_PLAIN_TAGS: Final = frozenset({None, "!"} | {_CORE + kind for kind in ("str", "map", "seq", *_SCALARS)})
# The C parser is ten times faster; a PyYAML that was built without it still works.
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Fields:
    """A YAML mapping: its values by key, the line of each key, and its own first line."""

    values: dict[str, Any]
    lines: dict[str, int]
    line: int


@dataclass(frozen=True, slots=True)
class Document:
    """A document's value (Fields, list, or a scalar), or the fault for which it was refused, and the line of either."""

    line: int
    value: Any = None
    fault: str | None = None


def read_documents(text: str) -> Iterator[Document]:
    """Yield every document that is not empty. Raises nothing for any text; the caller bounds its size."""
    starts = [0, *(mark.start() for mark in _MARK.finditer(text))]
    if len(starts) > DOCUMENT_LIMIT:
        yield Document(1, fault=f"the file has {len(starts)} documents, and at most {DOCUMENT_LIMIT} are read")
        return
    line = 1
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        part = text[start:end]
        if not all(_NOTHING.fullmatch(content) for content in part.removeprefix("---").split("\n")):
            yield from _read_part(part, line)
        line += part.count("\n")


def plain(value: Any) -> Any:
    """Return a value without its lines, as JSON has it."""
    if isinstance(value, Fields):
        return {key: plain(part) for key, part in value.values.items()}
    return [plain(part) for part in value] if isinstance(value, list) else value


class _DocumentError(Exception):
    """A document holds what is not read."""

    def __init__(self, line: int, reason: str) -> None:
        self.line = line
        self.reason = reason


def _read_part(part: str, first: int) -> Iterator[Document]:
    """Read the text from one `---` to the next; a `...` within it may still begin another document."""
    builder = _Builder(yaml.parse(part, Loader=_LOADER), first)
    try:
        yield from builder.documents()
    except _DocumentError as refused:
        yield Document(refused.line, fault=refused.reason)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 0 if mark is None else mark.line
        yield Document(first + line, fault=f"the document is not YAML: {error.problem}")
    except (yaml.YAMLError, ValueError) as error:
        yield Document(first, fault=f"the document is not YAML: {' '.join(str(error).split())[:200]}")


class _Builder:
    """Turns events into values. Recursion is bounded by DEPTH_LIMIT."""

    def __init__(self, events: Iterator[Any], first: int) -> None:
        self._events = events
        self._first = first
        self._count = 0
        self._resolver: Any = Resolver()  # its stub has no types

    def documents(self) -> Iterator[Document]:
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                self._count = 0
                root = next(self._events)
                yield Document(self._line(root), self._value(root, depth=0))

    def _value(self, event: Any, *, depth: int) -> Any:
        self._count += 1
        self._judge(event, depth)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._items(depth + 1)
        if isinstance(event, yaml.MappingStartEvent):
            return self._fields(self._line(event), depth + 1)
        return self._scalar(event)

    def _judge(self, event: Any, depth: int) -> None:
        line = self._line(event)
        if isinstance(event, yaml.AliasEvent):
            raise _DocumentError(line, f"the alias *{str(event.anchor)[:40]} is refused (write the value out)")
        if event.tag not in _PLAIN_TAGS:
            raise _DocumentError(line, f"the tag {event.tag[:80]!r} is refused (only plain values are read)")
        if depth > DEPTH_LIMIT:
            raise _DocumentError(line, f"the document is nested more than {DEPTH_LIMIT} deep")
        if self._count > VALUE_LIMIT:
            raise _DocumentError(line, f"the document has more than {VALUE_LIMIT} values")

    def _items(self, depth: int) -> list[Any]:
        items = []
        for event in self._events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            items.append(self._value(event, depth=depth))
        return items

    def _fields(self, line: int, depth: int) -> Fields:
        fields = Fields({}, {}, line)
        for event in self._events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            self._count += 1
            self._judge(event, depth)
            if not isinstance(event, yaml.ScalarEvent):
                raise _DocumentError(self._line(event), "a key that is no text is refused")
            key = event.value
            if key in fields.values:
                raise _DocumentError(self._line(event), f"the key {key[:80]!r} stands twice")
            fields.values[key] = self._value(next(self._events), depth=depth)
            fields.lines[key] = self._line(event)
        return fields

    def _scalar(self, event: Any) -> Any:
        text: str = event.value
        tag = event.tag
        if tag is None or tag == "!":
            tag = self._resolver.resolve(yaml.ScalarNode, text, event.implicit)
        kind = tag.removeprefix(_CORE)
        if kind not in _SCALARS:
            return text
        try:
            # Reading a number in base 60 takes time that grows with the square of its length.
            if len(text) > _NUMBER_LIMIT:
                raise ValueError
            return _SCALARS[kind](yaml.ScalarNode(tag, text))
        except (ValueError, KeyError, IndexError):
            raise _DocumentError(self._line(event), f"{text[:80]!r} is no {kind}") from None

    def _line(self, event: Any) -> int:
        return self._first + int(event.start_mark.line)
