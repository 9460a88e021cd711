"""awa by its Python SDK, 200 workers. Its handler writes a line per job: that is how its progress is counted."""

from dataclasses import dataclass
from typing import Any, Final

from awa import AsyncClient

from benchmarks.compare.inside.peer import (
    DSN,
    batches,
    for_ever,
    log_line,
    log_waited,
    main,
    pause,
    stopwatch,
    timed,
)

QUEUE: Final = "bench"


@dataclass
class Noop:
    """A job that does nothing."""


@dataclass
class Waited:
    """A job that says how long it waited."""

    sent_at: float


def client() -> Any:
    """Return a client; its driver wants a host in front, which the socket's folder then replaces."""
    return AsyncClient(DSN.replace("@/", "@localhost/", 1), max_connections=14)


async def setup() -> None:
    """Install its schema."""
    here = client()
    await here.migrate()
    await here.install_queue_storage()


async def one(count: str) -> None:
    """One job a call."""
    here = client()
    await timed(int(count), (here.insert(Noop(), queue=QUEUE) for _ in range(int(count))))


async def many(count: str) -> None:
    """By COPY."""
    here = client()
    await timed(
        int(count),
        (here.enqueue_many_copy([Noop() for _ in range(size)], queue=QUEUE) for size in batches(int(count))),
    )


async def send(count: str, gap: str) -> None:
    """One job every so often."""
    here = client()
    for _ in range(int(count)):
        await here.insert(Waited(stopwatch()), queue=QUEUE)
        await pause(float(gap))


async def noop(job: Any) -> None:
    """Do nothing but tell."""
    log_line("done")


async def waited(job: Any) -> None:
    """Say how long the job waited."""
    log_waited(job.args.sent_at)


async def work() -> None:
    """Run jobs for ever."""
    here = client()
    here.task(Noop, queue=QUEUE)(noop)
    here.task(Waited, queue=QUEUE)(waited)
    await here.start([(QUEUE, 200)])
    await for_ever()


if __name__ == "__main__":
    main({"setup": setup, "one": one, "many": many, "send": send, "work": work})
