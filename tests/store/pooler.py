"""PgBouncer in front of a test's server, if this machine has it."""

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rota.clock import SystemClock
from rota.store.embedded import launch
from rota.store.embedded.binaries import _identity
from tests.store.relay import at, socket_of

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
PORT = 6432


@asynccontextmanager
async def pooled(dsn: str, folder: Path, **settings: str) -> AsyncIterator[str]:
    """Yield the address of the same database behind a pooler in transaction mode with these settings besides."""
    assert PGBOUNCER is not None
    behind, port = socket_of(dsn)
    chosen = {
        "unix_socket_dir": str(folder), "listen_port": str(PORT), "auth_type": "any", "pool_mode": "transaction",
        "default_pool_size": "4", "logfile": str(folder / "pgbouncer.log"),        **settings,
    }  # fmt: skip
    configuration = folder / "pgbouncer.ini"
    lines = ["[databases]", f"* = host={behind} port={port} user=rota", "[pgbouncer]"]
    configuration.write_text("\n".join([*lines, *(f"{name} = {value}" for name, value in chosen.items())]) + "\n")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", launch.__file__, _identity(), "-", str(folder), PGBOUNCER, str(configuration),
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with asyncio.timeout(20):
            while not await _answers(folder / f".s.PGSQL.{PORT}"):
                assert process.returncode is None, (folder / "pgbouncer.log").read_text()
                await SystemClock().sleep(0.005)
        yield at(dsn, host=str(folder), port=PORT)
    finally:
        process.kill()
        await process.wait()


async def _answers(path: Path) -> bool:
    """Tell whether somebody listens there: a socket's file is there a little before."""
    try:
        _, writer = await asyncio.open_unix_connection(path)
    except OSError:
        return False
    writer.close()
    return True
