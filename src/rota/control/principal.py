"""Who asks: a token's holder, or a person at the database. One rule for the API and the command line."""

from dataclasses import dataclass
from typing import Final

from rota.domain.job import DEFAULT_TENANT
from rota.errors import Forbidden
from rota.wire.access import SCOPES, Scope

ALL_SCOPES: Final = frozenset[str](SCOPES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """What somebody may do, and to whose rows. `actor` is their name in the audit log.

    An operator sees what belongs to no tenant, and `tenant_id` is the one that this call is about. `token_id` is the
    token that proves it; `is_unproven`: nothing does, the door stood open.
    """

    tenant_id: str
    scopes: frozenset[str]
    actor: str
    is_operator: bool = False
    token_id: str | None = None
    is_unproven: bool = False

    def allows(self, scope: Scope) -> bool:
        """Whether a scope is among this principal's; admin implies all others."""
        return scope in self.scopes or "admin" in self.scopes

    def require(self, scope: Scope) -> None:
        """Raise Forbidden, which names the scope, unless it is allowed."""
        if not self.allows(scope):
            held = ", ".join(sorted(self.scopes)) or "none"
            raise Forbidden(f"this needs the scope {scope}", hint=f"the token has {held}: ask for one that allows it")

    def require_operator(self) -> None:
        """Raise Forbidden unless this is an operator, whose questions are about the whole cluster."""
        if not self.is_operator:
            raise Forbidden("this is about all tenants", hint="it needs an operator's token")


def operator(actor: str, tenant_id: str = DEFAULT_TENANT) -> Principal:
    """Return an operator with all scopes who acts for a tenant."""
    return Principal(tenant_id=tenant_id, scopes=ALL_SCOPES, actor=actor, is_operator=True)
