"""The version before as it was released, and processes of it and of the present one over one database."""

import asyncio
import json
import os
import signal
import sys
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from rota.clock import SystemClock
from tests.store.stage import outsider

FIXTURES: Final = Path(__file__).parents[1] / "fixtures"
RELEASED: Final = FIXTURES / "version_0_1_0"
FOUND: Final = RELEASED / "found.py"
STORY: Final = RELEASED / "story.py"
APP: Final = FIXTURES / "upgrade_app.py"
PATIENCE: Final = 180.0
"""Seconds after which a condition that does not come true is a failure; the machine may be busy."""

STOPWATCH: Final = SystemClock()


def unpacked(folder: Path) -> Path:
    """Unpack the released source; returns what stands for it in PYTHONPATH."""
    with tarfile.open(RELEASED / "source.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


class Installation:
    """Processes of two versions over one database; they run in a folder, where each leaves its log."""

    def __init__(self, dsn: str, connection: Any, *, before: Path, folder: Path) -> None:
        self.dsn = dsn
        self.connection = connection
        self.folder = folder
        self._paths = {"before": [str(before)], "present": []}
        self._processes: dict[str, asyncio.subprocess.Process] = {}

    async def start(self, version: str, *words: str) -> str:
        """Start a process of a version, `before` or `present`; returns its name: the version and its first word."""
        name = f"{version}-{words[0]}"
        self._processes[name] = await self._spawn(version, "-m", "rota.cli", *words, name=name)
        return name

    async def run(self, version: str, *words: str) -> str:
        """Run a command, or a script, of a version to its good end; returns what it printed."""
        code = words if words[0].endswith(".py") else ("-m", "rota.cli", *words)
        process = await self._spawn(version, *code, name="once", stdout=asyncio.subprocess.PIPE)
        printed, _ = await process.communicate()
        assert process.returncode == 0, f"{words} of {version} ended with {process.returncode}: {self.log('once')}"
        return printed.decode()

    async def stop(self, name: str) -> None:
        """Tell a process to end as a deploy does; it must do so of its own accord, in good order."""
        process = self._processes.pop(name)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), PATIENCE) == 0, self.log(name)

    async def until(self, question: str, what: str, *values: object) -> None:
        """Return once a query answers with true. Raises AssertionError when a process ends, or it never does."""
        await self.look(lambda: self._ask(question, *values), what)

    async def look(self, condition: Callable[[], Awaitable[Any]], what: str) -> None:
        """Return once a condition holds."""
        started = STOPWATCH.monotonic()
        while STOPWATCH.monotonic() - started < PATIENCE:
            if await condition():
                return
            for name, process in self._processes.items():
                assert process.returncode is None, f"{name} ended while waiting until {what}: {self.log(name)}"
            await STOPWATCH.sleep(0.05)
        raise AssertionError(f"not within {PATIENCE:g} s: {what}; " + "\n".join(map(self.log, self._processes)))

    def log(self, name: str) -> str:
        """Return the end of what a process said."""
        return f"{name}: " + (self.folder / f"{name}.log").read_text()[-4000:]

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return what a process has logged so far."""
        events = []
        for line in (self.folder / f"{name}.log").read_text().splitlines():
            with suppress(ValueError):  # a line that is being written
                events.append(json.loads(line))
        return events

    async def _ask(self, question: str, *values: object) -> bool:
        return bool(await self.connection.fetchval(question, *values))

    async def _spawn(
        self, version: str, *words: str, name: str, stdout: int | None = None
    ) -> asyncio.subprocess.Process:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("ROTA_", "PYTHONPATH"))}
        environment: Mapping[str, str] = inherited | {
            "ROTA_DATABASE_URL": self.dsn,
            "ROTA_NAME": version,
            "PYTHONPATH": os.pathsep.join(self._paths[version]),
        }
        with (self.folder / f"{name}.log").open("wb") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable, *words, env=environment, cwd=self.folder, stdout=stdout or log, stderr=log
            )

    async def end(self) -> None:
        """End what still runs."""
        for process in self._processes.values():
            if process.returncode is None:
                process.kill()
                await process.wait()


@asynccontextmanager
async def installation(dsn: str, *, before: Path, folder: Path) -> AsyncIterator[Installation]:
    """Yield an installation without processes."""
    async with outsider(dsn) as connection:
        one = Installation(dsn, connection, before=before, folder=folder)
        try:
            yield one
        finally:
            await one.end()
