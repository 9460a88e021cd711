"""People and tenants: tokens, quotas, the signing key, and the log of what was changed by whom."""

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from rota.api.calls import Caller, Routes, TenantId, Text, TokenId, answer
from rota.wire.access import (
    SCOPES,
    AuditPage,
    MeDocument,
    NewToken,
    RotateQuestion,
    SigningSecret,
    TenantDocument,
    TenantList,
    TenantQuestion,
    TokenList,
    TokenQuestion,
)
from rota.wire.document import PAGE_LIMIT


def register(routes: Routes) -> None:
    routes.add("GET", "/v1/me", get_me, needs="token", gives=MeDocument)
    routes.add("GET", "/v1/tokens", list_tokens, needs="admin", gives=TokenList)
    routes.add("POST", "/v1/tokens", create_token, needs="admin", gives=NewToken, status=201)
    routes.add(
        "DELETE", "/v1/tokens/{token_id:segment}", revoke_token, needs="admin", gives=None, status=204, problems=(404,)
    )
    routes.add("GET", "/v1/tenants", list_tenants, needs="admin", gives=TenantList)
    routes.add("PUT", "/v1/tenants/{tenant_id:segment}", put_tenant, needs="admin", gives=TenantDocument)
    routes.add("GET", "/v1/audit", list_audit, needs="admin", gives=AuditPage)
    routes.add("GET", "/v1/signing-secret", get_signing_secret, needs="worker", gives=SigningSecret)
    routes.add("POST", "/v1/signing-secret/rotate", rotate_signing_secret, needs="admin", gives=SigningSecret)


async def get_me(call: Caller) -> Response:
    """Return who asks, as the server sees it."""
    who = call.principal
    scopes = tuple(scope for scope in SCOPES if scope in who.scopes)
    return answer(MeDocument(tenant_id=who.tenant_id, scopes=scopes, actor=who.actor, is_operator=who.is_operator))


async def list_tokens(
    call: Caller, limit: Annotated[int, Query(ge=1, le=PAGE_LIMIT)] = PAGE_LIMIT, cursor: Text | None = None
) -> Response:
    """Return this tenant's tokens, latest first, without what makes them work."""
    return answer(await call.control.tokens(limit=limit, cursor=cursor))


async def create_token(call: Caller, question: TokenQuestion) -> Response:
    """Make a token. Its text is shown this once. It ends with the token that makes it."""
    made = await call.control.create_token(scopes=question.scopes, name=question.name, expires_at=question.expires_at)
    return answer(made, status=201)


async def revoke_token(call: Caller, token_id: TokenId) -> Response:
    """Let a token hold no longer, nor those that it made, everywhere within 5 seconds."""
    await call.control.revoke_token(token_id)
    return Response(status_code=204)


async def list_tenants(call: Caller) -> Response:
    """Return all tenants with quotas of their own; an operator's."""
    return answer(await call.control.tenants())


async def put_tenant(call: Caller, tenant_id: TenantId, question: TenantQuestion) -> Response:
    """Set a tenant's quotas and its weight in pools; an operator's."""
    put = await call.control.put_tenant(
        tenant_id,
        max_jobs=question.max_jobs,
        max_payload_bytes=question.max_payload_bytes,
        calls_per_second=question.calls_per_second,
        weight=question.weight,
    )
    return answer(put)


async def list_audit(
    call: Caller,
    subject: Text = "",
    limit: Annotated[int, Query(ge=1, le=PAGE_LIMIT)] = 50,
    cursor: Text | None = None,
) -> Response:
    """Return what was changed, latest first: who, what, before, after."""
    return answer(await call.control.audit(subject=subject, limit=limit, cursor=cursor))


async def get_signing_secret(call: Caller) -> Response:
    """Return the key that signs the calls of this tenant's HTTP targets, and the one before as long as it does."""
    return answer(await call.control.signing_secret())


async def rotate_signing_secret(call: Caller, question: RotateQuestion | None = None) -> Response:
    """Make another key. Calls are signed with both for `keep_seconds`, in which receivers learn it."""
    asked = question or RotateQuestion()
    return answer(await call.control.rotate_signing_secret(keep_seconds=asked.keep_seconds))
