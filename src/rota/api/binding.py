"""A listening socket for the API, made before anything else starts: a port that is taken ends a command at once."""

import socket
from typing import Final

from rota.errors import SetupFailed

BACKLOG: Final = 2048
"""How many connections the system keeps until they are accepted."""


def bind(host: str, port: int, *, hint: str = "choose another --host or --port") -> socket.socket:
    """Return a socket that listens there; port 0 takes a free one. Raises SetupFailed with the hint."""
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
        raise SetupFailed(f"{host}:{port} cannot be bound: {error}", hint=hint) from None
    return listener
