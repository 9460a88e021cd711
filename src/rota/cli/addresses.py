"""The database's address: refused where it is none, and named, its password hidden, where nothing can be reached."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import parse_qs, urlsplit

from rota.errors import DatabaseUnavailable, InvalidInput

_SHAPE: Final = "give postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
_ESCAPE: Final = f"{_SHAPE}, with / # ? @ % in a password written as %2F %23 %3F %40 %25"


def check_address(url: str) -> None:
    """Raise InvalidInput, which never quotes the address, for one that nothing could be reached by."""
    if not url.startswith(("postgresql://", "postgres://")):
        raise InvalidInput("database_url", "is no address", hint=_SHAPE)
    try:
        parts = urlsplit(url)
        options = parse_qs(parts.query, strict_parsing=True) if parts.query else {}
    except ValueError:
        raise InvalidInput("database_url", "is malformed", hint=_ESCAPE) from None
    hosts = parts.netloc.rpartition("@")[2].split(",")
    listed = [f"//:{port}" for ports in options.get("port", []) for port in ports.split(",")]
    try:
        for host in [f"//{host}" for host in hosts] + listed:
            urlsplit(host).port  # noqa: B018  # reading it is the check
    except ValueError:
        raise InvalidInput("database_url", "its port is no number from 0 to 65535", hint=_ESCAPE) from None


@contextmanager
def reaching(url: str | None) -> Iterator[None]:
    """Inside the block a database that cannot be reached is named; None is the embedded one, which explains itself."""
    try:
        yield
    except UnicodeError:
        if url is None:
            raise
        raise InvalidInput("database_url", "its host can be no host's name", hint=_SHAPE) from None
    except DatabaseUnavailable as error:
        # So the driver refuses an option of the address, in words that name it.
        if url is not None and isinstance(error.__cause__, ValueError):
            raise InvalidInput("database_url", str(error.__cause__), hint=_SHAPE) from None
        if url is None or error.hint or type(error) is not DatabaseUnavailable:
            raise
        raise _unreachable(url, error) from error


def _unreachable(url: str, error: DatabaseUnavailable) -> DatabaseUnavailable:
    from rota.worker.ending import mask_secrets

    match error.__cause__:
        case ConnectionRefusedError():
            why = "nothing listens there"
        case TimeoutError():
            why = "it does not answer"
        case socket.gaierror():
            why = "its host is not known"
        case cause:
            why = str(cause or error)
    return DatabaseUnavailable(
        f"the database {mask_secrets(url)} cannot be reached: {why}",
        hint="is it running? check ROTA_DATABASE_URL or --database-url",
    )
