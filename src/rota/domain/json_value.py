"""JSON as columns keep it: which values can be stored, and their compact text."""

import json
from collections.abc import Mapping
from typing import Any, Final

from rota.errors import InvalidInput, TooLarge

DEPTH_LIMIT: Final = 64
"""How deep lists and objects may lie in each other."""


def json_text(field: str, value: Any, *, limit: int) -> str:
    """Return a value as compact JSON text of at most `limit` bytes.

    Raises InvalidInput naming the field for what is no JSON or cannot be kept by PostgreSQL, TooLarge for the rest.
    """
    try:
        _check(field, value, depth=0)
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(field, f"is not JSON: {error}") from error
    if size > limit:
        raise TooLarge(field, f"has {size} bytes", hint=f"at most {limit}: keep the data elsewhere and pass its key")
    return text


def stored_json(text: str) -> Any:
    """Return what the database keeps as JSON, also what SQL wrote there that no Python would have written.

    A whole number with more digits than Python reads is given as text.
    """
    try:
        return json.loads(text)
    except ValueError:
        return json.loads(text, parse_int=_whole)


def has_half_pair(text: str) -> bool:
    """Tell whether a text holds half of a surrogate pair: what UTF-8 has no bytes for."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _check(field: str, value: object, *, depth: int) -> None:
    if depth > DEPTH_LIMIT:
        raise InvalidInput(field, f"is nested more than {DEPTH_LIMIT} deep")
    match value:
        case str():
            if "\x00" in value or has_half_pair(value):
                raise InvalidInput(field, "holds a NUL or half of a surrogate pair, which PostgreSQL cannot keep")
        case Mapping():
            for key, part in value.items():
                if not isinstance(key, str):
                    raise InvalidInput(field, f"has the key {key!r}", hint="keys of JSON objects are text")
                _check(field, key, depth=depth)
                _check(field, part, depth=depth + 1)
        case list() | tuple():
            for part in value:
                _check(field, part, depth=depth + 1)


def read_json(text: str) -> Any:
    """Return what a JSON text says. Raises ValueError, RecursionError, and InvalidInput for a name that is given twice.

    The refusal's field is the path that leads to the name, such as `payload.ids.3.name`.
    """
    value = json.loads(text, object_pairs_hook=_object_of)
    if (path := _path_to_repeated(value)) is not None:
        raise InvalidInput(
            ".".join(path)[:200] or "name", "is given twice", hint="JSON says not which of both is meant"
        )
    return value


class _Repeated(dict[str, Any]):
    """An object in which a name stands twice: which of both is meant nobody knows."""

    name: str = ""


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    names = [name for name, _ in pairs]
    repeated = _Repeated(value)
    repeated.name = next(name for name in names if names.count(name) > 1)
    return repeated


def _whole(digits: str) -> int | str:
    try:
        return int(digits)
    except ValueError:
        return digits


def _path_to_repeated(value: object) -> list[str] | None:
    match value:
        case _Repeated():
            return [value.name]
        case dict():
            members = [(str(name), member) for name, member in value.items()]
        case list():
            members = [(str(number), member) for number, member in enumerate(value)]
        case _:
            return None
    for name, member in members:
        if (path := _path_to_repeated(member)) is not None:
            return [name, *path]
    return None
