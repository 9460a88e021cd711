"""The freeze: no new slots and no starts, of one tenant or everywhere, until it is lifted.

Nothing is rewritten when it begins: the claim passes frozen tenants by, and a schedule whose slot comes due is put off
as the scheduler meets it. Its end brings back just those, and their misfire policies decide what they missed.
"""

from typing import Final

import structlog

from rota.clock import Clock
from rota.domain.instants import format_instant
from rota.domain.job import check_text
from rota.errors import NotFound
from rota.services.hints import SCHEDULES, Hints
from rota.services.patience import Patience
from rota.store import audit
from rota.store import freeze as store
from rota.store.audit import SYSTEM, Change
from rota.store.database import Database, Lane
from rota.store.freeze import FreezeView

EVERYWHERE: Final = "*"
REASON_LIMIT: Final = 1000
BACK_BATCH: Final = 1000
"""The most schedules that one step brings back."""
SHOWN: Final = 1000

log = structlog.get_logger()


class Freezes:
    """Freezes of all tenants; each change is in the audit log."""

    def __init__(self, database: Database, clock: Clock, hints: Hints) -> None:
        self._database = database.on(Lane.CALLS)
        self._work = database
        self._patience = Patience()
        self._clock = clock
        self._hints = hints

    async def freeze(self, tenant_id: str, *, reason: str, actor: str = SYSTEM) -> FreezeView:
        """Freeze a tenant, or with EVERYWHERE all. Once more, it gets the new reason. Raises InvalidInput."""
        check_text("reason", reason, limit=REASON_LIMIT)
        view = await self._patience.ask(
            lambda: self._freeze(tenant_id, reason=reason, actor=actor), what=_named(tenant_id), turn=tenant_id
        )
        log.warning("tenant.frozen", tenant_id=tenant_id, reason=reason, actor=actor)
        return view

    async def _freeze(self, tenant_id: str, *, reason: str, actor: str) -> FreezeView:
        now = self._clock.now()
        async with self._database.transaction() as tx:
            view = await store.put(tx, tenant_id, reason=reason, actor=actor, now=now)
            change = Change(tenant_id=tenant_id, action="tenant.frozen", subject=tenant_id, after={"reason": reason})
            await audit.note(tx, [change], actor=actor, now=now)
        return view

    async def unfreeze(self, tenant_id: str, *, actor: str = SYSTEM) -> FreezeView:
        """End a freeze: what it put off is due again within about a second. Raises NotFound."""
        view = await self._patience.ask(
            lambda: self._unfreeze(tenant_id, actor=actor), what=_named(tenant_id), turn=tenant_id
        )
        log.warning("tenant.unfrozen", tenant_id=tenant_id, actor=actor)
        self._hints.publish(SCHEDULES)
        return view

    async def _unfreeze(self, tenant_id: str, *, actor: str) -> FreezeView:
        now = self._clock.now()
        async with self._database.transaction() as tx:
            view = await store.lift(tx, tenant_id, now=now)
            if view is None:
                what = "nothing is frozen everywhere" if tenant_id == EVERYWHERE else f"{tenant_id!r} is not frozen"
                raise NotFound(what, hint="`rota freeze --show` tells what is")
            before = {"reason": view.reason, "since": format_instant(view.frozen_at)}
            change = Change(tenant_id=tenant_id, action="tenant.unfrozen", subject=tenant_id, before=before)
            await audit.note(tx, [change], actor=actor, now=now)
        return view

    async def holding(self, tenant_id: str | None) -> list[FreezeView]:
        """Return the freezes that hold a tenant; None: all."""
        return await store.holding(self._database, tenant_id, limit=SHOWN)

    async def bring_back(self) -> bool:
        """Let a batch of what freezes that are over have put off be due again. True: there may be more."""
        more = False
        for tenant_id in await store.lifted(self._work, limit=SHOWN):
            back = await store.bring_back(self._work, tenant_id, limit=BACK_BATCH)
            if back:
                self._hints.publish(SCHEDULES)
            more |= back == BACK_BATCH
            if back < BACK_BATCH and await store.forget(self._work, tenant_id):
                log.info("freeze.over", tenant_id=tenant_id)
        return more


def _named(tenant_id: str) -> str:
    return "the freeze of everything" if tenant_id == EVERYWHERE else f"the freeze of tenant {tenant_id!r}"
