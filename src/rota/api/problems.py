"""Where errors meet HTTP, and the only place: a status for each error, and its document (RFC 9457)."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from fastapi.exceptions import RequestValidationError
from starlette.responses import Response

from rota import errors
from rota.errors import InvalidInput, RotaError, TooManyCalls, place_of

MEDIA_TYPE: Final = "application/problem+json"
ERRORS_PAGE: Final = "/errors"
SHOWN: Final = 5
"""The most faults of one request that a problem lists."""
NAME_SHOWN: Final = 200
DETAIL_SHOWN: Final = 2000
"""The most characters of a message, which may repeat what was sent."""
CONDITIONS: Final = ("if-match", "if-none-match")
"""Headers that make a conflict of versions a condition that failed."""


class Malformed(InvalidInput):
    """The request itself cannot be read: its path is not UTF-8, or its body is not JSON."""

    code = "malformed"


class MethodNotAllowed(RotaError):
    """There is such a path, and it does not know this method; `Allow` lists those that it knows."""

    code = "method-not-allowed"


class UnsupportedMedia(RotaError):
    """A body is read as JSON only: send it as application/json."""

    code = "unsupported-media"


class Fault(RotaError):
    """A fault of Rota itself. The server's log has it; please report it."""

    code = "fault"


STATUS: Final[Mapping[type[RotaError], int]] = {
    Malformed: 400,
    errors.InvalidCursor: 400,
    errors.TooLarge: 413,
    errors.InvalidInput: 422,
    errors.Unauthorized: 401,
    errors.Forbidden: 403,
    errors.QuotaExceeded: 403,
    errors.NotFound: 404,
    MethodNotAllowed: 405,
    errors.KeyReused: 422,
    errors.Conflict: 409,
    UnsupportedMedia: 415,
    errors.TooManyCalls: 429,
    errors.DatabaseUnavailable: 503,
    errors.RotaError: 500,
}
"""The nearest base of an error counts."""

PROBLEM_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "title": "Problem",
    "description": "What went wrong (RFC 9457). `code` is stable; `type` leads to its explanation.",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string", "format": "uri-reference"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "field": {"type": "string", "description": "Which part of the request was refused."},
        "hint": {"type": "string", "description": "What to do about it."},
        "retry_after": {"type": "number", "description": "Seconds to wait before the same request."},
    },
}


def status_of(error: RotaError, *, asked_with: Mapping[str, str] | None = None) -> int:
    """Return the HTTP status that stands for an error; with a request's headers, 412 for a condition that failed."""
    if isinstance(error, errors.VersionConflict) and any(name in (asked_with or {}) for name in CONDITIONS):
        return 412
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def problem_response(
    error: RotaError, *, status: int | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an error as a response."""
    status = status or status_of(error)
    document: dict[str, Any] = {
        "type": f"{ERRORS_PAGE}#{error.code}",
        "title": title_of(type(error)),
        "status": status,
        "detail": _detail(error),
        "code": error.code,
    }
    if isinstance(error, InvalidInput):
        document["field"] = error.field[:NAME_SHOWN]
    if error.hint:
        document["hint"] = error.hint
    sent = dict(headers or {})
    if status == 401:
        sent["WWW-Authenticate"] = "Bearer"
    if status == 503:
        document["retry_after"] = 1.0
    if isinstance(error, TooManyCalls):
        document["retry_after"] = error.retry_after
    if "retry_after" in document:
        sent["Retry-After"] = str(max(1, math.ceil(document["retry_after"])))
    # What a client sent may hold half a surrogate pair, which ASCII can carry and UTF-8 cannot.
    return Response(json.dumps(document).encode("ascii"), status, headers=sent, media_type=MEDIA_TYPE)


def invalid_request(error: RequestValidationError) -> InvalidInput:
    """Return what pydantic found as one refusal, which names the first field and lists the others."""
    faults = [(_field(fault["loc"]), str(fault["msg"])) for fault in error.errors()]
    field, reason = faults[0]
    reason += "".join(f"; {other}: {what}" for other, what in faults[1:SHOWN])
    if len(faults) > SHOWN:
        reason += f"; and {len(faults) - SHOWN} more"
    return InvalidInput(field, reason)


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route in OpenAPI for these statuses, each a problem."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": _DESCRIPTIONS[status], "content": content} for status in sorted(set(statuses))}


def title_of(kind: type[RotaError]) -> str:
    """Return the first sentence of an error's explanation."""
    return explanation_of(kind).split(". ")[0].split(": ")[0].rstrip(".")


def explanation_of(kind: type[RotaError]) -> str:
    """Return what an error means, in one paragraph."""
    return " ".join((kind.__doc__ or kind.__name__).split())


def every_error(kind: type[RotaError] = RotaError) -> Iterator[type[RotaError]]:
    """Yield every error that Rota raises on purpose, each before its own kinds."""
    yield kind
    for child in kind.__subclasses__():
        if child.__module__.startswith("rota."):
            yield from every_error(child)


_DESCRIPTIONS: Final = {
    400: "The request cannot be read, or the cursor is not one of this list.",
    401: "There is no token, or it does not hold.",
    403: "The token does not allow this, or a quota is used up.",
    404: "There is no such thing in this tenant.",
    409: "Something that exists stands against it.",
    412: "It has another version than `If-Match` names.",
    413: "The body, or a value in it, is too large.",
    415: "The body is not application/json.",
    422: "A value is refused; `field` names it.",
    429: "Too many calls, or too many runs that wait: wait for `Retry-After` seconds.",
    503: "The database cannot be reached for now: try again.",
}


def _detail(error: RotaError) -> str:
    """Return the message without the hint, which has its own place."""
    if isinstance(error, errors.DatabaseUnavailable) and not isinstance(error, errors.Locked | errors.TooSlow):
        # The driver's message names hosts and users, and strangers are answered so too: the log has it.
        return explanation_of(type(error))
    text = str(error)
    return (text.removesuffix(f" ({error.hint})") if error.hint else text)[:DETAIL_SHOWN]


def _field(place: Sequence[int | str]) -> str:
    """Return where a fault is, such as `reports[3].status`, without the word for the part of the request."""
    shown = (part if isinstance(part, int) else part[:NAME_SHOWN] for part in place[1:])
    return place_of(shown) or str(place[0])
