"""What a handler is given: the run's identity, its payload, and how the two talk: flags that say stop, progress."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Self
from uuid import UUID

from rota.domain.attempt import Claim
from rota.domain.progress import Progress, check_progress

TellProgress = Callable[[Progress], None]
"""Takes a run's progress, in whatever thread its handler is; neither waits nor raises."""

# Reentrant, for the signal handler of a child process, which may come while its own thread holds it.
_CHANGE: Final = threading.RLock()
"""Guards every flag's list of waiters: they change rarely, and a lock for each run would cost more."""


class StopFlag:
    """Set once and for ever: `run.cancelled` when somebody asked for the run's end, `run.lease_lost` whenever the
    attempt must stop: its lease was lost, its time is up, its run is cancelled, or the worker leaves.

    `if run.lease_lost:` asks; `run.lease_lost.wait(5)` waits in a thread; `await run.lease_lost.wait_async()` waits in
    a coroutine. What a handler returns after a flag was set is not recorded.
    """

    __slots__ = ("_is_set", "_wakers")

    def __init__(self) -> None:
        self._is_set = False
        self._wakers: list[Callable[[], object]] = []

    def is_set(self) -> bool:
        """Tell whether that has happened."""
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


def _to_nobody(_: Progress) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """One attempt at one run, as its handler sees it. Public as `rota.Run`.

    `run_id` stands for the pair (job_id, scheduled_for) and is the same on every attempt: write results under it, and a
    second attempt finds what the first one did. `attempt` counts from 1. `payload` is the job's JSON object.
    `lease_token` proves that this attempt holds the run: give it to nobody else, and log it nowhere. Of the two flags
    `lease_lost` says that the attempt must stop, and `cancelled` that this is what somebody wants.
    """

    job_id: str
    tenant_id: str
    scheduled_for: datetime
    attempt: int
    run_id: UUID
    payload: dict[str, Any]
    lease_lost: StopFlag
    cancelled: StopFlag
    lease_token: UUID = field(repr=False)
    tell_progress: TellProgress = field(default=_to_nobody, repr=False, compare=False)

    def progress(self, value: float | None = None, note: str | None = None) -> None:
        """Say how far the run is: a share from 0 to 1, a note of at most 500 characters, or both. Raises InvalidInput.

        It travels with the lease's renewal: never waited for, sent at most once a second, and of what was said in
        between the latest counts. After a lost lease nobody hears it.
        """
        self.tell_progress(check_progress(value, note))

    @classmethod
    def of(cls, claim: Claim, *, tell_progress: TellProgress = _to_nobody) -> Self:
        """Return the context of a claim, with flags of its own."""
        return cls(
            job_id=claim.job_id,
            tenant_id=claim.tenant_id,
            scheduled_for=claim.key.scheduled_for,
            attempt=claim.attempt,
            run_id=claim.run_id,
            payload=claim.payload,
            lease_lost=StopFlag(),
            cancelled=StopFlag(),
            lease_token=claim.key.token,
            tell_progress=tell_progress,
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
    def from_wire(
        cls,
        wire: dict[str, Any],
        *,
        lease_lost: StopFlag,
        cancelled: StopFlag,
        tell_progress: TellProgress = _to_nobody,
    ) -> Self:
        """Return the context that `to_wire` described, with this process's flags."""
        return cls(
            job_id=wire["job_id"],
            tenant_id=wire["tenant_id"],
            scheduled_for=datetime.fromisoformat(wire["scheduled_for"]),
            attempt=wire["attempt"],
            run_id=UUID(wire["run_id"]),
            payload=wire["payload"],
            lease_lost=lease_lost,
            cancelled=cancelled,
            lease_token=UUID(wire["lease_token"]),
            tell_progress=tell_progress,
        )
