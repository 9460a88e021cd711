"""A PostgreSQL of one test session, and a fresh, migrated database for every test."""

import itertools
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, Final

from rota.clock import ManualClock
from rota.settings import Settings
from rota.store import spare
from rota.store.admin import copy_database, drop_database, with_database
from rota.store.database import Database
from rota.store.embedded import EmbeddedServer
from rota.store.migrate import migrate
from rota.testing.kit import RotaKit

TEMPLATE: Final = "rota_template"
KEPT_TEMPLATE: Final = "rota_template_kept"
SETTINGS: Final = {"max_connections": "200", "max_wal_size": "512MB"}
MEMORY: Final = Path("/dev/shm")
MEMORY_WANTED: Final = 4 * 1024**3
"""Bytes that must be free in memory's own file system before a cluster lives there: it takes up to about 1 GiB."""
START: Final = datetime(2026, 1, 1, tzinfo=UTC)


class TestCluster:
    """An embedded server without durability, in a temporary folder, with a migrated template database."""

    __test__: ClassVar[bool] = False

    def __init__(self, server: EmbeddedServer) -> None:
        self.server = server
        self._numbers = itertools.count(1)
        self._has_kept_template = False

    @classmethod
    @asynccontextmanager
    async def started(cls) -> AsyncIterator["TestCluster"]:
        """Yield a running cluster; its data is gone when the block ends."""
        folder = Path(tempfile.mkdtemp(prefix="rota-test-", dir=_quick_folder()))
        try:
            async with EmbeddedServer(folder, durable=False, settings=SETTINGS) as server:
                cluster = cls(server)
                await copy_database(server.dsn, source="template1", name=TEMPLATE)
                await migrate(with_database(server.dsn, TEMPLATE), now=START)
                yield cluster
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @asynccontextmanager
    async def database(self) -> AsyncIterator[str]:
        """Yield the DSN of a fresh, migrated database, dropped when the block ends."""
        name = await self._copied(TEMPLATE)
        try:
            yield with_database(self.server.dsn, name)
        finally:
            await drop_database(self.server.dsn, name=name)

    @asynccontextmanager
    async def kit(self, *, start: datetime = START, settings: Settings | None = None) -> AsyncIterator[RotaKit]:
        """Yield the whole of Rota on a manual clock over a fresh database."""
        async with self.database() as dsn:
            database = await Database.connect(dsn, size=8, reserved=2)
            try:
                yield RotaKit(dsn=dsn, database=database, clock=ManualClock(start), settings=settings or Settings())
            finally:
                await database.close()

    async def kept_database(self) -> str:
        """Make a migrated database whose rows can be put back; returns its name. It is the caller's to drop."""
        if not self._has_kept_template:
            await copy_database(self.server.dsn, source=TEMPLATE, name=KEPT_TEMPLATE)
            await spare.keep(with_database(self.server.dsn, KEPT_TEMPLATE))
            self._has_kept_template = True
        return await self._copied(KEPT_TEMPLATE)

    async def _copied(self, template: str) -> str:
        name = f"rota_{os.getpid()}_{next(self._numbers)}"
        await copy_database(self.server.dsn, source=template, name=name)
        return name


def _quick_folder() -> Path | None:
    """Return memory's file system, where a database is copied in half the time; None: wherever temporary files go."""
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK):
        return None
    return MEMORY if shutil.disk_usage(MEMORY).free >= MEMORY_WANTED else None
