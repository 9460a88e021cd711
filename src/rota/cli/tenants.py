"""`rota tenant`: what each tenant may have, an operator's commands; and the key that signs a tenant's calls."""

from typing import Annotated

import typer

from rota.cli.options import Call, command, duration_of
from rota.cli.output import Table
from rota.cli.views import values_of

TenantId = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant's name.", show_default=False)]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Set tenants' quotas, and rotate signing keys.", no_args_is_help=True)
    command(group, "put", without=("tenant",), over_http=True)(put)
    command(group, "list", without=("tenant",), over_http=True)(list_)
    command(group, "secret", over_http=True)(secret)
    command(group, "rotate-secret", over_http=True)(rotate_secret)
    app.add_typer(group, name="tenant", rich_help_panel="People")


async def put(
    call: Call,
    tenant_id: TenantId,
    max_jobs: Annotated[int | None, typer.Option(help="The most jobs. (default: as many as they like)")] = None,
    max_payload_bytes: Annotated[
        int | None, typer.Option(help="The most bytes of a payload. (default: 262144)", show_default=False)
    ] = None,
    calls_per_second: Annotated[
        float | None, typer.Option(help="API calls per second. (default: the server's)", show_default=False)
    ] = None,
    weight: Annotated[int, typer.Option(help="Its share of a pool that others want too, 1 to 100.")] = 1,
) -> None:
    """Set a tenant's quotas and weight; an option that is left out means the installation's own."""
    async with call.control() as control:
        tenant = await control.put_tenant(
            tenant_id,
            max_jobs=max_jobs,
            max_payload_bytes=max_payload_bytes,
            calls_per_second=calls_per_second,
            weight=weight,
        )
    document = values_of(tenant)
    call.out.answer(document, Table(columns=("tenant", tenant_id), rows=list(document.items())[1:]))


async def list_(call: Call) -> None:
    """List the tenants that have quotas or a signing key."""
    async with call.control() as control:
        found = (await control.tenants()).tenants
    columns = ("tenant", "jobs", "payload bytes", "calls per second", "weight", "updated")
    rows = [
        (one.tenant_id, one.max_jobs, one.max_payload_bytes, one.calls_per_second, one.weight, one.updated_at)
        for one in found
    ]
    table = Table(columns=columns, rows=rows, right=frozenset(columns[1:5]))
    call.out.answer({"tenants": [values_of(one) for one in found]}, table if rows else "no tenants")


async def secret(call: Call) -> None:
    """Show the key that signs the calls of a tenant's HTTP targets."""
    async with call.control() as control:
        keys = await control.signing_secret()
    call.out.answer(values_of(keys), keys.secret)


async def rotate_secret(
    call: Call,
    keep: Annotated[
        str, typer.Option(help="How long the present key signs beside the new one: 24h, at most 30d.")
    ] = "24h",
) -> None:
    """Make another signing key for a tenant. Calls are signed with both until receivers know the new one."""
    kept = duration_of(keep, field="keep")
    assert kept is not None, "there is a default"
    async with call.control() as control:
        keys = await control.rotate_signing_secret(keep_seconds=kept.total_seconds())
    call.out.answer(values_of(keys), keys.secret)
