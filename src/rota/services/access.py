"""Who may ask: tokens, tenants with their quotas and signing keys, and the log of what was changed by whom.

A token is shown once, at its making. What is kept is a hash; an entry of the audit log holds neither.
"""

import math
import secrets
from base64 import b64encode
from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta
from hmac import compare_digest
from typing import Any, Final
from uuid import UUID

import structlog

from rota.clock import Clock
from rota.domain.instants import format_instant, future_instant
from rota.domain.job import NAME_LIMIT, PAYLOAD_LIMIT, check_name, check_text, check_visible, check_whole
from rota.domain.token_text import SECRET_BYTES, is_token_id, parse_token, token_of
from rota.errors import Forbidden, InvalidInput, NotFound, QuotaExceeded, Unauthorized
from rota.services.patience import Patience
from rota.services.quota import Quotas
from rota.store import access as store
from rota.store import audit
from rota.store.access import SigningKeys, TenantView, TokenView
from rota.store.audit import LATEST, AuditView, Change
from rota.store.database import Database, Lane
from rota.wire.access import OPERATOR, SCOPES

__all__ = ["Access", "AuditView", "SigningKeys", "TenantView", "TokenView"]

USE_NOTED: Final = timedelta(seconds=60)
"""How exactly a token's last use is known."""
PAGE: Final = 1000
TOKENS_LIMIT: Final = 1000
"""The most tokens of a tenant that hold."""
TOKEN_DEPTH: Final = 5
"""How many tokens one may come from, itself included."""
TOKENS_KEPT: Final = timedelta(days=90)
"""How long a token that ended is listed."""
FORGOTTEN_AT_ONCE: Final = 100
FORMER_SECRET_LIMIT: Final = timedelta(days=30)
"""The longest that a signing secret signs beside the one after it."""
TENANTS_SHOWN: Final = 10_000
MAX_JOBS_LIMIT: Final = 100_000_000
WEIGHT_LIMIT: Final = 100
CALLS_LIMIT: Final = 1e6
SIGNING_BYTES: Final = 32

log = structlog.get_logger()


