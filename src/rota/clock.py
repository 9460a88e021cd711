"""Clocks: the only module that reads the host's time or sleeps.

The primary database's clock is the authority, because leases compare instants that different hosts wrote.
`DatabaseClock` follows it; `ManualClock` drives tests and ships to users; `SystemClock` serves where no database is.
"""

import asyncio
import heapq
import itertools
import time
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

MEASURE_INTERVAL: Final = 5.0
"""Seconds between two measurements of the primary's clock: until then a process does not know that it was set."""


class Clock(Protocol):
    """What services know of time: an instant, a stopwatch, and two ways to wait."""

    def now(self) -> datetime:
        """Return the current instant, aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds on a stopwatch that never runs backwards."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after that many seconds of this clock."""
        ...

    async def wait(self, event: asyncio.Event, timeout: float) -> bool:
        """Wait for the event, at most `timeout` seconds of this clock; tell whether it is set."""
        ...


class SystemClock:
    """The host's own clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))

    async def wait(self, event: asyncio.Event, timeout: float) -> bool:
        if event.is_set() or timeout <= 0:
            return event.is_set()
        try:
            async with asyncio.timeout(timeout):
                await event.wait()
        except TimeoutError:
            return event.is_set()
        return True


class DatabaseClock(SystemClock):
    """The host's monotonic clock plus an offset measured against the primary; never runs backwards, unless the
    primary itself was set back by more than STEP.

    Call `observe` with each measurement. Until the first one, `now()` raises: no guess is better than a wrong hour.
    A measurement's error is at most half its round trip; of the recent ones the tightest is believed (Cristian 1989).
    """

    STEP = 1.0
    """Seconds by which the primary must go back for `now()` to follow: less is made up for by standing still."""

    # A measurement ages: a host's oscillator drifts some 50 ppm, so an old tight one loses to a fresh wide one.
    DRIFT_PER_SECOND = 0.0002

    def __init__(self) -> None:
        self._offset: float | None = None
        self._error = float("inf")
        self._measured_at = 0.0
        self._latest = 0.0

    def observe(self, *, sent: float, received: float, database: datetime) -> None:
        """Take one measurement: `sent` and `received` are `monotonic()` readings around the question."""
        error = (received - sent) / 2
        offset = database.timestamp() - (sent + received) / 2
        # A primary that stepped its clock moves the offset beyond any error: believe the database at once.
        stepped = self._offset is not None and abs(offset - self._offset) > error + self.error_bound(received)
        if stepped or error <= self.error_bound(received):
            self._offset, self._error, self._measured_at = offset, error, received
            # Who waited for a clock that was hours ahead to come true again would do nothing for hours.
            if self._latest - (received + offset) > self.STEP:
                self._latest = 0.0

    def error_bound(self, at: float | None = None) -> float:
        """Return how far, in seconds, `now()` may be from the primary's clock."""
        age = (time.monotonic() if at is None else at) - self._measured_at
        return self._error + age * self.DRIFT_PER_SECOND

    def now(self) -> datetime:
        if self._offset is None:
            raise RuntimeError("the database clock was read before its first measurement")
        # Slewing back would let an instant repeat; standing still until the clock catches up does not.
        self._latest = max(self._latest, time.monotonic() + self._offset)
        return datetime.fromtimestamp(self._latest, UTC)


class StepWatch:
    """Looks at a clock beside its stopwatch, for whoever judges the leases of others by it.

    A primary's clock that jumps ahead (set by hand, a failover to a host whose clock is ahead, a host that was
    suspended) ends all leases at once, though nobody was late. It counts as an outage: for `patience` seconds on the
    stopwatch, in which everybody can renew by the new time, leases are judged by `fair_now`, as if it had not jumped.
    """

    STEP = 1.0
    """Seconds by which the clock must get ahead of the stopwatch between two looks: less is a measurement's error."""

    def __init__(self, clock: Clock, *, patience: float) -> None:
        self._clock = clock
        self._patience = patience
        self._ahead: float | None = None
        self._jumped = 0.0
        self._until = float("-inf")

    def look(self) -> float:
        """Return by how many seconds the clock has jumped ahead since the last look; 0.0 when it has not."""
        ahead, monotonic = self._clock.now().timestamp() - self._clock.monotonic(), self._clock.monotonic()
        before, self._ahead = self._ahead, ahead
        if monotonic >= self._until:
            self._jumped = 0.0
        if before is None or ahead - before <= self.STEP:
            return 0.0
        self._jumped += ahead - before
        self._until = monotonic + self._patience
        return ahead - before

    def fair_now(self) -> datetime:
        """Look, and return the instant by which leases of others are judged."""
        self.look()
        return self._clock.now() - timedelta(seconds=self._jumped)


class ManualClock:
    """A clock that stands still until a test moves it. Waiters wake when it passes their instant."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        if start.tzinfo is None:
            raise ValueError("start must be an aware datetime")
        self._now = start.astimezone(UTC)
        self._elapsed = timedelta(0)
        self._order = itertools.count()
        self._sleepers: list[tuple[timedelta, int, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._elapsed.total_seconds()

    def advance(self, by: timedelta | float) -> datetime:
        """Move forward by a duration (seconds or timedelta), wake who is due, and return the new instant."""
        step = by if isinstance(by, timedelta) else timedelta(seconds=by)
        if step < timedelta(0):
            raise ValueError("advance moves forward only; use set() to step the clock")
        return self.set(self._now + step)

    def set(self, instant: datetime) -> datetime:
        """Step to an instant, also a past one: a clock set back, which neither wakes sleepers nor turns stopwatches."""
        if instant.tzinfo is None:
            raise ValueError("instant must be an aware datetime")
        before, self._now = self._now, instant.astimezone(UTC)
        self._elapsed += max(timedelta(0), self._now - before)
        while self._sleepers and self._sleepers[0][0] <= self._elapsed:
            sleeper = heapq.heappop(self._sleepers)[2]
            if not sleeper.done():
                sleeper.set_result(None)
        return self._now

    def jump(self, by: timedelta | float) -> datetime:
        """Step ahead without any time on the stopwatch, as a primary's clock does that is set; wakes nobody."""
        self._now += by if isinstance(by, timedelta) else timedelta(seconds=by)
        return self._now

    def next_wake(self) -> datetime | None:
        """Return the instant at which the next sleeper wakes; None if nobody sleeps."""
        live = [at for at, _, sleeper in self._sleepers if not sleeper.done()]
        return min((self._now + (at - self._elapsed) for at in live), default=None)

    async def sleep(self, seconds: float) -> None:
        if seconds > 0:
            await self._until(self._elapsed + timedelta(seconds=seconds))

    async def wait(self, event: asyncio.Event, timeout: float) -> bool:
        if event.is_set() or timeout <= 0:
            return event.is_set()
        asleep = asyncio.ensure_future(self._until(self._elapsed + timedelta(seconds=timeout)))
        told = asyncio.ensure_future(event.wait())
        try:
            await asyncio.wait({asleep, told}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asleep.cancel()
            told.cancel()
        return event.is_set()

    async def _until(self, elapsed: timedelta) -> None:
        if elapsed <= self._elapsed:
            return  # the clock moved before this waiter had its first turn
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (elapsed, next(self._order), sleeper))
        await sleeper
