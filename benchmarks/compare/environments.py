"""One environment per peer in a cache folder, made by pip or npm when it is missing or its pins have changed."""

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.compare.peers import Peer
from benchmarks.compare.processes import PeerFailed, ask

PROJECT: Final = Path(__file__).resolve().parents[2]
INSIDE: Final = Path(__file__).resolve().parent / "inside"
_STAMP: Final = "installed"


def cache_folder() -> Path:
    """Return where environments are kept: BENCH_WORK, or a folder of this user in the one for temporary files."""
    chosen = os.environ.get("BENCH_WORK")
    return Path(chosen) if chosen else Path(tempfile.gettempdir()) / f"rota-compare-{os.geteuid()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """How a peer's commands are run."""

    peer: Peer
    start: tuple[str, ...]
    variables: Mapping[str, str]

    def command(self, action: str, *values: object) -> list[str]:
        """Return the command line that asks the peer's script for an action."""
        return [*self.start, action, *map(str, values)]


async def prepare(peer: Peer, work: Path) -> Environment:
    """Return the peer's environment, made now if need be. PeerFailed if it cannot be."""
    folder = work / peer.name
    if peer.runtime == "own":
        return Environment(peer=peer, start=(sys.executable, "-m", _module(peer)), variables=_python_variables())
    if peer.runtime == "python":
        python = folder / "bin" / "python"
        await _make(peer, folder, [[sys.executable, "-m", "venv", "--clear", str(folder)], [
            str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *peer.pins,
        ]])  # fmt: skip
        return Environment(peer=peer, start=(str(python), "-m", _module(peer)), variables=_python_variables())
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise PeerFailed("needs Node, with npm")
    await _make(peer, folder, [
        [npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--loglevel=error", *peer.pins],
    ])  # fmt: skip
    variables = {"NODE_PATH": str(folder / "node_modules")}
    return Environment(peer=peer, start=(node, str(INSIDE / f"{peer.script}.js")), variables=variables)


async def _make(peer: Peer, folder: Path, commands: list[list[str]]) -> None:
    stamp, pins = folder / _STAMP, "\n".join(peer.pins)
    if stamp.exists() and stamp.read_text() == pins:
        return
    stamp.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    for command in commands:
        await ask(command, environment=os.environ, folder=folder)
    stamp.write_text(pins)


def _module(peer: Peer) -> str:
    return f"benchmarks.compare.inside.{peer.script}"


def _python_variables() -> Mapping[str, str]:
    return {"PYTHONPATH": str(PROJECT), "PYTHONUNBUFFERED": "1"}
