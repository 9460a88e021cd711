"""Kits over databases that one test after the other uses, with sessions that stay open: several times as quick."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Final, Self

from rota.clock import ManualClock
from rota.settings import Settings
from rota.store import spare
from rota.store.admin import drop_database, with_database
from rota.store.database import Database
from rota.testing.cluster import START, TestCluster
from rota.testing.kit import RotaKit

USES: Final = 50
"""After so many tests a database goes: what is deleted stays in its files for a while."""


@dataclass(slots=True)
class Spare:
    """A database between two tests, and the sessions with it."""

    name: str
    database: Database
    uses: int = 0


class Kits:
    """Kits whose databases are used again, all in one event loop.

    Each kit finds what it would find in a fresh database. What did more than write rows, left a task behind or its
    sessions in use is not used again.
    """

    def __init__(self, cluster: TestCluster) -> None:
        self._cluster = cluster
        self._spares: list[Spare] = []

    @asynccontextmanager
    async def kit(
        self, *, start: datetime = START, settings: Settings | None = None, clock: ManualClock | None = None
    ) -> AsyncIterator[RotaKit]:
        """Yield the whole of Rota, on a manual clock, over a database as if fresh."""
        taken = await self._taken()
        before = asyncio.all_tasks()
        is_clean = False
        try:
            yield RotaKit(
                dsn=with_database(self._cluster.server.dsn, taken.name),
                database=taken.database,
                clock=clock or ManualClock(start),
                settings=settings or Settings(),
            )
            current = asyncio.current_task()
            is_clean = all(task in before or task is current for task in asyncio.all_tasks())
        finally:
            await self._given_back(taken, is_clean=is_clean)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Drop the databases that are between two tests."""
        while self._spares:
            await self._end(self._spares.pop())

    async def _taken(self) -> Spare:
        while self._spares:
            found = self._spares.pop()
            if await _true(spare.is_whole(found.database, name=found.name)):
                return found
            await self._end(found)
        name = await self._cluster.kept_database()
        dsn = with_database(self._cluster.server.dsn, name)
        return Spare(name, await Database.connect(dsn, size=8, reserved=2, name=name))

    async def _given_back(self, used: Spare, *, is_clean: bool) -> None:
        used.uses += 1
        if is_clean and used.uses < USES and await _true(spare.put_back(used.database, name=used.name)):
            self._spares.append(used)
        else:
            await self._end(used)

    async def _end(self, used: Spare) -> None:
        await used.database.close()
        await drop_database(self._cluster.server.dsn, name=used.name)


async def _true(asked: Awaitable[bool]) -> bool:
    """Tell what was answered; no answer, since a test took the sessions' server or tables away, is no."""
    try:
        return await asked
    except Exception:
        return False
