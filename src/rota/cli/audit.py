"""`rota audit`: who changed what."""

from typing import Annotated

import typer

from rota.cli.filters import Cursor, more_line
from rota.cli.options import Call, command
from rota.cli.output import Table
from rota.cli.views import values_of


def register(app: typer.Typer) -> None:
    command(app, "audit", over_http=True, panel="People")(audit)


async def audit(
    call: Call,
    subject: Annotated[str, typer.Option(help="Changes of this alone: a job's id, a run's, a token's.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The most changes.")] = 50,
    cursor: Cursor = None,
) -> None:
    """List a tenant's changes, latest first: who, what, before and after."""
    async with call.control() as control:
        page = await control.audit(subject=subject, limit=limit, cursor=cursor)
    rows = [(entry.at, entry.actor, entry.action, entry.subject, entry.before, entry.after) for entry in page.entries]
    table = Table(columns=("at", "actor", "action", "subject", "before", "after"), rows=rows)
    call.out.answer(values_of(page), table if rows else "no changes", *more_line(page.next_cursor))
