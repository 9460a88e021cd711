"""`rota slots skipped`: slots of all jobs that made no run, and why."""

from typing import Annotated

import typer

from rota.cli.filters import Cursor, more_line
from rota.cli.options import Call, command, instant_of
from rota.cli.output import Table
from rota.cli.views import values_of


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Look at the slots of all jobs.", no_args_is_help=True)
    # With a callback Typer keeps the word `skipped`; alone it would fold the group into it.
    group.callback()(lambda: None)
    command(group, "skipped", over_http=True)(skipped)
    app.add_typer(group, name="slots", rich_help_panel="Look")


async def skipped(
    call: Call,
    reason: Annotated[str, typer.Option(help="misfire, overlap, start_deadline or paused.", show_default=False)] = "",
    since: Annotated[
        str | None, typer.Option(help="Noted at or after this instant. (default: a day ago)", show_default=False)
    ] = None,
    until: Annotated[str | None, typer.Option(help="Noted before this instant.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The most ranges.")] = 50,
    cursor: Cursor = None,
) -> None:
    """List slots of all jobs that made no run, latest first."""
    begin, end = instant_of(since, field="since"), instant_of(until, field="until")
    async with call.control() as control:
        page = await control.skipped_slots(reason=reason, since=begin, until=end, limit=limit, cursor=cursor)
    rows = [
        (part.job_id, part.first_slot, part.last_slot, part.slots, part.reason, part.recorded_at)
        for part in page.skipped
    ]
    columns = ("job", "first", "last", "slots", "reason", "recorded")
    table = Table(columns=columns, rows=rows, right=frozenset({"slots"})) if rows else "no slot was skipped"
    call.out.answer(values_of(page), table, *more_line(page.next_cursor))
