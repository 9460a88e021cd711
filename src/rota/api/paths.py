"""Paths as they were sent: a segment may hold anything, also slashes, as long as it is percent-encoded.

A server decodes the path before it routes, and `a%2Fb` becomes two segments. Here it is routed encoded, in one
spelling for each text, and only a parameter is decoded.
"""

from typing import Any, Final
from urllib.parse import quote, unquote, unquote_to_bytes

from starlette.convertors import Convertor, register_url_convertor
from starlette.types import ASGIApp, Receive, Scope, Send

from rota.api.problems import Malformed, problem_response

PLAIN: Final = ":@!$&'()*+,;=~"
"""What stands in a segment as it is (RFC 3986), besides letters, digits and -._"""


class Segment(Convertor[str]):
    """One segment of a path, decoded: `{job_id:segment}` in a route."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return unquote(value, errors="strict")

    def to_string(self, value: str) -> str:
        return quote(value, safe="")


register_url_convertor("segment", Segment())


class RawPaths:
    """Middleware: lets the routes see the path encoded. A path that is not UTF-8 is refused."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                scope = {**scope, "path": canonical(scope.get("raw_path") or quote(scope["path"]).encode())}
            except UnicodeDecodeError:
                refusal: Any = problem_response(Malformed("path", "is not UTF-8 under its percent signs"))
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


def canonical(raw_path: bytes) -> str:
    """Return a path with every segment encoded in the one way. Raises UnicodeDecodeError."""
    segments = raw_path.split(b"?", 1)[0].split(b"/")
    return "/".join(quote(unquote_to_bytes(segment).decode("utf-8"), safe=PLAIN) for segment in segments)
