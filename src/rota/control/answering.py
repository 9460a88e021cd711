"""What all parts of the local control share: the services, the principal, and whose rows a question is about."""

from typing import Protocol

from rota.clock import Clock
from rota.control.principal import Principal
from rota.errors import InvalidInput
from rota.services.access import Access
from rota.services.bulk import Bulk
from rota.services.definitions import Definitions
from rota.services.fleet import Fleet
from rota.services.freezes import Freezes
from rota.services.history import History
from rota.services.limits import Limits
from rota.services.on_demand import OnDemand
from rota.services.pools import Pools
from rota.services.why import Why
from rota.wire.access import OPERATOR, Scope


class Parts(Protocol):
    """The services that answer; an opened cluster has them."""

    @property
    def definitions(self) -> Definitions: ...
    @property
    def on_demand(self) -> OnDemand: ...
    @property
    def bulk(self) -> Bulk: ...
    @property
    def freezes(self) -> Freezes: ...
    @property
    def history(self) -> History: ...
    @property
    def access(self) -> Access: ...
    @property
    def fleet(self) -> Fleet: ...
    @property
    def limits(self) -> Limits: ...
    @property
    def pools(self) -> Pools: ...
    @property
    def why(self) -> Why: ...
    @property
    def clock(self) -> Clock: ...


class Answering:
    """Answers one principal: about his tenant's rows, within his scopes, under his name."""

    def __init__(self, parts: Parts, principal: Principal) -> None:
        self._parts = parts
        self._principal = principal

    @property
    def _seen(self) -> str | None:
        """The tenant whose workers are seen; None, an operator's: all."""
        return None if self._principal.is_operator else self._principal.tenant_id

    def _tenant(self, scope: Scope, *, or_operator: bool = False) -> str:
        """Return the tenant that is asked about, if the scope is allowed; `*` only where operators have things too.

        Raises Forbidden, InvalidInput.
        """
        self._principal.require(scope)
        tenant_id = self._principal.tenant_id
        if tenant_id == OPERATOR and or_operator:
            self._principal.require_operator()
        elif tenant_id == OPERATOR:
            raise InvalidInput("tenant", "* is no tenant's name", hint="name the tenant that is meant")
        return tenant_id
