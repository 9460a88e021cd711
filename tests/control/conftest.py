"""Controls over one cluster: an operator's, and those of two tenants that must not see each other."""

from collections.abc import Callable

import pytest

from rota.control.local import LocalControl
from rota.control.principal import ALL_SCOPES, Principal, operator
from rota.testing import RotaKit

Controls = Callable[..., LocalControl]


@pytest.fixture
def admin(rota_kit: RotaKit) -> LocalControl:
    """An operator who acts for the tenant default."""
    return rota_kit.rota.control(operator("cli:somebody"))


@pytest.fixture
def tenant(rota_kit: RotaKit) -> Controls:
    """Makes the control of a tenant's token, with all scopes or with some."""

    def control(tenant_id: str = "default", *, scopes: frozenset[str] = ALL_SCOPES) -> LocalControl:
        return rota_kit.rota.control(Principal(tenant_id=tenant_id, scopes=scopes, actor="token:abc"))

    return control
