"""Freezes: no new slots and no starts, until they are lifted."""

from starlette.responses import Response

from rota.api.calls import Caller, Routes, answer
from rota.wire.freeze import FreezeDocument, FreezeList, FreezeQuestion


def register(routes: Routes) -> None:
    routes.add("GET", "/v1/freeze", list_freezes, needs="read", gives=FreezeList)
    routes.add("PUT", "/v1/freeze", freeze, needs="jobs:write", gives=FreezeDocument)
    routes.add("DELETE", "/v1/freeze", unfreeze, needs="jobs:write", gives=FreezeDocument, problems=(404,))


async def freeze(call: Caller, question: FreezeQuestion | None = None) -> Response:
    """Make no new slots and start nothing of this tenant; of all, when an operator names none. What runs goes on."""
    return answer(await call.control.freeze(reason=(question or FreezeQuestion()).reason))


async def unfreeze(call: Caller) -> Response:
    """End the freeze: what it put off is due again, and misfire policies decide on what was missed."""
    return answer(await call.control.unfreeze())


async def list_freezes(call: Caller) -> Response:
    """Return the freezes that hold this tenant; an operator's: all."""
    return answer(await call.control.freezes())
