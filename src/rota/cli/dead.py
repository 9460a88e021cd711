"""`rota dead`: runs that Rota stopped trying, and the way back."""

import sys
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final
from uuid import UUID

import typer

from rota.cli.boundary import NO
from rota.cli.options import Call, command
from rota.cli.runs import run_id_of
from rota.cli.views import dead_table, values_of
from rota.errors import InvalidInput

if TYPE_CHECKING:
    from rota.assembly import Rota

PAGE: Final = 1000
"""Dead letters that are replayed at once."""


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Look at dead letters, and send them back.", no_args_is_help=True)
    command(group, "list")(list_)
    command(group, "replay")(replay)
    app.add_typer(group, name="dead", rich_help_panel="Look")


async def list_(
    call: Call,
    job: Annotated[str, typer.Option(help="Those of this job.", show_default=False)] = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The most dead letters.")] = 50,
) -> None:
    """List dead letters, latest first, each with its last error."""
    async with call.opened() as rota:
        letters = await rota.history.dead_letters(tenant_id=call.tenant_id, job_id=job, limit=limit)
    document = {"dead": [values_of(letter) for letter in letters]}
    call.out.answer(document, dead_table(letters) if letters else "no dead letters")


async def replay(
    call: Call,
    run_ids: Annotated[list[str] | None, typer.Argument(help="The runs' ids.", show_default=False)] = None,
    replay_all: Annotated[bool, typer.Option("--all", help="All dead letters that there are now.")] = False,
    job: Annotated[str, typer.Option(help="With --all: those of this job.", show_default=False)] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int | None:
    """Send dead letters back to the queue: one more attempt each. Exit code 1: some were not dead."""
    asked = [run_id_of(text) for text in run_ids or []]
    if replay_all == bool(asked):
        raise InvalidInput("run_id", "give ids or --all, one of both", hint="`rota dead list` shows the ids")
    if job and not replay_all:
        raise InvalidInput("job", "belongs to --all", hint="leave it out, or say --all")
    async with call.opened() as rota:
        if replay_all:
            replayed = await _replay_all(call, rota, job=job, ask=not yes)
            call.out.answer({"replayed": replayed}, f"{replayed} dead letters are back in the queue")
            return None
        back = await rota.on_demand.replay(asked)
    left = sorted(set(asked) - back)
    parts = [f"{len(back)} of {len(asked)} runs are back in the queue"]
    parts += [f"not dead, so left as it is: {run}" for run in left]
    call.out.answer({"replayed": len(back), "not_dead": left}, *parts)
    return NO if left else None


async def _replay_all(call: Call, rota: "Rota", *, job: str, ask: bool) -> int:
    """Replay page by page what is dead now; what dies again meanwhile stays."""
    now = rota.clock.now()
    page = await _page(call, rota, job=job, before=now)
    if page and ask:
        _ask(len(page))
    replayed = 0
    while page:
        back = await rota.on_demand.replay(page)
        replayed += len(back)
        # A page of which nothing came back would be read for ever.
        page = await _page(call, rota, job=job, before=now) if back else []
    return replayed


async def _page(call: Call, rota: "Rota", *, job: str, before: datetime) -> list[UUID]:
    letters = await rota.history.dead_letters(tenant_id=call.tenant_id, job_id=job, limit=PAGE)
    return [letter.run_id for letter in letters if letter.died_at <= before]


def _ask(count: int) -> None:
    if not sys.stdin.isatty():
        raise InvalidInput("yes", "nobody is there to be asked", hint="say --yes to replay them all")
    many = f"{count} or more" if count >= PAGE else str(count)
    typer.confirm(f"Send {many} dead letters back to the queue?", abort=True, err=True)
