"""Bring the schema up to this program's: numbered SQL files, forward only, one transaction each, under one lock.

Functions stand in one file of their own, applied whole after the last step, wherever another text is in force.
"""

import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from typing import Any, Final

import asyncpg

from rota.domain.ids import SHARD_COUNT
from rota.errors import DatabaseUnavailable, SchemaMismatch
from rota.store.database import translate
from rota.store.sessions import CONNECT_TIMEOUT, Bounds, Sessions

LOCK_TIMEOUT: Final = 30.0
"""Seconds that a migration waits for another one, or for a table's lock."""
UNHURRIED: Final = Bounds(statement=0.0, lock=LOCK_TIMEOUT)
"""A step may take as long as it takes; its locks, and an end without a word, are bounded as everywhere."""
MINIMUM_SERVER: Final = 160000
WORKS_FROM: Final = 4
"""The schema version that the oldest program knows which works on the present schema: the last release's, at least."""

_LOCK_KEY: Final = 0x526F7461  # "Rota"
_FILE: Final = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One step of the schema."""

    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrated:
    """What a migration did: where the schema stood, where it stands, and the steps taken between."""

    before: int
    after: int
    applied: tuple[str, ...]


def known_migrations() -> list[Migration]:
    """Return this program's migrations in order; their numbers run from 1 without a hole."""
    found = []
    for entry in sorted(files("rota.store").joinpath("migrations").iterdir(), key=lambda entry: entry.name):
        if match := _FILE.fullmatch(entry.name):
            found.append(Migration(version=int(match[1]), name=match[2], sql=entry.read_text(encoding="utf-8")))
    assert [step.version for step in found] == list(range(1, len(found) + 1)), "migrations are numbered without a hole"
    return found


def known_functions() -> str:
    """Return the text of this program's functions of the database."""
    return files("rota.store").joinpath("sql", "functions.sql").read_text(encoding="utf-8")


async def migrate(
    dsn: str, *, now: datetime, lock_timeout: float = LOCK_TIMEOUT, shard_count: int = SHARD_COUNT
) -> Migrated:
    """Apply what is missing; safe to run from many processes at once, and again.

    Raises SchemaMismatch for a schema newer than this program or a step that was changed after it was applied, and
    DatabaseUnavailable when another migration holds the lock for longer than `lock_timeout` seconds.
    """
    try:
        connection: Any = await Sessions(dsn).open(UNHURRIED)
    except Exception as error:
        raise translate(error, "migrate", sent=False) from error
    try:
        _check_server(connection)
        return await _apply_missing(connection, now=now, lock_timeout=lock_timeout, shard_count=shard_count)
    except asyncpg.LockNotAvailableError as error:
        raise DatabaseUnavailable(
            f"another migration, or a transaction that holds a table's lock, did not end within {lock_timeout:g} s",
            hint="run `rota migrate` again; it goes on where it stood",
        ) from error
    except (OSError, asyncpg.PostgresConnectionError) as error:
        raise translate(error, "migrate") from error
    finally:
        await connection.close(timeout=CONNECT_TIMEOUT)


async def check_schema(dsn: str) -> None:
    """Raise SchemaMismatch for a schema on which this program does not work, or a server that is too old for it.

    On one that is newer it works if the program that migrated it said so.
    """
    wanted = len(known_migrations())
    async with _connected(dsn, "check schema") as connection:
        version = await _version(connection)
        if version is None or version < wanted:
            raise SchemaMismatch(
                f"the database's schema is at version {version or 0}, this program needs {wanted}",
                hint="run `rota migrate`",
            )
        if version > wanted and not await _is_served(connection, wanted):
            raise _too_new(version, wanted)


async def schema_version(dsn: str) -> int | None:
    """Return the database's schema version; None where Rota was never installed.

    Raises SchemaMismatch for a server that is too old for any.
    """
    async with _connected(dsn, "schema version") as connection:
        return await _version(connection)


@asynccontextmanager
async def _connected(dsn: str, what: str) -> AsyncIterator[Any]:
    try:
        connection: Any = await asyncpg.connect(dsn, timeout=CONNECT_TIMEOUT, statement_cache_size=0)
    except Exception as error:
        raise translate(error, what, sent=False) from error
    try:
        _check_server(connection)
        # In a transaction, and without prepared statements: a pooler hands the session to somebody else between two.
        async with connection.transaction():
            await connection.execute(f"SET LOCAL lock_timeout = {int(LOCK_TIMEOUT * 1000)}")
            yield connection
    finally:
        await connection.close(timeout=CONNECT_TIMEOUT)


