"""What a target may send before its answer stands: bounded, since a parser takes whatever comes in one go."""

from asyncio import AbstractEventLoop, get_running_loop
from functools import partial
from typing import Any, Final

from aiohttp import ClientPayloadError, TCPConnector
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage
from aiohttp.streams import StreamReader

INFORMATIONAL_LIMIT: Final = 16
"""The most informational answers (100 to 199) before the one that counts."""
HEAD_LIMIT: Final = 64 * 1024
"""The most bytes of an answer up to the end of its head, informational answers included."""
PIECE: Final = 2048
"""So many bytes are parsed before it is asked whether that was enough."""


class Connector(TCPConnector):
    """A connector whose connections carry one answer each, of which only the body may be long."""

    def __init__(self, **settings: Any) -> None:
        # A kept connection may be closed by its target at the instant of the next call, which would cost that run an
        # attempt; and a new one is judged anew.
        super().__init__(**settings, force_close=True)
        # The one place where a connector can be told how to read.
        factory: partial[Any] = partial(OneAnswer, loop=get_running_loop())
        self._factory = factory


class OneAnswer(ResponseHandler):
    """Reads one answer. A target that says too much before it, or goes on behind it, loses the connection.

    Informational answers are passed over here: whoever waits for the head would otherwise wake up for each of them.
    """

    def __init__(self, loop: AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._informed = 0
        self._head_bytes = 0
        self._answers = 0

    def data_received(self, data: bytes) -> None:
        """Parse what came, piece by piece as long as it may be a head."""
        for start in range(0, len(data), PIECE):
            if not self.is_connected():
                return
            piece = data[start : start + PIECE]
            if not self._answers:
                self._head_bytes += len(piece)
            super().data_received(piece)
            if self._informed > INFORMATIONAL_LIMIT or (not self._answers and self._head_bytes > HEAD_LIMIT):
                self._end("too much before its answer")

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        message, _ = data
        if 100 <= message.code < 200:
            self._informed += 1
            return
        self._answers += 1
        if self._answers > 1:
            self._end("more than one answer")
            return
        super().feed_data(data, size)

    def _end(self, why: str) -> None:
        self.set_exception(ClientPayloadError(f"the target sent {why}"))
        if self.transport is not None:
            self.transport.abort()
