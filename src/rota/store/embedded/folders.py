"""The folders and locks of an embedded server: private when made, checked when found, never changed.

An existing folder keeps its permissions, whatever they are; one that is not safe to use is refused.
"""

import fcntl
import hashlib
import os
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Final

from rota.clock import Clock
from rota.errors import SetupFailed

PORT: Final = 5432  # names the socket; nothing listens on a network
# sockaddr_un holds 108 bytes on Linux and 104 on macOS, the closing NUL included.
SOCKET_PATH_LIMIT: Final = 103
LOCK_POLL: Final = timedelta(milliseconds=20)
_PRIVATE: Final = 0o700
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_CHOOSE: Final = "choose a data folder that you can write to and others cannot"


def make_home(home: Path) -> None:
    """Make the data folder and what is missing above it, mode 0700, or check the one that is there.

    Raises SetupFailed if it cannot be made, belongs to somebody else, or if others may write in it.
    """
    with _explained("make the data folder", home):
        for folder in reversed((home, *home.parents)):
            if not folder.exists():
                _mkdir(folder)
        state = home.stat()
    if not stat.S_ISDIR(state.st_mode):
        raise SetupFailed(f"the data folder {home} is not a folder", hint=_CHOOSE)
    if state.st_uid != os.geteuid():
        raise SetupFailed(f"the data folder {home} belongs to uid {state.st_uid}, not to you", hint=_CHOOSE)
    if state.st_mode & _OTHERS_WRITE:
        mode = stat.S_IMODE(state.st_mode)
        raise SetupFailed(f"others may write in the data folder {home} (mode {mode:04o})", hint=_CHOOSE)


def make_private(folder: Path) -> None:
    """Make a folder of mode 0700, or check that the one found is ours alone: nobody can have put it there for us."""
    _mkdir(folder)
    state = folder.lstat()
    private = stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid() and state.st_mode & 0o777 == _PRIVATE
    if not private:
        found = f"{stat.filemode(state.st_mode)}, owner uid {state.st_uid}"
        hint = f"it must be a folder of uid {os.geteuid()} with mode 0700: look who made it, then move it away"
        raise SetupFailed(f"{folder} is not private ({found})", hint=hint)


def socket_folder(home: Path) -> Path:
    """Return a private folder, made if need be, for the socket of the server in `home`.

    That is `home`/socket; where this is too long for a socket, a short name in the user's runtime folder or the
    temporary folder, derived from `home`.
    """
    digest = hashlib.blake2b(os.fsencode(home), digest_size=6).hexdigest()
    short = f"rota-{os.geteuid()}-{digest}"
    for folder in (home / "socket", *(base / short for base in _short_bases())):
        if _fits(folder):
            with _explained("make the socket's folder", folder):
                make_private(folder)
            return folder
    hint = f"choose a data folder with a path of at most {SOCKET_PATH_LIMIT - 25} bytes, without a comma"
    raise SetupFailed(f"there is no place for the server's socket: the path of {home} is too long for one", hint=hint)


def remove_short(folder: Path, *, home: Path) -> None:
    """Remove the socket's folder of a server that has stopped, if it is one of the short names."""
    if folder.parent != home:
        with suppress(OSError):
            folder.rmdir()


class FileLock:
    """An advisory lock on a file (flock): it ends with its holder, however that ends; programs do not inherit it."""

    def __init__(self, path: Path) -> None:
        with _explained("open", path):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def try_shared(self) -> bool:
        """Hold the lock together with others; False if somebody holds it alone."""
        return self._try(fcntl.LOCK_SH)

    def try_alone(self) -> bool:
        """Hold the lock alone; False if anybody else holds it, and a shared hold of ours may then be gone."""
        return self._try(fcntl.LOCK_EX)

    def release(self) -> None:
        """Let go, and close the file: the lock object is done with."""
        os.close(self._file)

    def _try(self, kind: int) -> bool:
        try:
            fcntl.flock(self._file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@asynccontextmanager
async def alone(path: Path, *, clock: Clock, limit: timedelta) -> AsyncIterator[None]:
    """Hold the lock on `path` alone; SetupFailed if another process keeps it longer than `limit`."""
    lock = FileLock(path)
    try:
        deadline = clock.monotonic() + limit.total_seconds()
        while not lock.try_alone():
            if clock.monotonic() > deadline:
                hint = f"end the process that holds {path}, then try again"
                raise SetupFailed(f"another process has been starting or stopping the server for {limit}", hint=hint)
            await clock.sleep(LOCK_POLL.total_seconds())
        yield
    finally:
        lock.release()


def _mkdir(folder: Path) -> None:
    with suppress(FileExistsError):  # the caller checks what is there
        folder.mkdir(mode=_PRIVATE)


def _fits(folder: Path) -> bool:
    # A comma separates the places of a list, for the server and for its clients.
    return len(os.fsencode(folder / f".s.PGSQL.{PORT}")) <= SOCKET_PATH_LIMIT and "," not in str(folder)


def _short_bases() -> Iterator[Path]:
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    # Under sudo it may still be another user's, and the server could not go in.
    if runtime.is_absolute() and runtime.is_dir() and runtime.stat().st_uid == os.geteuid():
        yield runtime
    yield Path(tempfile.gettempdir()).resolve()
    yield Path("/tmp")


@contextmanager
def _explained(verb: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SetupFailed(f"cannot {verb} {path}: {error.strerror or error}", hint=_CHOOSE) from error
