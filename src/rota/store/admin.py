"""Whole databases: copied from a template and dropped, for tests and benchmarks."""

from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from rota.store.sessions import CONNECT_TIMEOUT


def with_database(dsn: str, name: str) -> str:
    """Return the DSN of another database on the same server."""
    return urlunsplit(urlsplit(dsn)._replace(path=f"/{name}"))


async def copy_database(dsn: str, *, source: str, name: str) -> None:
    """Create a database as a copy of another one, to which nobody may be connected."""
    await _execute(dsn, f"CREATE DATABASE {_quoted(name)} TEMPLATE {_quoted(source)} STRATEGY file_copy")


async def drop_database(dsn: str, *, name: str) -> None:
    """Drop a database if it is there, cutting off who is connected to it."""
    await _execute(dsn, f"DROP DATABASE IF EXISTS {_quoted(name)} WITH (FORCE)")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


async def _execute(dsn: str, command: str) -> None:
    connection: Any = await asyncpg.connect(dsn, timeout=CONNECT_TIMEOUT)
    try:
        await connection.execute(command)
    finally:
        await connection.close(timeout=CONNECT_TIMEOUT)