async def _version(connection: Any) -> int | None:
    if await connection.fetchval("SELECT to_regclass('rota.migration')") is None:
        return None
    version: int | None = await connection.fetchval("SELECT max(version) FROM rota.migration")
    return version


async def _is_served(connection: Any, wanted: int) -> bool:
    """Tell whether a newer schema serves a program that knows it up to `wanted`."""
    # A schema that is damaged, or none of ours, has no such column.
    works_from = await connection.fetchval("SELECT (to_jsonb(c) ->> 'works_from')::integer FROM rota.cluster c")
    return works_from is not None and works_from <= wanted


def _check_server(connection: Any) -> None:
    version = connection.get_server_version()
    if version.major * 10000 < MINIMUM_SERVER:
        raise SchemaMismatch(f"PostgreSQL {version.major} is too old", hint="Rota needs PostgreSQL 16 or newer")


def _too_new(version: int, wanted: int) -> SchemaMismatch:
    return SchemaMismatch(
        f"the database's schema is at version {version}, newer than this program, which knows {wanted}",
        hint="upgrade this program; an older one could damage what it does not understand",
    )


async def _apply_missing(connection: Any, *, now: datetime, lock_timeout: float, shard_count: int) -> Migrated:
    steps = known_migrations()
    applied: list[str] = []
    before: int | None = None
    # One more round than there are steps: the last one finds nothing missing.
    for _ in range(len(steps) + 1):
        async with connection.transaction():
            await connection.execute(f"SET LOCAL lock_timeout = {int(lock_timeout * 1000)}")
            await connection.execute("SELECT pg_advisory_xact_lock($1::bigint)", _LOCK_KEY)
            at = await _standing(connection, steps)
            before = at if before is None else before
            if at > len(steps):
                # Its functions are the newer program's, and stay.
                return Migrated(before=before, after=at, applied=())
            if at == len(steps):
                await _replace_functions(connection, known_functions())
                return Migrated(before=before, after=at, applied=tuple(applied))
            step = steps[at]
            await connection.execute(step.sql)
            if step.version == 1:
                await _found_cluster(connection, now=now, shard_count=shard_count)
            await connection.execute(
                "INSERT INTO rota.migration (version, name, checksum, applied_at) VALUES ($1, $2, $3, $4)",
                step.version, step.name, step.checksum, now,
            )  # fmt: skip
            applied.append(f"{step.version:04d}_{step.name}")
    raise AssertionError("every round applies one step, and there were rounds enough")


async def _standing(connection: Any, steps: list[Migration]) -> int:
    """Return how many steps were applied, having checked that they are ours."""
    await connection.execute("CREATE SCHEMA IF NOT EXISTS rota")
    await connection.execute(
        "CREATE TABLE IF NOT EXISTS rota.migration (version integer PRIMARY KEY, name text NOT NULL,"
        " checksum text NOT NULL, applied_at timestamptz NOT NULL)"
    )
    rows = await connection.fetch("SELECT version, name, checksum FROM rota.migration ORDER BY version")
    newer = len(rows) > len(steps) or (bool(rows) and rows[-1]["version"] > len(steps))
    if newer and not await _is_served(connection, len(steps)):
        raise _too_new(rows[-1]["version"], len(steps))
    for row, step in zip(rows, steps, strict=False):
        if (row["version"], row["checksum"]) != (step.version, step.checksum):
            raise SchemaMismatch(
                f"migration {row['version']:04d}_{row['name']} was changed after it was applied",
                hint="restore its file: what was applied is never edited, a new step is added",
            )
    return len(rows)


async def _replace_functions(connection: Any, text: str) -> None:
    """Put this text's functions in force, unless they are, and note which programs work with them."""
    checksum = hashlib.sha256(text.encode()).hexdigest()
    if text and await connection.fetchval("SELECT functions FROM rota.cluster") != checksum:
        await connection.execute(text)
        await connection.execute("UPDATE rota.cluster SET functions = $1", checksum)
    if text and await connection.fetchval("SELECT works_from FROM rota.cluster") != WORKS_FROM:
        await connection.execute("UPDATE rota.cluster SET works_from = $1", WORKS_FROM)


async def _found_cluster(connection: Any, *, now: datetime, shard_count: int) -> None:
    await connection.execute("INSERT INTO rota.cluster (shard_count) VALUES ($1)", shard_count)
    await connection.execute("INSERT INTO rota.shard (shard) SELECT generate_series(0, $1 - 1)", shard_count)
    for months in range(-1, 4):
        await connection.execute(
            "SELECT rota.ensure_month(($1::timestamptz AT TIME ZONE 'UTC' + $2 * interval '1 month')::date)",
            now,
            months,
        )
