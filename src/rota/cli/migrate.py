"""`rota migrate`: brings the database's schema up to this program's."""

from typing import Annotated

import typer

from rota.cli.addresses import reaching
from rota.cli.options import Call, command


def register(app: typer.Typer) -> None:
    command(app, "migrate", without=("tenant",), panel="Run")(migrate)


async def migrate(
    call: Call,
    lock_timeout: Annotated[
        float, typer.Option(min=0.001, max=86400, help="Seconds to wait for another migration, or a table's lock.")
    ] = 30.0,
) -> None:
    """Bring the schema up to date; safe to run from many processes at once, and again."""
    from rota.assembly import migrate_database

    settings = call.settings()
    call.logs(settings)
    with reaching(settings.database_url):
        done = await migrate_database(settings, lock_timeout=lock_timeout)
    document = {"before": done.before, "after": done.after, "applied": list(done.applied)}
    if done.applied:
        steps = ", ".join(done.applied)
        call.out.answer(document, f"schema: version {done.before} -> {done.after}; applied {steps}")
    else:
        call.out.answer(document, f"schema: at version {done.after} already; nothing to do")
