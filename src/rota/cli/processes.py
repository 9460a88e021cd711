"""`rota scheduler` and `rota worker`: the two processes of an installation, each until SIGTERM or Ctrl-C."""

import asyncio
import gc
import logging
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final
from uuid import uuid4

import typer

from rota.cli.options import Call, command
from rota.cli.signals import StopSignals
from rota.cli.supervision import Ties, ties
from rota.domain.job import DEFAULT_TENANT, check_name
from rota.errors import InvalidInput, SetupFailed
from rota.extras import require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rota.app import App
    from rota.cli.workplace import Workplace
    from rota.settings import Settings
    from rota.worker.events import RunEvent
    from rota.worker.handlers import HandlerRegistry
    from rota.worker.http_target import HttpHandler
    from rota.worker.worker import Worker

USUAL_LEVEL: Final = "info"

Name = Annotated[str | None, typer.Option(help="The process's name. (env: ROTA_NAME; default: host and process id)")]
Concurrency = Annotated[
    int | None, typer.Option(help="Runs at once. (env: ROTA_CONCURRENCY; default: 20)", show_default=False)
]
Drain = Annotated[
    float | None,
    typer.Option(
        help="Seconds from the request to end to the end, all in all. (env: ROTA_DRAIN_SECONDS; default: 20)",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    command(app, "scheduler", without=("tenant",), panel="Run", fast_loop=True)(scheduler)
    command(app, "worker", without=("tenant",), over_http=True, panel="Run", fast_loop=True, supervised=True)(worker)


async def scheduler(call: Call, name: Name = None) -> None:
    """Make runs of due slots and reap lost leases; start as many as you like, they share the work."""
    import structlog

    from rota.services.loop import run_together

    settings = call.settings(name=name)
    call.logs(settings, usual=USUAL_LEVEL)
    log = structlog.get_logger()
    stop = asyncio.Event()
    with StopSignals() as signals:
        async with call.opened(settings) as rota:
            process = rota.scheduler_process()
            signals.then(stop.set)
            log.info("scheduler.started", name=settings.name)
            await run_together(process.run(stop), rota.keep_going(stop))
    log.info("scheduler.stopped", name=settings.name)


async def worker(
    call: Call,
    target: Annotated[
        str | None, typer.Argument(metavar="MODULE:app|FILE", help="Where the app is.", show_default=False)
    ] = None,
    pool: Annotated[
        str | None, typer.Option(help="The pool to serve. (env: ROTA_POOL; default: the app's)", show_default=False)
    ] = None,
    concurrency: Concurrency = None,
    drain: Drain = None,
    allow_shell: Annotated[
        str | None,
        typer.Option(metavar="TENANT", help="Run shell jobs too, and nobody's but this tenant's.", show_default=False),
    ] = None,
    shell_user: Annotated[
        str | None,
        typer.Option(metavar="USER", help="As whom shell jobs run. (default: this user)", show_default=False),
    ] = None,
    allow_http: Annotated[bool, typer.Option("--allow-http", help="Call HTTP targets too.")] = False,
    no_register: Annotated[bool, typer.Option("--no-register", help="Leave the app's jobs as they stand.")] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(help="Show metrics at this port. (env: ROTA_METRICS_PORT)", show_default=False, min=0, max=65535),
    ] = None,
    metrics_host: Annotated[
        str | None,
        typer.Option(help="And at this address. (env: ROTA_METRICS_HOST; default: 127.0.0.1)", show_default=False),
    ] = None,
    name: Name = None,
) -> None:
    """Register an app's jobs and run their handlers; if allowed, shell jobs and calls of HTTP targets too.

    With --url it needs no database: an API gives it runs.

    SIGTERM or Ctrl-C: takes nothing new, and ends when its runs have, within the drain time; what runs then is given
    back. Again: ends at once. A worker that a handler has ended is started again.
    """
    import structlog

    from rota.cli.declaring import Declaration, name_of
    from rota.cli.workplace import workplace
    from rota.services.loop import run_together
    from rota.worker.concealment import conceal, forget_credentials
    from rota.worker.handlers import HandlerRegistry
    from rota.worker.heart import Supervisor

    if target is None and not (allow_shell or allow_http):
        raise InvalidInput(
            "target",
            "is missing",
            hint="give MODULE:app or FILE, or --allow-shell TENANT or --allow-http for jobs without code",
        )
    if allow_http:
        require("--allow-http", "worker")
    _check_shell(allow_shell, shell_user)
    settings = call.settings(
        name=name, pool=pool, concurrency=concurrency, drain_seconds=drain, metrics_port=metrics_port,
        metrics_host=metrics_host, **({} if allow_shell is None else {"tenant": allow_shell}),
    )  # fmt: skip
    call.logs(settings, usual=USUAL_LEVEL)
    if allow_shell is not None:
        forget_credentials()
        if not conceal():
            structlog.get_logger().warning("shell.unconcealed", hint="commands may look into it: give --shell-user")
    log = structlog.get_logger()
    app = load(target) if target is not None else None
    # Over HTTP an app that names no tenant is the token's.
    its_own = None if app is None or (settings.url and app.tenant_id == DEFAULT_TENANT) else app.tenant_id
    if allow_shell is not None and its_own not in (None, allow_shell):
        raise InvalidInput("allow-shell", f"names {allow_shell!r}, and the app's tenant is {its_own!r}")
    served = app.pool if app is not None and "pool" not in settings.model_fields_set else settings.pool
    gone = asyncio.Event()
    tied = ties()
    supervisor = None if tied is None else Supervisor(pid=tied.supervisor, parting=tied.parting)
    with _counted(settings, pool=served) as on_event, StopSignals() as signals:
        async with workplace(call, settings, supervisor=supervisor) as place:
            beside = [place.keep_going(gone)]
            if app is not None and not no_register:
                declaration = Declaration(place.register, place.clock, app, source=name_of(app, target))
                if not await declaration.make():
                    beside.append(declaration.make_later(gone))
            registry = app.handlers if app is not None else HandlerRegistry()
            working = make_worker(
                place, settings, registry, pool=served, target=target, shell_of=allow_shell, shell_user=shell_user,
                allow_http=allow_http, on_event=on_event,
            )  # fmt: skip
            _obey(signals, working, tied)
            info = working.info
            # What was made until now stays: to look through it again and again would cost a busy worker a tenth.
            gc.freeze()
            log.info("worker.started", name=info.worker_id, pool=info.pool, handlers=sorted(info.handlers))
            await run_together(_until_gone(working, gone), *beside)
    log.info(
        "worker.stopped", name=settings.name, **{str(outcome): count for outcome, count in working.stats.ended.items()}
    )


def _check_shell(tenant_id: str | None, user: str | None) -> None:
    """Refuse shell jobs of nobody in particular: whoever puts them may do what their user may."""
    if tenant_id is None:
        if user is not None:
            raise InvalidInput("shell-user", "stands alone", hint="it is for --allow-shell TENANT")
        return
    if tenant_id.startswith("-"):
        raise InvalidInput("allow-shell", "names no tenant", hint=f"such as --allow-shell {DEFAULT_TENANT}")
    check_name("allow-shell", tenant_id)


@contextmanager
def _counted(settings: "Settings", *, pool: str) -> "Iterator[Callable[[RunEvent], None]]":
    """Yield what takes a worker's events: it logs them and, if that is wanted, counts them where they can be read."""
    log_ended = _log_ended()
    if settings.metrics_port is None:
        yield log_ended
        return
    import structlog

    require("--metrics-port", "worker")
    from rota.api.binding import bind
    from rota.worker.metrics import WorkerMetrics, shown

    metrics = WorkerMetrics(pool=pool)

    def take(event: "RunEvent") -> None:
        metrics.take(event)
        log_ended(event)

    hint = "choose another --metrics-host or --metrics-port"
    with bind(settings.metrics_host, settings.metrics_port, hint=hint) as listener:
        host, port = listener.getsockname()[:2]
        with shown(metrics.registry, listener):
            structlog.get_logger().info(
                "worker.metrics", url=f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"
            )
            yield take


def _log_ended() -> "Callable[[RunEvent], None]":
    """Return what logs each attempt that ended: what ran, how it ended, how long it took, the error's first line."""
    import structlog

    from rota.cli.output import summary
    from rota.domain.attempt import Outcome

    log = structlog.get_logger().bind()
    troubles = (Outcome.FAILED, Outcome.TIMED_OUT, Outcome.GAVE_UP, Outcome.LOST)
    # Most attempts succeed, in some places thousands a second: of those only what is logged is made into texts.
    is_told = log.is_enabled_for(logging.INFO)

    def take(event: "RunEvent") -> None:
        if event.outcome is None or not (is_told or event.outcome in troubles):
            return
        facts: dict[str, object] = {
            "run_id": str(event.claim.run_id), "job": event.claim.job_id, "handler": event.claim.handler,
            "attempt": event.claim.attempt, "outcome": str(event.outcome),
        }  # fmt: skip
        if event.started_at is not None and event.ended_at is not None:
            facts["seconds"] = round((event.ended_at - event.started_at).total_seconds(), 3)
        if event.outcome in troubles:
            log.warning("attempt.ended", **facts, error=summary(event.error))
        else:
            log.info("attempt.ended", **facts)

    return take


def _obey(signals: StopSignals, working: "Worker", tied: Ties | None) -> None:
    """Stop at signals. With a supervisor they may come twice, to both of us: it is the one that counts them."""
    if tied is None:
        signals.then(working.request_stop)
        return
    parting = tied.parting

    def part() -> None:
        word = os.read(parting, 1)
        if not word:
            asyncio.get_running_loop().remove_reader(parting)
        working.request_drain()
        if word:
            working.request_stop()

    signals.then(working.request_drain)
    asyncio.get_running_loop().add_reader(parting, part)


async def _until_gone(working: "Worker", gone: asyncio.Event) -> None:
    try:
        await working.run()
    finally:
        gone.set()


def load(target: str) -> "App":
    """Return the app that a target names. Raises SetupFailed."""
    from rota.app import App
    from rota.worker.loading import load_app

    app = load_app(target)
    if not isinstance(app, App):
        raise SetupFailed(f"what {target} names is not a rota.App", hint="write `app = rota.App()` at its top level")
    return app


def make_worker(
    place: "Workplace",
    settings: "Settings",
    registry: "HandlerRegistry",
    *,
    pool: str,
    target: str | None,
    shell_of: str | None = None,
    shell_user: str | None = None,
    allow_http: bool = False,
    on_event: "Callable[[RunEvent], None] | None" = None,
) -> "Worker":
    """Return a worker in this process, with a heart of its own; `shell_of` is the tenant whose commands it runs."""
    from rota.worker.desk import WorkerInfo
    from rota.worker.worker import Worker

    info = WorkerInfo(
        worker_id=settings.name,
        instance=uuid4(),
        pool=pool,
        handlers=registry.names,
        concurrency=settings.concurrency,
        tenant_id=shell_of or place.tenant_id,
    )
    return Worker(
        place.desk,
        registry,
        info,
        place.clock,
        place.heart,
        drain_time=settings.drain_time,
        target=target,
        allow_shell=shell_of is not None,
        shell_user=shell_user,
        http=_http_targets(place, settings) if allow_http else None,
        on_event=on_event,
    )


def _http_targets(place: "Workplace", settings: "Settings") -> "HttpHandler":
    from rota.domain.addresses import Allowed
    from rota.worker.http_target import HttpHandler

    return HttpHandler(
        secrets=place.secrets_of,
        clock=place.clock,
        allowed=Allowed.parse(settings.http_allow or ""),
        public_url=settings.public_url,
    )
