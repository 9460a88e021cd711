"""Serving the application on a socket, inside a loop that has other things to do, until it is told to stop."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import uvicorn
from fastapi import FastAPI

from rota.api.auth import is_loopback
from rota.api.connections import ACCEPTED_AT_ONCE, BoundedConfig, Lobby, connections_allowed
from rota.api.state import Api
from rota.errors import SetupFailed

DRAIN_SECONDS: Final = 10
"""How long calls that are under way may take after the stop; long polls are answered at once."""
BACKLOG: Final = 2048
"""How many connections the system keeps until they are accepted."""


async def serve(
    app: FastAPI, *, host: str, port: int, stop: asyncio.Event, started: Callable[[str], None] | None = None
) -> None:
    """Serve until `stop` is set, then let calls under way end. `started` is told the URL, with the port that was bound.

    Signals are the caller's. Raises SetupFailed when the address cannot be bound, or is not loopback while the
    application is open to everybody.
    """
    api: Api = app.state.api
    if api.is_open and not is_loopback(host):
        raise SetupFailed(f"without tokens the API is not served on {host}", hint="make one with `rota token create`")
    listener = _bind(host, port)
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


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
    except (OSError, OverflowError, UnicodeError) as error:
        raise SetupFailed(f"{host}:{port} cannot be bound: {error}", hint="choose another --host or --port") from None
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
