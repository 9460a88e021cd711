"""`rota dev`: all of Rota in one process, on a database of its own, with a view of what happens."""

import asyncio
import fcntl
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rota.cli.options import Call, command
from rota.cli.processes import Concurrency, Drain, load, make_worker
from rota.cli.signals import StopSignals
from rota.cli.workplace import at_database
from rota.errors import SetupFailed
from rota.extras import require

if TYPE_CHECKING:
    from fastapi import FastAPI

    from rota.app import App
    from rota.assembly import Rota
    from rota.cli.board import Board
    from rota.cli.declaring import Declaration
    from rota.cli.faces import Face
    from rota.settings import Settings
    from rota.worker.events import RunEvent
    from rota.worker.worker import Worker

LOOPBACK: Final = "127.0.0.1"
PORT: Final = 8470
"""Where the API of `rota dev` and `rota api` listens when nobody chooses."""
SAMPLES: Final = "rota.cli.samples:app"
STAND_BACK: Final = "the samples stand back while `rota dev` runs an app"
"""Why samples are paused; only those that say so are resumed."""


def register(app: typer.Typer) -> None:
    command(app, "dev", without=("tenant",), panel="Run", fast_loop=True)(dev)


async def dev(
    call: Call,
    target: Annotated[
        str | None,
        typer.Argument(metavar="FILE|MODULE:app", help="Where the app is. (default: sample jobs)", show_default=False),
    ] = None,
    concurrency: Concurrency = None,
    drain: Drain = None,
    port: Annotated[
        int | None,
        typer.Option(
            help="Where the API listens, on this machine only. (default: 8470, or a free one)", min=0, max=65535
        ),
    ] = None,
) -> None:
    """Run all of Rota in one process: database, scheduler, reaper, API and a worker for the app's jobs.

    Ctrl-C ends it within the drain time, a second one at once. The data stays, and the next start goes on with it.
    """
    from rota.cli.declaring import Declaration, name_of

    require("rota dev", "server", "worker")
    settings = call.settings(concurrency=concurrency, drain_seconds=drain)
    call.logs(settings)
    place = target or SAMPLES
    app = load(place)
    with _listener(port) as listener, _named(settings) as name, StopSignals() as signals:
        async with call.opened(settings, migrating=True) as rota:
            declaration = Declaration(at_database(rota).register, rota.clock, app, source=name_of(app, place))
            later = None if await declaration.make() else declaration
            await _arrange_samples(rota, wanted=target is None)
            with _face(call, rota, settings, app) as (board, face):
                show = _Show(call, board, face)
                workers = [
                    make_worker(
                        at_database(rota),
                        settings,
                        app.handlers,
                        pool=pool,
                        target=place,
                        allow_http=True,
                        on_event=show.on_event,
                    )
                    for pool in _pools(app)
                ]
                await _run(rota, signals, workers, show, listener, name=name, later=later)


async def _run(
    rota: "Rota",
    signals: StopSignals,
    workers: "Sequence[Worker]",
    show: "_Show",
    listener: socket.socket,
    *,
    name: str,
    later: "Declaration | None",
) -> None:
    """Run until a signal; the scheduler stops at once, and what workers need stays until they are done.

    `later` is what could not be declared yet.
    """
    stop, gone = asyncio.Event(), asyncio.Event()

    def end() -> None:
        show.face.stopping(at_once=stop.is_set())
        stop.set()
        for worker in workers:
            worker.request_stop()

    process = rota.scheduler_process(name)
    signals.then(end)
    async with asyncio.TaskGroup() as group:
        group.create_task(process.run(stop))
        group.create_task(rota.keep_going(gone))
        group.create_task(show.face.run(gone))
        if later is not None:
            group.create_task(later.make_later(gone))
        working = [group.create_task(worker.run()) for worker in workers]
        group.create_task(_answer(rota, gone, show, listener))
        show.started()
        await asyncio.wait(working)
        stop.set()
        gone.set()
    show.face.stopped()


