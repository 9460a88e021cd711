"""Connections of strangers: heads, trailers, pipelines and slowness have bounds, whoever sends them."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import pytest

from rota.api import connections
from tests.api.conftest import Served, Serving, soon

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Wire:
    """A bare connection to a served API."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        """Send, as far as the server reads it."""
        # The latter is uvloop's of a connection that has ended.
        with suppress(ConnectionError, RuntimeError):
            self.writer.write(data)
            await self.writer.drain()

    async def answer(self) -> bytes:
        """Return the status line and the body of the next answer."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        return head.split(b"\r\n")[0] + b" " + await self.reader.readexactly(length)

    async def rest(self) -> bytes:
        """Return what comes until the server closes."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""


@asynccontextmanager
async def wired(server: Served) -> AsyncIterator[Wire]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    try:
        async with asyncio.timeout(15):
            yield Wire(reader, writer)
    finally:
        writer.close()


def callback(end: bytes = b"0\r\n") -> bytes:
    """A stranger's callback, in one chunk, up to its trailers."""
    body = b'{"lease_token": "019b76da-a800-4000-8cb6-e7e8c805b49c", "status": "succeeded"}'
    return (
        b"POST /v1/callbacks/019b76da-a800-8000-8cb6-e7e8c805b49c HTTP/1.1\r\nHost: x\r\n"
        b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"%x\r\n%s\r\n%s" % (len(body), body, end)
    )


async def test_a_trailer_or_two_are_passed_over(server: Served) -> None:
    async with wired(server) as wire:
        await wire.send(callback() + b"X-Checksum: 1\r\nAuthorization: Bearer x\r\n\r\n")
        assert b'"code": "lease-lost"' in await wire.answer()
        await wire.send(HEALTH)
        assert (await wire.answer()).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("trailer", [b"a: b\r\n" * 10_000, b"x" * 60_000], ids=["many", "one long one"])
async def test_trailers_that_go_on_and_on_are_not_read_to_their_end(server: Served, trailer: bytes) -> None:
    async with wired(server) as wire:
        await wire.send(callback() + b"a: ")
        tracemalloc.start()
        try:
            for _ in range(200):
                await wire.send(trailer)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        answered = await wire.rest()
    assert answered == b"" or answered.startswith(b"HTTP/1.1 400")
    assert peak < 8_000_000


async def test_frames_of_chunks_that_go_on_and_on_are_not_read_to_their_end(server: Served) -> None:
    async with wired(server) as wire:
        await wire.send(callback(end=b"1;"))
        for _ in range(100):
            await wire.send(b"x" * 60_000)
        answered = await wire.rest()
    assert answered == b"" or answered.startswith(b"HTTP/1.1 400")


async def test_a_head_of_thousands_of_headers_is_refused(server: Served) -> None:
    async with wired(server) as wire:
        await wire.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"a:\r\n" * 10_000 + b"\r\n")
        assert (await wire.rest()).startswith(b"HTTP/1.1 400")


async def test_a_few_requests_may_wait_behind_one_another(server: Served) -> None:
    async with wired(server) as wire:
        await wire.send(HEALTH * 3)
        for _ in range(3):
            assert (await wire.answer()).endswith(b'{"alive":true}')


async def test_a_connection_with_a_thousand_requests_at_once_ends_after_a_few_answers(server: Served) -> None:
    async with wired(server) as wire:
        await wire.send(HEALTH * 1000)
        answered = await wire.rest()
    assert answered.count(b"HTTP/1.1 200 OK") == answered.count(b"HTTP/1.1") == 1 + connections.PIPELINED_LIMIT


async def test_nonsense_behind_a_request_does_not_become_its_answer(server: Served) -> None:
    async with wired(server) as wire:
        await wire.send(HEALTH + b"\x00\x01 nonsense\r\n\r\n")
        answered = await wire.rest()
    assert answered.startswith(b"HTTP/1.1 200 OK")
    assert answered.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b"", b""),
        (b"\r\n", b""),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ", b"HTTP/1.1 408 Request Timeout"),
        (callback(end=b"10\r\n"), b""),
        (HEALTH + b"\r\n", b"HTTP/1.1 200 OK"),
    ],
    ids=["nothing", "an empty line", "half a head", "half a body", "an empty line after a request"],
)
async def test_what_takes_too_long_to_come_is_not_waited_for(
    server: Served, monkeypatch: pytest.MonkeyPatch, sent: bytes, told: bytes
) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.2)
    monkeypatch.setattr(connections, "BODY_SECONDS", 0.2)
    async with wired(server) as wire:
        await wire.send(sent)
        assert (await wire.rest()).startswith(told)


async def test_a_slow_head_behind_a_request_leaves_its_answer_alone(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = (await server.token(scopes=("worker",))).encode()
    question = b'{"worker_id": "w", "limit": 1, "wait": 1}'
    async with wired(server) as wire:
        await wire.send(
            b"POST /v1/claims HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer %s\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (token, len(question), question)
        )
        await soon(lambda: server.kit.clock.next_wake() is not None, lambda: server.caller().get("/healthz"))
        monkeypatch.setattr(connections, "HEAD_SECONDS", 0.0)
        await wire.send(b"GET /hea")
        await server.caller().get("/healthz")
        server.kit.clock.advance(2)
        answered = await wire.rest()
    assert answered.startswith(b"HTTP/1.1 200 OK")
    assert answered.endswith(b'{"runs":[]}')


async def test_connections_that_say_nothing_make_room_for_one_that_does(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.api.serving.connections_allowed", lambda: 8)
    async with serving() as server:
        port = int(server.url.rpartition(":")[2])
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        for _, writer in silent:
            writer.write(b"POST /v1/callbacks/x HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n")
        async with wired(server) as wire:
            await wire.send(HEALTH)
            assert (await wire.answer()).endswith(b'{"alive":true}')
        assert await asyncio.wait_for(silent[0][0].read(), 30) == b""
        for _, writer in silent:
            writer.close()


def test_connections_leave_files_for_everything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (300, 300))
    assert connections.connections_allowed() == 300 - connections.RESERVED_FILES
    monkeypatch.setattr("resource.getrlimit", lambda _: (1_000_000, 1_000_000))
    assert connections.connections_allowed() == connections.CONNECTIONS
