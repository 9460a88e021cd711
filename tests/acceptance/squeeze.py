"""A tenth of a core for some processes: a cgroup's quota where cgroups can be made, a busy host with nice elsewhere."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PERIOD = 100_000
"""Microseconds."""

HOG = "while True: pass"


def family(pid: int) -> list[int]:
    """Return a process and all that descend from it."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(stat[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


@contextlib.contextmanager
def a_tenth_of_a_core(pids: Sequence[int], name: str) -> Iterator[None]:
    """Squeeze these processes, and those that they start, until the block ends."""
    group = _group(name)
    if group is None:
        with _beside_hogs(pids):
            yield
        return
    for pid in pids:
        (group / "cgroup.procs").write_text(str(pid))
    try:
        yield
    finally:
        for squeezed in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (group.parent / "cgroup.procs").write_text(squeezed)
        with contextlib.suppress(OSError):
            group.rmdir()


def _group(name: str) -> Path | None:
    """Make a cgroup with a quota: in the first version's hierarchy or in the second's."""
    with contextlib.suppress(OSError):
        if (ROOT / "cpu" / "cgroup.procs").exists():
            group = ROOT / "cpu" / name
            group.mkdir()
            (group / "cpu.cfs_period_us").write_text(str(PERIOD))
            (group / "cpu.cfs_quota_us").write_text(str(PERIOD // 10))
            return group
        group = ROOT / name
        if "cpu" in (ROOT / "cgroup.subtree_control").read_text().split():
            group.mkdir()
            (group / "cpu.max").write_text(f"{PERIOD // 10} {PERIOD}")
            return group
    return None


@contextlib.contextmanager
def _beside_hogs(pids: Sequence[int]) -> Iterator[None]:
    """Beside a busy process on each core, nice 10 is worth about a tenth of one."""
    hogs = [subprocess.Popen([sys.executable, "-c", HOG]) for _ in range(os.cpu_count() or 1)]
    try:
        for pid in pids:
            os.setpriority(os.PRIO_PROCESS, pid, 10)
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
