"""Jobs that a shared loop leaves out for a while, since what it would do for them cannot be done now."""

from dataclasses import dataclass
from typing import Final

MOST: Final = 10_000
"""The most jobs that are remembered; past it the longest remembered one is tried again."""


@dataclass(frozen=True, slots=True)
class _Entry:
    until: float
    wait: float
    reason: str


class Aside:
    """One loop's memory of such jobs by uid, with the reasons. Who fails again waits twice as long, up to a bound."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}

    def put(self, uid: int, reason: str, *, first: float, longest: float, monotonic: float) -> bool:
        """Leave a job out, for `first` seconds or twice as long as before; True when its reason is news."""
        before = self._entries.pop(uid, None)
        wait = first if before is None else min(longest, before.wait * 2)
        while len(self._entries) >= MOST:
            del self._entries[next(iter(self._entries))]
        self._entries[uid] = _Entry(until=monotonic + wait, wait=wait, reason=reason)
        return before is None or before.reason != reason

    def knows(self, uid: int) -> bool:
        """Tell whether a job was left out before, and has not had its turn since."""
        return uid in self._entries

    def out(self, *, monotonic: float) -> list[int]:
        """Return the uids that are left out at this instant."""
        return [uid for uid, entry in self._entries.items() if monotonic < entry.until]

    def has_back(self, *, monotonic: float) -> bool:
        """Tell whether the wait of some job is over, so that it is to be looked at again."""
        return any(entry.until <= monotonic for entry in self._entries.values())

    def next_at(self, *, monotonic: float) -> float | None:
        """Return when the next wait ends; None when nobody waits."""
        return min((entry.until for entry in self._entries.values() if monotonic < entry.until), default=None)

    def forget_back(self, *, monotonic: float) -> None:
        """Forget the jobs whose wait is over: they had their turn, and whoever failed again was put here anew."""
        self._entries = {uid: entry for uid, entry in self._entries.items() if monotonic < entry.until}
