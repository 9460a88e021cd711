"""Where claims stand in the round of tenants, one round for each pool and kind of worker.

Tenants that have open runs take turns: whoever a claim served last is behind everybody else at the next one. Each turn
is worth the tenant's weight in runs (weighted round robin: Katevenis, Sidiropoulos and Courcoubetis, 1991), so between
two turns of a tenant that waits every other gets less than twice its own weight, times the runs a turn of a batch is
worth: twice, since those with whom a batch ends in mid-round are first at the next one.
"""

from dataclasses import replace
from typing import Final

from rota.domain.attempt import CLAIM_LIMIT
from rota.store.claims import BOTTOM, Place, Taken

FULL_SCAN_INTERVAL: Final = 1.0
"""Seconds after which a claim looks at a tenant's whole queue again: retries and high priorities come in below the
mark."""
TURN_LENGTH: Final = 8
"""How many runs a turn is worth in a batch, where there are enough: each jump to another tenant costs a look."""

LONGEST_REACH: Final = 64
"""How many tenants may have a turn at a claim after claims that found nothing, however few runs it asks for."""

LONG_LOOK: Final = 0.02
"""Seconds from which a look that finds nothing is a long one: it reads what only other workers know."""
REST: Final = 4
"""How many times as long as such a look took nobody looks again."""
LONGEST_REST: Final = 1.0

CLAIM_CHARACTERS: Final = 4 << 20
"""The most of payloads that one claim is to take, by what the claim before it took: those of a pool are alike."""

LIMITED_TIME: Final = 1.0
"""Seconds for which claims reckon with limits after runs under limits stood in front."""


class Round:
    """One round. `tenant_id` is the only tenant whose runs are claimed; None: all of them take turns.

    A low-water mark on rank keeps the looks at the tenant who had the last turn off the dead entries of runs already
    taken.
    """

    def __init__(self, tenant_id: str | None) -> None:
        self._place = Place() if tenant_id is None else Place(after=tenant_id, alone=True)
        self._full_scan_at = float("-inf")
        self._turn_length = TURN_LENGTH
        self._reach = 1
        self._rests_until = float("-inf")
        self._limited_until = float("-inf")
        self._fitting: int | None = None

    def has_limited(self, monotonic: float) -> bool:
        """Tell whether the next look is to reckon with limits: runs that are under some stood in front just now."""
        return monotonic < self._limited_until

    def found_limited(self, monotonic: float) -> None:
        """Take note of a look that left runs under limits in front."""
        self._limited_until = monotonic + LIMITED_TIME

    def is_resting(self, monotonic: float) -> bool:
        """Tell whether a look that found nothing was so long that the next one is to wait: hints come often."""
        return monotonic < self._rests_until

    def found_nothing(self, *, took: float, monotonic: float) -> None:
        """Take note of a claim that found nothing, and how many seconds it looked."""
        if took >= LONG_LOOK:
            self._rests_until = monotonic + min(REST * took, LONGEST_REST)

    def fitting(self, limit: int) -> int:
        """Return how many of so many runs a claim is to take: a hundred may have twenty megabytes of payload."""
        return limit if self._fitting is None else min(limit, self._fitting)

    def place(self, monotonic: float, *, limit: int) -> Place:
        """Return where a claim of so many runs begins."""
        if monotonic - self._full_scan_at >= FULL_SCAN_INTERVAL:
            self._place, self._full_scan_at = replace(self._place, low_water=BOTTOM), monotonic
        return replace(self._place, owed=limit) if self._place.alone else self._place

    def turns(self, limit: int) -> int:
        """Return how many tenants may have a turn at a claim of so many runs."""
        return max(-(-limit // self._turn_length), self._reach)

    def move(self, taken: Taken, *, limit: int) -> None:
        """Take note of a claim."""
        if taken.claims:
            likely = max(1, CLAIM_CHARACTERS * len(taken.claims) // max(1, taken.characters))
            self._fitting = likely if likely < CLAIM_LIMIT else None
        is_short = len(taken.claims) < limit
        # One after the other may have nothing but what other workers know: ever more of them are passed by.
        is_left = bool(taken.refusals) or taken.has_limited
        is_futile = taken.has_more and not taken.claims and not is_left
        self._reach = min(LONGEST_REACH, 2 * self._reach) if is_futile else 1
        if is_short and taken.has_more:
            # Many have a run or two: shorter turns make a batch of them.
            self._turn_length = max(1, self._turn_length // 2)
        elif not is_short:
            self._turn_length = min(TURN_LENGTH, self._turn_length * 2)
        # A short claim saw the end of the queue, and one that was refused something left it where it was.
        keeps = not is_short and not is_left
        low_water = taken.highest if keeps and taken.highest is not None else BOTTOM
        if self._place.alone:
            self._place = replace(self._place, low_water=low_water)
        else:
            self._place = Place(after=taken.after, owed=taken.owed, low_water=low_water)
