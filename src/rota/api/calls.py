"""What every route shares: who calls, with which rights, and how a route is entered into the application.

A route states the scope that it needs; there is no way to add one that forgot to.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal, TypeVar

from fastapi import APIRouter, Depends, Path, Request
from fastapi.routing import APIRoute
from pydantic import AfterValidator, BaseModel
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from rota.api.body import BODY_LIMIT, read
from rota.api.cluster import Cluster
from rota.api.polls import until_gone
from rota.api.problems import documented
from rota.api.state import Api
from rota.control.principal import Principal
from rota.domain.job import NAME_LIMIT, check_name, check_text
from rota.errors import InvalidInput
from rota.wire.access import OPERATOR, Scope
from rota.wire.control import Control

T = TypeVar("T")

Needs = Scope | Literal["token", "nothing"]
"""A scope; any token that holds; or nothing at all, for routes that carry their own proof or tell no secrets."""

TEXT_LIMIT: Final = 1000
"""The most characters of a text in a query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call that was let in. `names_tenant`: an operator said for which tenant."""

    api: Api
    principal: Principal
    names_tenant: bool

    @property
    def cluster(self) -> Cluster:
        return self.api.cluster

    @property
    def control(self) -> Control:
        return self.cluster.control(self.principal)

    def about(self, tenant_id: str) -> Control:
        """Return the control of a tenant that the query names; empty: the caller's own. Raises Forbidden."""
        if tenant_id in ("", self.principal.tenant_id):
            return self.control
        self.principal.require_operator()
        check_name("tenant", tenant_id)
        return self.cluster.control(replace(self.principal, tenant_id=tenant_id))

    @property
    def works_for(self) -> str | None:
        """The tenant whose runs this caller's worker takes; None, an operator's that names none: those of all."""
        if self.principal.is_operator and (not self.names_tenant or self.principal.tenant_id == OPERATOR):
            return None
        return self.principal.tenant_id


def _call(request: Request) -> Call:
    call: Call = request.state.call
    return call


def _api(request: Request) -> Api:
    api: Api = request.app.state.api
    return api


Caller = Annotated[Call, Depends(_call)]
TheApi = Annotated[Api, Depends(_api)]


def _named(field: str) -> Callable[[str], str]:
    def checked(value: str) -> str:
        check_name(field, value)
        return value

    return checked


def _storable(value: str) -> str:
    check_text("query", value, limit=TEXT_LIMIT)
    return value


JobId = Annotated[
    str,
    AfterValidator(_named("job_id")),
    Path(description=f"Percent-encoded: at most {NAME_LIMIT} characters, any but control characters."),
]
WorkerId = Annotated[str, AfterValidator(_named("worker_id")), Path()]
TokenId = Annotated[str, AfterValidator(_named("token_id")), Path()]
LimitName = Annotated[str, AfterValidator(_named("name")), Path()]
PoolName = Annotated[str, AfterValidator(_named("pool")), Path()]
TenantId = Annotated[str, AfterValidator(_named("tenant_id")), Path()]
Text = Annotated[str, AfterValidator(_storable)]


def answer(document: BaseModel, *, status: int = 200, version: int | None = None) -> Response:
    """Return a document as a response; `version` becomes its ETag."""
    headers = {} if version is None else {"ETag": f'"{version}"'}
    # Straight from the document: what the services made needs no second look.
    return Response(document.model_dump_json(), status, headers=headers, media_type="application/json")


async def while_there(request: Request, work: Awaitable[T]) -> T:
    """Return what the work gives; it ends with the client. For work that may end at any time. Raises ClientDisconnect.

    The request's body must have been read.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(until_gone(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


class Route(APIRoute):
    """A route that lets the caller in, and reads the body, before anything else looks at the request."""

    needs: Needs
    body_limit: int = BODY_LIMIT
    in_hand: bool = False

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        respond = super().get_route_handler()

        async def handle(request: Request) -> Response:
            api, owner = _api(request), ""
            if self.needs != "nothing":
                principal = await api.gate.admit(request.headers, in_hand=self.in_hand)
                if self.needs != "token":
                    principal.require(self.needs)
                owner = principal.tenant_id
                names_tenant = "rota-tenant" in request.headers
                request.state.call = Call(api=api, principal=principal, names_tenant=names_tenant)
                api.note_uses()
            self._refuse_unknown(request)
            if self.methods == {"GET"}:
                # What is only read ends with its caller, in the database too.
                return await while_there(request, respond(request))
            if self.body_field is None:
                return await respond(request)
            with api.bodies.held_for(owner) as hold:
                return await respond(await read(request, api.bodies, owner=owner, limit=self.body_limit, hold=hold))

        return handle

    def _refuse_unknown(self, request: Request) -> None:
        """Refuse a misspelt query: a filter that nobody applies would answer with everything."""
        known = {parameter.alias for parameter in self.dependant.query_params}
        for name in request.query_params:
            if name not in known:
                raise InvalidInput(name[:TEXT_LIMIT], "is not asked for here", hint=_known(known))


def _known(names: set[str]) -> str:
    return f"known are {', '.join(sorted(names))}" if names else "there is no query here"


class Routes:
    """Enters routes into the application."""

    def __init__(self, router: APIRouter) -> None:
        self._router = router

    def add(
        self,
        method: str,
        path: str,
        endpoint: Callable[..., Any],
        *,
        needs: Needs,
        gives: type[BaseModel] | None,
        status: int = 200,
        also: dict[int | str, dict[str, Any]] | None = None,
        problems: tuple[int, ...] = (),
        body_limit: int = BODY_LIMIT,
        in_hand: bool = False,
        is_shown: bool = True,
    ) -> None:
        """Enter a route: the scope that it needs, the document that it gives, and how it may be refused besides.

        `in_hand`: it is about runs that the caller holds. `is_shown`: OpenAPI lists it.
        """
        general = (400, 422, 503) if needs == "nothing" else (400, 401, 403, 422, 429, 503)
        reads = (413, 415) if method in ("POST", "PUT", "PATCH") else ()
        self._router.add_api_route(
            path,
            endpoint,
            methods=[method],
            response_model=gives,
            status_code=status,
            responses={**documented(*general, *reads, *problems), **(also or {})},
            tags=[endpoint.__module__.rsplit(".", 1)[-1]],
            operation_id=endpoint.__name__,
            include_in_schema=is_shown,
            openapi_extra={} if needs == "nothing" else {"security": [{"token": []}], "x-rota-scope": needs},
            route_class_override=Route,
        )
        route = self._router.routes[-1]
        assert isinstance(route, Route)
        route.needs, route.body_limit, route.in_hand = needs, body_limit, in_hand
