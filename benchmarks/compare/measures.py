"""What is measured, the same for all: each on a fresh database of the peer."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from benchmarks import services
from benchmarks.compare.drain import drain
from benchmarks.compare.environments import Environment
from benchmarks.compare.peers import ROTA
from benchmarks.compare.processes import PeerFailed, cpu_below
from benchmarks.compare.server import Server
from benchmarks.compare.subject import fresh
from benchmarks.harness import STOPWATCH, Benchmark, Tell, bench_at, percentile

Measure = Callable[[Environment, Server, Tell], Awaitable[None]]

ONE_BY_ONE: Final = 1_000
IN_BULK: Final = 10_000

SENT: Final = 200
SENT_EVERY: Final = 0.02
WARM_UP: Final = 4.0
WARM_UP_RUNS: Final = 5
IDLE: Final = 4.0
PICKUP_LIMIT: Final = 30.0

RECURRING: Final = 1_000
SECONDS_SKIPPED: Final = 2
SECONDS_COUNTED: Final = 10
SECONDS_LATE: Final = 2
FIRST_LIMIT: Final = 100.0
"""Seconds in which the first recurring run has to start."""

MATERIALISED: Final = 50_000
CLAIMED_FROM: Final = 20_000
CLAIMS: Final = ((1, 2000), (50, 200))


async def make(environment: Environment, server: Server, tell: Tell) -> None:
    """Runs made one by one, and in bulk by a thousand."""
    for action, count in (("one", ONE_BY_ONE), ("many", IN_BULK)):
        s = await fresh(environment, server, tell)
        s.say(f"make.{action}", await s.rate(action, count), "runs/s")


async def pickup(environment: Environment, server: Server, tell: Tell) -> None:
    """Milliseconds from the making of a run to its handler's start, at 50 a second; and CPU while nothing happens."""
    s = await fresh(environment, server, tell)
    async with s.working(1) as pids:
        await STOPWATCH.sleep(WARM_UP)
        await s.ask("send", WARM_UP_RUNS, SENT_EVERY)
        await _until(lambda: len(s.logged("waited")) >= WARM_UP_RUNS, PICKUP_LIMIT)
        await s.ask("send", SENT, SENT_EVERY)
        await _until(lambda: len(s.logged("waited")) >= WARM_UP_RUNS + SENT, PICKUP_LIMIT)
        delays = [float(seconds) * 1000 for [seconds] in s.logged("waited")[WARM_UP_RUNS:]]
        s.say("pickup.p50", percentile(delays, 0.5), "ms")
        s.say("pickup.p99", percentile(delays, 0.99), "ms")
        await STOPWATCH.sleep(1)
        workers, database = cpu_below(*pids), cpu_below(server.pid)
        await STOPWATCH.sleep(IDLE)
        s.say("idle.worker_cpu", (cpu_below(*pids) - workers) / IDLE * 100, "% of a core")
        s.say("idle.database_cpu", (cpu_below(server.pid) - database) / IDLE * 100, "% of a core")


async def every_second(environment: Environment, server: Server, tell: Tell) -> None:
    """1,000 jobs every second: the share of slots that fired, and their start delay."""
    s = await fresh(environment, server, tell)
    async with s.working(1, jobs=RECURRING):
        await _until(lambda: bool(s.logged("fired")), FIRST_LIMIT)
        await STOPWATCH.sleep(SECONDS_SKIPPED + SECONDS_COUNTED + SECONDS_LATE)
        starts = [(float(at), slot) for _, at, slot in s.logged("fired")]
    delays = delays_in_window(starts, first=starts[0][0] // 1 + SECONDS_SKIPPED, seconds=SECONDS_COUNTED)
    if not delays:
        raise PeerFailed("no recurring job fired any more after its first seconds")
    s.say("every_second.fired", len(delays) / (RECURRING * SECONDS_COUNTED) * 100, "%")
    s.say("every_second.p50", percentile(delays, 0.5) * 1000, "ms")
    s.say("every_second.p99", percentile(delays, 0.99) * 1000, "ms")


async def materialise(environment: Environment, server: Server, tell: Tell) -> None:
    """Runs made of slots a second by the scheduler alone, and WAL a run."""
    if environment.peer is ROTA:
        return await _own("materialise", services.materialise, server, tell)
    s = await fresh(environment, server, tell)
    before = await server.wal()
    s.say("materialise.rate", await s.rate("many", MATERIALISED), "runs/s")
    s.say("materialise.wal", (await server.wal() - before) / MATERIALISED, "bytes/run")
    return None


async def claim(environment: Environment, server: Server, tell: Tell) -> None:
    """Milliseconds of a claim of 1 and of 50 from a queue of 20,000."""
    if environment.peer is ROTA:
        return await _own("claim", services.claim_latency, server, tell)
    s = await fresh(environment, server, tell)
    await s.ask("many", CLAIMED_FROM)
    for size, turns in CLAIMS:
        answer = await s.ask("claim", turns, size)
        times = [seconds * 1000 for seconds in answer["seconds"]]
        s.say(f"claim.batch_{size}_p50", percentile(times, 0.5), "ms")
        s.say(f"claim.batch_{size}_p99", percentile(times, 0.99), "ms")
    return None


MEASURES: Final[Mapping[str, Measure]] = {
    "make": make,
    "drain": drain,
    "pickup": pickup,
    "every_second": every_second,
    "materialise": materialise,
    "claim": claim,
}


def delays_in_window(starts: list[tuple[float, str]], *, first: float, seconds: int) -> list[float]:
    """Return how late the starts were whose slots lie in the window.

    Of a peer that names no slot ("-") it is the second in which the start lies, or the next, if that is less than a
    tenth of a second away: started too early. So such a peer is never seen to be a second late.
    """
    slots = [((at + 0.1) // 1 if slot == "-" else float(slot), at) for at, slot in starts]
    return [at - slot for slot, at in slots if first <= slot < first + seconds]


async def _own(measure: str, benchmark: Benchmark, server: Server, tell: Tell) -> None:
    """Run a benchmark of Rota's own, in this process, on the server that all share."""
    dsn = await server.fresh_database(ROTA.name)
    async with bench_at(server.embedded, dsn, f"{ROTA.name}.{measure}", manual=True, tell=tell) as b:
        await benchmark(b)


async def _until(is_so: Callable[[], bool], limit: float) -> None:
    """Return as soon as it is so; TimeoutError if that takes too long."""
    started = STOPWATCH.monotonic()
    while not is_so():
        if STOPWATCH.monotonic() - started > limit:
            raise TimeoutError(f"nothing more was logged within {limit:.0f} s")
        await STOPWATCH.sleep(0.1)
