"""The schema as one text: `schema.sql` is what all migrations together make, for people to read and for a test to hold.

`python -m rota.store.snapshot` writes it anew, with a server of its own. Partitions are left out: they are like their
parents, and the names of the monthly ones depend on the date.
"""

import asyncio
import re
import sys
import tempfile
from pathlib import Path
from typing import Final

from rota.clock import Clock, SystemClock
from rota.store.embedded import EmbeddedServer, binaries
from rota.store.migrate import migrate

SCHEMA: Final = Path(__file__).with_name("schema.sql")

_HEADER: Final = "-- Written by `python -m rota.store.snapshot` from the migrations: change those, then write it.\n"
_PARTITIONS: Final = "rota.(run|attempt)_([0-9]*|far)"
# Comments, settings and psql's own commands at the start of a line; the indented ones belong to a function's body.
_NOISE: Final = re.compile(r"^(--|SET |SELECT pg_catalog\.set_config|\\)[^\n]*\n", re.MULTILINE)


async def schema_text(dsn: str) -> str:
    """Return the schema `rota` of a database as SQL. Raises SetupFailed when pg_dump cannot be run."""
    folder = Path(tempfile.gettempdir())
    dumped = await binaries.find(folder).run(
        "pg_dump", "--schema-only", "--no-owner", "--no-privileges", "--schema=rota",
        f"--exclude-table={_PARTITIONS}", f"--dbname={dsn}", cwd=folder,
    )  # fmt: skip
    return _HEADER + re.sub(r"\n{3,}", "\n\n", "\n" + _NOISE.sub("", dumped).strip() + "\n")


async def write_snapshot(path: Path, *, clock: Clock) -> None:
    """Migrate a new database and write its schema to a file."""
    with tempfile.TemporaryDirectory(prefix="rota-schema-") as home:
        async with EmbeddedServer(Path(home), durable=False, clock=clock) as server:
            await migrate(server.dsn, now=clock.now())
            path.write_text(await schema_text(server.dsn), encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(write_snapshot(SCHEMA, clock=SystemClock()))
    sys.stdout.write(f"{SCHEMA} is written\n")
