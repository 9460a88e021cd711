"""Serving the application on a socket, inside a loop that has other things to do, until it is told to stop."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import uvicorn
from fastapi import FastAPI

from rota.api.auth import is_loopback
from rota.api.binding import BACKLOG
from rota.api.connections import ACCEPTED_AT_ONCE, BoundedConfig, Lobby, connections_allowed
from rota.api.state import Api
from rota.errors import SetupFailed

DRAIN_SECONDS: Final = 10
"""How long calls that are under way may take after the stop; long polls are answered at once."""


async def serve(
    app: FastAPI, listener: socket.socket, *, stop: asyncio.Event, started: Callable[[str], None] | None = None
) -> None:
    """Serve until `stop` is set, then let calls under way end. `started` is told the URL, with the port that was bound.

    The listener, see `rota.api.binding`, is closed at the end. Signals are the caller's. Raises SetupFailed when its
    address is not loopback while the application is open to everybody.
    """
    api: Api = app.state.api
    host = listener.getsockname()[0]
    if api.is_open and not is_loopback(host):
        listener.close()
        raise SetupFailed(f"without tokens the API is not served on {host}", hint="make one with `rota token create`")
    with listener:
        server = _Server(
            BoundedConfig(
                app,
                lobby=Lobby(connections_allowed()),
                backlog=ACCEPTED_AT_ONCE,
                ws="none",
                lifespan="on",
                log_config=None,
                log_level="error",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=DRAIN_SECONDS,
            )
        )
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        stopping = asyncio.create_task(stop.wait())
        try:
            if started is not None:
                started(_url(listener))
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            api.polls.end()
            server.should_exit = True
            await serving


class _Server(uvicorn.Server):
    """A server that leaves the process's signals to the command around it."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            # The loop takes the backlog for the number of connections that it accepts in one go.
            listener.listen(BACKLOG)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
