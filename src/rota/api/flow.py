"""Flow control: limits, and pools' settings."""

from starlette.responses import Response

from rota.api.calls import Caller, LimitName, PoolName, Routes, answer
from rota.api.guard import Guard, version_meant
from rota.errors import NotFound
from rota.wire.limits import LimitDocument, LimitList, LimitQuestion, PoolDocument, PoolList, PoolQuestion


def register(routes: Routes) -> None:
    routes.add("GET", "/v1/limits", list_limits, needs="read", gives=LimitList)
    routes.add(
        "PUT", "/v1/limits/{name:segment}", put_limit, needs="admin", gives=LimitDocument, problems=(409, 412)
    )  # fmt: skip
    routes.add("GET", "/v1/limits/{name:segment}", get_limit, needs="read", gives=LimitDocument, problems=(404,))
    routes.add(
        "DELETE", "/v1/limits/{name:segment}", delete_limit, needs="admin", gives=None, status=204, problems=(404,)
    )
    routes.add("GET", "/v1/pools", list_pools, needs="read", gives=PoolList)
    routes.add("PUT", "/v1/pools/{pool:segment}", put_pool, needs="admin", gives=PoolDocument)


async def put_limit(
    call: Caller, name: LimitName, question: LimitQuestion, if_match: Guard = None, if_none_match: Guard = None
) -> Response:
    """Insert or replace a limit; it holds from the next claim on. The kind `tenant` is an operator's.

    `If-Match` with the ETag of what was read guards against lost updates; `If-None-Match: *` puts only a new limit.
    """

    async def standing() -> int:
        found = await call.control.get_limit(name)
        if found.tenant_id != call.principal.tenant_id:
            raise NotFound(f"there is no limit {name!r}")  # this one is the operator's
        return found.version

    version = await version_meant(f"limit {name!r}", if_match, if_none_match, standing=standing)
    put = await call.control.put_limit(
        name, kind=question.kind, rate=question.rate, burst=question.burst, permits=question.permits,
        if_version=version,
    )  # fmt: skip
    return answer(put, version=put.version)


async def get_limit(call: Caller, name: LimitName) -> Response:
    """Return one limit with its use, the tenant's own or else the operator's; its ETag is its version."""
    found = await call.control.get_limit(name)
    return answer(found, version=found.version)


async def list_limits(call: Caller) -> Response:
    """Return the limits that this tenant's runs may be under, by name, with their use."""
    return answer(await call.control.limits())


async def delete_limit(call: Caller, name: LimitName) -> Response:
    """Delete a limit. Runs that it held back may start at once."""
    await call.control.delete_limit(name)
    return Response(status_code=204)


async def list_pools(call: Caller) -> Response:
    """Return the pools with settings of their own."""
    return answer(await call.control.pools())


async def put_pool(call: Caller, pool: PoolName, question: PoolQuestion) -> Response:
    """Set a pool's ageing and how many runs may wait there; an operator's."""
    return answer(await call.control.put_pool(pool, ageing=question.ageing, shed_above=question.shed_above))
