"""`rota pool`: pools' own settings. Putting them is an operator's."""

from typing import Annotated

import typer

from rota.cli.options import Call, command, duration_of
from rota.cli.output import Table
from rota.cli.views import pools_table, values_of


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Set how pools order runs, and how many may wait there.", no_args_is_help=True)
    command(group, "put", without=("tenant",), over_http=True)(put)
    command(group, "list", without=("tenant",), over_http=True)(list_)
    app.add_typer(group, name="pool", rich_help_panel="Flow")


async def put(
    call: Call,
    pool: Annotated[str, typer.Argument(metavar="POOL", help="The pool's name.", show_default=False)],
    ageing: Annotated[
        str | None,
        typer.Option(
            help="The waiting that a point of priority is worth, such as 5m. (default: 60s)", show_default=False
        ),
    ] = None,
    shed_above: Annotated[
        int | None,
        typer.Option(
            help="How many runs may wait before the noisiest tenants' requests are refused. (default: any number)",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Set a pool's own settings; an option that is left out is as in every pool."""
    length = duration_of(ageing, field="ageing")
    async with call.control() as control:
        done = await control.put_pool(
            pool, ageing=None if length is None else length.total_seconds(), shed_above=shed_above
        )
    call.out.answer(values_of(done), pools_table([done]))


async def list_(call: Call) -> None:
    """List the pools with settings of their own."""
    async with call.control() as control:
        found = (await control.pools()).pools
    table: str | Table = pools_table(found) if found else "no pool has settings of its own"
    call.out.answer({"pools": [values_of(one) for one in found]}, table)
