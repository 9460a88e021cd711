"""What lives as long as the application: everything that calls have in common."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

from rota.api.announcements import Announcements
from rota.api.auth import Gate, OpenTo
from rota.api.body import Bodies
from rota.api.claim_sizes import ClaimSizes
from rota.api.cluster import Cluster
from rota.api.desk import ServerDesk
from rota.api.limits import CallLimits
from rota.api.metrics import Metrics
from rota.api.polls import LongPolls
from rota.clock import Clock
from rota.errors import RotaError
from rota.services.fleet import Health

_log = structlog.get_logger(__name__)


class Api:
    """The API of one cluster in this process. `stopwatch` times what happens within milliseconds."""

    def __init__(self, cluster: Cluster, *, open_to: OpenTo | None, calls_per_second: float, stopwatch: Clock) -> None:
        self.cluster = cluster
        self.is_open = open_to is not None
        self.gate = Gate(
            cluster.access,
            cluster.clock,
            CallLimits(cluster.access, cluster.clock, calls_per_second=calls_per_second),
            open_to=open_to,
        )
        self.bodies = Bodies()
        self.announcements = Announcements(cluster.fleet, cluster.clock)
        self.desk = ServerDesk(cluster, stopwatch)
        self.claim_sizes = ClaimSizes()
        self.polls = LongPolls(cluster.hints, cluster.clock)
        self.metrics = Metrics(cluster)
        self._background: set[asyncio.Task[None]] = set()
        self._health: asyncio.Task[Health] | None = None

    def note_uses(self) -> None:
        """Write down which tokens were used, if that is due; nobody waits for it."""
        if self.gate.has_uses_to_note:
            self._start(self._note_used(self.gate.uses_to_note()))

    async def _note_used(self, token_ids: frozenset[str]) -> None:
        try:
            await self.cluster.access.note_used(token_ids)
        except RotaError as error:
            _log.debug("token.use_not_noted", tokens=len(token_ids), error=str(error))

    async def health(self) -> Health:
        """Return how the cluster does. Whoever asks while the database is asked hears the same: anybody may.

        Raises DatabaseUnavailable.
        """
        if self._health is None or self._health.done():
            self._health = asyncio.create_task(self.cluster.fleet.health())
        return await asyncio.shield(self._health)

    async def close(self) -> None:
        """Wait for what is still being written."""
        await asyncio.gather(*self._background, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
