"""The part of the client that is about freezes."""

from rota.client.caller import Caller, asked
from rota.wire.freeze import FreezeDocument, FreezeList, FreezeQuestion


class FreezeCalls(Caller):
    """Calls about the freeze of the token's tenant; an operator's with the tenant * is about all."""

    async def freeze(self, *, reason: str = "") -> FreezeDocument:
        """Make no new slots and start nothing until unfrozen; what runs goes on. Raises InvalidInput."""
        return await self._call(
            "PUT", "/v1/freeze", question=asked(FreezeQuestion, reason=reason), answer=FreezeDocument
        )  # fmt: skip

    async def unfreeze(self) -> FreezeDocument:
        """End the freeze. Raises NotFound, also when a lost answer made it ask again."""
        return await self._call("DELETE", "/v1/freeze", answer=FreezeDocument)

    async def freezes(self) -> FreezeList:
        """Return the freezes that hold this tenant; an operator's: all."""
        return await self._call("GET", "/v1/freeze", answer=FreezeList)
