"""The shards that this scheduler owns right now: the shard keeper writes it, scheduler and reaper read it."""

from datetime import UTC, datetime
from typing import Final

_NEVER: Final = datetime(1970, 1, 1, tzinfo=UTC)


class OwnedShards:
    """Shard -> epoch, believed until the lease under which they are held ends."""

    def __init__(self) -> None:
        self._epochs: dict[int, int] = {}
        self._expires_at = _NEVER

    def hold(self, epochs: dict[int, int], *, expires_at: datetime) -> None:
        """Replace what is owned."""
        self._epochs, self._expires_at = dict(epochs), expires_at

    def epochs(self, *, now: datetime) -> dict[int, int]:
        """Return shard -> epoch; nothing once the lease has ended, since others may own them then."""
        return dict(self._epochs) if now < self._expires_at else {}

    def shards(self, *, now: datetime) -> list[int]:
        """Return the shards in order."""
        return sorted(self.epochs(now=now))
