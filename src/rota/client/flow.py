"""What people ask of the flow: limits, and pools' settings."""

from rota.client.address import segment
from rota.client.caller import Caller, asked, guarded
from rota.wire.document import Document
from rota.wire.limits import LimitDocument, LimitKind, LimitList, LimitQuestion, PoolDocument, PoolList, PoolQuestion


class FlowCalls(Caller):
    """The calls about limits and pools."""

    async def put_limit(
        self,
        name: str,
        *,
        kind: LimitKind = "downstream",
        rate: float | None = None,
        burst: int | None = None,
        permits: int | None = None,
        if_version: int | None = None,
    ) -> LimitDocument:
        """Insert or replace a limit: tokens a second, permits, or both; `if_version` 0 is for a new one.

        Raises InvalidInput, VersionConflict, QuotaExceeded.
        """
        return await self._call(
            "PUT",
            _limit(name),
            question=asked(LimitQuestion, kind=kind, rate=rate, burst=burst, permits=permits),
            headers=guarded(if_version),
            answer=LimitDocument,
            repeatable=if_version is None,
        )

    async def limits(self) -> LimitList:
        """Return the limits that this tenant's runs may be under, with their use."""
        return await self._call("GET", "/v1/limits", answer=LimitList)

    async def get_limit(self, name: str) -> LimitDocument:
        """Return one limit, this tenant's own or else the operator's. Raises NotFound, InvalidInput."""
        return await self._call("GET", _limit(name), answer=LimitDocument)

    async def delete_limit(self, name: str) -> None:
        """Delete a limit. Raises NotFound, also when a lost answer made it ask again, and InvalidInput."""
        await self._call("DELETE", _limit(name), answer=Document)

    async def pools(self) -> PoolList:
        """Return the pools with settings of their own."""
        return await self._call("GET", "/v1/pools", answer=PoolList)

    async def put_pool(
        self, pool: str, *, ageing: float | None = None, shed_above: int | None = None
    ) -> PoolDocument:  # fmt: skip
        """Set a pool's ageing in seconds and how many runs may wait. An operator's: raises Forbidden, InvalidInput."""
        question = asked(PoolQuestion, ageing=ageing, shed_above=shed_above)
        return await self._call("PUT", f"/v1/pools/{segment('pool', pool)}", question=question, answer=PoolDocument)


def _limit(name: str) -> str:
    return f"/v1/limits/{segment('name', name)}"
