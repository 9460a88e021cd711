"""`rota api`: serves the HTTP API of the configured database, until SIGTERM or Ctrl-C."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from rota.cli.options import Call, command
from rota.cli.signals import StopSignals
from rota.errors import SetupFailed
from rota.extras import require

if TYPE_CHECKING:
    from rota.assembly import Rota


def register(app: typer.Typer) -> None:
    command(app, "api", without=("tenant",), panel="Run", fast_loop=True)(api)


async def api(
    call: Call,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on; 0 takes a free one.", min=0, max=65535)] = 8470,
) -> None:
    """Serve the HTTP API, and its documentation at /docs.

    It asks for tokens, so there must be one; TLS is for whatever stands in front of it.

    On SIGTERM or Ctrl-C it finishes the calls under way, and answers long polls at once.
    """
    import structlog

    require("rota api", "server")
    from rota.api.app import create_app
    from rota.api.binding import bind
    from rota.api.serving import serve
    from rota.services.loop import run_together

    settings = call.settings()
    call.logs(settings, usual="info")
    log = structlog.get_logger()
    stop, gone = asyncio.Event(), asyncio.Event()

    listener = bind(host, port)

    async def answer(rota: "Rota") -> None:
        app = create_app(rota, calls_per_second=settings.api_calls_per_second)
        try:
            await serve(app, listener, stop=stop, started=lambda url: log.info("api.started", url=url))
        finally:
            gone.set()

    with listener, StopSignals() as signals:
        async with call.opened(settings) as rota:
            if not await rota.access.has_tokens():
                raise SetupFailed(
                    "nobody has a token that holds, so nobody could ask this API", hint="make one: `rota token create`"
                )
            signals.then(stop.set)
            await run_together(answer(rota), rota.keep_going(gone))
    log.info("api.stopped")
