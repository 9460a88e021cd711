"""Jobs that a shared loop leaves out for a while, since what it would do for them cannot be done now.

Each loop remembers its own; a noticeboard in the database lets people read of all.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rota.clock import Clock
from rota.domain.ids import shard_of
from rota.services.owned import OwnedShards
from rota.store import aside as store
from rota.store.aside import AsideKey, What
from rota.store.database import Database

MOST: Final = 10_000
"""The most jobs that are remembered; past it the longest remembered one is tried again."""
TELL_BATCH: Final = 1000
"""The most jobs that one look writes down, and the most that it wipes off."""


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

    def reasons(self) -> dict[int, str]:
        """Return uid -> reason of all that are remembered."""
        return {uid: entry.reason for uid, entry in self._entries.items()}

    def next_at(self, *, monotonic: float) -> float | None:
        """Return when the next wait ends; None when nobody waits."""
        return min((entry.until for entry in self._entries.values() if monotonic < entry.until), default=None)

    def forget_back(self, *, monotonic: float) -> None:
        """Forget the jobs whose wait is over: they had their turn, and whoever failed again was put here anew."""
        self._entries = {uid: entry for uid, entry in self._entries.items() if monotonic < entry.until}


class Noticeboard:
    """Tells people, in the database, what the loops of one scheduler have set aside in its shards, and why.

    No loop waits for it: the board is brought up to date by a look once in a while, and what came and went
    between two looks was never there.
    """

    def __init__(self, database: Database, clock: Clock, owned: OwnedShards, asides: Mapping[What, Aside]) -> None:
        self._database = database
        self._clock = clock
        self._owned = owned
        self._asides = asides
        self._told: dict[AsideKey, tuple[int, str]] = {}

    async def update(self) -> bool:
        """Write down what is news and wipe off what is over. True: there may be more."""
        now = self._clock.now()
        epochs = self._owned.epochs(now=now)
        present = {
            AsideKey(what, uid): (epochs[shard], reason)
            for what, aside in self._asides.items()
            for uid, reason in aside.reasons().items()
            if (shard := shard_of(uid)) in epochs
        }
        # What was told under another epoch counts no longer, and upkeep removes it.
        self._told = {key: told for key, told in self._told.items() if epochs.get(shard_of(key.job_uid)) == told[0]}
        news = {key: said for key, said in present.items() if self._told.get(key) != said}
        over = [key for key in self._told if key not in present]
        if batch := dict(list(news.items())[:TELL_BATCH]):
            await store.tell(self._database, {key: said[1] for key, said in batch.items()}, epochs=epochs, now=now)
            self._told |= batch
        if gone := over[:TELL_BATCH]:
            await store.forget(self._database, gone, epochs=epochs)
            for key in gone:
                del self._told[key]
        return max(len(news), len(over)) > TELL_BATCH
