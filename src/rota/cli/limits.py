"""`rota limit`: how many runs run at once, and how many start a second."""

from typing import Annotated

import typer

from rota.cli.options import Call, command
from rota.cli.output import Table
from rota.cli.tokens import tenant_meant
from rota.cli.views import limits_table, values_of
from rota.errors import InvalidInput

Name = Annotated[str, typer.Argument(metavar="NAME", help="The limit's name.", show_default=False)]
Operator = Annotated[bool, typer.Option("--operator", help="The operator's own, which are all tenants'.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Limit how many runs run at once, or start a second.", no_args_is_help=True)
    command(group, "put", over_http=True)(put)
    command(group, "list", over_http=True)(list_)
    command(group, "show", over_http=True)(show)
    command(group, "delete", over_http=True)(delete)
    app.add_typer(group, name="limit", rich_help_panel="Flow")


async def put(
    call: Call,
    name: Name,
    rate: Annotated[float | None, typer.Option(help="Tokens a second.", show_default=False)] = None,
    burst: Annotated[
        int | None,
        typer.Option(help="The most tokens that are saved up. (default: a fifth of a second's)", show_default=False),
    ] = None,
    permits: Annotated[int | None, typer.Option(help="How many may run at once.", show_default=False)] = None,
    kind: Annotated[
        str, typer.Option(help="downstream: what jobs name. tenant: all runs of a tenant, an operator's to put.")
    ] = "downstream",
    operator: Operator = False,
) -> None:
    """Insert or replace a limit. It holds from the next claim on."""
    if kind not in ("downstream", "tenant"):
        raise InvalidInput("kind", f"{kind!r} is no kind", hint="use downstream or tenant")
    async with call.control(tenant_id=tenant_meant(call, operator=operator)) as control:
        done = await control.put_limit(
            name, kind="tenant" if kind == "tenant" else "downstream", rate=rate, burst=burst, permits=permits
        )
    call.out.answer(values_of(done), limits_table([done]))


async def list_(call: Call, operator: Operator = False) -> None:
    """List the limits that a tenant's runs may be under: its own, and the operator's that apply."""
    async with call.control(tenant_id=tenant_meant(call, operator=operator)) as control:
        found = (await control.limits()).limits
    call.out.answer({"limits": [values_of(one) for one in found]}, limits_table(found) if found else "no limits")


async def show(call: Call, name: Name, operator: Operator = False) -> None:
    """Show a limit and how much of it is taken."""
    async with call.control(tenant_id=tenant_meant(call, operator=operator)) as control:
        document = values_of(await control.get_limit(name))
    call.out.answer(document, Table(columns=("limit", name), rows=list(document.items())))


async def delete(call: Call, name: Name, operator: Operator = False) -> None:
    """Delete a limit. Runs that it held back may start at once."""
    async with call.control(tenant_id=tenant_meant(call, operator=operator)) as control:
        await control.delete_limit(name)
    call.out.answer({"name": name, "deleted": True}, f"limit {name!r} is deleted")
