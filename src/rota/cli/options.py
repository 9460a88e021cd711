"""What all commands share: the options that may stand before or after the command, and how a command is run.

A command is a function, plain or async, whose first argument is the `Call`; `command` gives it the shared options and
lends it an event loop. It returns its exit code, or None for 0.
"""

import asyncio
import functools
import inspect
import os
import pwd
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, Final, ParamSpec

import typer

from rota.cli.addresses import check_address, reaching
from rota.cli.leaving import run_and_leave
from rota.cli.output import Output
from rota.cli.supervision import supervise
from rota.clock import SystemClock
from rota.domain.duration import parse_duration
from rota.domain.instants import parse_instant
from rota.domain.json_value import read_json
from rota.errors import InvalidInput
from rota.worker.line_writer import write_out

if TYPE_CHECKING:
    from rota.assembly import Rota
    from rota.settings import Settings
    from rota.wire.control import Control

P = ParamSpec("P")
Answer = int | None
Function = Callable[Concatenate["Call", P], Coroutine[Any, Any, Answer] | Answer]

DatabaseUrl = Annotated[
    str | None,
    typer.Option(help="postgresql://... of the primary (env: ROTA_DATABASE_URL)", show_default=False),
]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Data folder of the embedded server (env: ROTA_DATA_DIR; default: .rota)", show_default=False),
]
Tenant = Annotated[
    str | None, typer.Option(help="The tenant whose jobs are meant (env: ROTA_TENANT)", show_default=False)
]
Url = Annotated[
    str | None,
    typer.Option(help="https://... of a Rota API, in place of a database (env: ROTA_URL)", show_default=False),
]
Token = Annotated[
    str | None, typer.Option(help="The token for --url (better in the env: ROTA_TOKEN)", show_default=False)
]
LogLevel = Annotated[
    str | None,
    typer.Option(help="debug, info, warning or error, on stderr (env: ROTA_LOG_LEVEL)", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]

SHARED: Final[dict[str, Any]] = {
    "database_url": DatabaseUrl,
    "data_dir": DataDir,
    "tenant": Tenant,
    "log_level": LogLevel,
    "json": Json,
}
OVER_HTTP: Final[dict[str, Any]] = {"url": Url, "token": Token}
"""The options of commands that an API can answer as well as a database."""

ANSWER_TIME: Final = 10.0
"""Seconds that a command waits for an API's answer, with all its tries: people mistype addresses."""

LONGEST: Final = timedelta(days=36500)
"""The longest time that an option gives: a hundred years, so that every instant so far from now has a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The shared options as somebody gave them, before the command or after it."""

    database_url: str | None = None
    data_dir: Path | None = None
    url: str | None = None
    token: str | None = field(default=None, repr=False)
    tenant: str | None = None
    log_level: str | None = None
    json: bool = False

    def over(self, earlier: "Given") -> "Given":
        """Return both together; what stands after the command wins."""
        return Given(
            database_url=self.database_url or earlier.database_url,
            data_dir=self.data_dir or earlier.data_dir,
            url=self.url or earlier.url,
            token=self.token or earlier.token,
            tenant=self.tenant or earlier.tenant,
            log_level=self.log_level or earlier.log_level,
            json=self.json or earlier.json,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One run of one command. `began` is its start on the stopwatch of `clock`."""

    given: Given
    out: Output
    clock: SystemClock = field(default_factory=SystemClock)
    began: float = 0.0

    def settings(self, **chosen: Any) -> "Settings":
        """Return the settings: these options first, then the environment, then defaults. None chooses nothing.

        Raises InvalidInput naming the setting.
        """
        from pydantic import ValidationError

        from rota.settings import Settings

        given = self.given
        chosen |= {"data_dir": given.data_dir, "tenant": given.tenant, "log_level": given.log_level}
        chosen |= {"url": given.url, "token": given.token}
        values = {name: value for name, value in chosen.items() if value is not None}
        if given.database_url is not None or given.data_dir is not None:
            # A data folder that was named is meant, whatever database the environment names.
            values["database_url"] = given.database_url
            if given.url is not None:
                raise InvalidInput("url", "stands beside a database", hint="give one of them")
            values["url"] = None
        try:
            settings = Settings(**values)
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0]).lower()
            raise InvalidInput(name, f"{first['msg']}, not {first['input']!r}") from None
        if settings.url == "":
            settings = settings.model_copy(update={"url": None})
        url = settings.database_url
        if url:
            check_address(url)
        elif url is not None:
            settings = settings.model_copy(update={"database_url": None})
        return settings

    def logs(self, settings: "Settings", *, usual: str | None = None) -> None:
        """Send log events to standard error; `usual` is the level where nobody chose one."""
        from rota.cli import logs

        chosen = settings.log_level if usual is None or "log_level" in settings.model_fields_set else usual
        logs.configure(chosen, as_json=self.out.as_json or not sys.stderr.isatty())

    @asynccontextmanager
    async def opened(
        self, settings: "Settings | None" = None, *, migrating: bool | None = None
    ) -> AsyncIterator["Rota"]:
        """Yield the opened cluster; without settings, a short command's, which needs few connections.

        What a short command does is told to other processes; who stays does so by `keep_going`.
        """
        from rota.assembly import opened

        if self.given.url is not None:
            raise InvalidInput("url", "this command needs the database itself", hint="give --database-url")
        is_short = settings is None
        if settings is None:
            settings = self.settings().model_copy(update={"connections": 2, "reserved_connections": 1})
            self.logs(settings)
        async with AsyncExitStack() as stack:
            with reaching(settings.database_url):
                rota = await stack.enter_async_context(opened(settings, migrating=migrating))
            if is_short:
                await stack.enter_async_context(rota.hints.telling())
            yield rota

    @asynccontextmanager
    async def control(self, *, tenant_id: str | None = None) -> AsyncIterator["Control"]:
        """Yield what answers: the API at --url, or the services over the database. `tenant_id` comes before --tenant.

        At the database everybody who may reach it is an operator.
        """
        settings = self.settings()
        if settings.url is not None:
            from rota.client import Client

            self.logs(settings)
            # A tenant's token knows its tenant; only somebody who named another one asks for that.
            named = settings.tenant if "tenant" in settings.model_fields_set else None
            token = None if settings.token is None else settings.token.get_secret_value()
            client = Client(settings.url, token=token, tenant=tenant_id or named, timeout=ANSWER_TIME)
            try:
                yield client
            finally:
                await client.close()
            return
        if self.given.token is not None:
            raise InvalidInput("token", "is for an API, and none is named", hint="give --url, or set ROTA_URL")
        from rota.control.principal import operator

        async with self.opened() as rota:
            yield rota.control(operator(f"cli:{user_name()}", tenant_id or settings.tenant))

    @property
    def tenant_id(self) -> str:
        return self.settings().tenant


def command(
    group: typer.Typer,
    name: str,
    *,
    without: tuple[str, ...] = (),
    over_http: bool = False,
    panel: str | None = None,
    fast_loop: bool = False,
    supervised: bool = False,
) -> Callable[[Function[P]], Function[P]]:
    """Register a function as a command of the group, with the shared options except those that it is `without`.

    `over_http`: an API can answer it as well, so it takes --url and --token. `fast_loop` is for processes that go on
    for long, and may run handlers; a `supervised` one is started again when a handler has ended it.
    """
    known = SHARED | OVER_HTTP if over_http else SHARED
    shared = {option: kind for option, kind in known.items() if option not in without}

    def register(function: Function[P]) -> Function[P]:
        @functools.wraps(function)
        def run(context: typer.Context, **arguments: Any) -> int:
            given = Given(**{option: arguments.pop(option) for option in shared})
            earlier = context.find_root().obj
            given = given.over(earlier if isinstance(earlier, Given) else Given())
            clock = SystemClock()
            call = Call(given=given, out=Output(as_json=given.json), clock=clock, began=clock.monotonic())
            if supervised:
                drain = call.settings(drain_seconds=arguments.get("drain")).drain_seconds
                if (code := supervise(drain=drain)) is not None:
                    return code
            try:
                answer = function(call, **arguments)  # type: ignore[call-arg]  # Typer made them from the signature
                if isinstance(answer, Coroutine):
                    answer = _carry_out(answer, fast_loop=fast_loop)
            finally:
                write_out()
            return answer or 0

        _sign(run, function, shared)
        group.command(name, rich_help_panel=panel)(run)
        return function

    return register


def _carry_out(answer: Coroutine[Any, Any, Answer], *, fast_loop: bool) -> Answer:
    if not fast_loop:
        return asyncio.run(answer)
    import uvloop

    return run_and_leave(answer, uvloop.new_event_loop)


def _sign(run: Callable[..., int], function: Callable[..., Any], shared: dict[str, Any]) -> None:
    """Give the wrapper the signature that Typer reads: the function's own parameters, then the shared options."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    own = list(inspect.signature(function).parameters.values())[1:]
    context = inspect.Parameter("context", keyword, annotation=typer.Context)
    parameters = [context, *(parameter.replace(kind=keyword) for parameter in own)]
    for option, kind in shared.items():
        parameters.append(
            inspect.Parameter(option, keyword, default=False if option == "json" else None, annotation=kind)
        )
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what inspect looks for
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del run.__wrapped__  # type: ignore[attr-defined]  # its signature is not the one to read


def user_name() -> str:
    """Return the name of the operating system's user, or his number where nobody has given him a name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def instant_of(text: str | None, *, field: str) -> datetime | None:
    """Read an instant that an option gives. Raises InvalidInput."""
    return None if text is None else parse_instant(text, field=field)


def duration_of(text: str | None, *, field: str) -> timedelta | None:
    """Read a length of time that an option gives, such as "1h30m". Raises InvalidInput."""
    length = None if text is None else parse_duration(text, field=field)
    if length is not None and length > LONGEST:
        raise InvalidInput(field, f"{text!r} is too long", hint=f"give at most {LONGEST.days}d")
    return length


def object_of(text: str | None, *, field: str) -> dict[str, Any] | None:
    """Read a JSON object that an option gives. Raises InvalidInput."""
    if text is None:
        return None
    try:
        value = read_json(text)
    except InvalidInput as error:
        raise error.at(field) from None
    except (ValueError, RecursionError) as error:
        raise InvalidInput(field, f"is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidInput(field, "must be a JSON object", hint='such as \'{"key": "value"}\'')
    return value
