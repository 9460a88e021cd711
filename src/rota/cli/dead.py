"""`rota dead`: runs that Rota stopped trying, and the way back."""

import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rota.cli.boundary import NO
from rota.cli.filters import Cursor, ErrorText, Handler, Label, Since, Until, filter_of, more_line
from rota.cli.options import Call, command
from rota.cli.output import instant
from rota.cli.runs import run_id_of
from rota.cli.views import dead_table, values_of
from rota.errors import InvalidInput, NotDead, NotFound

if TYPE_CHECKING:
    from rota.wire.control import Control
    from rota.wire.runs import RunFilterQuestion

PAGE: Final = 1000
"""Dead letters that are replayed at once."""

Job = Annotated[str, typer.Option(help="Those of this job.", show_default=False)]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Look at dead letters, and send them back.", no_args_is_help=True)
    command(group, "list", over_http=True)(list_)
    command(group, "replay", over_http=True)(replay)
    app.add_typer(group, name="dead", rich_help_panel="Look")


async def list_(
    call: Call,
    job: Job = "",
    handler: Handler = "",
    label: Label = "",
    since: Since = None,
    until: Until = None,
    error: ErrorText = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The most dead letters.")] = 50,
    cursor: Cursor = None,
) -> None:
    """List dead letters, newest slots first, each with its last error."""
    where = filter_of(job=job, state="dead", handler=handler, label=label, since=since, until=until, error=error)
    async with call.control() as control:
        page = await control.list_runs(where, limit=limit, cursor=cursor)
    document = {"dead": [values_of(run) for run in page.runs], "next_cursor": page.next_cursor}
    call.out.answer(document, dead_table(page.runs) if page.runs else "no dead letters", *more_line(page.next_cursor))


async def replay(
    call: Call,
    run_ids: Annotated[list[str] | None, typer.Argument(help="The runs' ids.", show_default=False)] = None,
    replay_all: Annotated[bool, typer.Option("--all", help="All dead letters that there are now.")] = False,
    job: Job = "",
    handler: Handler = "",
    label: Label = "",
    since: Since = None,
    until: Until = None,
    error: ErrorText = "",
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="So many of them a second, not all at once.", show_default=False)
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int | None:
    """Send dead letters back to the queue: one more attempt each. Exit code 1: some were not dead.

    With --all the other options choose among them.
    """
    asked = [run_id_of(text) for text in run_ids or []]
    if replay_all == bool(asked):
        raise InvalidInput(
            "run_id", "give either ids or --all, which takes filters", hint="`rota dead list` shows the ids"
        )
    chosen: dict[str, Any] = {
        "job": job, "handler": handler, "label": label, "since": since, "until": until, "error": error, "rate": rate,
    }  # fmt: skip
    stray = [name for name, value in chosen.items() if value]
    if stray and not replay_all:
        raise InvalidInput(stray[0], "belongs to --all", hint="leave it out, or say --all")
    del chosen["rate"]
    async with call.control() as control:
        if replay_all:
            await _replay_all(call, control, filter_of(state="dead", **chosen), rate=rate, ask=not yes)
            return None
        left = []
        for run_id in asked:
            try:
                await control.replay_run(run_id)
            except (NotDead, NotFound):
                left.append(run_id)
    back = len(asked) - len(left)
    parts = [f"{back} of {len(asked)} runs are back in the queue"]
    parts += [f"not dead, so left as it is: {run_id}" for run_id in left]
    call.out.answer({"replayed": back, "not_dead": left}, *parts)
    return NO if left else None


async def _replay_all(
    call: Call, control: "Control", where: "RunFilterQuestion", *, rate: float | None, ask: bool
) -> None:
    if ask:
        await _ask(control, where)
    done = await control.replay_runs(where, rate=rate, limit=PAGE)
    replayed, last_at = done.replayed, done.last_at
    if done.more and where.until is None and last_at is not None:
        # What dies again meanwhile stays. This very instant is known by the server's own clock.
        where = where.model_copy(update={"until": last_at - _spread(done.replayed, rate)})
    while done.more and done.replayed and last_at is not None:
        if rate is not None:
            # The next page would begin beside this one, at twice the rate.
            await call.clock.sleep(max((last_at - call.clock.now()).total_seconds(), 0.0))
        done = await control.replay_runs(where, rate=rate, limit=PAGE)
        replayed, last_at = replayed + done.replayed, done.last_at or last_at
    text = f"{replayed} dead letters are back in the queue"
    if replayed and rate is not None and last_at is not None:
        text += f"; the last of them may start at {instant(last_at)}"
    call.out.answer({"replayed": replayed, "last_at": last_at}, text)


def _spread(count: int, rate: float | None) -> timedelta:
    """Return how long after the first of them the last one may start."""
    return timedelta(0) if rate is None else timedelta(seconds=(count - 1) / rate)


async def _ask(control: "Control", where: "RunFilterQuestion") -> None:
    count = len((await control.list_runs(where, limit=PAGE)).runs)
    if not count:
        return
    if not sys.stdin.isatty():
        raise InvalidInput("yes", "nobody is there to be asked", hint="say --yes to replay them all")
    many = f"{count} or more" if count >= PAGE else str(count)
    typer.confirm(f"Send {many} dead letters back to the queue?", abort=True, err=True)
