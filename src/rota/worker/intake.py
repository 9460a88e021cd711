"""The intake: says that the worker lives, and claims runs while there is room for them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Final

import structlog

from rota.clock import Clock
from rota.domain.attempt import CLAIM_LIMIT, Claim
from rota.worker.backoff import Backoff
from rota.worker.desk import Desk, WorkerInfo

ANNOUNCE_INTERVAL: Final = 5.0
"""Seconds between announcements."""

BUSY_WAIT: Final = 0.02
IDLE_WAIT: Final = 1.0
"""Seconds between questions for work, after a run and, doubling, after a quiet while. Hints shorten them."""

GATHER_TIME: Final = 0.004
"""Seconds that a worker with less than half its room free waits for more, while there is more work than room."""

FIRST_CLAIM: Final = 16
"""The most runs of a claim after one that found nothing: the fewer it asks for, the quicker it is. After one that found
some it is four times as many, and as many as there is room for after one that found all that it asked for."""

LAST_CLAIM_TIME: Final = 1.0
"""Seconds that a leaving worker waits for the claim under way."""

_log = structlog.get_logger(__name__)


class StopRequest:
    """How a worker is asked to stop: first to drain, then to leave at once."""

    def __init__(self) -> None:
        self.draining = asyncio.Event()
        self.leaving = asyncio.Event()

    def ask(self) -> None:
        """Ask once more."""
        if self.draining.is_set():
            self.leaving.set()
        self.draining.set()


async def first_of(task: asyncio.Future[Any], event: asyncio.Event, *, timeout: float | None = None) -> None:
    """Return when the task is done or the event is set, at the latest after `timeout` seconds. Cancels nothing."""
    told = asyncio.create_task(event.wait())
    try:
        await asyncio.wait({task, told}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        told.cancel()


class Intake:
    """Claims, one call at a time, and hands on what it gets.

    `able` is set while leases can be renewed: what is claimed meanwhile is safe. `free_slots` says how many runs there
    is room for; `room` is set when that may have grown. `begin` takes the claims;
    True means that some went straight back, so that asking again at once would only get them again. `claimed` says how
    many runs have been claimed since the worker's start.
    """

    def __init__(
        self,
        desk: Desk,
        info: WorkerInfo,
        clock: Clock,
        *,
        stop: StopRequest,
        able: asyncio.Event,
        room: asyncio.Event,
        free_slots: Callable[[], int],
        begin: Callable[[Sequence[Claim]], bool],
        claimed: Callable[[], int],
    ) -> None:
        self._desk = desk
        self._info = info
        self._clock = clock
        self._stop = stop
        self._able = able
        self._room = room
        self._free_slots = free_slots
        self._begin = begin
        self._claimed = claimed
        self._announced = asyncio.Event()
        self._may_claim = asyncio.Event()
        self._may_claim.set()
        self._claimed_at: datetime | None = None

    async def announce(self) -> None:
        """Say every few seconds that the worker lives, until cancelled; follow what the desk says of claiming."""
        backoff = Backoff()
        while True:
            try:
                if self._free_slots() <= 0:
                    # A full worker need not claim, and is as well as one that does.
                    self._claimed_at = self._clock.now()
                drains = await self._desk.announce(self._info, last_claim_at=self._claimed_at, claimed=self._claimed())
                self._obey(drain=drains)
                backoff.reset()
                delay = ANNOUNCE_INTERVAL
            except Exception as error:
                delay = self._postpone("announce", backoff, error)
            self._announced.set()
            await self._clock.sleep(delay)

    async def run(self) -> None:
        """Claim until the worker is asked to stop. Nothing that the desk says ends this."""
        backoff = Backoff()
        patience = BUSY_WAIT
        most = FIRST_CLAIM
        is_deep = False
        # A worker is known before it takes anything, unless the desk cannot be told.
        await self._unless_draining(self._announced.wait())
        while not self._stop.draining.is_set():
            if not self._may_claim.is_set():
                await self._unless_draining(self._may_claim.wait())
                continue
            if not self._able.is_set():
                await self._unless_draining(self._able.wait())
                continue
            self._room.clear()
            wanted = min(self._free_slots(), most, CLAIM_LIMIT)
            if wanted <= 0:
                await self._room.wait()
                continue
            if is_deep and wanted < self._info.concurrency // 2:
                # Others end meanwhile, and one claim of many costs far less than many of a few.
                is_deep = False
                await self._clock.wait(self._stop.draining, GATHER_TIME)
                continue
            try:
                claims = await self._claim(wanted)
                backoff.reset()
                self._claimed_at = self._clock.now()
                if claims:
                    patience = BUSY_WAIT
                is_deep = len(claims) == wanted > 1
                most = CLAIM_LIMIT if len(claims) == wanted else max(FIRST_CLAIM, 4 * len(claims))
                if claims and self._begin(claims):
                    await self._clock.wait(self._stop.draining, IDLE_WAIT)
                elif len(claims) < wanted:
                    await self._unless_draining(self._desk.wait_for_work(self._info, timeout=patience))
                    patience = min(IDLE_WAIT, patience * 2)
            except Exception as error:
                await self._clock.wait(self._stop.draining, self._postpone("claim", backoff, error))

    def _obey(self, *, drain: bool) -> None:
        """Claim, or no more until told otherwise: a worker that an operator drains finishes what it has, and stays."""
        if drain == self._may_claim.is_set():
            _log.info(
                "worker.paused_by_operator" if drain else "worker.resumed_by_operator", worker=self._info.worker_id
            )
        if drain:
            self._may_claim.clear()
        else:
            self._may_claim.set()

    async def _claim(self, limit: int) -> list[Claim]:
        """Claim. A drain does not interrupt it: what the desk hands out must be taken, or given back."""
        claiming = asyncio.create_task(self._desk.claim(self._info, limit=limit))
        try:
            await first_of(claiming, self._stop.leaving)
            if not claiming.done():
                await asyncio.wait({claiming}, timeout=LAST_CLAIM_TIME)
            return claiming.result() if claiming.done() else []
        except asyncio.CancelledError:
            await asyncio.wait({claiming}, timeout=LAST_CLAIM_TIME)
            if claiming.done() and not claiming.cancelled() and claiming.exception() is None:
                self._begin(claiming.result())
            raise
        finally:
            # Whether a claim that is given up here has happened is unknown; if it has, its leases run out.
            claiming.cancel()

    async def _unless_draining(self, waiting: Awaitable[object]) -> None:
        """Wait, but no longer than until the worker is asked to stop. Raises what the awaited raises."""
        task = asyncio.ensure_future(waiting)
        try:
            await first_of(task, self._stop.draining)
            if task.done():
                task.result()
        finally:
            task.cancel()

    def _postpone(self, what: str, backoff: Backoff, error: Exception) -> float:
        delay = backoff.next()
        _log.warning(f"{what}.postponed", seconds=round(delay, 2), error=f"{type(error).__name__}: {error}")
        return delay
