"""One embedded PostgreSQL server, shared by all processes of a user that name the same data folder.

The first one in starts it, the last one out stops it. Everybody who uses it holds `users.lock` together with the
others; starting and stopping happen under `start.lock`, one process at a time. A process that is killed loses its hold
and leaves the server running: the next one in finds it and goes on with it.
"""

import os
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, suppress
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote

import asyncpg

from rota.clock import Clock, SystemClock
from rota.store.embedded import binaries, cluster, folders
from rota.store.embedded.postmaster import (
    FAST_STOP_LIMIT,
    IMMEDIATE_STOP_LIMIT,
    READY_LIMIT,
    PidFile,
    Postmaster,
    StopMode,
)

DATABASE: Final = "rota"
ANSWER_LIMIT: Final = timedelta(seconds=10)
START_LOCK_LIMIT: Final = READY_LIMIT + FAST_STOP_LIMIT + IMMEDIATE_STOP_LIMIT


class EmbeddedServer:
    """A PostgreSQL server with its data in `data_dir`, reachable by this user on this machine only.

    `durable=False` gives up safety against power cuts for speed (test suites). `settings` are PostgreSQL settings by
    name; those that keep the server private cannot be set (InvalidInput). Both count for the server that this object
    starts, not for one that it finds running.

    `await start()` returns the DSN, `await stop()` gives the server up; `async with` does both.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        durable: bool = True,
        settings: Mapping[str, str] = cluster.NO_SETTINGS,
        clock: Clock | None = None,
    ) -> None:
        cluster.check_settings(settings)
        self._home = Path(data_dir).resolve()
        self._data = self._home / "postgres"
        self._log = self._home / "postgres.log"
        self._durable = durable
        self._settings = dict(settings)
        self._clock = clock or SystemClock()
        self._postmaster = Postmaster(data=self._data, log=self._log, clock=self._clock)
        self._users: folders.FileLock | None = None
        self._dsn: str | None = None

    @property
    def dsn(self) -> str:
        """The database's address, without a password: there is none. Known while started."""
        if self._dsn is None:
            raise RuntimeError("the embedded server has no address before start()")
        return self._dsn

    @property
    def pid(self) -> int | None:
        """The server's process id; None while it does not run."""
        found = self._postmaster.running()
        return found.pid if found else None

    @property
    def log_path(self) -> Path:
        """Where the server writes what happens to it."""
        return self._log

    async def start(self) -> str:
        """Make the server run and return its DSN: it is found running, or started, or made first and then started.

        Call it again at any time to have a server that died started anew. Raises SetupFailed with what to do.
        """
        folders.make_home(self._home)
        async with self._starting():
            try:
                users = self._join()
                self._dsn = await self._ensure_running(users)
            except BaseException:
                self._leave_without_waiting()
                raise
        return self._dsn

    async def stop(self) -> None:
        """Give the server up; the last to do so stops it. Nothing happens if it was not started."""
        if self._users is None:
            return
        try:
            async with self._starting():
                found = self._postmaster.running()
                if self._users.try_alone() and found:
                    await self._postmaster.stop(found.pid)
                    folders.remove_short(found.socket_folder, home=self._home)
                # Before start.lock goes: whoever starts next must not find users.lock held alone.
                self._leave()
        finally:
            self._leave()

    async def restart(self, mode: StopMode = "fast") -> str:
        """Stop the server, whoever else uses it, and start it again; `immediate` stops it as a crash would.

        Returns the DSN, which stays the same. For tests of what a restart does to its clients.
        """
        async with self._starting():
            users = self._join()
            if found := self._postmaster.running():
                await self._postmaster.stop(found.pid, mode)
            self._dsn = await self._ensure_running(users)
        return self._dsn

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    def _starting(self) -> AbstractAsyncContextManager[None]:
        return folders.alone(self._home / "start.lock", clock=self._clock, limit=START_LOCK_LIMIT)

    def _join(self) -> folders.FileLock:
        self._users = self._users or folders.FileLock(self._home / "users.lock")
        _share(self._users)
        return self._users

    def _leave(self) -> None:
        if self._users is not None:
            self._users.release()
        self._users = self._dsn = None

    def _leave_without_waiting(self) -> None:
        """Undo a start that failed or was cancelled: a server that nobody uses is told to stop, and no more."""
        found = self._postmaster.running()
        if found and self._users is not None and self._users.try_alone():
            self._postmaster.interrupt(found.pid)
        self._leave()

    async def _ensure_running(self, users: folders.FileLock) -> str:
        found = self._postmaster.running()
        return (found and await self._adopt(found, users)) or await self._launch()

    async def _adopt(self, found: PidFile, users: folders.FileLock) -> str | None:
        """Return the DSN of the server that runs; None once it has ended, or was ended because nobody can reach it."""
        ready = await self._postmaster.until_ready(found.pid)
        if ready:
            dsn = _dsn(ready.socket_folder)
            if await self._answers(dsn):
                return dsn
            is_ours_alone = users.try_alone()
            _share(users)
            if not is_ours_alone:
                raise self._postmaster.failure(f"PostgreSQL (process {found.pid}) does not answer, and others use it")
        await self._postmaster.stop(found.pid)
        return None

    async def _launch(self) -> str:
        """Start the server on its cluster, which is made first if there is none, and return its DSN."""
        is_made = cluster.exists(self._data)
        programs = binaries.find(self._data)
        if not is_made:
            await cluster.make(self._data, programs=programs, durable=self._durable)
        socket = folders.socket_folder(self._home)
        await self._postmaster.clear_remains(socket)
        self._postmaster.prepare_log()
        arguments = await cluster.arguments(
            self._data, socket=socket, programs=programs, durable=self._durable, settings=self._settings
        )
        pid = int(await programs.run("postgres", *arguments, cwd=self._data, log=self._log))
        if not await self._postmaster.until_ready(pid):
            raise self._postmaster.failure("PostgreSQL did not start")
        dsn = _dsn(socket)
        if not await self._answers(dsn):
            raise self._postmaster.failure(f"PostgreSQL started, and does not answer in {socket}")
        return dsn

    async def _answers(self, dsn: str) -> bool:
        """Tell whether this cluster's server answers there, with the database in it: made now if it is missing."""
        try:
            try:
                connection = await _connect(dsn, DATABASE)
            except asyncpg.InvalidCatalogNameError:
                await _make_database(dsn)
                connection = await _connect(dsn, DATABASE)
            try:
                answer = await connection.fetchval("SELECT current_setting('data_directory')")
            finally:
                await connection.close(timeout=ANSWER_LIMIT.total_seconds())
            return os.path.samefile(answer, self._data)
        except asyncpg.TooManyConnectionsError:
            return True
        except (OSError, TimeoutError, asyncpg.PostgresConnectionError, asyncpg.OperatorInterventionError):
            return False


def _share(users: folders.FileLock) -> None:
    shared = users.try_shared()
    assert shared, "users.lock is held alone only under start.lock, which is ours at this moment"


def _dsn(socket: Path) -> str:
    # The port is given because a client would else take PGPORT for it.
    return f"postgresql://{cluster.OWNER}@/{DATABASE}?host={quote(str(socket))}&port={folders.PORT}"


async def _connect(dsn: str, database: str) -> "asyncpg.Connection[asyncpg.Record]":
    return await asyncpg.connect(dsn, database=database, timeout=ANSWER_LIMIT.total_seconds())


async def _make_database(dsn: str) -> None:
    connection = await _connect(dsn, "postgres")
    try:
        with suppress(asyncpg.DuplicateDatabaseError):
            await connection.execute("CREATE DATABASE rota")
    finally:
        await connection.close(timeout=ANSWER_LIMIT.total_seconds())
