"""The `rota` command: its options, and the commands that each noun's module adds."""

from typing import Annotated

import typer

from rota.cli import (
    api,
    audit,
    dead,
    demo,
    dev,
    doctor,
    freeze,
    imports,
    jobs,
    limits,
    migrate,
    pools,
    processes,
    runs,
    slots,
    tenants,
    tokens,
    workers,
)
from rota.cli import next as next_slots
from rota.cli.boundary import Boundary
from rota.cli.options import DatabaseUrl, DataDir, Given, Json, LogLevel, Tenant, Token, Url

app = typer.Typer(
    name="rota",
    cls=Boundary,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Rota: a distributed job scheduler on PostgreSQL. `rota dev` runs all of it in one process.",
)


def _show_version(asked: bool) -> None:
    if asked:
        from rota.version import VERSION

        typer.echo(f"rota {VERSION}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    url: Url = None,
    token: Token = None,
    tenant: Tenant = None,
    log_level: LogLevel = None,
    json: Json = False,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version.")
    ] = False,
) -> None:
    context.obj = Given(
        database_url=database_url, data_dir=data_dir, url=url, token=token, tenant=tenant, log_level=log_level,
        json=json,
    )  # fmt: skip


dev.register(app)
demo.register(app)
migrate.register(app)
processes.register(app)
api.register(app)
next_slots.register(app)
jobs.register(app)
runs.register(app)
slots.register(app)
dead.register(app)
imports.register(app)
workers.register(app)
limits.register(app)
pools.register(app)
freeze.register(app)
doctor.register(app)
tokens.register(app)
tenants.register(app)
audit.register(app)
