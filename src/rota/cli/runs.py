"""`rota run`: what happened, run by run."""

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Final
from uuid import UUID

import typer

from rota.cli.boundary import NO
from rota.cli.filters import Cursor, ErrorText, Failed, Handler, Label, Since, Until, filter_of, more_line
from rota.cli.job_steering import confirm
from rota.cli.options import Call, command, duration_of
from rota.cli.output import Table, counted
from rota.cli.views import attempts_table, runs_table, values_of, why_parts
from rota.domain.instants import format_instant
from rota.errors import InvalidInput, Locked

if TYPE_CHECKING:
    from rota.wire.control import Control
    from rota.wire.runs import RunFilterQuestion

CANCEL_CALLS: Final = 1000
"""The most calls of one cancel: runs that somebody makes meanwhile must not keep it going for ever."""

RunId = Annotated[str, typer.Argument(help="The run's id.", show_default=False)]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Look at runs, steer them, and end them.", no_args_is_help=True)
    command(group, "list", over_http=True)(list_)
    command(group, "show", over_http=True)(show)
    command(group, "why", over_http=True)(why)
    command(group, "priority", over_http=True)(priority)
    command(group, "cancel", over_http=True)(cancel)
    app.add_typer(group, name="run", rich_help_panel="Look")


def run_id_of(text: str) -> UUID:
    """Read a run's id. Raises InvalidInput."""
    try:
        return UUID(text)
    except ValueError:
        raise InvalidInput("run_id", f"{text[:80]!r} is not a run's id", hint="take ids from `rota run list`") from None


async def list_(
    call: Call,
    job: Annotated[str, typer.Option(help="Runs of this job, however old.", show_default=False)] = "",
    state: Annotated[
        str, typer.Option(help="blocked, pending, running, succeeded, dead or cancelled.", show_default=False)
    ] = "",
    handler: Handler = "",
    label: Label = "",
    within: Annotated[
        str | None, typer.Option(help="Those made within this time, such as 2h. (default: 1d, unless a job is named)")
    ] = None,
    since: Since = None,
    until: Until = None,
    error: ErrorText = "",
    failed: Failed = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The most runs.")] = 50,
    cursor: Cursor = None,
) -> None:
    """List runs, newest slots first."""
    time = duration_of(within, field="within")
    if time is not None:
        if since is not None or cursor is not None:
            # A time that ends now begins at another instant with every page.
            raise InvalidInput("within", "goes with neither --since nor --cursor", hint="give --since alone")
        since = _ago(call, time)
    where = filter_of(
        job=job, state=state, handler=handler, label=label, since=since, until=until, error=error, failed=failed
    )
    async with call.control() as control:
        page = await control.list_runs(where, limit=limit, cursor=cursor)
    more = [f"{line} --since {since}" if time is not None else line for line in more_line(page.next_cursor)]
    document = {**values_of(page), "since": where.since}
    call.out.answer(document, runs_table(page.runs) if page.runs else "no runs", *more)


async def show(call: Call, run_id: RunId) -> None:
    """Show a run with its attempts and their errors."""
    run_key = run_id_of(run_id)
    async with call.control() as control:
        run = await control.get_run(run_key)
    document = values_of(run)
    facts = [(name, value) for name, value in document.items() if name not in ("run_id", "attempts", "error")]
    errors = [
        f"\nerror of attempt {attempt.attempt}:\n{attempt.error.rstrip()}" for attempt in run.attempts if attempt.error
    ]
    attempts = attempts_table(run.attempts) if run.attempts else "no attempt has ended"
    call.out.answer(document, Table(columns=("run", str(run.run_id)), rows=facts), attempts, *errors)


async def why(call: Call, run_id: RunId) -> None:
    """Say what a run waits for: the first gate that holds it."""
    run_key = run_id_of(run_id)
    async with call.control() as control:
        reason = await control.why_run(run_key)
    call.out.answer(values_of(reason), *why_parts(reason))


async def priority(
    call: Call,
    run_id: RunId,
    priority: Annotated[int, typer.Argument(min=0, max=9, help="0 to 9, 9 goes first.", show_default=False)],
) -> None:
    """Give a run that waits another priority."""
    run_key = run_id_of(run_id)
    async with call.control() as control:
        run = await control.set_priority(run_key, priority)
    call.out.answer(values_of(run), f"run {run_key} waits with priority {run.priority}")


async def cancel(
    call: Call,
    run_id: Annotated[str | None, typer.Argument(help="The run's id.", show_default=False)] = None,
    cancel_all: Annotated[bool, typer.Option("--all", help="All that wait or run now.")] = False,
    job: Annotated[str, typer.Option(help="Those of this job.", show_default=False)] = "",
    state: Annotated[str, typer.Option(help="blocked, pending or running.", show_default=False)] = "",
    handler: Handler = "",
    label: Label = "",
    since: Since = None,
    until: Until = None,
    error: ErrorText = "",
    failed: Failed = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int | None:
    """Cancel a run that waits, and tell the worker of one that runs; or all that wait or run, with a filter."""
    where = filter_of(
        job=job, state=state, handler=handler, label=label, since=since, until=until, error=error, failed=failed
    )
    if cancel_all == (run_id is not None):
        raise InvalidInput(
            "run_id", "give either an id or --all, which takes filters", hint="`rota run list` shows the ids"
        )
    if not cancel_all and where != filter_of():
        raise InvalidInput("all", "is missing: the other options choose among all", hint="say --all, or leave them out")
    async with call.control() as control:
        if run_id is None:
            return await _cancel_all(call, control, where, ask=not yes)
        run_key = run_id_of(run_id)
        done = await control.cancel_run(run_key)
    text = f"run {run_key} is {done.state}"
    if done.cancel_requested:
        text = f"run {run_key} is {done.state}: its worker is told to stop it"
    call.out.answer(values_of(done), text)
    return None


async def _cancel_all(call: Call, control: "Control", where: "RunFilterQuestion", *, ask: bool) -> int | None:
    """Count, ask, then cancel until nothing is left of what there was at the beginning. Exit code 1: some are left."""
    if ask:
        count = await control.cancel_runs(where, everything=True, dry_run=True)
        if count.matched:
            confirm(f"Cancel {'more than ' if count.more else ''}{counted(count.matched, 'run')}?")
    cancelled = asked = 0
    more, left = True, []
    for _ in range(CANCEL_CALLS):
        try:
            done = await control.cancel_runs(where, everything=True)
        except Locked as error:
            if not cancelled + asked:
                raise
            left = [f"left as they are: {error}"]
            break
        cancelled, asked, more = cancelled + done.cancelled, asked + done.asked, done.more
        if not more:
            break
    text = f"{counted(cancelled, 'run')} cancelled, the workers of {asked} told"
    call.out.answer({"cancelled": cancelled, "asked": asked, "more": more}, text, *left)
    return NO if more else None


def _ago(call: Call, time: timedelta) -> str:
    return format_instant(call.clock.now() - time)
