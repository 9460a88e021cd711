"""Bodies: bounded while they are read, and JSON that every store can hold before anybody looks at it."""

import asyncio
import json
import math
from typing import Any, Final, NoReturn

from starlette.requests import Request

from rota.api.problems import Malformed, UnsupportedMedia
from rota.errors import InvalidInput, TooLarge

BODY_LIMIT: Final = 1 << 20
"""The most bytes of a body."""
BATCH_BODY_LIMIT: Final = 16 << 20
"""The most bytes of a body that carries a batch."""
CONTAINERS_LIMIT: Final = 500_000
"""The most lists and objects of a body, counted by their brackets: millions of them take seconds to be made."""
DEPTH_LIMIT: Final = 100
"""The deepest nesting of a body; what is kept has narrower limits of its own."""

QUICK: Final = 64 * 1024
"""Bytes of a body that are parsed on the spot; a longer one takes up to seconds, in which other calls go on."""

CLEANED: Final = frozenset({"error"})
"""Members whose text is made storable by the domain: a report is not refused for the bytes in its traceback."""


class ReadRequest(Request):
    """A request whose body has been read, checked and parsed."""

    def __init__(self, request: Request, content: bytes, value: Any) -> None:
        super().__init__(request.scope, request.receive)
        self._content = content
        self._value = value

    async def body(self) -> bytes:
        return self._content

    async def json(self) -> Any:
        return self._value


async def read(request: Request, *, limit: int) -> ReadRequest:
    """Read a request's body. Raises TooLarge, Malformed, InvalidInput, UnsupportedMedia."""
    content = await _content(request, limit=limit)
    if not content:
        return ReadRequest(request, b"", None)
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise UnsupportedMedia("the body must be application/json", hint="send a Content-Type header that says so")
    value = parse(content) if len(content) <= QUICK else await asyncio.to_thread(parse, content)
    return ReadRequest(request, content, value)


def parse(content: bytes) -> Any:
    """Return the value of a JSON text. Raises Malformed, and InvalidInput for what JSON knows and no store can hold."""
    if content.count(b"[") + content.count(b"{") > CONTAINERS_LIMIT:
        raise TooLarge("body", f"has more than {CONTAINERS_LIMIT:,} lists and objects", hint="send it in parts")
    try:
        value = json.loads(content.decode("utf-8"), parse_constant=_refuse_constant)
    except RecursionError:
        raise InvalidInput("body", f"is nested more than {DEPTH_LIMIT} deep") from None
    except ValueError as error:
        raise Malformed("body", f"is not JSON: {str(error)[:200]}") from None
    _check(value, depth=0)
    return value


async def _content(request: Request, *, limit: int) -> bytes:
    refusal = TooLarge("body", f"has more than {limit} bytes", hint="send it in parts")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > limit:
        raise refusal
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > limit:
            raise refusal
    return bytes(content)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that JSON knows")


def _check(value: object, *, depth: int) -> None:
    """Refuse texts with NUL or half a surrogate pair, numbers beyond all bounds, and deep nesting."""
    if depth > DEPTH_LIMIT:
        raise InvalidInput("body", f"is nested more than {DEPTH_LIMIT} deep")
    match value:
        case str():
            _check_text(value)
        case float() if not math.isfinite(value):
            raise InvalidInput("body", "holds a number that is too large")
        case dict():
            for name, member in value.items():
                _check_text(name)
                if name not in CLEANED or not isinstance(member, str):
                    _check(member, depth=depth + 1)
        case list():
            for member in value:
                _check(member, depth=depth + 1)


def _check_text(text: str) -> None:
    if "\x00" in text:
        raise InvalidInput("body", "holds a NUL character")
    # The quick way to find what the slow way would look for in every character.
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidInput("body", "holds half of a surrogate pair, which is not text") from None
