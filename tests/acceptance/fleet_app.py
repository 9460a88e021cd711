"""What the fleet of these tests runs. Each call leaves a line in the folder that the payload names."""

import asyncio
import os
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
