"""Whom a limit lets in: of the runs that wait for it, those that fit, and the one that it saves for.

A run that does not fit holds back only what waits behind it in its own tenant and pool. Whoever takes less goes past.
So that this does not go on for ever, the limit saves for the first in turn of those that do not fit: for a while nobody
but that run takes what becomes free.

It saves only where that has prospects. Before it saves, others pass for a span, and whoever has held a permit through
all of it is expected to go on. If what the others hold is enough, they end within about a span more, and for so long
the limit saves. If not, or if it was not long enough, the span doubles. So the costly run waits in proportion to how
long those runs take that stand in its way, others are never stopped for longer than they went past it before, and one
permit that is always in use stops nobody.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

FIRST_SPAN: Final = timedelta(seconds=1)
"""How long others go past a run before the limit first saves for it."""
LONGEST_SPAN: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """A run that waits for a limit."""

    shard: int
    job_uid: int
    scheduled_for: datetime
    tenant_id: str
    pool: str
    cost: int
    """What it takes of the limit; 0: it is under that no more."""

    @property
    def queue(self) -> tuple[str, str]:
        """Those among whom nobody goes past another."""
        return (self.tenant_id, self.pool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """For whom a limit saves from `since` until `until`, or (not `saves`) lets others go past him."""

    parked: Parked
    saves: bool
    since: datetime
    until: datetime
    is_parked: bool = True
    """It waits for the limit; otherwise it is let in already, and has to be claimed."""

    def next(self, room: "Room", *, now: datetime) -> "Saving":
        """Return how things stand from now on."""
        if now < self.until:
            return self
        span = self.until - self.since
        if self.saves or not room.has_prospects(self.parked.cost):
            longer = min(2 * span, LONGEST_SPAN)
            return replace(self, saves=False, since=now, until=now + longer)
        return replace(self, saves=True, since=now, until=now + max(span, room.refill(self.parked.cost) + FIRST_SPAN))


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What there is at a limit. Without `permits` and a `rate` it is no more, and nobody takes anything of it.

    `free` is left beside those that are let in already, and `there` is what these take. `slow` permits have been held
    since the last decision on whom the limit saves for.
    """

    permits: int | None
    rate: float | None
    burst: int | None
    held: int
    slow: int
    tokens: float | None
    there: int
    free: int

    @property
    def has_room(self) -> bool:
        """Tell whether there is something left, whoever is let in already."""
        permits = self.permits is None or self.permits > self.held
        return permits and (self.tokens is None or self.tokens >= 1)

    @property
    def can_save(self) -> bool:
        """Tell whether there is such a limit, and it is not closed."""
        return self.permits != 0 and not (self.permits is None and self.rate is None)

    def has_prospects(self, cost: int) -> bool:
        """Tell whether so much becomes free when those end that do not go on for longer than others."""
        return self.permits is None or self.permits - self.slow >= cost

    def refill(self, cost: int) -> timedelta:
        """Return how long it takes until there are so many tokens."""
        if self.rate is None or self.tokens is None or self.tokens >= cost:
            return timedelta(0)
        return timedelta(seconds=min((cost - self.tokens) / self.rate, timedelta(days=365).total_seconds()))


@dataclass(frozen=True, slots=True, kw_only=True)
class LetIn:
    """What a limit decides: whom it lets in, in turn, and whom it saves for from now on.

    `has_more`: some who were looked at no further may fit into what is left. `waits`: what the first takes that has to
    wait; None: nobody has to.
    """

    runs: tuple[Parked, ...]
    saving: Saving | None
    has_more: bool
    waits: int | None


def whom_to_let_in(
    room: Room, waiting: Sequence[Parked], saving: Saving | None, *, now: datetime,
    cut_off: Collection[tuple[str, str]] = (),
) -> LetIn:  # fmt: skip
    """Decide whom of these to let in; they come in turn, and those of one tenant and pool by rank.

    `cut_off` are the tenants and pools of which more wait than are in `waiting`.
    """
    saving = _standing(room, waiting, saving, now=now)
    left = max(0, room.free)
    saved = 0
    if saving is not None and saving.saves and saving.is_parked:
        saved = min(saving.parked.cost, left)
        left -= saved
    going: list[Parked] = []
    stopped: dict[tuple[str, str], Parked] = {}
    for run in waiting:
        if run.queue in stopped and run.cost > 0:
            continue
        is_saved_for = saving is not None and saving.saves and run.queue == saving.parked.queue
        if run.cost > (saved if is_saved_for else left):
            stopped[run.queue] = run
            continue
        saved -= run.cost if is_saved_for else 0
        left -= 0 if is_saved_for else run.cost
        going.append(run)
    return LetIn(
        runs=tuple(going), saving=saving or _first(room, stopped.values(), now=now),
        has_more=left > 0 and not stopped.keys() >= set(cut_off),
        waits=next((run.cost for run in stopped.values()), None),
    )  # fmt: skip


def _standing(room: Room, waiting: Iterable[Parked], saving: Saving | None, *, now: datetime) -> Saving | None:
    """Return how the limit's saving stands now; None: it is for nobody, or for a run that takes another part now."""
    if saving is None or not room.can_save:
        return None
    if any(_is_same(run, saving.parked) and run.cost != saving.parked.cost for run in waiting):
        return None
    return saving.next(room, now=now)


def _first(room: Room, stopped: Iterable[Parked], *, now: datetime) -> Saving | None:
    """Return the saving for the first that does not fit and may be passed by for ever; others pass it for now."""
    if not room.can_save:
        return None
    costly = next((run for run in stopped if run.cost > 1), None)
    return None if costly is None else Saving(parked=costly, saves=False, since=now, until=now + FIRST_SPAN)


def _is_same(one: Parked, other: Parked) -> bool:
    return (one.job_uid, one.scheduled_for) == (other.job_uid, other.scheduled_for)
