"""The app that Rota's workers run: a no-op, a job that says how long it waited, and BENCH_JOBS recurring ones."""

import os

from benchmarks.compare.inside.peer import log_fired, log_waited
from rota import App, Run, every

app = App()


@app.job("noop", max_attempts=1)
async def noop() -> None:
    """Do nothing."""


@app.job("waited")
async def waited(run: Run) -> None:
    """Say how long the run waited."""
    log_waited(float(run.payload["sent_at"]))


async def fired(run: Run) -> None:
    """Say when the slot's run started."""
    log_fired(run.job_id, run.scheduled_for.timestamp())


for number in range(int(os.environ.get("BENCH_JOBS", "0"))):
    app.job(f"every-{number}", schedule=every("1s"))(fired)
