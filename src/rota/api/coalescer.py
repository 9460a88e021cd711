"""Concurrent single calls go to the database together: one statement, one commit, and each caller its own answer."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import structlog

from rota.clock import Clock
from rota.errors import DatabaseUnavailable

GATHERING: Final = 0.005
"""Seconds for which calls gather at most, counted from the beginning of the batch before."""
BATCH: Final = 500

Q = TypeVar("Q")
A = TypeVar("A")

_log = structlog.get_logger(__name__)


class Coalescer(Generic[Q, A]):
    """Carries items to `action` in batches; it returns an answer for each, in their order.

    One batch is under way at a time while the next gathers. A call that comes alone goes at once: only batches that
    would begin within `max_wait` of one another wait. An item that the action cannot take fails alone; when the
    database is away, all fail.
    """

    def __init__(
        self,
        action: Callable[[Sequence[Q]], Awaitable[Sequence[A]]],
        clock: Clock,
        *,
        max_wait: float = GATHERING,
        limit: int = BATCH,
    ) -> None:
        self._action = action
        self._clock = clock
        self._max_wait = max_wait
        self._limit = limit
        self._waiting: deque[_Call[Q, A]] = deque()
        self._began = float("-inf")
        self._pump: asyncio.Task[None] | None = None

    async def call(self, item: Q) -> A:
        """Return the item's answer, after its batch's commit. Raises what the action raised for it.

        A caller that is cancelled leaves the batch as it is; before its batch begins, he takes his item along.
        """
        call: _Call[Q, A] = _Call(item, asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        if self._pump is None:
            self._pump = asyncio.create_task(self._run())
        return await call.answer

    async def _run(self) -> None:
        """Send batch after batch until nobody waits."""
        try:
            while self._waiting:
                pause = self._began + self._max_wait - self._clock.monotonic()
                if pause > 0 and len(self._waiting) < self._limit:
                    await self._clock.sleep(pause)
                self._began = self._clock.monotonic()
                taken = [self._waiting.popleft() for _ in range(min(self._limit, len(self._waiting)))]
                await self._send([call for call in taken if not call.answer.done()])
        finally:
            self._pump = None
            for call in self._waiting:
                call.answer.cancel()
            self._waiting.clear()

    async def _send(self, batch: Sequence["_Call[Q, A]"]) -> None:
        if not batch:
            return
        try:
            answers = await self._action([call.item for call in batch])
            assert len(answers) == len(batch), "an action answers for every item"
        except DatabaseUnavailable as error:
            _fail(batch, error)
        except Exception as error:
            if len(batch) == 1:
                _fail(batch, error)
                return
            # Something in this batch cannot be taken, and must not keep the others.
            _log.warning("batch.halved", items=len(batch), error=repr(error))
            half = len(batch) // 2
            await self._send(batch[:half])
            await self._send(batch[half:])
        except BaseException:
            for call in batch:
                call.answer.cancel()
            raise
        else:
            for call, answer in zip(batch, answers, strict=True):
                if not call.answer.done():
                    call.answer.set_result(answer)


@dataclass(frozen=True, slots=True, eq=False)
class _Call(Generic[Q, A]):
    """One item, and who waits for its answer."""

    item: Q
    answer: asyncio.Future[A]


def _fail(batch: "Sequence[_Call[Q, A]]", error: Exception) -> None:
    for call in batch:
        if not call.answer.done():
            call.answer.set_exception(error)
