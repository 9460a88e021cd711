"""The part of the local control that is about freezes."""

from rota.control.answering import Answering
from rota.control.documents import document, documents
from rota.wire.freeze import FreezeDocument, FreezeList


class FreezeControl(Answering):
    """The freeze of the principal's tenant; an operator who speaks for himself freezes everything."""

    async def freeze(self, *, reason: str = "") -> FreezeDocument:
        tenant_id = self._tenant("jobs:write", or_operator=True)
        return document(
            FreezeDocument, await self._parts.freezes.freeze(tenant_id, reason=reason, actor=self._principal.actor)
        )

    async def unfreeze(self) -> FreezeDocument:
        tenant_id = self._tenant("jobs:write", or_operator=True)
        return document(FreezeDocument, await self._parts.freezes.unfreeze(tenant_id, actor=self._principal.actor))

    async def freezes(self) -> FreezeList:
        tenant_id = self._tenant("read", or_operator=True)
        found = await self._parts.freezes.holding(None if tenant_id == "*" else tenant_id)
        return FreezeList(freezes=documents(FreezeDocument, found))
