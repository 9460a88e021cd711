"""Where a worker's runs come from: a database, or an API. Either gives a worker all that it needs."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rota.domain.job import DEFAULT_TENANT
from rota.errors import Forbidden, NotFound

if TYPE_CHECKING:
    import asyncio

    from rota.assembly import Rota
    from rota.cli.options import Call
    from rota.clock import Clock
    from rota.domain.job import Job
    from rota.services.access import SigningKeys
    from rota.settings import Settings
    from rota.wire.access import SigningSecret
    from rota.wire.jobs import DeclareAnswer
    from rota.worker.desk import Desk
    from rota.worker.heart import Heart, Supervisor


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """A worker's desk, heart and clock, and what goes on beside it.

    `register` declares an app's jobs under its name. `keep_going` returns when its event is set.
    `secrets_of` returns a tenant's signing secrets, newest first. `tenant_id` is the one tenant whose runs there are;
    None: all.
    """

    desk: "Desk"
    heart: "Heart"
    clock: "Clock"
    register: "Callable[[Sequence[Job], str, str], Awaitable[DeclareAnswer]]"
    keep_going: "Callable[[asyncio.Event], Awaitable[None]]"
    secrets_of: Callable[[str], Awaitable[Sequence[str]]]
    tenant_id: str | None = None


@asynccontextmanager
async def workplace(
    call: "Call", settings: "Settings", *, supervisor: "Supervisor | None" = None
) -> AsyncIterator[Workplace]:
    """Yield the place that the settings name. Raises what opening it raises."""
    if settings.url is not None:
        async with _over_http(settings, supervisor) as place:
            yield place
    else:
        async with call.opened(settings) as rota:
            yield at_database(rota, supervisor=supervisor)


def at_database(rota: "Rota", *, supervisor: "Supervisor | None" = None) -> Workplace:
    """Return the workplace that an opened cluster is."""
    from rota.control.principal import operator
    from rota.worker.heart import ProcessHeart

    async def register(jobs: "Sequence[Job]", tenant_id: str, source: str) -> "DeclareAnswer":
        return await rota.control(operator(f"code:{source}", tenant_id)).declare_jobs(jobs, source=source)

    async def secrets_of(tenant_id: str) -> Sequence[str]:
        return _those_that_sign(await rota.access.signing_keys(tenant_id))

    return Workplace(
        desk=rota.desk(),
        heart=ProcessHeart(rota.dsn, supervisor=supervisor),
        clock=rota.clock,
        register=register,
        keep_going=rota.keep_going,
        secrets_of=secrets_of,
    )


@asynccontextmanager
async def _over_http(settings: "Settings", supervisor: "Supervisor | None" = None) -> AsyncIterator[Workplace]:
    """Yield the workplace behind an API, after a first answer: it says who this is, and what time it is there."""
    from rota.client import Client
    from rota.wire.jobs import DeclareAnswer
    from rota.worker.heart import ProcessHeart
    from rota.worker.rest import RestDesk

    assert settings.url is not None, "the caller has looked"
    token = None if settings.token is None else settings.token.get_secret_value()
    tenant = settings.tenant if "tenant" in settings.model_fields_set else None
    async with Client(settings.url, token, tenant=tenant) as client:
        me = await client.me()
        if not {"worker", "admin"} & set(me.scopes):
            held = ", ".join(me.scopes) or "none"
            raise Forbidden(f"the token has no scope worker, it has {held}", hint="ask for one that allows it")

        async def register(jobs: "Sequence[Job]", tenant_id: str, source: str) -> "DeclareAnswer":
            # An app that names no tenant is its token's.
            own = [job.edited(tenant_id=me.tenant_id) if job.tenant_id == DEFAULT_TENANT else job for job in jobs]
            try:
                return await client.declare_jobs(own, source=source)
            except NotFound:
                # An API of 0.1.0 knows no declarations, only puts.
                put = await client.put_jobs_in_parts(own)
                return DeclareAnswer(jobs=tuple(put), orphaned=(), more_orphaned=False)
            except Forbidden as error:
                raise Forbidden(
                    f"the app's jobs cannot be registered: {error}",
                    hint="give a token with jobs:write, or --no-register and put them by another",
                ) from error

        async def secrets_of(tenant_id: str) -> Sequence[str]:
            return _those_that_sign(await client.signing_secret(tenant=tenant_id if me.is_operator else None))

        async def keep_going(stop: "asyncio.Event") -> None:
            # The clock is measured with every answer, and there is always a next one.
            await stop.wait()

        yield Workplace(
            desk=RestDesk(client),
            heart=ProcessHeart(client.url, token=token, tenant=tenant, supervisor=supervisor),
            clock=client.server_clock,
            register=register,
            keep_going=keep_going,
            secrets_of=secrets_of,
            tenant_id=None if me.is_operator and tenant is None else me.tenant_id,
        )


def _those_that_sign(keys: "SigningKeys | SigningSecret") -> Sequence[str]:
    return (keys.secret,) if keys.former is None else (keys.secret, keys.former)