class Access:
    """Tokens and tenants; every change is in the audit log of the tenant that it is about."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database.on(Lane.CALLS)
        self._patience = Patience()
        self._clock = clock
        self._quotas = Quotas(database, clock)
        self._noted: dict[str, float] = {}

    # tokens

    async def create_token(
        self, *, tenant_id: str, scopes: Collection[str], name: str, expires_at: datetime | None, actor: str,
        parent_id: str | None = None,
    ) -> tuple[TokenView, str]:  # fmt: skip
        """Make a token; returns it with its text, which nobody can show again. Tenant `*` makes an operator's.

        One that the token `parent_id` makes ends with it, and at the latest when it does. Raises InvalidInput for
        scopes that are unknown or none, a tenant that is no name, an expiry that has passed or is after the parent's;
        Forbidden; QuotaExceeded.
        """
        check_name("tenant_id", tenant_id)
        check_visible("tenant_id", tenant_id)
        check_text("name", name, limit=NAME_LIMIT)
        check_visible("name", name)
        now = self._clock.now()
        until = None if expires_at is None else future_instant(expires_at, "expires_at", now=now)
        text = token_of(secrets.token_bytes(8 + SECRET_BYTES))
        token = TokenView(
            token_id=text.token_id, tenant_id=tenant_id, name=name, scopes=_scopes(scopes), created_at=now,
            created_by=actor, expires_at=until, revoked_at=None, last_used_at=None, parent_id=parent_id,
        )  # fmt: skip
        if parent_id is not None:
            token = await self._within(token, parent_id)
        await self._patience.ask(
            lambda: self._add_token(token, secret_hash=text.secret_hash, actor=actor), what=f"tenant {tenant_id!r}",
            turn=tenant_id,
        )  # fmt: skip
        log.info("token.created", token_id=token.token_id, tenant_id=tenant_id, scopes=token.scopes)
        return token, str(text)

    async def _add_token(self, token: TokenView, *, secret_hash: bytes, actor: str) -> None:
        now = token.created_at
        async with self._database.transaction() as tx:
            await store.forget_tokens(tx, token.tenant_id, before=now - TOKENS_KEPT, limit=FORGOTTEN_AT_ONCE)
            if not await store.add_token(tx, token, secret_hash=secret_hash, most=TOKENS_LIMIT):
                raise QuotaExceeded(
                    f"{TOKENS_LIMIT} tokens of tenant {token.tenant_id!r} hold", hint="revoke those that nobody uses"
                )
            await audit.note(tx, [_made(token)], actor=actor, now=now)

    async def _within(self, token: TokenView, parent_id: str) -> TokenView:
        """Return a new token within the bounds of its maker. Raises InvalidInput, Forbidden, Unauthorized."""
        found = await store.token(self._database, parent_id, lane=Lane.CALLS)
        if found is None or found[0].revoked_at is not None:
            raise Unauthorized("the token that makes it was revoked", hint="ask for another one")
        parent = found[0]
        if "admin" not in parent.scopes and not set(token.scopes) <= set(parent.scopes):
            raise Forbidden("a token makes none that may do more", hint=f"it has {', '.join(parent.scopes)}")
        if parent.depth >= TOKEN_DEPTH:
            raise Forbidden(f"this token comes from {TOKEN_DEPTH - 1} others already", hint="make it by one of these")
        if parent.expires_at is None:
            return token
        if token.expires_at is not None and token.expires_at > parent.expires_at:
            end = format_instant(parent.expires_at)
            raise InvalidInput("expires_at", f"is after {end}, when the token that makes it ends")
        return replace(token, expires_at=token.expires_at or parent.expires_at)

    async def authenticate(self, text: str, *, is_known: bool = False) -> TokenView:
        """Return the token that a text is. Raises Unauthorized for one that is unknown, revoked or expired.

        One that `is_known` to have held a moment ago is looked up on the reserved connections: its holder may come for
        renewals. A stranger's has no business there.
        """
        given = parse_token(text)
        lane = Lane.URGENT if is_known else Lane.CALLS
        found = None if given is None else await store.token(self._database, given.token_id, lane=lane)
        if given is None or found is None or not compare_digest(given.secret_hash, found[1]):
            # One answer for all of these: whoever has no secret learns nothing about ids.
            raise Unauthorized("this token is unknown", hint="`rota token create` makes one")
        token = found[0]
        if token.revoked_at is not None:
            raise Unauthorized("this token was revoked", hint="ask for another one")
        if token.expires_at is not None and token.expires_at <= self._clock.now():
            raise Unauthorized(f"this token expired at {format_instant(token.expires_at)}", hint="ask for another one")
        return token

    async def note_used(self, token_ids: Collection[str]) -> None:
        """Note that tokens were used just now: at most once in USE_NOTED, so call it as often as they are.

        Raises DatabaseUnavailable; the note is then lost until the next one.
        """
        now = self._clock.monotonic()
        period = USE_NOTED.total_seconds()
        due = sorted({token_id for token_id in token_ids if now - self._noted.get(token_id, -math.inf) >= period})
        if not due:
            return
        self._noted = {token_id: at for token_id, at in self._noted.items() if now - at < period}
        self._noted |= dict.fromkeys(due, now)
        at = self._clock.now()
        await store.note_used(self._database, due, now=at, before=at - USE_NOTED / 2)

    async def tokens(
        self, tenant_id: str, *, before: tuple[datetime, str] | None = None, limit: int = PAGE
    ) -> list[TokenView]:
        """Return a tenant's tokens, latest first, those that hold no longer too; `*`: the operators'.

        Before a place in this list, at most PAGE + 1.
        """
        bounded = max(0, min(limit, PAGE + 1))
        return await store.tokens(self._database, tenant_id, before=before or (LATEST[0], ""), limit=bounded)

    async def revoke(self, token_id: str, *, tenant_id: str, actor: str) -> None:
        """Let a token hold no longer, nor those that it made; one that was revoked before stays. Raises NotFound."""
        now = self._clock.now()
        found = await store.token(self._database, token_id, lane=Lane.CALLS) if is_token_id(token_id) else None
        if found is None or found[0].tenant_id != tenant_id:
            raise NotFound(f"there is no token {token_id!r}", hint="`rota token list` shows this tenant's")

        async def once() -> list[TokenView]:
            async with self._database.transaction() as tx:
                revoked = await store.revoke(tx, token_id, tenant_id=tenant_id, now=now)
                await audit.note(tx, [_revoked(token) for token in revoked], actor=actor, now=now)
            return revoked

        for token in await self._patience.ask(once, what=f"token {token_id}", turn=token_id):
            log.info("token.revoked", token_id=token.token_id, tenant_id=token.tenant_id)

    async def has_tokens(self) -> bool:
        """Whether anybody has a token that still holds."""
        return await store.has_tokens(self._database, now=self._clock.now())

    # tenants

    async def put_tenant(
        self, tenant_id: str, *, max_jobs: int | None, max_payload_bytes: int | None, calls_per_second: float | None,
        weight: int = 1, actor: str,
    ) -> TenantView:  # fmt: skip
        """Set a tenant's quotas, None for the installation's own, and its weight; they hold everywhere within seconds.

        What a tenant has beyond a new quota, it keeps. Raises InvalidInput.
        """
        _check_tenant(tenant_id)
        _check_quotas(max_jobs, max_payload_bytes, calls_per_second)
        check_whole("weight", weight, 1, WEIGHT_LIMIT)
        wanted = max_jobs, max_payload_bytes, calls_per_second, weight
        after = await self._patience.ask(
            lambda: self._set_quotas(tenant_id, wanted, actor=actor), what=f"tenant {tenant_id!r}", turn=tenant_id
        )
        self._quotas.forget(tenant_id)
        return after

    async def _set_quotas(
        self, tenant_id: str, wanted: tuple[int | None, int | None, float | None, int], *, actor: str
    ) -> TenantView:
        max_jobs, max_payload_bytes, calls_per_second, weight = wanted
        now = self._clock.now()
        async with self._database.transaction() as tx:
            created = await store.ensure_tenant(tx, tenant_id, signing_secret=_new_signing_secret(), now=now)
            before = await store.lock_tenant(tx, tenant_id)
            assert before is not None, "a tenant's row is never deleted"
            if not created and _facts(before) == wanted:
                return before
            after = await store.set_quotas(
                tx, tenant_id, max_jobs=max_jobs, max_payload_bytes=max_payload_bytes,
                calls_per_second=calls_per_second, weight=weight, now=now,
            )  # fmt: skip
            change = Change(
                tenant_id=tenant_id,
                action="tenant.created" if created else "tenant.changed",
                subject=tenant_id,
                before=None if created else _quotas(before),
                after=_quotas(after),
            )
            await audit.note(tx, [change], actor=actor, now=now)
        return after

    async def tenants(self) -> list[TenantView]:
        """Return the tenants that have quotas or a signing key of their own, by name."""
        return await store.tenants(self._database, limit=TENANTS_SHOWN)

    async def quotas(self, tenant_id: str) -> TenantView | None:
        """Return a tenant's quotas, at most seconds old; None: it has none of its own. Cheap enough for every call."""
        return await self._quotas.of(tenant_id)

    async def signing_keys(self, tenant_id: str) -> SigningKeys:
        """Return the keys, "whsec_" and base64, that sign calls of a tenant's HTTP targets; made when first asked for.

        The one before the last rotation is among them as long as it signs. Raises InvalidInput.
        """
        _check_tenant(tenant_id)
        keys = await store.signing_keys(self._database, tenant_id)
        now = self._clock.now()
        if keys is None:
            await store.ensure_tenant(self._database, tenant_id, signing_secret=_new_signing_secret(), now=now)
            # Whoever was first, everybody reads the one that stands there.
            keys = await store.signing_keys(self._database, tenant_id)
        assert keys is not None, "a tenant's row is never deleted"
        if keys.former_until is None or keys.former_until <= now:
            return SigningKeys(keys.secret, None, None)
        return keys

    async def rotate_signing_secret(self, tenant_id: str, *, keep: timedelta, actor: str) -> SigningKeys:
        """Give a tenant another signing key; the present one signs beside it for `keep`. Raises InvalidInput."""
        _check_tenant(tenant_id)
        if not timedelta() <= keep <= FORMER_SECRET_LIMIT:
            raise InvalidInput("keep", f"must be from 0 to {FORMER_SECRET_LIMIT.days} days")
        keys = await self._patience.ask(
            lambda: self._rotate(tenant_id, keep=keep, actor=actor), what=f"tenant {tenant_id!r}", turn=tenant_id
        )
        log.info("tenant.secret_rotated", tenant_id=tenant_id)
        return keys

    async def _rotate(self, tenant_id: str, *, keep: timedelta, actor: str) -> SigningKeys:
        now = self._clock.now()
        until = now + keep if keep else None
        async with self._database.transaction() as tx:
            await store.ensure_tenant(tx, tenant_id, signing_secret=_new_signing_secret(), now=now)
            keys = await store.rotate_signing_secret(
                tx, tenant_id, secret=_new_signing_secret(), until=until, now=now
            )  # fmt: skip
            after = {"former_until": None if until is None else format_instant(until)}
            change = Change(tenant_id=tenant_id, action="tenant.secret_rotated", subject=tenant_id, after=after)
            await audit.note(tx, [change], actor=actor, now=now)
        return keys

    # the audit log

    async def changes(
        self, tenant_id: str, *, subject: str, before: tuple[datetime, UUID] | None, limit: int
    ) -> list[AuditView]:
        """Return what was changed, latest first, before a place in this list; `subject` empty means all.

        At most PAGE. Raises InvalidInput.
        """
        check_text("subject", subject, limit=NAME_LIMIT)
        return await audit.page(
            self._database,
            tenant_id=tenant_id,
            subject=subject,
            before=before or LATEST,
            limit=max(0, min(limit, PAGE)),
        )


