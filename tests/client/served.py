"""The real API on a loopback port inside the test's own loop, and a line to it that loses answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web
from yarl import URL

from rota.api.app import create_app
from rota.api.binding import bind
from rota.api.serving import serve
from rota.testing import RotaKit


@asynccontextmanager
async def served(kit: RotaKit, **options: Any) -> AsyncIterator[str]:
    """Serve a kit's cluster; yields the API's address."""
    stop = asyncio.Event()
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    app = create_app(kit.rota, **options)
    serving = asyncio.create_task(serve(app, bind("127.0.0.1", 0), stop=stop, started=url.set_result))
    try:
        yield await url
    finally:
        stop.set()
        await serving


class LossyLine:
    """Passes calls on to a server. The next `losses` answers are lost on their way back."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.losses = 0
        self.passed: list[str] = []


@asynccontextmanager
async def lossy(target: str) -> AsyncIterator[LossyLine]:
    """Yield a line to the server at `target`."""
    async with aiohttp.ClientSession() as session:

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            body = await request.content.read()
            async with session.request(
                request.method,
                URL(target + request.raw_path, encoded=True),
                data=body,
                headers={name: value for name, value in request.headers.items() if name != "Host"},
            ) as response:
                said = web.Response(body=await response.read(), status=response.status)
                said.headers["Content-Type"] = response.headers.get("Content-Type", "application/json")
            line.passed.append(request.raw_path)
            if line.losses > 0:
                line.losses -= 1
                assert request.transport is not None
                request.transport.abort()
            return said

        runner = web.ServerRunner(web.Server(handle))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        [(_, port)] = runner.addresses
        line = LossyLine(f"http://127.0.0.1:{port}")
        try:
            yield line
        finally:
            await runner.cleanup()
