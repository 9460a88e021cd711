"""The application's outer wall: headers of every answer, and a problem for whatever nobody else has answered."""

from traceback import format_exception
from typing import Any

import structlog
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rota.api.problems import Fault, problem_response
from rota.clock import Clock
from rota.domain.instants import format_instant

NOW_HEADER = "Rota-Now"
NOTHING_LOADED = "default-src 'none'; frame-ancestors 'none'"
"""What a browser may load for an answer that is no page of ours."""

_log = structlog.get_logger(__name__)


class Edge:
    """Middleware: tells the server's instant with every answer, and answers for faults of Rota itself."""

    def __init__(self, app: ASGIApp, clock: Clock) -> None:
        self._app = app
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = False

        async def sending(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                headers = MutableHeaders(scope=message)
                headers[NOW_HEADER] = format_instant(self._clock.now())
                headers["X-Content-Type-Options"] = "nosniff"
                headers.setdefault("Content-Security-Policy", NOTHING_LOADED)
                if scope["path"].startswith("/v1/"):
                    headers["Cache-Control"] = "no-store"
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except ClientDisconnect:
            # Nobody is there to be answered, and nothing was done: it left before its question was whole.
            return
        except Exception as error:
            # As text, for a renderer that shows local variables would show tokens.
            trace = "".join(format_exception(error))
            _log.error("api.fault", method=scope["method"], path=scope["path"][:200], trace=trace)
            if has_begun:
                raise
            response: Any = problem_response(
                Fault("a fault in Rota: the server's log tells more", hint="report it with the time of Rota-Now")
            )
            await response(scope, receive, sending)
