"""`rota run`: what happened, run by run."""

from typing import Annotated
from uuid import UUID

import typer

from rota.cli.options import Call, command, duration_of
from rota.cli.output import Table
from rota.cli.views import attempts_table, run_to_json, runs_table, values_of
from rota.errors import InvalidInput


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Look at runs.", no_args_is_help=True)
    command(group, "list")(list_)
    command(group, "show")(show)
    app.add_typer(group, name="run", rich_help_panel="Look")


def run_id_of(text: str) -> UUID:
    """Read a run's id. Raises InvalidInput."""
    try:
        return UUID(text)
    except ValueError:
        raise InvalidInput("run_id", f"{text[:80]!r} is not a run's id", hint="take ids from `rota run list`") from None


async def list_(
    call: Call,
    job: Annotated[str | None, typer.Option(help="Runs of this job, however old.")] = None,
    state: Annotated[
        str, typer.Option(help="blocked, pending, running, succeeded, dead or cancelled.", show_default=False)
    ] = "",
    within: Annotated[str, typer.Option(help="Runs made within this time, when no job is named.")] = "1d",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The most runs.")] = 50,
) -> None:
    """List runs, newest slots first."""
    time = duration_of(within, field="within")
    assert time is not None, "an option with a default is given"
    async with call.opened() as rota:
        runs = await rota.history.runs(tenant_id=call.tenant_id, job_id=job, state=state, within=time, limit=limit)
    call.out.answer({"runs": [run_to_json(run) for run in runs]}, runs_table(runs) if runs else "no runs")


async def show(call: Call, run_id: Annotated[str, typer.Argument(help="The run's id.")]) -> None:
    """Show a run with its attempts and their errors."""
    run_key = run_id_of(run_id)
    async with call.opened() as rota:
        run, attempts = await rota.history.run(run_key)
    document = {**run_to_json(run), "attempts": [values_of(attempt) for attempt in attempts]}
    facts = Table(columns=("run", str(run.run_id)), rows=list(run_to_json(run).items())[1:])
    errors = [
        f"\nerror of attempt {attempt.attempt}:\n{attempt.error.rstrip()}" for attempt in attempts if attempt.error
    ]
    call.out.answer(document, facts, attempts_table(attempts) if attempts else "no attempt has ended", *errors)
