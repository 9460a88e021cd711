"""Messages between a worker and its own processes: a length of four bytes, then a JSON object.

Instants travel as texts.

JSON rather than pickle: what arrives is data, whoever wrote it.
"""

import asyncio
import json
import struct
from typing import Any, BinaryIO, Final

import orjson

FRAME_LIMIT: Final = 64 * 1024 * 1024
"""Bytes. A longer frame is not ours: the two ends have lost step."""

_LENGTH: Final = struct.Struct(">I")

Message = dict[str, Any]


def pack(message: Message) -> bytes:
    """Return the message as a frame."""
    try:
        body = orjson.dumps(message, default=list)
    except TypeError:
        # A payload may hold numbers of more than 64 bits, and halves of characters.
        body = json.dumps(message, separators=(",", ":"), default=str).encode()
    assert len(body) <= FRAME_LIMIT, "payloads and error texts are bounded, so frames are"
    return _LENGTH.pack(len(body)) + body


async def read(reader: asyncio.StreamReader) -> Message | None:
    """Return the next message; None when the other end closed or died, also in mid-frame."""
    try:
        body = await reader.readexactly(_bounded(await reader.readexactly(_LENGTH.size)))
    except (asyncio.IncompleteReadError, OSError):
        return None
    return _parse(body)


def read_blocking(stream: BinaryIO) -> Message | None:
    """Return the next message, as `read` does, for a process without an event loop."""
    try:
        head = stream.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            return None
        length = _bounded(head)
        body = stream.read(length)
    except OSError:
        return None
    return _parse(body) if len(body) == length else None


def _bounded(head: bytes) -> int:
    length: int = _LENGTH.unpack(head)[0]
    if length > FRAME_LIMIT:
        raise ValueError(f"a frame of {length} bytes was announced, the limit is {FRAME_LIMIT}")
    return length


def _parse(body: bytes) -> Message:
    message: Message = json.loads(body)
    return message
