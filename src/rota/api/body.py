"""Bodies: bounded while they are read, and JSON that every store can hold before anybody looks at it."""

import asyncio
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

from starlette.requests import Request

from rota.api.problems import Malformed, UnsupportedMedia
from rota.errors import InvalidInput, TooLarge, TooManyCalls, place_of
from rota.services.turns import Turns

BODY_LIMIT: Final = 1 << 20
"""The most bytes of a body."""
BATCH_BODY_LIMIT: Final = 16 << 20
"""The most bytes of a body that carries a batch."""
VALUES_LIMIT: Final = 500_000
"""The most values of a body, counted by brackets and commas: making millions of them holds up everybody for seconds."""
DEPTH_LIMIT: Final = 100
"""The deepest nesting of a body; what is kept has narrower limits of its own."""

QUICK: Final = 64 * 1024
"""Bytes of a body that are parsed on the spot; a longer one takes up to seconds, in which other calls go on."""

OWNER_BYTES: Final = 40 << 20
"""The most bytes of one tenant's bodies that are in memory at the same time: two batches and something beside them."""
TOTAL_BYTES: Final = 4 * OWNER_BYTES
"""The most bytes of all bodies."""
PARSED_AT_ONCE: Final = 2
"""The most long bodies that are parsed at the same time, each of another tenant."""

JSON: Final = frozenset({"application/json"})
MERGE_PATCH: Final = JSON | {"application/merge-patch+json"}
"""What a body may say that it is."""

CLEANED: Final = frozenset({"error"})
"""Members whose text is made storable by the domain: a report is not refused for the bytes in its traceback."""


_NEITHER_MARKS_NOR_QUOTES: Final = bytes(set(range(256)) - set(b'[{,"'))
_PIECE: Final = 64 * 1024
"""Bytes that are looked at in one go, so that memory stays flat."""


class Bodies:
    """The bodies that this process has in memory, by the tenants that sent them."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()
        self._turns = Turns(at_once=1)
        self._parsing = asyncio.Semaphore(PARSED_AT_ONCE)

    @contextmanager
    def held_for(self, owner: str) -> Iterator[Callable[[int], None]]:
        """Yield what takes note of bytes that come for an owner, until the block ends. It raises TooManyCalls."""
        held = 0

        def hold(count: int) -> None:
            nonlocal held
            if self._held[owner] + count > OWNER_BYTES or self._held.total() + count > TOTAL_BYTES:
                raise TooManyCalls("too many long bodies come at once", retry_after=1.0, hint="send them one by one")
            self._held[owner] += count
            held += count

        try:
            yield hold
        finally:
            self._held[owner] -= held
            if not self._held[owner]:
                del self._held[owner]

    def held(self, owner: str) -> int:
        """Return how many bytes an owner has here."""
        return self._held[owner]

    async def parsed(self, content: bytes, *, owner: str) -> Any:
        """Return the value of a JSON text, as `parse` does; a long one in a thread, after others of the same owner."""
        if len(content) <= QUICK:
            return parse(content)
        async with self._turns.of(owner), self._parsing:
            return await asyncio.to_thread(parse, content)


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


async def read(request: Request, bodies: Bodies, *, owner: str, limit: int, hold: Callable[[int], None]) -> ReadRequest:
    """Read a request's body. Raises TooLarge, TooManyCalls, Malformed, InvalidInput, UnsupportedMedia."""
    content = await _content(request, limit=limit, hold=hold)
    if not content:
        return ReadRequest(request, b"", None)
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise UnsupportedMedia("a compressed body is not read", hint="send it without Content-Encoding")
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in (MERGE_PATCH if request.method == "PATCH" else JSON):
        raise UnsupportedMedia("the body must be application/json", hint="send a Content-Type header that says so")
    return ReadRequest(request, content, await bodies.parsed(content, owner=owner))


def parse(content: bytes) -> Any:
    """Return the value of a JSON text. Raises Malformed, and InvalidInput for what JSON knows and no store can hold."""
    if _has_too_many_values(content):
        raise TooLarge("body", f"has more than {VALUES_LIMIT:,} values", hint="send it in parts")
    try:
        value = json.loads(content.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_object_of)
    except RecursionError:
        raise InvalidInput("body", f"is nested more than {DEPTH_LIMIT} deep") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise Malformed("body", f"is not JSON: {str(error)[:200]}") from None
    except ValueError:
        # Python's own bound, which it tells in words for programmers.
        raise InvalidInput("body", f"has a number of more than {sys.get_int_max_str_digits()} digits") from None
    try:
        _check(value, depth=0)
    except _Refused as refused:
        raise InvalidInput(place_of(reversed(refused.path)) or "body", refused.reason) from None
    return value


def _has_too_many_values(content: bytes) -> bool:
    """Count them without making any. What stands in texts is looked at only where it might matter."""
    if sum(map(content.count, (b"[", b"{", b","))) <= VALUES_LIMIT:
        return False
    marks = content.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, _NEITHER_MARKS_NOR_QUOTES)
    count, is_in_text = 0, False
    for start in range(0, len(marks), _PIECE):
        parts = marks[start : start + _PIECE].split(b'"')
        count += sum(map(len, parts[is_in_text::2]))
        is_in_text ^= len(parts) % 2 == 0
    return count > VALUES_LIMIT


async def _content(request: Request, *, limit: int, hold: Callable[[int], None]) -> bytes:
    refusal = TooLarge("body", f"has more than {limit} bytes", hint="send it in parts")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > limit:
        raise refusal
    content = bytearray()
    async for chunk in request.stream():
        hold(len(chunk))
        content += chunk
        if len(content) > limit:
            raise refusal
    return bytes(content)


def _refuse_constant(name: str) -> NoReturn:
    raise Malformed("body", f"is not JSON: {name} is not a number that JSON knows")


class _Repeated(dict[str, Any]):
    """An object in which a name stands twice: which of both is meant nobody knows."""

    name: str = ""


class _Refused(Exception):
    """A part of a body that nobody takes; `path` leads to it, from its end to its beginning."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[int | str] = []


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    repeated = _Repeated(value)
    names = [name for name, _ in pairs]
    repeated.name = next(name for name in names if names.count(name) > 1)
    return repeated


def _check(value: object, *, depth: int) -> None:
    """Refuse texts with NUL or half a surrogate pair, names given twice, numbers beyond bounds, and deep nesting."""
    if depth > DEPTH_LIMIT:
        raise InvalidInput("body", f"is nested more than {DEPTH_LIMIT} deep")
    match value:
        case str():
            _check_text(value)
        case float() if not math.isfinite(value):
            raise _Refused("is a number that is too large")
        case _Repeated():
            refused = _Refused("is given twice")
            refused.path.append(value.name)
            raise refused
        case dict():
            for name, member in value.items():
                try:
                    _check_text(name)
                    if name not in CLEANED or not isinstance(member, str):
                        _check(member, depth=depth + 1)
                except _Refused as refused:
                    refused.path.append(name)
                    raise
        case list():
            for number, member in enumerate(value):
                try:
                    _check(member, depth=depth + 1)
                except _Refused as refused:
                    refused.path.append(number)
                    raise


def _check_text(text: str) -> None:
    if "\x00" in text:
        raise _Refused("holds a NUL character")
    # The quick way to find what the slow way would look for in every character.
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise _Refused("holds half of a surrogate pair, which is not text") from None
