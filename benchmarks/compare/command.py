"""`python -m benchmarks compare`: install, measure in rounds, print each figure as it comes, and a table."""

import argparse
import asyncio
import os
import platform
import signal
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import uvloop

from benchmarks.compare.environments import Environment, cache_folder, prepare
from benchmarks.compare.figures import Figure, beside, table
from benchmarks.compare.measures import MEASURES
from benchmarks.compare.peers import PEERS
from benchmarks.compare.processes import PeerFailed
from benchmarks.compare.server import shared_server
from benchmarks.harness import note, print_figure
from rota.store.embedded.folders import make_home

INTERRUPTED: Final = 130
MOST_REPEATS: Final = 20


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the command line asks for."""

    peers: tuple[str, ...]
    measures: tuple[str, ...]
    repeats: int


@dataclass(frozen=True)
class Sheet:
    """Collects the figures, and prints each."""

    figures: list[Figure] = field(default_factory=list)

    def tell(self, name: str, value: float, unit: str) -> None:
        """Take a figure, whose name begins with its peer's."""
        print_figure(name, value, unit)
        peer, _, measure = name.partition(".")
        self.figures.append(Figure(peer=peer, measure=measure, value=value))


def parse(arguments: Sequence[str]) -> Wanted:
    """Return what the arguments ask for; says what is wrong with them, and ends the process."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks compare",
        description="Rota beside other job queues on PostgreSQL and beside a yardstick, on one server in one run.",
        epilog="Environments of the peers are kept in BENCH_WORK. Leave the machine alone meanwhile.",
    )
    parser.add_argument("--peers", type=_names(PEERS), default=tuple(PEERS), help=f"of {','.join(PEERS)}")
    parser.add_argument("--measures", type=_names(MEASURES), default=tuple(MEASURES), help=f"of {','.join(MEASURES)}")
    parser.add_argument("--repeats", type=_repeats, default=1, help="rounds, whose medians count (default: 1)")
    asked = parser.parse_args(arguments)
    return Wanted(peers=asked.peers, measures=asked.measures, repeats=asked.repeats)


def main(arguments: Sequence[str]) -> int:
    """Compare; returns the exit code. Ctrl-C and SIGTERM end it with all that it started."""
    wanted = parse(arguments)
    try:
        return uvloop.run(_until_told(wanted))
    except (KeyboardInterrupt, asyncio.CancelledError):
        note("compare: interrupted")
        return INTERRUPTED


async def compare(wanted: Wanted) -> int:
    """Measure what is wanted, peers by turns, and print the table."""
    environments = await _environments(wanted)
    sheet = Sheet()
    async with shared_server() as server:
        machine = (
            f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, CPython {platform.python_version()},"
            f" PostgreSQL {await server.version()}, fsync on"
        )
        for round_ in range(1, wanted.repeats + 1):
            for measure in wanted.measures:
                for environment in environments:
                    if measure not in environment.peer.measures:
                        continue
                    note(f"compare: round {round_}: {measure} of {environment.peer.name}")
                    try:
                        await MEASURES[measure](environment, server, sheet.tell)
                    except PeerFailed as failed:
                        note(f"compare: {measure} of {environment.peer.name} failed: {failed}")
    print(f"\n{machine}\n\n{table(sheet.figures)}", flush=True)
    if (others := beside(sheet.figures)) is not None:
        print(f"\nOther work on this machine took {others:.2f} cores during the drains, at the median.")
    return 0 if sheet.figures else 1


async def _until_told(wanted: Wanted) -> int:
    """Compare, and take SIGTERM as Ctrl-C."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await compare(wanted)


async def _environments(wanted: Wanted) -> list[Environment]:
    """Return the peers' environments; a peer that cannot be installed is named and left out."""
    work = cache_folder()
    make_home(work)  # what lies there is run: it must be ours
    found = []
    for name in wanted.peers:
        try:
            found.append(await prepare(PEERS[name], work))
        except PeerFailed as failed:
            note(f"compare: {name} is left out, it could not be installed: {failed}")
    return found


def _names(known: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """Return what reads a list of names, of those that are known; in the order in which they are known, each once."""

    def read(text: str) -> tuple[str, ...]:
        asked = [name.strip() for name in text.split(",") if name.strip()]
        if unknown := [name for name in asked if name not in known]:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known are {', '.join(known)}")
        if not asked:
            raise argparse.ArgumentTypeError(f"names none of {', '.join(known)}")
        return tuple(name for name in known if name in asked)

    return read


def _repeats(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_REPEATS:
        raise argparse.ArgumentTypeError(f"must be a number from 1 to {MOST_REPEATS}")
    return int(text)
