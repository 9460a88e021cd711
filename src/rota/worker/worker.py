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
from rota.worker.apart import NEXT_TRY, TURN_TIME, in_child, is_outside
from rota.worker.baton import Baton
from rota.worker.cancels import hear_cancels
from rota.worker.child_pool import ChildPool
from rota.worker.context import RunContext
from rota.worker.deadlines import DeadlineWatch
from rota.worker.desk import Desk, WorkerInfo
from rota.worker.ending import failure_text
from rota.worker.events import RunEvent, WorkerStats
from rota.worker.executor import Executor
from rota.worker.forks import leave_in_forks
from rota.worker.handlers import HandlerRegistry
from rota.worker.heart import GOODBYE_TIME, Heart, HeartNews
from rota.worker.intake import Intake, StopRequest, first_of
from rota.worker.live import LiveAttempt, Stop
from rota.worker.progress import ProgressNotes
from rota.worker.reporter import Ended, Reporter
from rota.worker.shell import ShellHandler
from rota.worker.threads import ThreadSlots

if TYPE_CHECKING:
    from rota.worker.http_target import HttpHandler

DRAIN_TIME: Final = timedelta(seconds=20)
"""From the request to leave to the worker's end, all in all: it fits the 30 s that Kubernetes gives, with room."""

LAST_STEPS_TIME: Final = 5.0
LAST_STEPS_SHARE: Final = 1 / 4
"""The part of the drain time that is for giving back what has not ended by itself, in seconds and as a share."""

STOP_GRACE: Final = 5.0
"""Seconds that a handler has to end by itself after its run was cancelled, and that one which is told to stop has to
clean up; then its attempt is reported all the same."""

REPORT_TIME: Final = 10.0
"""Seconds that a drained worker tries to bring in its last reports."""

LEAVE_TIME: Final = 1.0
SHORTEST_STEP: Final = 0.3
"""Seconds for each last word of a worker that leaves at once, or that has nothing more to lose; and for one that has no
time left."""

UNREPORTED_LIMIT: Final = 2000
"""A worker whose reports do not get through claims no more than this."""

_log = structlog.get_logger(__name__)


