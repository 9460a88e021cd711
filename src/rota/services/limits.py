"""Limits as people put and read them. What enforces them is the claim, which reads them as they stand."""

from dataclasses import replace
from typing import Any, Final

import structlog

from rota.clock import Clock
from rota.domain.job import check_limit_name
from rota.domain.limit import Limit
from rota.errors import InvalidInput, NotFound, QuotaExceeded, VersionConflict
from rota.services.hints import LIMITS, Hints, pool_topic
from rota.services.patience import Patience
from rota.services.returning import BATCH, let_in
from rota.store import audit, parking
from rota.store import limits as store
from rota.store.audit import Change
from rota.store.database import Database, Lane
from rota.store.limits import LimitView, StoredLimit

__all__ = ["LimitView", "Limits"]

OPERATOR: Final = "*"
"""The owner of limits that all tenants share, or each has one of."""
LIMITS_OF_TENANT: Final = 1000
"""The most limits that a tenant has of its own."""
FORGET_BATCH: Final = 10_000
"""Permits that are deleted at once, after their limit."""
LET_IN_TURNS: Final = 400
"""How many batches of waiting runs an edit lets in itself, before it leaves them to the schedulers."""

log = structlog.get_logger()


class Limits:
    """Put, read and delete limits; every change is in the audit log of the tenant whose limit it is."""

    def __init__(self, database: Database, clock: Clock, hints: Hints) -> None:
        self._database = database.on(Lane.CALLS)
        self._patience = Patience()
        self._clock = clock
        self._hints = hints

    async def put(self, limit: Limit, *, if_version: int | None = None, actor: str) -> LimitView:
        """Insert or replace a limit; it holds from the next claim on. The same again changes nothing.

        `if_version` 0 is for one that is not there yet. Raises VersionConflict, InvalidInput for another kind than the
        limit has, QuotaExceeded for more limits than a tenant may have.
        """
        before, version, changed = await self._patience.ask(
            lambda: self._write(limit, if_version=if_version, actor=actor), what=f"limit {limit.name!r}",
            turn=(limit.tenant_id, limit.name),
        )  # fmt: skip
        if changed:
            if before is None and limit.kind == "downstream":
                await self._let_go(limit)
            await self._let_in(limit)
            while not await store.forget_above(self._database, limit, batch=FORGET_BATCH):
                pass
            log.info("limit.put", tenant_id=limit.tenant_id, limit=limit.name, version=version, actor=actor)
        return await self._own(limit.name, tenant_id=limit.tenant_id)

    async def _write(self, limit: Limit, *, if_version: int | None, actor: str) -> tuple[StoredLimit | None, int, bool]:
        """Write a limit down; returns what stood there, the version, and whether that is another than before."""
        now = self._clock.now()
        async with self._database.transaction() as tx:
            before = await store.lock(tx, tenant_id=limit.tenant_id, name=limit.name)
            _check_version(limit, before, if_version)
            if before is None:
                if await store.count(tx, limit.tenant_id, most=LIMITS_OF_TENANT) >= LIMITS_OF_TENANT:
                    raise QuotaExceeded(
                        f"tenant {limit.tenant_id!r} has {LIMITS_OF_TENANT} limits", hint="delete some first"
                    )
                version = await store.add(tx, limit, now=now)
            elif before.limit.kind != limit.kind:
                raise InvalidInput("kind", f"is {before.limit.kind!r}, and stays so", hint="delete the limit first")
            elif before.limit == limit:
                version = before.version
            else:
                version = await store.change(tx, limit, version=before.version, now=now)
                assert version is not None, "the limit's row is locked, so it has its version still"
            if version is None:
                raise VersionConflict(
                    f"limit {limit.name!r} was put by somebody else at this moment", hint="put it again"
                )
            changed = before is None or before.limit != limit
            if changed:
                change = _change("limit.put", before=None if before is None else before.limit, after=limit)
                await audit.note(tx, [change], actor=actor, now=now)
        return before, version, changed

    async def get(self, name: str, *, tenant_id: str) -> LimitView:
        """Return the limit of this name that a tenant's runs are under: its own, else the operator's.

        Raises NotFound, InvalidInput.
        """
        check_limit_name("name", name)
        found = await store.views(self._database, tenant_id, name=name, now=self._clock.now())
        if not found:
            raise _unknown(name)
        return found[0]

    async def list(self, *, tenant_id: str) -> list[LimitView]:
        """Return the limits that a tenant's runs may be under, by name: its own, and the operator's that apply."""
        return await store.views(self._database, tenant_id, now=self._clock.now())

    async def delete(self, name: str, *, tenant_id: str, actor: str) -> None:
        """Delete a tenant's own limit; runs that it held back may start at once. Raises NotFound, InvalidInput.

        Permits that are in use stay with their runs, and mean nothing any more.
        """
        check_limit_name("name", name)
        before = await self._patience.ask(
            lambda: self._erase(name, tenant_id=tenant_id, actor=actor), what=f"limit {name!r}", turn=(tenant_id, name)
        )
        await self._let_in(before.limit)
        log.info("limit.deleted", tenant_id=tenant_id, limit=name, actor=actor)
        while not await store.forget_use(self._database, before.limit, batch=FORGET_BATCH):
            pass

    async def _erase(self, name: str, *, tenant_id: str, actor: str) -> StoredLimit:
        now = self._clock.now()
        async with self._database.transaction() as tx:
            before = await store.lock(tx, tenant_id=tenant_id, name=name)
            if before is None:
                raise _unknown(name)
            gone = await store.delete(tx, tenant_id=tenant_id, name=name, version=before.version)
            assert gone, "the limit's row is locked, so it cannot have gone"
            change = _change("limit.deleted", before=before.limit, after=None)
            await audit.note(tx, [change], actor=actor, now=now)
        return before

    async def _let_go(self, limit: Limit) -> None:
        """Let the tenant's runs go that wait for the operator's limit: they are under the tenant's own now."""
        shared = replace(limit, tenant_id=OPERATOR).key
        for _ in range(LET_IN_TURNS if limit.tenant_id != OPERATOR else 0):
            released = await parking.release(self._database, str(shared), tenant_id=limit.tenant_id, limit=BATCH)
            for pool in set(released):
                self._hints.publish(pool_topic(pool))
            if len(released) < BATCH:
                break

    async def _let_in(self, limit: Limit) -> None:
        """Let the runs that waited for a limit in, as far as its numbers of now allow; the rest follows by itself."""
        self._hints.publish(LIMITS)
        key = limit.key
        for _ in range(LET_IN_TURNS if key is not None else 0):
            if await let_in(self._database, self._clock, self._hints, {str(key): ""}) < BATCH:
                break

    async def _own(self, name: str, *, tenant_id: str) -> LimitView:
        found = await self.get(name, tenant_id=tenant_id)
        if found.tenant_id != tenant_id:
            raise _unknown(name)  # deleted meanwhile, so that the operator's applies
        return found


def _check_version(limit: Limit, before: StoredLimit | None, if_version: int | None) -> None:
    standing = 0 if before is None else before.version
    if if_version is None or if_version == standing:
        return
    if before is None:
        raise VersionConflict(f"there is no limit {limit.name!r}, so none at version {if_version}")
    if if_version == 0:
        raise VersionConflict(f"limit {limit.name!r} is there already, at version {standing}")
    raise VersionConflict(
        f"limit {limit.name!r} is at version {standing}, not {if_version}", hint="read it again, then edit"
    )


def _change(action: str, *, before: Limit | None, after: Limit | None) -> Change:
    subject = before or after
    assert subject is not None, "a change of nothing into nothing is none"
    return Change(
        tenant_id=subject.tenant_id, action=action, subject=subject.name, before=_facts(before), after=_facts(after)
    )


def _facts(limit: Limit | None) -> dict[str, Any] | None:
    if limit is None:
        return None
    facts = limit.to_json()
    return {name: facts[name] for name in ("kind", "rate", "burst", "permits")}


def _unknown(name: str) -> NotFound:
    return NotFound(f"there is no limit {name!r}", hint="`rota limit list` shows those of this tenant")
