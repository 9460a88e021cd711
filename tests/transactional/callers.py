"""Programs with a connection of their own to the database: one shape over the libraries that Rota knows."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import asyncpg
import psycopg
import psycopg.rows
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from rota.domain.attempt import Claim
from rota.transactional import (
    complete_in,
    complete_in_sync,
    trigger_in,
    trigger_in_sync,
    trigger_many_in,
    trigger_many_in_sync,
)

TABLE = "CREATE TABLE public.effect (run_id uuid NOT NULL)"
EFFECT = "INSERT INTO public.effect SELECT '{run_id}'::uuid"


class RolledBack(Exception):
    """What a program raises to end its transaction without a trace."""


@dataclass(frozen=True)
class InHand:
    """A run in its handler's hands."""

    run_id: UUID
    lease_token: UUID

    @classmethod
    def of(cls, claim: Claim) -> "InHand":
        return cls(claim.run_id, claim.key.token)


@dataclass(frozen=True)
class Caller:
    """A program inside a transaction that commits when its block ends well."""

    execute: Callable[[str], Awaitable[Any]]
    trigger: Callable[..., Awaitable[UUID]]
    trigger_many: Callable[..., Awaitable[list[UUID]]]
    complete: Callable[..., Awaitable[None]]


def _asynchronous(connection: Any, execute: Callable[[str], Awaitable[Any]]) -> Caller:
    async def trigger(job_id: str, **asked: Any) -> UUID:
        return await trigger_in(connection, job_id, **asked)

    async def trigger_many(job_id: str, payloads: Any, **asked: Any) -> list[UUID]:
        return await trigger_many_in(connection, job_id, payloads, **asked)

    async def complete(run: InHand, **asked: Any) -> None:
        await complete_in(connection, run, **asked)

    return Caller(execute, trigger, trigger_many, complete)


def _synchronous(connection: Any, execute: Callable[[str], Any]) -> Caller:
    # These block the loop, which has nothing else to do meanwhile.
    async def run(statement: str) -> Any:
        return execute(statement)

    async def trigger(job_id: str, **asked: Any) -> UUID:
        return trigger_in_sync(connection, job_id, **asked)

    async def trigger_many(job_id: str, payloads: Any, **asked: Any) -> list[UUID]:
        return trigger_many_in_sync(connection, job_id, payloads, **asked)

    async def complete(run: InHand, **asked: Any) -> None:
        complete_in_sync(connection, run, **asked)

    return Caller(run, trigger, trigger_many, complete)


@asynccontextmanager
async def by_asyncpg(dsn: str) -> AsyncIterator[Caller]:
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            yield _asynchronous(connection, connection.execute)
    finally:
        await connection.close()


@asynccontextmanager
async def by_asyncpg_pool(dsn: str) -> AsyncIterator[Caller]:
    """A pooled connection, with codecs of the program's own."""

    async def prepare(connection: Any) -> None:
        await connection.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        await connection.set_type_codec("uuid", encoder=str, decoder=str, schema="pg_catalog")

    async with (
        asyncpg.create_pool(dsn, min_size=1, max_size=1, init=prepare) as pool,
        pool.acquire() as connection,
        connection.transaction(),
    ):
        yield _asynchronous(connection, connection.execute)


@asynccontextmanager
async def by_psycopg(dsn: str) -> AsyncIterator[Caller]:
    with psycopg.connect(dsn, row_factory=psycopg.rows.dict_row) as connection:
        yield _synchronous(connection, connection.execute)


@asynccontextmanager
async def by_psycopg_autocommit(dsn: str) -> AsyncIterator[Caller]:
    """A connection that commits by itself, except within a block."""
    with psycopg.connect(dsn, autocommit=True) as connection, connection.transaction():
        yield _synchronous(connection, connection.execute)


@asynccontextmanager
async def by_psycopg_async(dsn: str) -> AsyncIterator[Caller]:
    async with await psycopg.AsyncConnection.connect(dsn, row_factory=psycopg.rows.dict_row) as connection:
        yield _asynchronous(connection, connection.execute)


@asynccontextmanager
async def by_sqlalchemy(dsn: str) -> AsyncIterator[Caller]:
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn))
    try:
        with engine.begin() as connection:
            yield _synchronous(connection, lambda statement: connection.execute(text(statement)))
    finally:
        engine.dispose()


@asynccontextmanager
async def by_sqlalchemy_session(dsn: str) -> AsyncIterator[Caller]:
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn))
    try:
        with Session(engine) as session, session.begin():
            yield _synchronous(session, lambda statement: session.execute(text(statement)))
    finally:
        engine.dispose()


@asynccontextmanager
async def by_sqlalchemy_async(dsn: str) -> AsyncIterator[Caller]:
    engine = create_async_engine("postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(dsn))
    try:
        async with engine.begin() as connection:
            yield _asynchronous(connection, lambda statement: connection.execute(text(statement)))
    finally:
        await engine.dispose()


@asynccontextmanager
async def by_sqlalchemy_async_session(dsn: str) -> AsyncIterator[Caller]:
    engine = create_async_engine("postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(dsn))
    try:
        async with AsyncSession(engine) as session, session.begin():
            yield _asynchronous(session, lambda statement: session.execute(text(statement)))
    finally:
        await engine.dispose()


CALLERS = {
    "asyncpg": by_asyncpg,
    "asyncpg-pool": by_asyncpg_pool,
    "psycopg": by_psycopg,
    "psycopg-autocommit": by_psycopg_autocommit,
    "psycopg-async": by_psycopg_async,
    "sqlalchemy": by_sqlalchemy,
    "sqlalchemy-session": by_sqlalchemy_session,
    "sqlalchemy-async": by_sqlalchemy_async,
    "sqlalchemy-async-session": by_sqlalchemy_async_session,
}
