"""The part of the local control that is about flow: limits, and pools' settings."""

import math
from datetime import timedelta

from rota.control.answering import Answering
from rota.control.documents import document, documents, extended
from rota.domain.limit import Limit
from rota.errors import InvalidInput, NotFound
from rota.services.pools import PoolView
from rota.wire.limits import LimitDocument, LimitKind, LimitList, PoolDocument, PoolList


class FlowControl(Answering):
    """Limits of the principal's tenant, or the operator's own; and pools, which are the operator's."""

    async def put_limit(
        self, name: str, *, kind: LimitKind = "downstream", rate: float | None = None, burst: int | None = None,
        permits: int | None = None, if_version: int | None = None,
    ) -> LimitDocument:  # fmt: skip
        tenant_id = self._tenant("admin", or_operator=True)
        if kind == "tenant":
            # What holds a tenant down is not the tenant's to set.
            self._principal.require_operator()
        limit = Limit(name=name, tenant_id=tenant_id, kind=kind, rate=rate, burst=burst, permits=permits)
        put = await self._parts.limits.put(limit, if_version=if_version, actor=self._principal.actor)
        return document(LimitDocument, put)

    async def limits(self) -> LimitList:
        found = await self._parts.limits.list(tenant_id=self._tenant("read", or_operator=True))
        return LimitList(limits=documents(LimitDocument, found))

    async def get_limit(self, name: str) -> LimitDocument:
        found = await self._parts.limits.get(name, tenant_id=self._tenant("read", or_operator=True))
        return document(LimitDocument, found)

    async def delete_limit(self, name: str) -> None:
        tenant_id = self._tenant("admin", or_operator=True)
        found = await self._parts.limits.get(name, tenant_id=tenant_id)
        if found.tenant_id != tenant_id:
            raise NotFound(f"tenant {tenant_id!r} has no limit {name!r}", hint="this one is the operator's")
        if found.kind == "tenant":
            self._principal.require_operator()
        await self._parts.limits.delete(name, tenant_id=tenant_id, actor=self._principal.actor)

    async def pools(self) -> PoolList:
        self._principal.require("read")
        return PoolList(pools=tuple(_pool(view) for view in await self._parts.pools.list()))

    async def put_pool(
        self, pool: str, *, ageing: float | None = None, shed_above: int | None = None
    ) -> PoolDocument:  # fmt: skip
        self._principal.require("admin")
        self._principal.require_operator()
        put = await self._parts.pools.put(
            pool, ageing=_seconds(ageing), shed_above=shed_above, actor=self._principal.actor
        )  # fmt: skip
        return _pool(put)


def _pool(view: PoolView) -> PoolDocument:
    return extended(PoolDocument, view, ageing=view.ageing.total_seconds())


def _seconds(ageing: float | None) -> timedelta | None:
    if ageing is None:
        return None
    if isinstance(ageing, bool) or not isinstance(ageing, int | float) or not math.isfinite(ageing):
        raise InvalidInput("ageing", f"must be seconds as a number, not {ageing!r}")
    try:
        return timedelta(seconds=ageing)
    except OverflowError:
        raise InvalidInput("ageing", f"{ageing!r} is out of bounds") from None
