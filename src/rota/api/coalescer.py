"""Concurrent single calls go to the database together: one statement, one commit, and each caller its own answer."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import structlog

from rota.clock import Clock
from rota.errors import DatabaseUnavailable, TooManyCalls

GATHERING: Final = 0.005
"""Seconds for which calls gather at most, counted from the beginning of the batch before."""
BATCH: Final = 500
WAITING_LIMIT: Final = 20_000
"""The most items of one owner that wait for a batch."""
SEND_LESS: Final = "wait for answers before you send more"

Q = TypeVar("Q")
A = TypeVar("A")

_log = structlog.get_logger(__name__)


class Coalescer(Generic[Q, A]):
    """Carries items to `action` in batches; it returns an answer for each, in their order.

    One batch is under way at a time while the next gathers. A call that comes alone goes at once: only batches that
    would begin within `max_wait` of one another wait. Owners take turns at the places of a batch, so that whoever sends
    the most keeps nobody else waiting. An item that the action cannot take fails alone; when the database is away, all
    fail.
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
        self._waiting: dict[str, deque[_Call[Q, A]]] = {}
        self._began = float("-inf")
        self._pump: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """How many items of callers who are still there wait for a batch."""
        return sum(not call.answer.done() for calls in self._waiting.values() for call in calls)

    async def call(self, item: Q, *, owner: str = "") -> A:
        """Return the item's answer, after its batch's commit. Raises what the action raised for it, TooManyCalls.

        A caller that is cancelled leaves the batch as it is; before its batch begins, it takes its item along.
        """
        [answer] = await self.call_many([item], owner=owner)
        return answer

    async def call_many(self, items: Sequence[Q], *, owner: str = "") -> list[A]:
        """Return the answers of several items, as `call` does for one."""
        loop = asyncio.get_running_loop()
        calls: list[_Call[Q, A]] = [_Call(item, loop.create_future()) for item in items]
        if not calls:
            return []
        own = self._waiting.setdefault(owner, deque())
        if own and len(own) + len(calls) > WAITING_LIMIT:
            raise TooManyCalls("too much of this tenant's waits to be written down", retry_after=1.0, hint=SEND_LESS)
        own += calls
        if self._pump is None:
            self._pump = asyncio.create_task(self._run())
        if len(calls) == 1:
            return [await calls[0].answer]
        return await asyncio.gather(*(call.answer for call in calls))

    async def _run(self) -> None:
        """Send batch after batch until nobody waits."""
        try:
            while self._waiting:
                pause = self._began + self._max_wait - self._clock.monotonic()
                if pause > 0 and sum(map(len, self._waiting.values())) < self._limit:
                    await self._clock.sleep(pause)
                self._began = self._clock.monotonic()
                await self._send(self._take())
        finally:
            self._pump = None
            for calls in self._waiting.values():
                for call in calls:
                    call.answer.cancel()
            self._waiting.clear()

    def _take(self) -> "list[_Call[Q, A]]":
        """Take the next batch, one item from each owner in turn; whoever was not reached comes first next time."""
        taken: list[_Call[Q, A]] = []
        while self._waiting and len(taken) < self._limit:
            owner = next(iter(self._waiting))
            calls = self._waiting.pop(owner)
            call = calls.popleft()
            if not call.answer.done():
                taken.append(call)
            if calls:
                self._waiting[owner] = calls
        return taken

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
