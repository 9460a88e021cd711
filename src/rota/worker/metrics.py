"""Numbers for Prometheus of one worker, which alone sees its attempts; and the small server that shows them.

The server has a thread of its own, so that it answers while a handler holds the event loop.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, MetricsHandler

from rota.domain.http_target import handler_key
from rota.worker.events import RunEvent

SECONDS: Final = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600)
"""Upper bounds of the histograms: an attempt may take an hour, and a run may wait for one."""

CALLERS: Final = 4
"""The most scrapes at a time; a connection beyond is closed."""

CALL_TIME: Final = 10.0
"""Seconds after which a connection is closed, whatever has come by then."""


class WorkerMetrics:
    """The metrics of one worker, in a registry of their own. Labels are names of handlers and of its pool only."""

    def __init__(self, *, pool: str) -> None:
        self.registry = CollectorRegistry()
        own = self.registry
        self.attempts = Counter(
            "rota_attempts", "Attempts of this worker that ended, by outcome", ["handler", "outcome"], registry=own
        )
        self.seconds = Histogram(
            "rota_attempt_seconds",
            "Seconds from the start of an attempt's handler to its end",
            ["handler"],
            buckets=SECONDS,
            registry=own,
        )
        self.start_delay = Histogram(
            "rota_start_delay_seconds",
            "Seconds from when an attempt could have started to the start of its handler",
            ["pool"],
            buckets=SECONDS,
            registry=own,
        )
        self._pool = pool
        self.start_delay.labels(pool)

    def take(self, event: RunEvent) -> None:
        """Count what a worker tells."""
        # What is called by its URL is one handler: an address is no label.
        handler = handler_key(event.claim.handler)
        if event.outcome is None:
            if event.started_at is not None and event.claim.available_at is not None:
                # The worker's clock may be a little behind the database's.
                delay = max(0.0, (event.started_at - event.claim.available_at).total_seconds())
                self.start_delay.labels(self._pool).observe(delay)
            return
        self.attempts.labels(handler, str(event.outcome)).inc()
        if event.started_at is not None and event.ended_at is not None:
            self.seconds.labels(handler).observe(max(0.0, (event.ended_at - event.started_at).total_seconds()))


@contextmanager
def shown(registry: CollectorRegistry, listener: socket.socket) -> Iterator[None]:
    """Answer scrapes on a listening socket until the block ends. The socket stays the caller's."""
    server = _Server(listener, _handler(registry))
    thread = threading.Thread(target=server.serve_forever, name="rota-metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()


def _handler(registry: CollectorRegistry) -> type[BaseHTTPRequestHandler]:
    return type("Scrape", (MetricsHandler.factory(registry),), {"timeout": CALL_TIME})


class _Server(ThreadingMixIn, TCPServer):
    """Serves a socket that listens already: few callers at a time, and none of them for long."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, listener: socket.socket, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(listener.getsockname()[:2], handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self._places = threading.BoundedSemaphore(CALLERS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        end = threading.Timer(CALL_TIME, _cut, (request,))
        end.daemon = True
        try:
            end.start()
            super().process_request_thread(request, client_address)
        finally:
            end.cancel()
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a caller that left in the middle is nobody's fault here."""


def _cut(request: socket.socket) -> None:
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)
