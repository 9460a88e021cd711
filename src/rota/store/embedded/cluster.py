"""The database cluster of an embedded server: how it is made, and the settings that it is started with.

Settings go on the server's command line, where they win over those in the cluster: a later Rota changes them for
data folders that exist as well.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from rota.errors import InvalidInput, SetupFailed
from rota.store.embedded import folders
from rota.store.embedded.binaries import Binaries

OWNER: Final = "rota"
NO_SETTINGS: Final[Mapping[str, str]] = MappingProxyType({})
DEFAULTS: Final = {
    "autovacuum_naptime": "10s",
    "checkpoint_timeout": "15min",
    "jit": "off",
    "log_min_messages": "warning",
    "log_timezone": "UTC",
    "max_connections": "100",
    "max_wal_size": "4GB",
    "random_page_cost": "1.1",
    "shared_buffers": "256MB",  # anonymous memory, so the size of /dev/shm does not matter to it
    "timezone": "UTC",
    "track_io_timing": "off",
}
# Commits still wait for their WAL to be written, so that tests meet the order of a real server.
NOT_DURABLE: Final = {"fsync": "off", "full_page_writes": "off"}
# What keeps the server private; the folder is filled in at each start.
PRIVATE: Final = {
    "listen_addresses": "",
    "port": str(folders.PORT),
    "unix_socket_directories": "",
    "unix_socket_permissions": "0700",
}
# Parallel queries share memory through /dev/shm; containers often have 64 MB there, and fail in the midst of a query.
SHM_NEEDED_BYTES: Final = 128 * 1024 * 1024
_SHM: Final = Path("/dev/shm")
_ASIDE: Final = "postgres.new-"
_INITDB: Final = (
    f"--username={OWNER}",
    "--auth-local=trust",  # the socket's folder is what keeps others out
    "--auth-host=reject",
    "--encoding=UTF8",
    "--locale=C",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",  # the same on every machine, whatever its C library
    "--no-instructions",
)


def check_settings(settings: Mapping[str, str]) -> None:
    """Raise InvalidInput for a setting that would open the server, or move its socket."""
    for name in sorted(PRIVATE.keys() & {name.lower() for name in settings}):
        hint = "leave it out: it keeps the embedded server private"
        raise InvalidInput("settings", f"{name} cannot be set", hint=hint)


def exists(data: Path) -> bool:
    """Tell whether there is a cluster in `data`. SetupFailed if there is something else, or if others can see it."""
    if not os.path.lexists(data):
        return False
    folders.make_private(data)
    if (data / "PG_VERSION").exists():
        return True
    if any(data.iterdir()):
        raise SetupFailed(f"{data} holds no PostgreSQL cluster", hint="move it away, or choose another data folder")
    return False


async def make(data: Path, *, programs: Binaries, durable: bool) -> None:
    """Make a cluster aside and rename it into place: what bears the name is whole, whatever was killed when."""
    home = data.parent
    for remains in home.glob(f"{_ASIDE}*"):
        shutil.rmtree(remains, ignore_errors=True)
    aside = tempfile.mkdtemp(prefix=_ASIDE, dir=home)
    try:
        # Measured: writing the new cluster through to the disk takes 30 to 60 ms of some 500.
        sync = () if durable else ("--no-sync",)
        await programs.run("initdb", f"--pgdata={aside}", *_INITDB, *sync, cwd=home)
        os.rename(aside, data)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    if durable:
        entry = os.open(home, os.O_RDONLY)
        os.fsync(entry)
        os.close(entry)


async def arguments(
    data: Path, *, socket: Path, programs: Binaries, durable: bool, settings: Mapping[str, str]
) -> list[str]:
    """Return the server's command line: the defaults, the caller's settings over them, and the private ones last."""
    chosen = {
        **DEFAULTS,
        "wal_compression": "lz4" if await programs.has_lz4() else "off",
        "dynamic_shared_memory_type": _dynamic_shared_memory(),
        **({} if durable else NOT_DURABLE),
        **settings,
        **PRIVATE,
        "unix_socket_directories": str(socket),
    }
    return ["-D", str(data), *(word for name, value in chosen.items() for word in ("-c", f"{name}={value}"))]


def _dynamic_shared_memory() -> str:
    """`posix` unless Linux has too little of it; `mmap` needs none, and is slower."""
    if sys.platform != "linux":
        return "posix"
    try:
        state = os.statvfs(_SHM)
    except OSError:
        return "mmap"
    enough = state.f_bavail * state.f_frsize >= SHM_NEEDED_BYTES and os.access(_SHM, os.W_OK)
    return "posix" if enough else "mmap"
