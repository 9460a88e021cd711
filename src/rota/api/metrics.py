"""Numbers for Prometheus: calls of this process, and the cluster's depths and ages as they are at the scrape."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rota.api.cluster import Cluster
from rota.api.health import ages
from rota.clock import Clock

CALLER_LEFT: Final = 499
"""Counted as the status of a call whose caller left before it could be answered; no such answer is sent."""


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
        self.waiting = Gauge("rota_runs_waiting", "Runs that wait", ["pool", "gate"], registry=own)
        self.running = Gauge("rota_runs_running", "Runs that run", registry=own)
        self.dead = Gauge("rota_dead_letters", "Dead letters", registry=own)
        self.jobs = Gauge("rota_jobs", "Jobs", registry=own)
        self.workers = Gauge("rota_workers", "Live worker processes", registry=own)
        self.tick_age = Gauge("rota_tick_age_seconds", "Seconds since a scheduler last ticked", registry=own)
        self.claim_age = Gauge("rota_claim_age_seconds", "Seconds since a claim last succeeded", registry=own)

    async def scrape(self) -> bytes:
        """Return all metrics as text. Raises DatabaseUnavailable."""
        stats = await self._cluster.fleet.stats(tenant_id=None)
        health = await self._cluster.fleet.health()
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
