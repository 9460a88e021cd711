"""The heart's list of leases: which to renew, how often, and which no longer.

Most runs end before their first renewal, so a lease is kept as it came from the pipe, and becomes a key when used.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import Any, Final
from uuid import UUID

from rota.domain.attempt import LeaseKey
from rota.domain.progress import Progress
from rota.worker.frames import Message

RENEWALS_PER_LEASE: Final = 3
"""A lease outlives two renewals that fail."""

SHORTEST_INTERVAL: Final = 0.2
"""Seconds between renewals, however short the leases are."""

LONGEST_INTERVAL: Final = 3600.0


def interval_of(durations: Iterable[float]) -> float:
    """Return the seconds between renewals that leases of these durations ask for."""
    shortest = min(durations, default=LONGEST_INTERVAL)
    return min(LONGEST_INTERVAL, max(SHORTEST_INTERVAL, shortest / RENEWALS_PER_LEASE))


def line_of(key: LeaseKey, *, duration: float) -> list[Any]:
    """Return a lease as it travels, without its remaining time, which is appended when it is sent."""
    return [str(key.token), key.shard, key.job_uid, key.scheduled_for, duration]


@dataclass(slots=True)
class Held:
    """One lease. `until` is on this process's stopwatch: from then on it is not renewed.

    `deadline`, on the same, is when its attempt is out of time. What `is_apart` runs outside the worker's process.
    """

    line: list[Any]
    duration: float
    until: float
    deadline: float = inf
    is_apart: bool = False
    is_cancelled: bool = False
    progress: Progress | None = None
    """What the desk has not been told yet."""
    _key: LeaseKey | None = None

    @property
    def key(self) -> LeaseKey:
        if self._key is None:
            token, shard, job_uid, scheduled_for = self.line[:4]
            self._key = LeaseKey(shard, job_uid, datetime.fromisoformat(scheduled_for), UUID(token))
        return self._key


class LeaseBook:
    """The leases that are to be renewed, by token."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def take(self, message: Message, *, now: float) -> float:
        """Follow a message of the worker: what it holds from now on, and what no longer.

        Returns the seconds within which the new leases want their first renewal.
        """
        lines = message.get("hold", ())
        for line in lines:
            # A worker that was started before an upgrade says less.
            left, is_apart = line[6:8] if len(line) > 6 else (inf, False)
            self._held[line[0]] = Held(line, line[4], now + line[5], now + left, is_apart)
        for token in message.get("drop", ()):
            self._held.pop(token, None)
        for token, said in message.get("progress", {}).items():
            held = self._held.get(token)
            if held is not None:
                held.progress = Progress(*said).after(held.progress)
        return interval_of(line[4] for line in lines)

    def interval(self) -> float:
        """Return the seconds between renewals that the shortest lease asks for."""
        return interval_of(held.duration for held in self._held.values())

    def end_overdue(self, *, now: float) -> list[str]:
        """Let go of the leases whose attempt's time is over, and return their tokens."""
        overdue = [token for token, held in self._held.items() if held.until <= now]
        for token in overdue:
            del self._held[token]
        return overdue

    def has_late(self, *, by: float) -> bool:
        """Tell whether an attempt was out of time at that moment, and has not been settled since."""
        return any(held.deadline <= by for held in self._held.values())

    def all_held(self) -> list[Held]:
        return list(self._held.values())

    def lose(self, tokens: Collection[UUID]) -> list[str]:
        """Let go of leases that are gone; returns those that the worker has not dropped in the meantime."""
        return [token for token in map(str, tokens) if self._held.pop(token, None) is not None]

    def cancel(self, tokens: Collection[UUID]) -> list[str]:
        """Note cancellations; returns those that are new."""
        new = []
        for token in map(str, tokens):
            held = self._held.get(token)
            if held is not None and not held.is_cancelled:
                held.is_cancelled = True
                new.append(token)
        return new

    def keys(self) -> list[LeaseKey]:
        return [held.key for held in self._held.values()]

    def keys_with_progress(self) -> list[LeaseKey]:
        """Return the leases of runs whose progress the desk has not been told."""
        return [held.key for held in self._held.values() if held.progress is not None]

    def progress_of(self, keys: Sequence[LeaseKey]) -> dict[UUID, Progress]:
        """Return what the desk has not been told of these, by token."""
        told = {key.token: self._held.get(str(key.token)) for key in keys}
        return {token: held.progress for token, held in told.items() if held is not None and held.progress is not None}

    def forget_progress(self, told: Mapping[UUID, Progress]) -> None:
        """Let go of what the desk was told, where no later word has come meanwhile."""
        for token, said in told.items():
            held = self._held.get(str(token))
            if held is not None and held.progress is said:
                held.progress = None
