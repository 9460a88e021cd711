"""From the server's problem documents back to the errors that its services raised."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rota.errors import (
    Forbidden,
    InvalidInput,
    RotaError,
    ServerUnavailable,
    SetupFailed,
    TooManyCalls,
    Unauthorized,
)

_FOREIGN_LIMIT: Final = 200
"""Characters that are shown of an answer which is none of Rota's."""

_BY_STATUS: Final[dict[int, type[RotaError]]] = {
    401: Unauthorized, 403: Forbidden, 502: ServerUnavailable, 503: ServerUnavailable, 504: ServerUnavailable,
}  # fmt: skip
"""What an answer means that something between here and the server made."""


@dataclass(frozen=True, slots=True)
class Problem:
    """An answer that is no success: the error that it stands for, and the seconds to wait before the next try."""

    error: RotaError
    retry_after: float | None


def problem_of(status: int, body: bytes, headers: Mapping[str, str]) -> Problem:
    """Return what an answer of this status says went wrong."""
    document = _document(body)
    retry_after = _seconds(document.get("retry_after"))
    if retry_after is None:
        retry_after = _seconds(headers.get("Retry-After"))
    if "code" in document:
        return Problem(_rebuilt(document, retry_after), retry_after)
    return Problem(_foreign(status, body, headers), retry_after)


def _rebuilt(document: Mapping[str, Any], retry_after: float | None) -> RotaError:
    """Return the error as the server's process raised it.

    Of a code that this version does not know, it is a RotaError of that code, or an InvalidInput if it names a field.
    """
    code = str(document["code"])
    kind = _KINDS.get(code, InvalidInput if document.get("field") else RotaError)
    hint = document.get("hint")
    text = str(document.get("detail") or document.get("title") or code)
    reason = text.removesuffix(f" ({hint})") if hint else text
    # Not by their constructors, which make the text from parts that the document does not hold.
    error = kind.__new__(kind)
    error.code = code
    if isinstance(error, InvalidInput):
        field = str(document.get("field") or "request")
        InvalidInput.__init__(error, field, reason.removeprefix(f"{field}: "), hint=hint)
    else:
        RotaError.__init__(error, reason, hint=hint)
    if isinstance(error, TooManyCalls):
        error.retry_after = retry_after or 0.0
    return error


def _foreign(status: int, body: bytes, headers: Mapping[str, str]) -> RotaError:
    """Return the error for an answer that is no problem document: a proxy's, or that of another server."""
    if 300 <= status < 400:
        place = headers.get("Location", "elsewhere")
        return SetupFailed(f"the server sends callers to {place}", hint="redirects are not followed: give that address")
    said = " ".join(body[:_FOREIGN_LIMIT].decode(errors="replace").split())
    text = f"the server answered {status}" + (f": {said}" if said else "")
    kind = _BY_STATUS.get(status, RotaError)
    return kind(text, hint="is this the address of Rota's API?" if kind is RotaError else None)


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _seconds(value: object) -> float | None:
    """Read a wait. A date, which HTTP allows too, depends on two clocks: it is passed over."""
    if not isinstance(value, str | int | float):
        return None
    try:
        seconds = float(value)
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


def _all_kinds(kind: type[RotaError]) -> Iterator[type[RotaError]]:
    yield kind
    for narrower in kind.__subclasses__():
        # Not what happens to be imported beside: a service's own kinds have the codes of their bases.
        if narrower.__module__ == RotaError.__module__:
            yield from _all_kinds(narrower)


_KINDS: Final = {kind.code: kind for kind in _all_kinds(RotaError)}
