"""`rota token`: who may use the API, and for what."""

from typing import Annotated, Any, cast

import typer

from rota.cli.options import Call, command, duration_of
from rota.cli.output import Table
from rota.cli.views import values_of
from rota.errors import InvalidInput


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Make API tokens, look at them, and revoke them.", no_args_is_help=True)
    command(group, "create", over_http=True)(create)
    command(group, "list", over_http=True)(list_)
    command(group, "revoke", over_http=True)(revoke)
    app.add_typer(group, name="token", rich_help_panel="People")


Operator = Annotated[bool, typer.Option("--operator", help="An operator's, which act for every tenant.")]


async def create(
    call: Call,
    scope: Annotated[
        list[str],
        typer.Option(help="read, jobs:write, runs:operate, worker or admin; again for more.", show_default=False),
    ],
    name: Annotated[str, typer.Option(help="Whose it is, for whoever looks next.", show_default=False)] = "",
    expires: Annotated[str | None, typer.Option(help="How long it holds, such as 90d. (default: for ever)")] = None,
    operator: Operator = False,
) -> None:
    """Make a token for a tenant. Its text is shown this once."""
    from rota.wire.access import SCOPES

    for one in scope:
        if one not in SCOPES:
            raise InvalidInput("scope", f"{one!r} is not a scope", hint=f"use {', '.join(SCOPES)}")
    lasts = duration_of(expires, field="expires")
    expires_at = None if lasts is None else call.clock.now() + lasts
    async with call.control(tenant_id=tenant_meant(call, operator=operator)) as control:
        made = await control.create_token(scopes=cast(Any, scope), name=name, expires_at=expires_at)
    if not call.out.as_json:
        call.out.warn(f"token {made.token_id} of tenant {made.tenant_id}: shown only now, so keep it")
    call.out.answer(values_of(made), made.token)


async def list_(
    call: Call,
    operator: Operator = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The most tokens.")] = 1000,
    cursor: Annotated[str | None, typer.Option(help="Where the page before ended.", show_default=False)] = None,
) -> None:
    """List a tenant's tokens, latest first, revoked ones too. Nobody can show their text again."""
    async with call.control(tenant_id=tenant_meant(call, operator=operator)) as control:
        page = await control.tokens(limit=limit, cursor=cursor)
    found = page.tokens
    columns = ("token", "name", "scopes", "created", "by", "expires", "revoked", "last used")
    rows = [
        (
            token.token_id,
            token.name,
            ", ".join(token.scopes),
            token.created_at,
            token.created_by,
            token.expires_at,
            token.revoked_at,
            token.last_used_at,
        )
        for token in found
    ]
    document = {"tokens": [values_of(token) for token in found], "next_cursor": page.next_cursor}
    call.out.answer(document, Table(columns=columns, rows=rows) if rows else "no tokens")
    if page.next_cursor and not call.out.as_json:
        call.out.warn(f"there are more: --cursor {page.next_cursor}")


async def revoke(
    call: Call,
    token_id: Annotated[str, typer.Argument(metavar="TOKEN", help="The token's id, as `rota token list` shows it.")],
    operator: Operator = False,
) -> None:
    """Let a token hold no longer, nor those that it made, everywhere within five seconds."""
    async with call.control(tenant_id=tenant_meant(call, operator=operator)) as control:
        await control.revoke_token(token_id)
    call.out.answer({"token_id": token_id, "revoked": True}, f"token {token_id!r} is revoked")


def tenant_meant(call: Call, *, operator: bool) -> str | None:
    """Return the tenant to speak for: the operator's, if that is said, else whichever the options name."""
    from rota.wire.access import OPERATOR

    if operator and call.given.tenant is not None:
        raise InvalidInput("operator", "stands beside --tenant", hint="the operator is no tenant")
    return OPERATOR if operator else None