def _scopes(scopes: Collection[str]) -> tuple[str, ...]:
    """Return scopes in their own order. Raises InvalidInput for none, or an unknown one."""
    known = f"known are {', '.join(SCOPES)}"
    if isinstance(scopes, str) or not scopes:
        raise InvalidInput("scopes", "are none", hint=known)
    for scope in scopes:
        if scope not in SCOPES:
            raise InvalidInput("scopes", f"{scope!r} is unknown", hint=known)
    return tuple(scope for scope in SCOPES if scope in scopes)


def _check_tenant(tenant_id: str) -> None:
    check_name("tenant_id", tenant_id)
    if tenant_id == OPERATOR:
        raise InvalidInput("tenant_id", f"{OPERATOR!r} stands for the operator, who is no tenant")


def _check_quotas(max_jobs: int | None, max_payload_bytes: int | None, calls_per_second: float | None) -> None:
    if max_jobs is not None:
        check_whole("max_jobs", max_jobs, 0, MAX_JOBS_LIMIT)
    if max_payload_bytes is not None:
        # Two bytes are the empty object.
        check_whole("max_payload_bytes", max_payload_bytes, 2, PAYLOAD_LIMIT)
    if calls_per_second is not None:
        is_number = isinstance(calls_per_second, int | float) and not isinstance(calls_per_second, bool)
        if not is_number or not 0 < calls_per_second <= CALLS_LIMIT:
            raise InvalidInput("calls_per_second", f"must be more than 0, at most {CALLS_LIMIT:g}")


def _new_signing_secret() -> str:
    return "whsec_" + b64encode(secrets.token_bytes(SIGNING_BYTES)).decode()


def _facts(view: TenantView) -> tuple[int | None, int | None, float | None, int]:
    return view.max_jobs, view.max_payload_bytes, view.calls_per_second, view.weight


def _quotas(view: TenantView) -> dict[str, Any]:
    return dict(zip(("max_jobs", "max_payload_bytes", "calls_per_second", "weight"), _facts(view), strict=True))


def _made(token: TokenView) -> Change:
    return Change(tenant_id=token.tenant_id, action="token.created", subject=token.token_id, after=_token(token))


def _revoked(token: TokenView) -> Change:
    return Change(tenant_id=token.tenant_id, action="token.revoked", subject=token.token_id, before=_token(token))


def _token(token: TokenView) -> dict[str, Any]:
    until = None if token.expires_at is None else format_instant(token.expires_at)
    return {"name": token.name, "scopes": list(token.scopes), "expires_at": until}
