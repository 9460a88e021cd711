"""`python -m benchmarks [NAME...]`: all benchmarks, or those named; `compare` is Rota beside others, see there."""

import sys

import structlog
import uvloop

from benchmarks import fleet, flow, http, recurring, scale, services, trouble
from benchmarks.compare import command
from benchmarks.harness import Benchmark, bench, note

# Name -> what runs, and whether a manual clock drives it.
BENCHMARKS: dict[str, tuple[Benchmark, bool]] = {
    "materialise": (services.materialise, True),
    "drain": (services.drain, True),
    "claim_latency": (services.claim_latency, True),
    "heartbeats": (services.heartbeats, True),
    "due_scan": (scale.due_scan, True),
    "herd": (scale.herd, True),
    "drain_workers": (fleet.drain_workers, False),
    "lifecycle": (fleet.lifecycle, False),
    "pickup": (fleet.pickup, False),
    "start_delay": (fleet.start_delay, False),
    "every_second": (recurring.every_second, False),
    "one_minute": (recurring.one_minute, False),
    "rest_drain": (http.rest_drain, False),
    "rest_heartbeats": (http.rest_heartbeats, False),
    "register": (http.register, False),
    "flow": (flow.flow, True),
    "parked": (flow.parked, True),
    "fair_cost": (flow.fair_cost, True),
    "fair_delay": (flow.fair_delay, False),
    "pinned": (trouble.pinned, True),
    "restart": (trouble.restart, False),
}


async def run(names: list[str]) -> None:
    """Run the named benchmarks, one after the other."""
    for name in names:
        benchmark, manual = BENCHMARKS[name]
        note(f"{name}: {(benchmark.__doc__ or '').strip()}")
        async with bench(name, manual=manual) as b:
            await benchmark(b)


def main() -> None:
    """Run what the command line names."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    if sys.argv[1:2] == ["compare"]:
        sys.exit(command.main(sys.argv[2:]))
    names = sys.argv[1:] or list(BENCHMARKS)
    if unknown := [name for name in names if name not in BENCHMARKS]:
        sys.exit(f"unknown benchmark {', '.join(unknown)}; known are {', '.join(BENCHMARKS)} and compare")
    uvloop.run(run(names))


main()
