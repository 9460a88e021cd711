"""The worker: takes claims, has them carried out, reports them, and leaves in good order."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final
from uuid import UUID

import structlog

from rota.clock import Clock
from rota.domain.attempt import Claim, Outcome, Report
from rota.worker.cancels import hear_cancels
from rota.worker.child_pool import ChildPool
from rota.worker.context import RunContext
from rota.worker.deadlines import DeadlineWatch
from rota.worker.desk import Desk, WorkerInfo
from rota.worker.events import RunEvent, WorkerStats
from rota.worker.executor import Executor
from rota.worker.handlers import HandlerRegistry
from rota.worker.heart import Heart, HeartNews
from rota.worker.intake import Intake, StopRequest, first_of
from rota.worker.live import LiveAttempt, Stop
from rota.worker.progress import ProgressNotes
from rota.worker.reporter import Ended, Reporter
from rota.worker.shell import shell_handler
from rota.worker.threads import ThreadSlots

if TYPE_CHECKING:
    from rota.worker.http_target import HttpHandler

DRAIN_TIME: Final = timedelta(seconds=30)

STOP_GRACE: Final = 5.0
"""Seconds that a handler has to end by itself after its run was cancelled, and that one which is told to stop has to
clean up; then its attempt is reported all the same."""

REPORT_TIME: Final = 10.0
"""Seconds that a drained worker tries to bring in its last reports."""

LEAVE_TIME: Final = 1.0
"""Seconds for each last word of a worker that leaves at once, or that has nothing more to lose."""

UNREPORTED_LIMIT: Final = 2000
"""A worker whose reports do not get through claims no more than this."""

_log = structlog.get_logger(__name__)


class Worker:
    """One worker: `run` works until `request_stop` is called, or the caller cancels it.

    `info.handlers` is what the worker asks for; with `allow_shell` it knows shell commands too. With `http` it knows
    HTTP targets, and closes that at its end. `target` tells child processes where the app is. `on_event` is called in
    the event loop when an attempt starts and when it has ended.
    """

    def __init__(
        self,
        desk: Desk,
        registry: HandlerRegistry,
        info: WorkerInfo,
        clock: Clock,
        heart: Heart,
        *,
        drain_time: timedelta = DRAIN_TIME,
        target: str | None = None,
        allow_shell: bool = False,
        http: "HttpHandler | None" = None,
        on_event: Callable[[RunEvent], None] | None = None,
    ) -> None:
        self._desk = desk
        self._registry = registry.plus(shell_handler(heart)) if allow_shell else registry
        if http is not None:
            self._registry = self._registry.plus(http.as_handler())
        self._http = http
        self._info = replace(info, handlers=info.handlers | (self._registry.names - registry.names))
        self._clock = clock
        self._heart = heart
        self._drain_time = drain_time
        self._on_event = on_event
        self._children = ChildPool(target=target, groups=heart)
        self._threads = ThreadSlots(limit=info.concurrency)
        self._executor = Executor(threads=self._threads, children=self._children)
        self._reporter = Reporter(desk, clock, answered=self._answered)
        self._running: dict[UUID, LiveAttempt] = {}
        self._progress = ProgressNotes(clock, tell=heart.note)
        self._watch = DeadlineWatch(clock, attempts=self._running.values, overdue=self._overdue)
        self._stats = WorkerStats()
        self._stop = StopRequest()
        self._room = asyncio.Event()
        self._idle = asyncio.Event()
        self._intake = Intake(
            desk,
            self._info,
            clock,
            stop=self._stop,
            room=self._room,
            free_slots=self._free_slots,
            begin=self._begin,
            claimed=lambda: self._stats.claimed,
        )

    @property
    def info(self) -> WorkerInfo:
        return self._info

    @property
    def stats(self) -> WorkerStats:
        """Counts as of now."""
        return replace(
            self._stats,
            running=len(self._running),
            unreported=self._reporter.unsent,
            ended=self._stats.ended.copy(),
        )

    @property
    def child_pids(self) -> list[int]:
        """The process ids of the worker's child processes."""
        return self._children.pids

    def request_stop(self) -> None:
        """The first time: claim no more, and finish within the drain time. The second time: leave at once."""
        self._stop.ask()
        _log.info("worker.leaves" if self._stop.leaving.is_set() else "worker.drains", running=len(self._running))
        self._room.set()
        self._look_for_idleness()

    async def run(self) -> None:
        """Work until stopped. Everything claimed is reported, released, or left to the heart before this returns."""
        await self._heart.start(self._on_news)
        helpers = [
            asyncio.create_task(self._intake.announce(), name="rota-announce"),
            asyncio.create_task(self._reporter.run(), name="rota-report"),
            asyncio.create_task(self._watch.run(), name="rota-deadlines"),
            asyncio.create_task(self._progress.run(), name="rota-progress"),
            asyncio.create_task(hear_cancels(self._desk, self._heart, self._clock), name="rota-cancels"),
        ]
        try:
            await self._intake.run()
            await self._drain()
        except BaseException:
            # Cancelled by the program around it, or broken: nothing is waited for any more.
            self._stop.leaving.set()
            raise
        finally:
            self._stop.draining.set()
            await self._leave()
            for helper in helpers:
                helper.cancel()
            await asyncio.wait(helpers, timeout=LEAVE_TIME)

    # Attempts, from claim to answer

    def _free_slots(self) -> int:
        """Return how many runs may be claimed. A thread past its time keeps its slot."""
        free = self._info.concurrency - len(self._running) - self._stats.lingering
        return min(free, UNREPORTED_LIMIT - self._reporter.unsent)

    def _begin(self, claims: Sequence[Claim]) -> bool:
        """Start a task for each claim, and tell the heart of all of them at once. True: some went straight back."""
        self._stats.claimed += len(claims)
        self._heart.hold(claims)
        loop = asyncio.get_running_loop()
        now, started = self._clock.now(), self._clock.monotonic()
        has_returned = False
        for claim in claims:
            handler = self._registry.get(claim.handler)
            # An answer can come later than a short lease lasts: by then the run may be somebody else's.
            has_lapsed = claim.expires_at <= now
            if handler is None or has_lapsed or self._stop.draining.is_set():
                has_returned = True
                _log.warning(
                    "run.returned",
                    handler=claim.handler,
                    run_id=str(claim.run_id),
                    known=handler is not None,
                    lapsed=has_lapsed,
                )
                self._reporter.add(Ended(claim=claim, report=Report(key=claim.key, outcome=Outcome.RELEASED)))
                continue
            context = RunContext.of(claim, tell_progress=partial(self._progress.take, claim.key.token))
            live = LiveAttempt(claim=claim, handler=handler, context=context)
            live.deadline = started + claim.timeout.total_seconds()
            self._running[live.token] = live
            self._watch.expect(live.deadline)
            live.task = loop.create_task(self._carry(live))
        return has_returned

    async def _carry(self, live: LiveAttempt) -> None:
        """Carry one attempt from its start to the end of its handler."""
        if self._on_event is not None:
            live.started_at = self._clock.now()
            self._emit(RunEvent(claim=live.claim, started_at=live.started_at))
        report = await self._executor.execute(live)
        self._settle(live, report)
        del self._running[live.token]
        if live.lingering is not None and not live.lingering.done():
            self._stats.lingering += 1
            live.lingering.add_done_callback(self._returned)
            _log.warning("thread.lingers", handler=live.handler.name, run_id=str(live.claim.run_id))
        self._room.set()
        self._look_for_idleness()

    def _returned(self, _: object) -> None:
        self._stats.lingering -= 1
        self._room.set()

    def _settle(self, live: LiveAttempt, report: Report | None) -> None:
        """Decide an attempt's outcome, once."""
        if live.is_settled:
            return
        live.is_settled = True
        ended = Ended(
            claim=live.claim,
            report=report or Report(key=live.claim.key, outcome=Outcome.LOST),
            started_at=live.started_at,
            ended_at=self._clock.now() if self._on_event is not None else None,
        )
        if report is None:
            self._answered(ended, False)
        else:
            self._reporter.add(ended)

    def _answered(self, ended: Ended, accepted: bool) -> None:
        """Take the desk's answer: only what it has recorded counts."""
        self._heart.drop((ended.report.key.token,))
        outcome = ended.report.outcome if accepted else Outcome.LOST
        self._stats.ended[outcome] += 1
        if not accepted:
            _log.warning("lease.lost", run_id=str(ended.claim.run_id), attempt=ended.claim.attempt)
        if self._on_event is not None:
            event = RunEvent(
                claim=ended.claim,
                started_at=ended.started_at,
                outcome=outcome,
                ended_at=ended.ended_at,
                error=ended.report.error,
            )
            self._emit(event)
        self._room.set()

    def _emit(self, event: RunEvent) -> None:
        assert self._on_event is not None, "events are made for a listener only"
        try:
            self._on_event(event)
        except Exception:
            _log.exception("event.hook_failed")

    # Stopping attempts

    def _on_news(self, news: HeartNews) -> None:
        for tokens, reason in ((news.lost, Stop.LEASE_LOST), (news.cancelled, Stop.CANCELLED)):
            for token in tokens:
                live = self._running.get(token)
                # What has a report on its way waits for the desk's own answer.
                if live is None or live.is_settled:
                    continue
                if reason is Stop.CANCELLED and live.stop is None and live.may_see_cancel:
                    self._ask_to_end(live)
                else:
                    self._halt(live, reason)
        self._reporter.abandon(news.ended)

    def _overdue(self, live: LiveAttempt) -> None:
        """An attempt is out of time: tell it to stop; later, go on without it."""
        if live.stop is None:
            live.halt(Stop.TIMEOUT)
            live.deadline = self._clock.monotonic() + STOP_GRACE
        else:
            self._settle(live, live.report_of_stop())
            live.deadline = inf

    def _ask_to_end(self, live: LiveAttempt) -> None:
        """Leave it to a handler to end its cancelled run; once it is overdue, halt it."""
        live.ask_to_end()
        live.deadline = min(live.deadline, self._clock.monotonic() + STOP_GRACE)
        self._watch.expect(live.deadline)

    def _halt(self, live: LiveAttempt, reason: Stop) -> None:
        live.halt(reason)
        live.deadline = min(live.deadline, self._clock.monotonic() + STOP_GRACE)
        self._watch.expect(live.deadline)

    # Leaving

    async def _drain(self) -> None:
        """Let what runs finish, within the drain time. Renewals go on meanwhile."""
        self._look_for_idleness()
        await self._clock.wait(self._idle, self._drain_time.total_seconds())

    def _look_for_idleness(self) -> None:
        if self._stop.leaving.is_set() or (self._stop.draining.is_set() and not self._running):
            self._idle.set()

    async def _leave(self) -> None:
        """Stop what still runs, bring in the last reports, and give the rest back."""
        leaving = self._stop.leaving
        rest = list(self._running.values())
        for live in rest:
            self._halt(live, Stop.RELEASE)
        if rest and not leaving.is_set():
            tasks = [live.task for live in rest if live.task is not None]
            await first_of(asyncio.gather(*tasks, return_exceptions=True), leaving, timeout=STOP_GRACE)
        await (self._children.kill_all() if leaving.is_set() else self._children.close())
        self._threads.close()
        if self._http is not None:
            await self._http.close()
        for live in rest:
            self._settle(live, live.report_of_stop())
        await self._bring_in_reports()
        await self._heart.stop(release=True)
        with contextlib.suppress(Exception):
            async with asyncio.timeout(LEAVE_TIME):
                await self._desk.retire(self._info)

    async def _bring_in_reports(self) -> None:
        """Give the desk a time to answer for everything; what it does not take, the heart gives back."""
        done = asyncio.create_task(self._reporter.done.wait())
        if not self._stop.leaving.is_set():
            await first_of(done, self._stop.leaving, timeout=REPORT_TIME)
        await asyncio.wait({done}, timeout=LEAVE_TIME)
        done.cancel()


async def run_until_stopped(worker: Worker) -> None:
    """Run a worker until SIGTERM or SIGINT: the first drains, a second one leaves at once."""
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, worker.request_stop)
    try:
        await worker.run()
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
