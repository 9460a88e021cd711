"""What a worker counts for Prometheus, and the server that shows it."""

import socket
from datetime import UTC, datetime, timedelta
from urllib.request import urlopen
from uuid import uuid4

from rota.api.binding import bind
from rota.domain.attempt import Claim, LeaseKey, Outcome
from rota.worker.events import RunEvent
from rota.worker.metrics import CALLERS, WorkerMetrics, shown

START = datetime(2026, 1, 1, tzinfo=UTC)


def claim(handler: str = "mail", *, available_at: datetime | None = START) -> Claim:
    return Claim(
        key=LeaseKey(0, 7, START, uuid4()), tenant_id="acme", job_id="job", handler=handler, payload={}, attempt=1,
        max_attempts=3, claimed_at=START, expires_at=START, lease_duration=timedelta(seconds=60),
        timeout=timedelta(seconds=60), available_at=available_at,
    )  # fmt: skip


def play(metrics: WorkerMetrics, run: Claim, outcome: Outcome, *, delay: float = 0.2, seconds: float = 2.0) -> None:
    started = (run.available_at or START) + timedelta(seconds=delay)
    metrics.take(RunEvent(claim=run, started_at=started))
    ended = started + timedelta(seconds=seconds)
    metrics.take(RunEvent(claim=run, started_at=started, outcome=outcome, ended_at=ended))


def told(metrics: WorkerMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_attempts_are_counted_by_handler_and_outcome_and_timed_by_handler() -> None:
    metrics = WorkerMetrics(pool="default")
    for outcome in (Outcome.SUCCEEDED, Outcome.SUCCEEDED, Outcome.FAILED):
        play(metrics, claim(), outcome)
    play(metrics, claim("report"), Outcome.TIMED_OUT, seconds=90)
    assert told(metrics, "rota_attempts_total", handler="mail", outcome="succeeded") == 2
    assert told(metrics, "rota_attempts_total", handler="mail", outcome="failed") == 1
    assert told(metrics, "rota_attempts_total", handler="report", outcome="timed_out") == 1
    assert told(metrics, "rota_attempt_seconds_sum", handler="mail") == 6.0
    assert told(metrics, "rota_attempt_seconds_bucket", handler="report", le="60.0") == 0
    assert told(metrics, "rota_attempt_seconds_bucket", handler="report", le="300.0") == 1


def test_a_start_is_late_from_when_it_could_have_been() -> None:
    """A run that was snoozed, by whatever worker, is not late since its slot."""
    metrics = WorkerMetrics(pool="fast")
    play(metrics, claim(), Outcome.SNOOZED)
    play(metrics, claim(available_at=START + timedelta(hours=1)), Outcome.SUCCEEDED, delay=0.75)
    play(metrics, claim(available_at=None), Outcome.SUCCEEDED)
    assert told(metrics, "rota_start_delay_seconds_count", pool="fast") == 2
    assert told(metrics, "rota_start_delay_seconds_sum", pool="fast") == 0.95
    play(metrics, claim(), Outcome.SUCCEEDED, delay=-0.1)
    assert told(metrics, "rota_start_delay_seconds_sum", pool="fast") == 0.95, "clocks differ a little"


def test_no_address_and_no_tenant_is_a_label() -> None:
    metrics = WorkerMetrics(pool="default")
    for number in range(50):
        play(metrics, claim(f"https://example.com/hook/{number}"), Outcome.SUCCEEDED)
    assert told(metrics, "rota_attempts_total", handler="http", outcome="succeeded") == 50
    labels = {name for family in metrics.registry.collect() for sample in family.samples for name in sample.labels}
    assert labels == {"handler", "outcome", "pool", "le"}


def test_a_scrape_is_answered_while_others_hold_their_connections() -> None:
    metrics = WorkerMetrics(pool="default")
    play(metrics, claim(), Outcome.SUCCEEDED)
    with bind("127.0.0.1", 0) as listener, shown(metrics.registry, listener):
        where = listener.getsockname()
        holders = [socket.create_connection(where) for _ in range(CALLERS - 1)]
        with urlopen(f"http://127.0.0.1:{where[1]}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        assert 'rota_attempts_total{handler="mail",outcome="succeeded"} 1.0' in text.splitlines()
        for holder in holders:
            holder.close()


def test_a_scrape_beyond_the_places_is_turned_away() -> None:
    with bind("127.0.0.1", 0) as listener, shown(WorkerMetrics(pool="default").registry, listener):
        where = listener.getsockname()
        holders = [socket.create_connection(where) for _ in range(CALLERS)]
        with socket.create_connection(where, timeout=30) as beyond:
            assert beyond.recv(1) == b""
        for holder in holders:
            holder.close()
