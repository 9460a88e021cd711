"""What a handler is given: the run's identity, its payload, and the flag that tells it to stop."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Self
from uuid import UUID

from rota.domain.attempt import Claim

_CHANGE: Final = threading.Lock()
"""Guards every flag's list of waiters: they change rarely, and a lock for each run would cost more."""


class StopFlag:
    """Set, once and for ever, when an attempt must stop.

    Its lease was lost, its time is up, its run is cancelled, or the worker leaves.

    `if run.lease_lost:` asks; `run.lease_lost.wait(5)` waits in a thread; `await run.lease_lost.wait_async()` waits in
    a coroutine. What a handler returns after the flag was set is not recorded.
    """

    __slots__ = ("_is_set", "_wakers")

    def __init__(self) -> None:
        self._is_set = False
        self._wakers: list[Callable[[], object]] = []

    def is_set(self) -> bool:
        """Tell whether the attempt must stop."""
        return self._is_set

    def __bool__(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Tell every waiter. Rota calls this; a handler only asks."""
        with _CHANGE:
            self._is_set = True
            wakers, self._wakers = self._wakers, []
        for wake in wakers:
            wake()

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until the flag is set, at most `timeout` seconds; tell whether it is set."""
        told = threading.Event()
        if not self._subscribe(told.set):
            return True
        told.wait(timeout)
        self._unsubscribe(told.set)
        return self._is_set

    async def wait_async(self) -> None:
        """Return when the flag is set."""
        loop = asyncio.get_running_loop()
        told = asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(told.set)

        if not self._subscribe(wake):
            return
        try:
            await told.wait()
        finally:
            self._unsubscribe(wake)

    def _subscribe(self, wake: Callable[[], object]) -> bool:
        """Call `wake` when the flag is set; False means that it is set already."""
        with _CHANGE:
            if not self._is_set:
                self._wakers.append(wake)
            return not self._is_set

    def _unsubscribe(self, wake: Callable[[], object]) -> None:
        with _CHANGE:
            if wake in self._wakers:
                self._wakers.remove(wake)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """One attempt at one run, as its handler sees it. Public as `rota.Run`.

    `run_id` stands for the pair (job_id, scheduled_for) and is the same on every attempt: write results under it, and a
    second attempt finds what the first one did. `attempt` counts from 1. `payload` is the job's JSON object.
    `lease_token` proves that this attempt holds the run: give it to nobody else, and log it nowhere.
    """

    job_id: str
    tenant_id: str
    scheduled_for: datetime
    attempt: int
    run_id: UUID
    payload: dict[str, Any]
    lease_lost: StopFlag
    lease_token: UUID = field(repr=False)

    @classmethod
    def of(cls, claim: Claim) -> Self:
        """Return the context of a claim, with a flag of its own."""
        return cls(
            job_id=claim.job_id,
            tenant_id=claim.tenant_id,
            scheduled_for=claim.key.scheduled_for,
            attempt=claim.attempt,
            run_id=claim.run_id,
            payload=claim.payload,
            lease_lost=StopFlag(),
            lease_token=claim.key.token,
        )

    def to_wire(self) -> dict[str, Any]:
        """Return the context as a JSON object, for a child process."""
        return {
            "job_id": self.job_id,
            "tenant_id": self.tenant_id,
            "scheduled_for": self.scheduled_for.isoformat(),
            "attempt": self.attempt,
            "run_id": str(self.run_id),
            "payload": self.payload,
            "lease_token": str(self.lease_token),
        }

    @classmethod
    def from_wire(cls, wire: dict[str, Any], *, lease_lost: StopFlag) -> Self:
        """Return the context that `to_wire` described, with this process's flag."""
        return cls(
            job_id=wire["job_id"],
            tenant_id=wire["tenant_id"],
            scheduled_for=datetime.fromisoformat(wire["scheduled_for"]),
            attempt=wire["attempt"],
            run_id=UUID(wire["run_id"]),
            payload=wire["payload"],
            lease_lost=lease_lost,
            lease_token=UUID(wire["lease_token"]),
        )
