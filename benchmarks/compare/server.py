"""The one PostgreSQL that all are measured on: durable, by Rota's own embedded server, with a fresh database each."""

import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.harness import SHARED_BUFFERS
from rota.store.embedded import EmbeddedServer


class Server:
    """A running server, and a connection to look at it from outside."""

    def __init__(self, embedded: EmbeddedServer, look: "asyncpg.Connection[asyncpg.Record]", folder: Path) -> None:
        self.embedded = embedded
        self.folder = folder
        self._look = look

    @property
    def pid(self) -> int:
        """The process id of the postmaster, whose children do the work."""
        pid = self.embedded.pid
        assert pid is not None
        return pid

    async def fresh_database(self, peer: str) -> str:
        """Make the peer's database anew and empty; returns its address, by the server's socket."""
        name = peer.replace("-", "_") + "_bench"
        await self._look.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        await self._look.execute(f'CREATE DATABASE "{name}"')
        # What others left to be written is not written in this one's time.
        await self._look.execute("CHECKPOINT")
        return self.embedded.dsn.replace("/rota?", f"/{name}?", 1)

    async def wal(self) -> int:
        """Return the position in the WAL, in bytes."""
        at: int = await self._look.fetchval("SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn)::bigint")
        return at

    async def version(self) -> str:
        """Return PostgreSQL's version."""
        shown: str = await self._look.fetchval("SHOW server_version")
        return shown


@asynccontextmanager
async def shared_server() -> AsyncIterator[Server]:
    """Yield the server; it ends with its data."""
    folder = Path(tempfile.mkdtemp(prefix="rota-bench-"))
    try:
        async with EmbeddedServer(folder / "server", settings={"shared_buffers": SHARED_BUFFERS}) as embedded:
            look: Any = await asyncpg.connect(embedded.dsn)
            try:
                yield Server(embedded, look, folder)
            finally:
                await look.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
