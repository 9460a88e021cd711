"""Connections of strangers: what comes over one is bounded in bytes, time and number before anybody is asked who it is.

A connection reads one request after the other. It may take so long for a request's head and so long for its body; what
is no body (line, headers, frames of chunks, trailers) has a limit in bytes; few requests wait behind the one that is
answered. A server has so many connections, and one on which nothing is being answered makes room for the next.
"""

import asyncio
import resource
from http import HTTPStatus
from typing import Any, Final, Literal, TypeAlias, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

HEAD_LIMIT: Final = 64 * 1024
"""The most bytes that come without one of a body among them, besides the piece in which a request began."""
HEADERS_LIMIT: Final = 256
"""The most headers of a request."""
PIPELINED_LIMIT: Final = 4
"""The most requests that wait behind the one that is answered; a connection with more of them ends after these."""

HEAD_SECONDS: Final = 10.0
"""How long a request's head may take, from the opening of its connection or its first byte."""
BODY_SECONDS: Final = 60.0
"""How long a request's body may take."""
UNREAD_SECONDS: Final = 60.0
"""How long a client may leave an answer unread."""
CLOSING_SECONDS: Final = 5.0
"""How long a connection that is closed may take to send its last bytes."""

CONNECTIONS: Final = 10_000
"""The most connections of a server, where the limit of open files does not allow fewer."""
RESERVED_FILES: Final = 128
"""Open files that are left to everything else: the database, the journal, connections that are just being accepted."""
ACCEPTED_AT_ONCE: Final = 32
"""The most connections that are accepted before the first of them has its place."""
assert ACCEPTED_AT_ONCE * 2 < RESERVED_FILES, "what is accepted and what makes room for it are open at the same time"


Stage: TypeAlias = Literal["head", "body"]


class Lobby:
    """The connections of one server. Who came first among those that are owed nothing goes first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._here = set["BoundedConnection"]()
        self._resting: dict[BoundedConnection, None] = {}

    def enter(self, connection: "BoundedConnection") -> None:
        """Give a new connection its place: that of another one if there are too many, or none."""
        self._here.add(connection)
        self._resting[connection] = None
        if len(self._here) > self.limit:
            oldest = next(iter(self._resting))
            self.leave(oldest)
            oldest.give_way()

    def note(self, connection: "BoundedConnection", *, is_answered: bool) -> None:
        """Note whether something is being answered on a connection, which keeps it its place."""
        if connection not in self._here:
            return
        if is_answered:
            self._resting.pop(connection, None)
        else:
            self._resting.setdefault(connection)

    def leave(self, connection: "BoundedConnection") -> None:
        """Forget a connection."""
        self._here.discard(connection)
        self._resting.pop(connection, None)


class BoundedConfig(uvicorn.Config):
    """A server's settings, and the lobby of its connections."""

    def __init__(self, app: Any, *, lobby: Lobby, **settings: Any) -> None:
        super().__init__(app, http=BoundedConnection, **settings)
        self.lobby = lobby


class BoundedConnection(HttpToolsProtocol):
    """One connection. The parser beneath keeps whatever comes, for as long as it comes."""

    def __init__(self, config: BoundedConfig, *args: Any, **more: Any) -> None:
        super().__init__(config, *args, **more)
        self._lobby = config.lobby
        self._stage: Stage | None = None
        """Which part of a request is being read; None: the last one is whole."""
        self._besides = 0
        """Bytes of that request since it began, its head ended, or a byte of its body came, by whole pieces."""
        self._has_come_on = False
        """Whether the piece that is being read had such a place."""
        self._answered: RequestResponseCycle | None = None
        """The request that is or was answered last, which may not be the one that came last."""
        self._is_refused = False
        self._requests_read = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._deadline_of: tuple[Stage, int] | None = None
        self._closing: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    # the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self._lobby.enter(self)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lobby.leave(self)
        for timer in (self._deadline, self._closing, self._unread):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def give_way(self) -> None:
        """End at once: another connection needs the place."""
        self.transport.abort()

    def timeout_keep_alive_handler(self) -> None:
        self._close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self._unread or self.loop.call_later(UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        super().resume_writing()

    # what comes

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._has_come_on = False
        super().data_received(data)
        if self.transport.is_closing():
            return
        self._besides = 0 if self._has_come_on else self._besides + len(data)
        if self._stage is not None and self._besides > HEAD_LIMIT:
            self._refuse(400, "This request has too much besides its body.")
            return
        self._watch()

    def on_message_begin(self) -> None:
        if self._is_answering and len(self.pipeline) >= PIPELINED_LIMIT:
            raise ConnectionRefusedError("too many requests wait on this connection")
        self._stage, self._has_come_on = "head", True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._stage != "head":
            return  # a trailer: nobody here reads one
        if len(self.headers) >= HEADERS_LIMIT:
            raise ConnectionRefusedError("a request has too many headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stage, self._has_come_on = "body", True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._has_come_on = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._stage = None
        self._requests_read += 1
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_refused and not self._is_answering:
            self._close()
        self._note()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    # how long it may take, and how it ends

    @property
    def _is_answering(self) -> bool:
        """Whether a request that was read whole has no answer yet."""
        cycle = self._answered
        return cycle is not None and not cycle.more_body and not cycle.response_complete

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def _watch(self) -> None:
        """Have a deadline for whatever must come next, if anything must."""
        rests = self.timeout_keep_alive_task is not None
        expected = self._stage or (None if self._is_answering or rests else "head")
        self._note()
        about = None if expected is None else (expected, self._requests_read)
        if about == self._deadline_of:
            return
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline_of = about
        seconds = HEAD_SECONDS if expected == "head" else BODY_SECONDS
        self._deadline = None if about is None else self.loop.call_later(seconds, self._time_is_up)

    def _time_is_up(self) -> None:
        if self._stage is None:
            self._close()
        elif self._stage == "body" and not self.pipeline:
            self.transport.abort()  # whoever waits for this body hears that its client has gone
        else:
            self._refuse(408, "This request took too long to come.")

    def _refuse(self, status: int, why: str) -> None:
        """Read nothing more; say why, unless that would be taken for the answer to an earlier request."""
        self._is_refused = True
        is_torn = self._stage == "body"  # the request that came last will never be whole
        if is_torn and self.pipeline and self.pipeline[0][0] is self.cycle:
            self.pipeline.popleft()
        elif is_torn and self._answered is not None and self._answered.response_started:
            self._close()
            return
        if self._is_answering:
            self.flow.pause_reading()
            return  # ends with the last answer
        phrase = HTTPStatus(status).phrase
        self.transport.write(
            f"HTTP/1.1 {status} {phrase}\r\nContent-Type: text/plain\r\nContent-Length: {len(why)}\r\n"
            f"Connection: close\r\n\r\n{why}".encode("ascii")
        )
        self._close()

    def _note(self) -> None:
        self._lobby.note(self, is_answered=self._is_answering)

    def _close(self) -> None:
        """Close, and wait no longer than a little for what was said last to be read."""
        self.transport.close()
        self._closing = self._closing or self.loop.call_later(CLOSING_SECONDS, self.transport.abort)


def connections_allowed() -> int:
    """Return how many connections a server of this process may have."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return CONNECTIONS
    return max(ACCEPTED_AT_ONCE, min(CONNECTIONS, files - RESERVED_FILES))
