"""What the API needs of an opened cluster: services, a clock and hints. `assembly.Rota` is one."""

from typing import Protocol

from rota.clock import Clock
from rota.control.principal import Principal
from rota.services.access import Access
from rota.services.completion import Completion
from rota.services.dispatch import Dispatch
from rota.services.fleet import Fleet
from rota.services.hints import Hints
from rota.services.history import History
from rota.wire.control import Control


class Cluster(Protocol):
    """The services behind the API."""

    @property
    def clock(self) -> Clock: ...
    @property
    def hints(self) -> Hints: ...
    @property
    def access(self) -> Access: ...
    @property
    def dispatch(self) -> Dispatch: ...
    @property
    def completion(self) -> Completion: ...
    @property
    def fleet(self) -> Fleet: ...
    @property
    def history(self) -> History: ...

    def control(self, principal: Principal) -> Control:
        """Return the control protocol for one principal."""
        ...
