"""Processes of the peers: started in a session of their own, asked, and ended by process id, whatever ends us.

CPU is that of a process and all below it, by /proc.
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import STOPWATCH

END_LIMIT: Final = 10.0
"""Seconds that a process has to end when it is told to; then it is killed, with all that it started."""
ASK_LIMIT: Final = 300.0
_PROC: Final = Path("/proc")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_TAIL: Final = 600
_LOOK: Final = 0.01


class PeerFailed(Exception):
    """A peer's process did not do what it was asked for: measure the others."""


@dataclass(frozen=True, slots=True)
class _Stat:
    parent: int
    started: int
    seconds: float
    has_ended: bool
    """Nobody has asked for its end yet: a zombie."""


def cpu_below(*roots: int) -> float:
    """Return the CPU seconds that these processes and all below them have taken so far, ended ones included."""
    stats = _stats()
    return sum(stats[pid].seconds for pid in _tree(roots, stats))


def cpu_of_machine() -> float:
    """Return the CPU seconds that everything on this machine has taken so far."""
    fields = [int(field) for field in (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / _TICKS


@asynccontextmanager
async def running(
    commands: Sequence[Sequence[str]], *, environment: Mapping[str, str], folder: Path, output: Path
) -> AsyncIterator[list[int]]:
    """Run these commands, whose output goes to a file; yields their process ids, and ends them all."""
    started: list[asyncio.subprocess.Process] = []
    try:
        with output.open("w") as stream:
            for command in commands:
                started.append(
                    await asyncio.create_subprocess_exec(
                        *command,
                        cwd=folder,
                        env=dict(environment),
                        stdin=asyncio.subprocess.DEVNULL,
                        stdout=stream,
                        stderr=stream,
                        start_new_session=True,
                    )
                )
        yield [process.pid for process in started]
    finally:
        await _end(started)


async def ask(command: Sequence[str], *, environment: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """Run a command to its end; returns the JSON of its last line, if it says any. PeerFailed with what it said."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env=dict(environment),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(ASK_LIMIT):
            said, _ = await process.communicate()
    except TimeoutError:
        raise PeerFailed(f"{' '.join(command)}: not done after {ASK_LIMIT:.0f} s") from None
    finally:
        await _end([process])
    text = said.decode(errors="replace").strip()
    if process.returncode != 0:
        raise PeerFailed(f"{' '.join(command)}: {text[-_TAIL:]}")
    last = text.rsplit("\n", 1)[-1]
    answer: dict[str, Any] = json.loads(last) if last.startswith("{") else {}
    return answer


async def _end(processes: Iterable[asyncio.subprocess.Process]) -> None:
    """End processes with all below them: told to, then killed. What bears a process id anew is spared."""
    alive = [process for process in processes if process.returncode is None]
    stats = _stats()
    below = {pid: stats[pid].started for pid in _tree([process.pid for process in alive], stats)}
    for process in alive:
        with suppress(ProcessLookupError):
            process.terminate()
    try:
        async with asyncio.timeout(END_LIMIT):
            await asyncio.gather(*(process.wait() for process in alive))
    except TimeoutError:
        pass
    finally:
        for pid in _still(below):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    await asyncio.gather(*(process.wait() for process in alive))
    killed_at = STOPWATCH.monotonic()
    while _still(below) and STOPWATCH.monotonic() - killed_at < END_LIMIT:
        await STOPWATCH.sleep(_LOOK)


def _still(began: Mapping[int, int]) -> list[int]:
    """Return which of the processes, told by their ids and when they were started, have not ended."""
    stats = _stats()
    return [pid for pid, at in began.items() if pid in stats and stats[pid].started == at and not stats[pid].has_ended]


def _stats() -> dict[int, _Stat]:
    found = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                # What follows the name, which may hold anything: state, parent, ...
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                seconds = sum(int(field) for field in fields[11:15]) / _TICKS
                found[int(entry.name)] = _Stat(
                    parent=int(fields[1]), started=int(fields[19]), seconds=seconds, has_ended=fields[0] in "ZX"
                )
    return found


def _tree(roots: Iterable[int], stats: Mapping[int, _Stat]) -> list[int]:
    """Return those of the processes that live, and all below them."""
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat.parent, []).append(pid)
    found, left = [], [pid for pid in roots if pid in stats]
    while left:
        pid = left.pop()
        found.append(pid)
        left += children.get(pid, [])
    return found