class Worker:
    """One worker: `run` works until `request_stop` is called, or the caller cancels it.

    `info.handlers` is what the worker asks for; with `allow_shell` it knows shell commands too, those of its tenant,
    and runs them as `shell_user`. With `http` it knows
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
        shell_user: str | None = None,
        http: "HttpHandler | None" = None,
        on_event: Callable[[RunEvent], None] | None = None,
    ) -> None:
        self._desk = desk
        self._shell = ShellHandler(heart, tenant_id=info.tenant_id, user=shell_user) if allow_shell else None
        self._registry = registry.plus(self._shell.as_handler()) if self._shell is not None else registry
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
        self._executor = Executor(clock, threads=self._threads, children=self._children)
        self._has_target = target is not None
        self._baton: Baton | None = None
        self._reporter = Reporter(desk, clock, answered=self._answered)
        self._running: dict[UUID, LiveAttempt] = {}
        self._lingering: set[LiveAttempt] = set()
        self._turn = asyncio.Event()
        self._leaves_by = inf
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
            able=heart.able,
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
        if not self._stop.draining.is_set():
            self._leaves_by = self._clock.monotonic() + self._drain_time.total_seconds()
        self._stop.ask()
        _log.info("worker.leaves" if self._stop.leaving.is_set() else "worker.drains", running=len(self._running))
        self._room.set()
        self._look_for_idleness()

    def request_drain(self) -> None:
        """Claim no more, and finish within the drain time; however often that is asked."""
        if not self._stop.draining.is_set():
            self.request_stop()

    async def run(self) -> None:
        """Work until stopped. Everything claimed is reported, released, or left to the heart before this returns."""
        leave_in_forks(asyncio.get_running_loop())
        self._baton = Baton()
        await self._heart.start(self._on_news, renew=self._desk.renew, baton=self._baton)
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
            self._baton.close()

    # Attempts, from claim to answer

    def _free_slots(self) -> int:
        """Return how many runs may be claimed. A thread past its time keeps its slot."""
        if any(live.is_alone for live in self._running.values()):
            return 0
        free = self._info.concurrency - len(self._running) - self._stats.lingering
        return min(free, UNREPORTED_LIMIT - self._reporter.unsent)

    def _begin(self, claims: Sequence[Claim]) -> bool:
        """Start a task for each claim, and tell the heart of all of them at once. True: some went straight back."""
        self._stats.claimed += len(claims)
        now, started = self._clock.now(), self._clock.monotonic()
        has_returned = False
        begun: list[LiveAttempt] = []
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
            is_alone = False
            if claim.losses:
                child = in_child(handler, has_target=self._has_target)
                is_alone, handler = child is None, child or handler
            notes = self._progress.of(claim.key.token)
            context = RunContext.of(claim, tell_progress=notes.take)
            live = LiveAttempt(claim=claim, handler=handler, context=context, notes=notes, is_alone=is_alone)
            # Its time begins with its handler.
            live.must_wait = is_alone or self._is_here(claim)
            live.deadline = inf if live.must_wait else started + claim.timeout.total_seconds()
            self._running[live.token] = live
            begun.append(live)
        self._heart.hold(claims, apart={live.token for live in begun if is_outside(live.handler)})
        for live in begun:
            self._start(live)
        return has_returned

    def _start(self, live: LiveAttempt) -> None:
        self._watch.expect(live.deadline)
        steps = self._carry(live)
        if self._baton is not None and live.handler.isolation == "async" and not is_outside(live.handler):
            live.task = asyncio.get_running_loop().create_task(self._baton.signed(live.token, steps))
        else:
            live.task = asyncio.get_running_loop().create_task(steps)

    async def _carry(self, live: LiveAttempt) -> None:
        """Carry one attempt from its start to the end of its handler. Its place is free afterwards, come what may."""
        try:
            report = await self._attempt(live)
        except GeneratorExit:
            # The event loop is gone, and with it everybody who could be told.
            return
        except BaseException as raised:
            report = Report(key=live.claim.key, outcome=Outcome.FAILED, error=failure_text(raised))
        try:
            self._settle(live, report)
        finally:
            del self._running[live.token]
            if live.lingering is not None and not live.lingering.done():
                self._stats.lingering += 1
                self._lingering.add(live)
                live.lingering.add_done_callback(partial(self._returned, live))
                _log.warning("thread.lingers", handler=live.handler.name, run_id=str(live.claim.run_id))
            self._look_for_turns()
            self._room.set()
            self._look_for_idleness()

    async def _attempt(self, live: LiveAttempt) -> Report | None:
        if live.must_wait and not await self._wait_for_turn(live):
            return live.report_of_no_turn(retry_after=timedelta(seconds=NEXT_TRY))
        if self._on_event is not None:
            live.started_at = self._clock.now()
            self._emit(RunEvent(claim=live.claim, started_at=live.started_at))
        return await self._executor.execute(live)

    def _returned(self, live: LiveAttempt, _: object) -> None:
        self._stats.lingering -= 1
        self._lingering.discard(live)
        self._look_for_turns()
        self._room.set()

    # Attempts that wait for others to end

    def _is_here(self, claim: Claim) -> bool:
        """Tell whether an older attempt of the same run is still at work in this process."""
        return claim.attempt > 1 and any(
            other.claim.run_id == claim.run_id and other.token != claim.key.token
            for other in (*self._running.values(), *self._lingering)
        )

    def _may_begin(self, live: LiveAttempt) -> bool:
        others = [other for other in self._running.values() if other.has_begun and not is_outside(other.handler)]
        return not self._is_here(live.claim) and not (live.is_alone and (others or self._lingering))

    async def _wait_for_turn(self, live: LiveAttempt) -> bool:
        """Return when the attempt may begin, or is stopped; False if that takes too long."""
        gives_up_at = self._clock.monotonic() + TURN_TIME
        while live.stop is None and not self._may_begin(live):
            left = gives_up_at - self._clock.monotonic()
            if left <= 0:
                return False
            await self._clock.wait(self._turn, left)
        if live.stop is None:
            live.deadline = self._clock.monotonic() + live.claim.timeout.total_seconds()
            self._watch.expect(live.deadline)
        return True

    def _look_for_turns(self) -> None:
        """Let those look who wait."""
        turn, self._turn = self._turn, asyncio.Event()
        turn.set()

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
            progress=None if live.notes is None else live.notes.fresh(),
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
        if live.must_wait:
            self._look_for_turns()
        live.deadline = min(live.deadline, self._clock.monotonic() + STOP_GRACE)
        self._watch.expect(live.deadline)

    # Leaving

    async def _drain(self) -> None:
        """Let what runs finish, up to the last steps' time. Renewals go on meanwhile."""
        self._look_for_idleness()
        whole = self._drain_time.total_seconds()
        await self._clock.wait(self._idle, self._left(until=min(LAST_STEPS_TIME, whole * LAST_STEPS_SHARE), least=0))

    def _left(self, *, until: float = 0.0, least: float = SHORTEST_STEP, most: float = inf) -> float:
        """Return the seconds that are left of the drain time until so many before its end."""
        return max(least, min(most, self._leaves_by - until - self._clock.monotonic()))

    def _look_for_idleness(self) -> None:
        if self._stop.leaving.is_set() or (self._stop.draining.is_set() and not self._running):
            self._idle.set()

    async def _leave(self) -> None:
        """Stop what still runs, bring in the last reports, and give the rest back."""
        leaving = self._stop.leaving
        last_words = 2 * LEAVE_TIME
        rest = list(self._running.values())
        for live in rest:
            self._halt(live, Stop.RELEASE)
        if rest and not leaving.is_set():
            tasks = [live.task for live in rest if live.task is not None]
            grace = self._left(until=last_words, most=STOP_GRACE)
            await first_of(asyncio.gather(*tasks, return_exceptions=True), leaving, timeout=grace)
        await (self._children.kill_all() if leaving.is_set() else self._children.close(within=self._left(until=1.0)))
        self._threads.close()
        if self._shell is not None:
            self._shell.close()
        if self._http is not None:
            await self._http.close()
        for live in rest:
            self._settle(live, live.report_of_stop())
        await self._bring_in_reports()
        await self._heart.stop(release=True, within=self._left(most=GOODBYE_TIME))
        with contextlib.suppress(Exception):
            async with asyncio.timeout(self._left(most=LEAVE_TIME)):
                await self._desk.retire(self._info)

    async def _bring_in_reports(self) -> None:
        """Give the desk a time to answer for everything; what it does not take, the heart gives back."""
        done = asyncio.create_task(self._reporter.done.wait())
        if not self._stop.leaving.is_set():
            await first_of(done, self._stop.leaving, timeout=self._left(until=LEAVE_TIME, most=REPORT_TIME))
        await asyncio.wait({done}, timeout=self._left(most=LEAVE_TIME))
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
