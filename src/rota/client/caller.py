"""How every method of the client asks: a question's fields out, a document back, and the one place where both meet."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote, urlencode

from pydantic import ValidationError

from rota.client.address import Address
from rota.client.transport import Request, Transport
from rota.clock import Clock, DatabaseClock, SystemClock
from rota.errors import InvalidInput, RotaError, place_of
from rota.wire.access import MeDocument
from rota.wire.document import Document, Question

D = TypeVar("D", bound=Document)
Q = TypeVar("Q", bound=Question)

TIMEOUT = 30.0
"""Seconds for one call with all its tries."""

PART_BYTES: Final = 2 * 1024 * 1024
"""The most bytes of a part of a longer list, unless a single entry has more."""

_REPEATABLE = frozenset({"GET", "PUT", "DELETE"})


class Caller:
    """A connection to an API. Its methods raise the errors that the services behind the API raise."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        tenant: str | None = None,
        timeout: float = TIMEOUT,
        clock: Clock | None = None,
        insecure: bool = False,
    ) -> None:
        address = Address.of(url, has_token=token is not None, insecure=insecure)
        self.url = address.base
        self._transport = Transport(address, token, tenant=tenant, timeout=timeout, clock=clock or SystemClock())

    @property
    def server_clock(self) -> DatabaseClock:
        """The server's clock, measured with every answer. It tells no time before the first one."""
        return self._transport.server_clock

    async def me(self) -> MeDocument:
        """Return who this client is to the server. Raises Unauthorized."""
        return await self._call("GET", "/v1/me", answer=MeDocument)

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _call(self, method: str, path: str, *, answer: type[D], **how: Any) -> D:
        """Ask as `_ask` does, and read the answer."""
        return (await self._ask(method, path, answer=answer, **how))[0]

    async def _ask(
        self,
        method: str,
        path: str,
        *,
        answer: type[D],
        question: Question | Mapping[str, Any] | bytes | None = None,
        query: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool | None = None,
        wait: float = 0.0,
    ) -> tuple[D, int]:
        """Ask; returns the answer and its status.

        A question in bytes is JSON. `repeatable` None: a POST is not, the rest is.
        """
        request = Request(
            method=method,
            path=path + _query(query or {}),
            headers={**(headers or {}), **({} if question is None else {"Content-Type": "application/json"})},
            body=question if question is None or isinstance(question, bytes) else json_of(question),
            is_repeatable=method in _REPEATABLE if repeatable is None else repeatable,
            wait=wait,
        )
        said = await self._transport.call(request)
        try:
            return answer.model_validate_json(said.body or b"{}"), said.status
        except ValidationError as error:
            raise RotaError(
                f"the server's answer to {method} {path} is no {answer.__name__}: {error.errors()[0]['msg']}",
                hint="is this the address of Rota's API, and of no older version?",
            ) from None


def in_parts(written: Iterable[bytes], *, count: int, size: int) -> Iterator[list[bytes]]:
    """Yield what is written in parts of which none is too many or too large, but for one that is so alone."""
    part: list[bytes] = []
    held = 0
    for one in written:
        if part and (len(part) == count or held + len(one) > size):
            yield part
            part, held = [], 0
        part.append(one)
        held += len(one)
    if part:
        yield part


def guarded(if_version: int | None) -> dict[str, str]:
    """Return the header that guards a put: over this version only, or with 0 only where nothing is yet."""
    if if_version is None:
        return {}
    return {"If-None-Match": "*"} if if_version == 0 else {"If-Match": f'"{if_version}"'}


def asked(kind: type[Q], /, **values: Any) -> Q:
    """Return a question. Raises InvalidInput, as the server would, for what no question of this kind holds."""
    try:
        return kind(**values)
    except ValidationError as error:
        first = error.errors()[0]
        field = place_of(first["loc"]) or "request"
        raise InvalidInput(field, first["msg"]) from None


def json_of(question: Question | Mapping[str, Any] | Sequence[Any] | str) -> bytes:
    """Return a question as it travels. Raises InvalidInput for what is no JSON."""
    if isinstance(question, Question):
        question = question.model_dump(mode="json")
    try:
        # Not by a faster library: integers of JSON have no greatest, and PostgreSQL keeps them all.
        return json.dumps(question, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput("request", f"is not JSON: {error}") from None


def _query(values: Mapping[str, object]) -> str:
    """Return a query string; what is None or empty is not asked for."""
    given = {name: _text(value) for name, value in values.items() if value is not None and value != ""}
    try:
        return f"?{urlencode(given, quote_via=quote)}" if given else ""
    except UnicodeEncodeError:
        raise InvalidInput("query", "holds half of a surrogate pair, which is not text") from None


def _text(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case datetime():
            return (value if value.tzinfo is None else value.astimezone(UTC)).isoformat()
        case _:
            return str(value)
