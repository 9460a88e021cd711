"""What the fleet of these tests runs. Each call leaves a line in the folder that the payload names."""

import asyncio
import os
import signal
import threading
from pathlib import Path

import rota

app = rota.App()


def note(run: rota.Run, word: str) -> None:
    """Append one line; a short write to a file opened for appending is whole."""
    line = f"{word} {run.job_id} {run.scheduled_for.isoformat()} {run.attempt} {os.getpid()}\n"
    with (Path(run.payload["folder"]) / "calls").open("a") as calls:
        calls.write(line)


@app.handler("note")
async def just_note(run: rota.Run) -> None:
    """Leave a line."""
    note(run, "call")


@app.handler("wait")
async def wait_for_file(run: rota.Run) -> None:
    """Leave a line, wait until the file `go` is there, leave another line."""
    note(run, "begin")
    go = Path(run.payload["folder"]) / "go"
    while not go.exists():
        await asyncio.wait({asyncio.ensure_future(run.lease_lost.wait_async())}, timeout=0.05)
    note(run, "end")


@app.handler("die-or-wait")
async def die_or_wait(run: rota.Run) -> None:
    """As `wait`; but a run that `dies` kills its process when six have begun."""
    if run.payload.get("dies"):
        note(run, "begin")
        calls = Path(run.payload["folder"]) / "calls"
        while calls.read_text().count("begin ") < 6:
            await asyncio.wait({asyncio.ensure_future(run.lease_lost.wait_async())}, timeout=0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    await wait_for_file(run)


@app.handler("hold")
async def hold_the_loop(run: rota.Run) -> None:
    """Leave a line, and never give the event loop back."""
    note(run, "hold")
    threading.Event().wait()
