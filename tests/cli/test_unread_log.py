"""A log that nobody reads stops no worker: lines are dropped and counted, work and signals go on."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rota.worker.line_writer import LINES_LIMIT, LineWriter
from tests.cli.conftest import Cli
from tests.cli.processes import PATIENCE

TALKATIVE = """
import asyncio, logging
import structlog
import rota

app = rota.App()


@app.job("talks")
async def talks():
    for _ in range(500):
        structlog.get_logger().warning("x" * 1000)
        logging.getLogger("library").warning("y" * 1000)


@app.job("waits", timeout=1, max_attempts=1)
async def waits():
    await asyncio.Event().wait()
"""


def until(holds: Callable[[], object]) -> None:
    """Return when the condition holds. Fails if that takes too long."""
    pause = threading.Event()
    for _ in range(int(PATIENCE / 0.1)):
        if holds():
            return
        pause.wait(0.1)
    raise AssertionError("what the test waits for has not happened")


@pytest.mark.acceptance
def test_a_worker_whose_log_nobody_reads_works_times_out_and_stops(rota: Cli, tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(TALKATIVE)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ROTA_")}
    reader, log = os.pipe()
    try:
        worker = subprocess.Popen(
            [sys.executable, "-m", "rota.cli", "worker", "jobs.py", "--drain", "5"],
            cwd=tmp_path, env=inherited | rota.environment, stderr=log, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            until(lambda: rota.json("job", "list")["jobs"])
            talks = rota.json("job", "run", "talks")["run_id"]
            until(lambda: rota.json("run", "show", talks)["state"] == "succeeded")
            waits = rota.json("job", "run", "waits")["run_id"]
            until(lambda: rota.json("run", "show", waits)["state"] == "dead")
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(PATIENCE) == 0
        finally:
            worker.kill()
            worker.wait()
    finally:
        os.close(reader)
        os.close(log)
    [attempt] = rota.json("run", "show", waits)["attempts"]
    assert attempt["outcome"] == "timed_out"


def test_lines_are_dropped_when_nobody_reads_and_counted_when_somebody_does(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, end = os.pipe()
    with os.fdopen(end, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(sys, "__stderr__", stream)
        writer = LineWriter("{dropped} were dropped\n")
        for _ in range(2 * LINES_LIMIT):
            writer.write(
                "a line of a hundred characters, more or less, so that a pipe is full of them very soon indeed\n"
            )
        assert writer.dropped > 0
        os.set_blocking(reader, True)
        said = b""
        while b"were dropped" not in said:
            said += os.read(reader, 1 << 20)
        assert writer.drain(within=PATIENCE)
        monkeypatch.undo()
    os.close(reader)
    lines = said.decode().splitlines()
    assert lines[-1] == f"{writer.dropped} were dropped"
    assert len(lines) - 1 + writer.dropped == 2 * LINES_LIMIT
    writer.close()
