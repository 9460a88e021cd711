"""The executor: carries one claim from its handler to a report."""

import asyncio
from typing import Protocol

import structlog

from rota.clock import Clock
from rota.domain.attempt import Report
from rota.worker.ending import Ending, ending_of, failed, succeeded
from rota.worker.live import LiveAttempt
from rota.worker.threads import ThreadSlots

_log = structlog.get_logger(__name__)


class Children(Protocol):
    """Where handlers with isolation="process" run."""

    async def run(self, live: LiveAttempt) -> Ending:
        """Run the attempt in a child process. On cancellation the child is dead before this returns."""
        ...


class Executor:
    """Runs handlers where their isolation says."""

    def __init__(self, clock: Clock, *, threads: ThreadSlots, children: Children) -> None:
        self._clock = clock
        self._threads = threads
        self._children = children

    async def execute(self, live: LiveAttempt) -> Report | None:
        """Carry one claim from handler to report. None: the lease was lost, and nothing may be said.

        Stops by `live.halt`. Nothing that a handler raises gets past here. A coroutine that ends after its time has
        held the event loop, or it would have been stopped: it has timed out, whatever it returns or raises.
        """
        live.has_begun = True
        if live.stop is None:
            try:
                ending = await self._run(live)
            except GeneratorExit as raised:
                # From a handler, unless it is this coroutine that is thrown away, long after the loop's end.
                if not _is_running():
                    raise
                ending = ending_of(raised)
            except asyncio.CancelledError:
                # Rota cancels by `live.halt`. This was the handler, or the event loop's end: then nobody reports it.
                live.context.lease_lost.set()
                ending = failed("CancelledError: the handler cancelled itself")
            except BaseException as raised:
                ending = ending_of(raised)
            if live.handler.isolation == "async" and not live.handler.takes_claim and live.stop is None:
                overran = self._clock.monotonic() - live.deadline
                if overran >= 0 and not live.context.cancelled:
                    live.overrun(overran)
        if live.stop is not None:
            return live.report_of_stop()
        if ending.dropped is not None:
            _log.warning(
                "result.dropped", handler=live.handler.name, run_id=str(live.claim.run_id), reason=ending.dropped
            )
        return live.report(ending)

    async def _run(self, live: LiveAttempt) -> Ending:
        handler = live.handler
        if handler.takes_claim:
            ending: Ending = await handler.function(live.claim, live.context)
            return ending
        arguments = (live.context,) if handler.takes_run else ()
        if handler.isolation == "async":
            return succeeded(await handler.function(*arguments))
        if handler.isolation == "process":
            return await self._children.run(live)
        done = self._threads.start(handler.function, *arguments)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            # No thread can be killed: the attempt ends here, and the slot when the function returns.
            live.lingering = done
            raise


def _is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
