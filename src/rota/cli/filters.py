"""The options that say which runs are meant, shared by the commands that list them and send them back."""

from typing import TYPE_CHECKING, Annotated

import typer

from rota.cli.options import instant_of

if TYPE_CHECKING:
    from rota.wire.runs import RunFilterQuestion

Handler = Annotated[str, typer.Option(help="Those of jobs with this handler.", show_default=False)]
Label = Annotated[str, typer.Option(help="Those of jobs with this label: NAME or NAME=VALUE.", show_default=False)]
Since = Annotated[str | None, typer.Option(help="Those made at or after this instant.", show_default=False)]
Until = Annotated[str | None, typer.Option(help="Those made before this instant.", show_default=False)]
ErrorText = Annotated[
    str, typer.Option("--error", help="Those with this text in their last error.", show_default=False)
]
Failed = Annotated[
    bool, typer.Option("--failed", help="Those of which an attempt failed, timed out, gave up or was lost.")
]
Cursor = Annotated[
    str | None, typer.Option(help="Go on where a page ended: its next_cursor, same filter.", show_default=False)
]


def filter_of(
    *, job: str = "", state: str = "", handler: str = "", label: str = "", since: str | None = None,
    until: str | None = None, error: str = "", failed: bool = False,
) -> "RunFilterQuestion":  # fmt: skip
    """Return the filter that options give. Raises InvalidInput naming an instant that is none."""
    from rota.wire.runs import RunFilterQuestion

    return RunFilterQuestion(
        job_id=job, state=state, handler=handler, label=label, since=instant_of(since, field="since"),
        until=instant_of(until, field="until"), error=error, failed=failed,
    )  # fmt: skip


def more_line(cursor: str | None) -> list[str]:
    """Return the line for people that tells how a list goes on, if it does."""
    return [] if cursor is None else [f"there may be more: --cursor {cursor}"]
