"""Watches over the server process of one cluster, whoever started it: no server is anybody's child here.

What is known of it stands in postmaster.pid, which the server writes: its process id, its socket's folder, its status.
A process id alone proves nothing (after a power loss it may be anybody's), so on Linux the process is also asked
which program it is and where it works. Elsewhere the server's own check of postmaster.pid has to do.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final, Literal

from rota.clock import Clock
from rota.errors import SetupFailed
from rota.store.embedded.folders import PORT

POLL: Final = timedelta(milliseconds=10)
# A start replays what the last one left unfinished: with max_wal_size at 4 GB that can take minutes on a slow disk.
READY_LIMIT: Final = timedelta(minutes=5)
# A fast stop writes a checkpoint; after an immediate one the server kills what does not end within 5 s.
FAST_STOP_LIMIT: Final = timedelta(seconds=30)
IMMEDIATE_STOP_LIMIT: Final = timedelta(seconds=10)
STRAY_QUIT_LIMIT: Final = timedelta(seconds=5)
LOG_LIMIT_BYTES: Final = 10 * 1024 * 1024
LOG_TAIL_BYTES: Final = 2000
_PROC: Final = Path("/proc")
_PROGRAM: Final = "postgres"

StopMode = Literal["fast", "immediate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PidFile:
    """What a server says of itself. `status` is "starting", "ready" or "stopping"; empty before its first word."""

    pid: int
    socket_folder: Path
    status: str


class Postmaster:
    """The server of the cluster in `data`, which logs to `log`."""

    def __init__(self, *, data: Path, log: Path, clock: Clock) -> None:
        self._data = data
        self._log = log
        self._clock = clock
        self._log_start = 0

    def read(self) -> PidFile | None:
        """Return what postmaster.pid says; None if there is none, or if it is still being written."""
        try:
            lines = (self._data / "postmaster.pid").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
            pid, folder = abs(int(lines[0])), Path(lines[4])
        except (FileNotFoundError, NotADirectoryError, ValueError, IndexError):
            return None
        return PidFile(pid=pid, socket_folder=folder, status=lines[7].strip() if len(lines) > 7 else "")

    def running(self) -> PidFile | None:
        """Return what postmaster.pid says if that process is alive and really is this cluster's server."""
        found = self.read()
        return found if found and self._is_ours(found.pid) else None

    def prepare_log(self) -> None:
        """Begin a start: set a log that has grown too large aside, and remember where this start's lines begin."""
        with suppress(FileNotFoundError):
            self._log_start = self._log.stat().st_size
            if self._log_start > LOG_LIMIT_BYTES:
                self._log.replace(self._log.with_name(f"{self._log.name}.old"))
                self._log_start = 0

    async def until_ready(self, pid: int) -> PidFile | None:
        """Wait for the server with that process id to accept connections; None if it ends or begins to stop.

        Raises SetupFailed with the end of its log when this takes longer than READY_LIMIT.
        """
        deadline = self._clock.monotonic() + READY_LIMIT.total_seconds()
        while self._clock.monotonic() < deadline:
            # Looked at first: what a server that has ended wrote in postmaster.pid counts no more.
            alive = self._is_ours(pid)
            found = self.read()
            status = found.status if found and found.pid == pid else ""
            if not alive or status == "stopping":
                return None
            if status == "ready":
                return found
            await self._clock.sleep(POLL.total_seconds())
        raise self.failure(f"PostgreSQL was not ready after {READY_LIMIT}")

    async def stop(self, pid: int, mode: StopMode = "fast") -> None:
        """End the server: a fast stop becomes an immediate one after FAST_STOP_LIMIT. SetupFailed if it stays."""
        if mode == "fast" and await self._signalled(pid, signal.SIGINT, FAST_STOP_LIMIT):
            return
        if not await self._signalled(pid, signal.SIGQUIT, IMMEDIATE_STOP_LIMIT):
            raise self.failure(f"PostgreSQL (process {pid}) does not stop")

    def interrupt(self, pid: int) -> None:
        """Tell the server to stop, and do not wait for it."""
        if self._is_ours(pid):
            _send(pid, signal.SIGINT)

    async def clear_remains(self, socket_folder: Path) -> None:
        """Make way for a start when no server runs: end processes that outlived theirs, drop its lock files.

        A killed server's children end by themselves, but a busy one only after its statement; the next server must not
        start before. A lock file whose process id is somebody else's by now, or a zombie's, would keep the next server
        from starting at all.
        """
        if not _PROC.is_dir():
            return
        for kind, limit in ((signal.SIGQUIT, STRAY_QUIT_LIMIT), (signal.SIGKILL, IMMEDIATE_STOP_LIMIT)):
            for pid in self._strays():
                _send(pid, kind)
            if await self._until(lambda: not any(self._strays()), limit):
                break
        else:
            raise self.failure(f"processes of an earlier server stay in {self._data}")
        found = self.read()
        if found is None or self._look_at(found.pid) is False:
            for file in (self._data / "postmaster.pid", socket_folder / f".s.PGSQL.{PORT}.lock"):
                file.unlink(missing_ok=True)

    def failure(self, what: str) -> SetupFailed:
        """Return an error that quotes the end of the server's log."""
        tail = self._log_tail()
        quoted = f"; its log ends:\n{tail}\n" if tail else " and left no word in its log"
        hint = f"put right what {self._log} says, or set ROTA_DATABASE_URL to a PostgreSQL 16 or newer"
        return SetupFailed(f"{what}{quoted}", hint=hint)

    async def _signalled(self, pid: int, kind: signal.Signals, limit: timedelta) -> bool:
        if self._is_ours(pid):
            _send(pid, kind)
        return await self._until(lambda: not self._is_ours(pid), limit)

    async def _until(self, condition: Callable[[], bool], limit: timedelta) -> bool:
        deadline = self._clock.monotonic() + limit.total_seconds()
        while not condition():
            if self._clock.monotonic() > deadline:
                return False
            await self._clock.sleep(POLL.total_seconds())
        return True

    def _strays(self) -> Iterator[int]:
        return (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit() and self._is_ours(int(entry.name)))

    def _is_ours(self, pid: int) -> bool:
        if not _PROC.is_dir():
            return _is_alive(pid)
        return self._look_at(pid) is True

    def _look_at(self, pid: int) -> bool | None:
        """Tell whether the process is alive and a PostgreSQL that works in this cluster; None if it may not be seen.

        A zombie is not alive: in a container nobody may ever collect it.
        """
        process = _PROC / str(pid)
        try:
            if process.stat().st_uid != os.geteuid():
                return False
            program = Path(os.readlink(process / "exe")).name
            return program.startswith(_PROGRAM) and os.path.samefile(process / "cwd", self._data)
        except (FileNotFoundError, ProcessLookupError):
            return False
        except PermissionError:
            return None

    def _log_tail(self) -> str:
        with suppress(OSError), self._log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._log_start, size - LOG_TAIL_BYTES))
            return file.read().decode(errors="replace").strip()
        return ""


def _send(pid: int, kind: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, kind)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
