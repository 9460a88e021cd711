"""HTTP targets for tests: servers on 127.0.0.1 that answer as the test says and note what they were asked."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from multidict import CIMultiDictProxy

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request as it came."""

    method: str
    path: str
    headers: CIMultiDictProxy[str]
    body: bytes


@dataclass(slots=True, kw_only=True)
class HttpTarget:
    """A server. `answers` are given one after the other, the last one again and again."""

    answers: list[Answer]
    calls: list[Call] = field(default_factory=list)
    port: int = 0
    is_left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a caller has gone away in the middle of its answer."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?from=rota"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        call = Call(method=request.method, path=request.raw_path, headers=request.headers, body=await request.read())
        self.calls.append(call)
        answer = self.answers[min(len(self.calls), len(self.answers)) - 1]
        try:
            return await answer(request)
        except (asyncio.CancelledError, ConnectionError):
            self.is_left.set()
            raise


def says(status: int, text: str = "", **headers: str) -> Answer:
    """Answer with a status, a text, and headers whose names have `_` in place of `-`."""

    async def answer(_: web.Request) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=status, body=text.encode(), headers=named)

    return answer


def streams(status: int, chunk: bytes, *, content_type: str = "text/plain", for_ever: bool = True) -> Answer:
    """Answer with a body that has no end: chunk after chunk, or one and then silence."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status, headers={"Content-Type": content_type})
        await response.prepare(request)
        await response.write(chunk)
        while for_ever:
            await response.write(chunk)
        await asyncio.Event().wait()
        return response

    return answer


async def never(_: web.Request) -> web.StreamResponse:
    """Give no answer at all."""
    await asyncio.Event().wait()
    raise AssertionError("nobody wakes it")


@contextlib.asynccontextmanager
async def serving(*answers: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[HttpTarget]:
    """A target at work on a port of its own."""
    target = HttpTarget(answers=list(answers))
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", target.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    target.port = runner.addresses[0][1]
    try:
        yield target
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def saying(before: bytes, again: bytes = b"") -> AsyncIterator[HttpTarget]:
    """A target that answers every call with these bytes, and then the others again and again while somebody reads."""
    target = HttpTarget(answers=[])

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
        with contextlib.suppress(ConnectionError):
            writer.write(before)
            while again:
                writer.write(again)
                await writer.drain()
        target.is_left.set()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    target.port = server.sockets[0].getsockname()[1]
    async with server:
        yield target


class ChangingNames(AbstractResolver):
    """A resolver whose answers are given one after the other: what was true at the put is not at the call."""

    def __init__(self, *answers: list[str]) -> None:
        self.asked: list[str] = []
        self._answers = list(answers)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        self.asked.append(host)
        found = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if not found:
            raise OSError("there is no such name")
        return [
            ResolveResult(
                hostname=host, host=address, port=port, proto=0, flags=0,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
            )
            for address in found
        ]  # fmt: skip

    async def close(self) -> None:
        pass
