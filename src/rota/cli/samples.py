"""The sample jobs that `rota dev` runs when it is given no file: one of each kind, and nothing that does harm.

They double as examples: a plain function runs in a thread, a coroutine function in the worker's event loop, and
`isolation="process"` in a child process.
"""

import asyncio
from typing import Final

import rota

LABEL: Final = "rota.sample"
"""The label that tells the samples from everybody's own jobs."""

_LABELS: Final = {LABEL: "yes"}

app = rota.App()


@app.job("sample-tick", schedule=rota.every("2s"), misfire=rota.skip(), labels=_LABELS)
async def tick(run: rota.Run) -> None:
    """Every 2 s, in the event loop: the shortest job there is."""


@app.job("sample-report", schedule=rota.every("5s"), payload={"pages": 3}, misfire=rota.skip(), labels=_LABELS)
def report(run: rota.Run) -> None:
    """Every 5 s, in a thread: works for 0.2 s, unless it is told to stop."""
    run.lease_lost.wait(0.2)


@app.job("sample-fetch", schedule=rota.every("7s"), misfire=rota.skip(), timeout=10, labels=_LABELS)
async def fetch(run: rota.Run) -> None:
    """Every 7 s, in the event loop: waits for 0.5 s as for an answer from far away."""
    try:
        async with asyncio.timeout(0.5):
            await run.lease_lost.wait_async()
    except TimeoutError:
        pass  # the answer has come


@app.job(
    "sample-flaky",
    schedule=rota.every("10s"),
    misfire=rota.skip(),
    max_attempts=3,
    retry=rota.retry(initial=1.0, jitter=0.0),
    labels=_LABELS,
)
def flaky(run: rota.Run) -> None:
    """Every 10 s: every second slot fails at its first attempt, and succeeds at the next one, a second later."""
    if int(run.scheduled_for.timestamp()) // 10 % 2 == 0 and run.attempt == 1:
        raise ConnectionError("upstream answered 503")


@app.job("sample-primes", schedule=rota.every("15s"), isolation="process", misfire=rota.skip(), labels=_LABELS)
def primes(run: rota.Run) -> None:
    """Every 15 s, in a child process: counts primes, and would hold up nobody if it took an hour."""
    sieve = bytearray([1]) * 200_000
    for number in range(2, 448):
        if sieve[number]:
            sieve[number * number :: number] = bytes(len(sieve[number * number :: number]))


@app.job(
    "sample-minutely", schedule=rota.cron("* * * * *", tz="Europe/Berlin"), misfire=rota.catch_up(3), labels=_LABELS
)
def minutely(run: rota.Run) -> None:
    """Every minute by cron: makes up to three missed minutes after a pause or an outage."""
