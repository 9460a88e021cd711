"""`rota freeze` and `rota unfreeze`: no new slots and no starts, until I say."""

from typing import Annotated

import typer

from rota.cli.options import Call, command
from rota.cli.output import Table
from rota.cli.views import values_of
from rota.errors import InvalidInput

Everywhere = Annotated[bool, typer.Option("--everywhere", help="All tenants; an operator's command.")]
EVERYBODY = "*"


def register(app: typer.Typer) -> None:
    command(app, "freeze", over_http=True, panel="Flow")(freeze)
    command(app, "unfreeze", over_http=True, panel="Flow")(unfreeze)


async def freeze(
    call: Call,
    reason: Annotated[str, typer.Option(help="Why, for whoever looks next.", show_default=False)] = "",
    everywhere: Everywhere = False,
    show: Annotated[bool, typer.Option("--show", help="Only show what is frozen.")] = False,
) -> None:
    """Make no new slots and start no runs of the tenant, until `rota unfreeze`. What runs goes on."""
    if show:
        async with call.control(tenant_id=EVERYBODY if everywhere else None) as control:
            found = (await control.freezes()).freezes
        rows = [(_whose(one.tenant_id), one.frozen_at, one.actor, one.reason) for one in found]
        table = Table(columns=("frozen", "since", "by", "reason"), rows=rows) if rows else "nothing is frozen"
        call.out.answer({"freezes": [values_of(one) for one in found]}, table)
        return
    if not reason:
        raise InvalidInput("reason", "is missing", hint="give --reason: somebody will ask why nothing runs")
    async with call.control(tenant_id=EVERYBODY if everywhere else None) as control:
        done = await control.freeze(reason=reason)
    call.out.answer(values_of(done), f"{_whose(done.tenant_id)} is frozen: `rota unfreeze` lets it go on")


async def unfreeze(call: Call, everywhere: Everywhere = False) -> None:
    """End a freeze: what it put off is due again, and misfire policies decide on what was missed."""
    async with call.control(tenant_id=EVERYBODY if everywhere else None) as control:
        done = await control.unfreeze()
    call.out.answer(values_of(done), f"{_whose(done.tenant_id)} goes on")


def _whose(tenant_id: str) -> str:
    return "everything" if tenant_id == EVERYBODY else f"tenant {tenant_id!r}"
