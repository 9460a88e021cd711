"""Who asks: a token's holder or, on a loopback address that was opened without tokens, whoever is at this machine."""

import asyncio
from dataclasses import dataclass, replace
from hashlib import sha256
from ipaddress import ip_address
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from rota.api.limits import CallLimits
from rota.api.problems import problem_response
from rota.api.recent import Recent
from rota.clock import Clock
from rota.control.principal import Principal, operator
from rota.domain.job import DEFAULT_TENANT, check_name
from rota.errors import DatabaseUnavailable, Forbidden, InvalidInput, Unauthorized
from rota.services.access import Access, TokenView
from rota.wire.access import OPERATOR

OpenTo = Literal["loopback"]

TOKEN_KEPT: Final = 2.0
"""Seconds for which an authentication is believed: a revocation holds within them, and it is promised within 5."""
TOKENS_KEPT: Final = 10_000
REFUSAL_KEPT: Final = 2.0
"""Seconds for which a refusal is believed: whoever repeats a token that does not hold asks the database no more."""
STRANGERS_AT_ONCE: Final = 2
"""The most tokens nobody knows here that are looked up at the same time; others wait for their turn."""
STRANGER_WAIT: Final = 5.0

TENANT_HEADER: Final = "Rota-Tenant"
OPEN_ACTOR: Final = "dev"


class Gate:
    """Lets calls in: finds their principal, holds the tenant to its rate, and notes which tokens are in use."""

    def __init__(self, access: Access, clock: Clock, limits: CallLimits, *, open_to: OpenTo | None) -> None:
        self._access = access
        self._clock = clock
        self._limits = limits
        self._open_to = open_to
        self._known: Recent[bytes, _Known] = Recent(TOKENS_KEPT)
        self._refused: Recent[bytes, _Refused] = Recent(TOKENS_KEPT)
        self._strangers = asyncio.Semaphore(STRANGERS_AT_ONCE)
        self._unnoted: set[str] = set()

    async def admit(self, headers: Headers, *, in_hand: bool = False) -> Principal:
        """Return who asks, and for which tenant; an operator's is `default` unless a header names one.

        `in_hand`: the call is about runs that its worker holds, which have a rate of their own.

        Raises Unauthorized, Forbidden, InvalidInput, TooManyCalls, DatabaseUnavailable.
        """
        named = _tenant_named(headers)
        if self._open_to is not None and "authorization" not in headers:
            return replace(operator(OPEN_ACTOR, named or DEFAULT_TENANT), is_unproven=True)
        view = await self._authenticated(_bearer(headers))
        principal = Principal(
            tenant_id=view.tenant_id,
            scopes=frozenset(view.scopes),
            actor=f"token:{view.token_id}",
            is_operator=view.tenant_id == OPERATOR,
            token_id=view.token_id,
        )
        if principal.is_operator:
            # No limit: this is the installation's own hand.
            return replace(principal, tenant_id=named or DEFAULT_TENANT)
        await self._limits.admit(principal.tenant_id, in_hand=in_hand)
        if named not in (None, principal.tenant_id):
            raise Forbidden(f"the token is another tenant's than {named!r}", hint=f"leave {TENANT_HEADER} out")
        return principal

    @property
    def has_uses_to_note(self) -> bool:
        return bool(self._unnoted)

    def uses_to_note(self) -> frozenset[str]:
        """Return the tokens that were used since this was asked last."""
        taken, self._unnoted = frozenset(self._unnoted), set()
        return taken

    async def _authenticated(self, text: str) -> TokenView:
        key = sha256(text.encode("utf-8", "surrogatepass")).digest()
        now = self._clock.monotonic()
        known = self._known.get(key)
        if known is not None and now - known.at < TOKEN_KEPT and not self._has_expired(known.view):
            return known.view
        refused = self._refused.get(key)
        if refused is not None and now - refused.at < REFUSAL_KEPT:
            raise Unauthorized(refused.reason, hint=refused.hint)
        try:
            view = await (self._access.authenticate(text, is_known=True) if known else self._introduced(text))
        except Unauthorized as error:
            self._known.forget(key)
            reason = str(error).removesuffix(f" ({error.hint})") if error.hint else str(error)
            self._refused.put(key, _Refused(reason, error.hint, now))
            raise
        self._known.put(key, _Known(view, now))
        self._unnoted.add(view.token_id)
        return view

    async def _introduced(self, text: str) -> TokenView:
        """Look up a token that nobody has shown here lately: a few at a time, however many come."""
        try:
            async with asyncio.timeout(STRANGER_WAIT):
                await self._strangers.acquire()
        except TimeoutError:
            raise DatabaseUnavailable("too many unknown tokens wait to be looked up") from None
        try:
            return await self._access.authenticate(text)
        finally:
            self._strangers.release()

    def _has_expired(self, view: TokenView) -> bool:
        return view.expires_at is not None and view.expires_at <= self._clock.now()


@dataclass(frozen=True, slots=True)
class _Known:
    """A token that held at an instant of the stopwatch."""

    view: TokenView
    at: float


@dataclass(frozen=True, slots=True)
class _Refused:
    """A token that did not hold at an instant of the stopwatch, and why."""

    reason: str
    hint: str | None
    at: float


class LoopbackOnly:
    """Middleware of an open API: refuses what a web page could send from a browser on this machine.

    A page of another site reaches a loopback address under its own name (DNS rebinding), or says whose page it is.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (refusal := _foreign(Headers(scope=scope), scheme=scope["scheme"])):
            response: Any = problem_response(Forbidden(refusal, hint="without tokens only this machine may ask"))
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)


def is_loopback(host: str) -> bool:
    """Tell whether a host's name or address, without a port, is this machine's own and no other's."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _foreign(headers: Headers, *, scheme: str) -> str | None:
    """Return why a request may come from elsewhere, if it may."""
    host = headers.get("host", "")
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        name = ""
    if not is_loopback(name):
        return f"the host {host[:100]!r} is no loopback address"
    origin = headers.get("origin")
    if origin is not None and origin.lower() != f"{scheme}://{host}".lower():
        return f"the origin {origin[:100]!r} is another site"
    return None


def _bearer(headers: Headers) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthorized("there is no token", hint="send `Authorization: Bearer rota_...`; see `rota token create`")
    return token.strip()


def _tenant_named(headers: Headers) -> str | None:
    value = headers.get(TENANT_HEADER)
    if value is None:
        return None
    try:
        # Headers arrive as Latin-1; what was meant is UTF-8.
        name = value.encode("latin-1").decode("utf-8")
    except UnicodeError:
        raise InvalidInput(TENANT_HEADER, "is not UTF-8") from None
    check_name(TENANT_HEADER, name)
    return name
