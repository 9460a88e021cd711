"""`rota demo`: Rota's promises shown on a real database in a few seconds, each line checked as it is told."""

import os
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from rota.cli.addresses import reaching
from rota.cli.boundary import DONE, NO
from rota.cli.options import Call, command
from rota.cli.output import console, plain

if TYPE_CHECKING:
    from rota.cli.demo_story import Step

KEPT: Final = "✓"
BROKEN: Final = "✗"


def register(app: typer.Typer) -> None:
    """Add `rota demo` to the root command."""
    command(app, "demo", without=("data_dir", "tenant"), panel="Run")(demo)


async def demo(call: Call) -> int:
    """Tell Rota's story line by line on a real database, and fail if any line is not so.

    On an embedded server in a temporary folder; with --database-url, in a scratch database that is dropped afterwards.
    """
    settings = call.settings()
    # A refused report and a reaped lease are the story's point, not news for the log.
    call.logs(settings, usual="error")
    # The environment often names a database that people work with: only one named for this very call is meant.
    asked = settings.database_url if call.given.database_url is not None else None
    steps: list[Step] = []
    lines = None if call.out.as_json else console()
    async with aclosing(tell(asked)) as told:
        async for step in told:
            steps.append(step)
            if lines is not None:
                _print(lines, step)
    ok = bool(steps) and all(step.ok for step in steps)
    if lines is None:
        call.out.answer({"ok": ok, "steps": [step.to_json() for step in steps]})
    else:
        lines.print()
        lines.print(f"{len(steps)} lines, all so." if ok else "The last line is not so: the story ends here.")
    return DONE if ok else NO


async def tell(database_dsn: str | None = None) -> AsyncGenerator["Step", None]:
    """Yield the story's steps, the last of them being the first that is not as promised, if one is not.

    Without a DSN the story runs on an embedded server of its own. Raises SetupFailed, DatabaseUnavailable.
    """
    from rota.assembly import assemble
    from rota.cli.demo_story import BEFORE, START, Story
    from rota.clock import ManualClock
    from rota.settings import Settings
    from rota.store.database import Database
    from rota.store.migrate import migrate

    clock = ManualClock(START - BEFORE)
    async with _scratch(database_dsn) as dsn:
        await migrate(dsn, now=clock.now())
        async with await Database.connect(dsn, size=2, reserved=1, name="rota-demo") as database:
            rota = assemble(Settings(), dsn=dsn, database=database, clock=clock)
            async for step in Story(rota, clock).tell():
                yield step


@asynccontextmanager
async def _scratch(database_dsn: str | None) -> AsyncIterator[str]:
    """Yield the DSN of a database that is gone when the block ends."""
    from rota.store.admin import copy_database, drop_database, with_database
    from rota.store.database import translate
    from rota.store.embedded import EmbeddedServer

    if database_dsn is None:
        with tempfile.TemporaryDirectory(prefix="rota-demo-", ignore_cleanup_errors=True) as folder:
            async with EmbeddedServer(Path(folder), durable=False) as server:
                yield server.dsn
        return
    name = f"rota_demo_{os.getpid()}_{os.urandom(4).hex()}"
    with reaching(database_dsn):
        try:
            await copy_database(database_dsn, source="template1", name=name)
        except Exception as error:
            raise translate(error, "create a scratch database", sent=False) from error
    try:
        yield with_database(database_dsn, name)
    finally:
        await drop_database(database_dsn, name=name)


def _print(lines: Any, step: "Step") -> None:
    from rich.text import Text

    mark, style = (KEPT, "green") if step.ok else (BROKEN, "bold red")
    line = Text.assemble((mark, style), f"  t={step.t:>4g} s  ", plain(step.text))
    if not step.ok:
        line.append(f"\n             promised: {step.promised}", style="red")
    lines.print(line, soft_wrap=True)
