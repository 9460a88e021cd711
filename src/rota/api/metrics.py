"""Numbers for Prometheus: calls of this process, and the cluster's depths and ages as they are at the scrape."""

from datetime import datetime, timedelta
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rota.api.cluster import Cluster
from rota.api.health import ages
from rota.clock import Clock
from rota.services.fleet import Flow

CALLER_LEFT: Final = 499
"""Counted as the status of a call whose caller left before it could be answered; no such answer is sent."""

SETTLED_AFTER: Final = timedelta(seconds=30)
"""What was to be entered into the slot ledger so long ago is there, or never will be."""

LIMITS_SHOWN: Final = 200
"""The most limits that make series of their own, the fullest first."""


class Metrics:
    """The metrics of one application, in a registry of their own. No label names a tenant."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.registry = CollectorRegistry()
        own = self.registry
        self.calls = Counter("rota_http_requests", "Calls answered", ["method", "route", "status"], registry=own)
        self.seconds = Histogram(
            "rota_http_request_seconds",
            "Seconds until the answer, a poll's wait included",
            ["route"],
            registry=own,
        )
        self.waiting = Gauge(
            "rota_runs_waiting",
            "Runs that wait, by pool and gate alone; rota_pending_runs has their priorities, too",
            ["pool", "gate"],
            registry=own,
        )
        self.pending = Gauge(
            "rota_pending_runs",
            "Runs that wait, by priority as well; their sum over priorities is rota_runs_waiting",
            ["pool", "priority", "gate"],
            registry=own,
        )
        self.oldest = Gauge(
            "rota_pending_oldest_seconds",
            "Seconds since the first of the runs that wait could have started",
            ["pool", "gate"],
            registry=own,
        )
        self.parked = Gauge("rota_parked_runs", "Runs that wait for a permit or a token", ["limit"], registry=own)
        self.permits_in_use = Gauge("rota_permits_in_use", "Permits that runs hold", ["limit"], registry=own)
        self.permits = Gauge("rota_permits", "Permits that there are", ["limit"], registry=own)
        self.tokens_left = Gauge("rota_tokens_left", "Tokens in the bucket", ["limit"], registry=own)
        self.running = Gauge("rota_runs_running", "Runs that run", registry=own)
        self.dead = Gauge("rota_dead_letters", "Dead letters", registry=own)
        self.jobs = Gauge("rota_jobs", "Jobs", registry=own)
        self.workers = Gauge("rota_workers", "Live worker processes", registry=own)
        self.tick_age = Gauge("rota_tick_age_seconds", "Seconds since a scheduler last ticked", registry=own)
        self.claim_age = Gauge("rota_claim_age_seconds", "Seconds since a claim last succeeded", registry=own)

        self.skipped = Counter(
            "rota_slots_skipped", "Slots that made no run since this process began", ["reason"], registry=own
        )
        self._skipped_upto: datetime | None = None

    async def scrape(self) -> bytes:
        """Return all metrics as text. Raises DatabaseUnavailable."""
        stats = await self._cluster.fleet.stats(tenant_id=None)
        health = await self._cluster.fleet.health()
        self._show(await self._cluster.fleet.flow(limits=LIMITS_SHOWN))
        await self._count_skipped()
        self.waiting.clear()
        for depth in stats.waiting:
            self.waiting.labels(depth.pool, depth.gate).set(depth.runs)
        self.running.set(stats.running)
        self.dead.set(stats.dead)
        self.jobs.set(stats.jobs)
        self.workers.set(stats.workers)
        tick_age, claim_age = ages(health, now=self._cluster.clock.now())
        for gauge, age in ((self.tick_age, tick_age), (self.claim_age, claim_age)):
            gauge.set(float("nan") if age is None else age)
        return generate_latest(self.registry)

    async def _count_skipped(self) -> None:
        """Count what was entered into the slot ledger since the last scrape, less what may not have committed yet."""
        until = self._cluster.clock.now() - SETTLED_AFTER
        since, self._skipped_upto = self._skipped_upto or until, max(until, self._skipped_upto or until)
        if since < until:
            for count in await self._cluster.history.skipped_counts(since=since, until=until):
                self.skipped.labels(count.reason).inc(count.slots)

    def _show(self, flow: Flow) -> None:
        """Set the gauges of what waits for what."""
        now = self._cluster.clock.now()
        for gauge in (
            self.pending, self.oldest, self.parked, self.permits_in_use, self.permits, self.tokens_left,
        ):  # fmt: skip
            gauge.clear()
        oldest: dict[tuple[str, str], datetime] = {}
        for depth in flow.depths:
            self.pending.labels(depth.pool, depth.priority, depth.gate).set(depth.runs)
            place = (depth.pool, depth.gate)
            oldest[place] = min(oldest.get(place, depth.oldest), depth.oldest)
        for place, since in oldest.items():
            self.oldest.labels(*place).set(max(0.0, (now - since).total_seconds()))
        for use in flow.limits:
            self.parked.labels(use.name).set(use.parked)
            self.permits_in_use.labels(use.name).set(use.in_use)
            if use.permits is not None:
                self.permits.labels(use.name).set(use.permits)
            if use.tokens is not None:
                self.tokens_left.labels(use.name).set(use.tokens)


class Counted:
    """Middleware: counts calls by the template of their route, so that ids make no series."""

    def __init__(self, app: ASGIApp, metrics: Metrics, stopwatch: Clock) -> None:
        self._app = app
        self._metrics = metrics
        self._stopwatch = stopwatch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = self._stopwatch.monotonic(), 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except ClientDisconnect:
            status = CALLER_LEFT
            raise
        finally:
            route = getattr(scope.get("route"), "path_format", "unmatched")
            self._metrics.calls.labels(scope["method"], route, status).inc()
            self._metrics.seconds.labels(route).observe(self._stopwatch.monotonic() - began)
