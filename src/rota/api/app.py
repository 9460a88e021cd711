"""The API as one ASGI application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import structlog
from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute, Match

from rota.api import (
    access,
    bulk,
    claims,
    completions,
    docs,
    flow,
    freeze,
    jobs,
    leases,
    probes,
    runs,
    schedules,
    workers,
)
from rota.api.auth import LoopbackOnly, OpenTo
from rota.api.calls import Routes
from rota.api.cluster import Cluster
from rota.api.edge import Edge
from rota.api.limits import CALLS_PER_SECOND
from rota.api.metrics import Counted
from rota.api.paths import RawPaths
from rota.api.problems import (
    Malformed,
    MethodNotAllowed,
    UnsupportedMedia,
    invalid_request,
    problem_response,
    status_of,
)
from rota.api.state import Api
from rota.clock import Clock, SystemClock
from rota.errors import DatabaseUnavailable, Forbidden, NotFound, RotaError, TooLarge, Unauthorized

_log = structlog.get_logger(__name__)

RESOURCES = (bulk, freeze, jobs, schedules, runs, claims, leases, completions, workers, flow, access, probes)


def create_app(
    cluster: Cluster,
    *,
    open_to: OpenTo | None = None,
    calls_per_second: float = CALLS_PER_SECOND,
    stopwatch: Clock | None = None,
) -> FastAPI:
    """Return the API of an opened cluster.

    `open_to="loopback"` lets everybody at this machine act as the operator, without a token; bind it to a loopback
    address only. `calls_per_second` is the rate of a tenant without a quota of its own. `stopwatch` times batches and
    metrics, where the cluster's clock is a test's.
    """
    measure = stopwatch or SystemClock()
    api = Api(cluster, open_to=open_to, calls_per_second=calls_per_second, stopwatch=measure)

    @asynccontextmanager
    async def living(app: FastAPI) -> AsyncIterator[None]:
        yield
        await api.close()

    app = docs.DescribedAPI(
        title="Rota", docs_url=None, redoc_url=None, redirect_slashes=False, lifespan=living,
        exception_handlers={
            RotaError: _refused,
            RequestValidationError: _invalid,
            HTTPException: _http_error,
        },
    )  # fmt: skip
    app.state.api = api
    app.router.routes.extend(_routes())
    docs.register(app)
    # The last one added is the outermost.
    app.add_middleware(Counted, metrics=api.metrics, stopwatch=measure)
    app.add_middleware(RawPaths)
    if open_to is not None:
        app.add_middleware(LoopbackOnly)
    app.add_middleware(Edge, clock=cluster.clock)
    return app


@cache
def _routes() -> tuple[BaseRoute, ...]:
    """Return the routes of all resources: the same ones for every cluster, since a request names its application."""
    router = APIRouter()
    routes = Routes(router)
    for resource in RESOURCES:
        resource.register(routes)
    return tuple(router.routes)


async def _refused(request: Request, error: Any) -> Response:
    if isinstance(error, DatabaseUnavailable):
        _log.info("api.unavailable", method=request.method, path=request.url.path[:200], error=str(error))
    return problem_response(error, status=status_of(error, asked_with=request.headers))


async def _invalid(request: Request, error: Any) -> Response:
    return problem_response(invalid_request(error))


async def _http_error(request: Request, error: Any) -> Response:
    """Answer for what the framework refuses by itself: unknown paths and methods."""
    if error.status_code == 405:
        allowed = _methods(request)
        refusal = MethodNotAllowed(f"{request.method} is not known here", hint=f"known are {', '.join(allowed)}")
        return problem_response(refusal, headers={"Allow": ", ".join(allowed)})
    kinds: dict[int, RotaError] = {
        400: Malformed("request", "cannot be read"),
        401: Unauthorized(str(error.detail)),
        403: Forbidden(str(error.detail)),
        413: TooLarge("body", "is too large"),
        415: UnsupportedMedia(str(error.detail)),
    }
    return problem_response(
        kinds.get(error.status_code, NotFound("there is nothing under this path", hint="see /docs"))
    )


def _methods(request: Request) -> list[str]:
    """Return every method that the path knows, whichever of its routes was looked at."""
    found = set[str]()
    for route in request.app.routes:
        if route.matches(request.scope)[0] is not Match.NONE:
            found |= getattr(route, "methods", None) or set()
    return sorted(found)
