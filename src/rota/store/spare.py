"""A database that one test after the other uses: what a test wrote goes, and whether it did more than write is told.

A fresh copy of a database is quickly made, but whatever a session knows of it (its catalogue, its plans) is learnt
anew, which costs tests several times as much.
"""

from importlib.resources import files
from typing import Any, Final

import asyncpg

from rota.store.database import Database
from rota.store.sessions import CONNECT_TIMEOUT
from rota.store.statements import Statement

ROWS_LIMIT: Final = 5_000
"""Of a test that wrote more rows than this the database is not used again: dead rows would slow down the next."""

# Not among the files' statements, which a migrated database can plan: it has no such function.
_PUT_BACK: Final = Statement("put_back", "", "SELECT rota_kept.put_back($1, $2) AS sessions", ("own", "rows_limit"))
_SESSIONS: Final = Statement(
    "sessions", "", "SELECT count(*) AS sessions FROM pg_stat_activity WHERE application_name = $1", ("own",)
)


async def keep(dsn: str) -> None:
    """Let a database know its rows, so that it, and each copy of it, can have them put back."""
    connection: Any = await asyncpg.connect(dsn, timeout=CONNECT_TIMEOUT)
    try:
        async with connection.transaction():
            await connection.execute(_keep())
    finally:
        await connection.close(timeout=CONNECT_TIMEOUT)


async def is_whole(database: Database, *, name: str) -> bool:
    """Tell whether the sessions of this name are `database`'s, and all of them at rest."""
    if not database.is_at_rest:
        return False
    [row] = await database.fetch(_SESSIONS, own=name)
    return database.is_at_rest and bool(row["sessions"] == database.sessions)


async def put_back(database: Database, *, name: str) -> bool:
    """Put back the rows of a database whose sessions of this name are `database`'s, and end those of others.

    False where it cannot be used again: its schema or too many rows were changed, or its sessions are not as they were.
    """
    if not database.is_at_rest:
        return False
    [row] = await database.fetch(_PUT_BACK, own=name, rows_limit=ROWS_LIMIT)
    return database.is_at_rest and bool(row["sessions"] == database.sessions)


def _keep() -> str:
    return files("rota.store").joinpath("sql", "keep.sql").read_text(encoding="utf-8")