async def _answer(rota: "Rota", gone: asyncio.Event, show: "_Show", listener: socket.socket) -> None:
    """Serve the API on this machine alone, without tokens."""
    # What it needs takes a while to import, and the first run does not wait for it.
    create_app, serve = await asyncio.to_thread(_api)
    await serve(create_app(rota, open_to="loopback"), listener, stop=gone, started=show.face.serving)


def _listener(port: int | None) -> socket.socket:
    """Listen on this machine alone, before anything runs. A port that was not chosen gives way to a free one."""
    from rota.api.binding import bind

    if port is not None:
        return bind(LOOPBACK, port, hint="choose another --port, or none for a free one")
    try:
        return bind(LOOPBACK, PORT)
    except SetupFailed:
        return bind(LOOPBACK, 0)


@contextmanager
def _named(settings: "Settings") -> Iterator[str]:
    """Lend the scheduler's name: of the first `rota dev` on a data folder "dev", of others their process's own.

    One name on its own data: after a kill the next start takes over the shards of the one before at once. Two of that
    name at a time would take them from each other.
    """
    if settings.database_url is not None:
        yield settings.name
        return
    from rota.store.embedded.folders import make_home

    make_home(settings.data_dir)
    with (settings.data_dir / "dev.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield settings.name
        else:
            yield "dev"


def _api() -> "tuple[Callable[..., FastAPI], Callable[..., Coroutine[Any, Any, None]]]":
    from rota.api.app import create_app
    from rota.api.serving import serve

    return create_app, serve


class _Show:
    """Passes a worker's events to the board and the face."""

    def __init__(self, call: Call, board: "Board", face: "Face") -> None:
        self.face = face
        self._call = call
        self._board = board
        self._has_run = False

    def started(self) -> None:
        self.face.started(self._seconds())

    def on_event(self, event: "RunEvent") -> None:
        line = self._board.take(event)
        self.face.attempt(line)
        if not self._has_run and line.state == "succeeded":
            self._has_run = True
            self.face.first_run(self._seconds())

    def _seconds(self) -> float:
        return self._call.clock.monotonic() - self._call.began


@contextmanager
def _face(call: Call, rota: "Rota", settings: "Settings", app: "App") -> "Iterator[tuple[Board, Face]]":
    from rota.cli.board import Board
    from rota.cli.event_lines import EventLines, stream_apart
    from rota.cli.faces import Place
    from rota.cli.live_table import LiveTable
    from rota.worker.ending import mask_secrets

    where = str(settings.data_dir.resolve()) if settings.database_url is None else mask_secrets(settings.database_url)
    place = Place(data=where, drain_seconds=settings.drain_seconds, jobs=len(app.jobs))
    board = Board(since=rota.clock.now())
    as_json = call.out.as_json
    if sys.stdout.isatty() and not as_json:
        yield board, LiveTable(board, place, rota.clock)
        return
    with stream_apart(as_json) as stream:
        yield board, EventLines(board, place, rota.clock, as_json=as_json, stream=stream)


def _pools(app: "App") -> list[str]:
    """Return the pools of the app's jobs: somebody must serve each of them, and here is nobody else."""
    return sorted({app.pool, *(job.pool for job in app.jobs.values())})


async def _arrange_samples(rota: "Rota", *, wanted: bool) -> None:
    """Pause samples that an earlier start left behind, whose handlers nobody knows now; or let them run again."""
    from rota.cli.samples import LABEL, app

    for stored in await rota.definitions.page(tenant_id=app.tenant_id, prefix="sample-"):
        if stored.job is None or LABEL not in stored.job.labels:
            continue
        if not wanted and stored.state == "active":
            await rota.definitions.pause(stored.job_id, tenant_id=app.tenant_id, reason=STAND_BACK)
        elif wanted and stored.pause_reason == STAND_BACK:
            await rota.definitions.resume(stored.job_id, tenant_id=app.tenant_id, missed="drop")
