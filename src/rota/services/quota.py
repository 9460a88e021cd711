"""A tenant's quotas as the services ask for them: remembered for a moment, so that no call costs a look."""

from collections.abc import Mapping
from typing import Any, Final

from rota.clock import Clock
from rota.domain.job import check_payload
from rota.errors import QuotaExceeded, TooLarge
from rota.store import access as store
from rota.store import jobs
from rota.store.access import TenantView
from rota.store.database import Connection, Database

REMEMBERED: Final = 2.0
"""Seconds for which what was read counts: a changed quota holds everywhere after that."""
TENANTS_REMEMBERED: Final = 10_000


class Quotas:
    """Reads quotas, and refuses what goes past them. One per service; they share nothing."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._read: dict[str, tuple[float, TenantView | None]] = {}

    async def of(self, tenant_id: str) -> TenantView | None:
        """Return a tenant's quotas, None when it has none of its own; at most REMEMBERED seconds old."""
        now = self._clock.monotonic()
        read_at, view = self._read.get(tenant_id, (float("-inf"), None))
        if now - read_at < REMEMBERED:
            return view
        view = await store.tenant(self._database, tenant_id)
        if len(self._read) >= TENANTS_REMEMBERED:
            self._read.clear()
        self._read[tenant_id] = (now, view)
        return view

    def forget(self, tenant_id: str) -> None:
        """Read a tenant's quotas anew at the next question."""
        self._read.pop(tenant_id, None)

    async def check_payload_quota(self, payload: Mapping[str, Any], *, tenant_id: str, of_job: str = "") -> None:
        """Raise TooLarge, naming the job if that is given, for a payload larger than the tenant may have."""
        check_size(payload, await self.of(tenant_id), of_job=of_job)


def check_size(payload: Mapping[str, Any], quotas: TenantView | None, *, of_job: str = "") -> None:
    """The same with quotas that were read before: inside a transaction there is no second connection to ask by."""
    if quotas is None or quotas.max_payload_bytes is None:
        return
    size = len(check_payload(payload).encode())
    if size > quotas.max_payload_bytes:
        whose = f"of job {of_job!r} " if of_job else ""
        raise TooLarge(
            "payload", f"{whose}has {size} bytes",
            hint=f"tenant {quotas.tenant_id!r} may have {quotas.max_payload_bytes}: keep the data elsewhere,"
            " pass its key",
        )  # fmt: skip


async def check_job_quota(tx: Connection, new: Mapping[str, int]) -> None:
    """Raise QuotaExceeded unless every tenant may have so many new jobs (tenant -> how many) beside those it has.

    Exact: of two transactions that make jobs of a tenant with such a quota, one waits here for the other's end. Called
    before the jobs are written, with their rows locked.
    """
    # A statement of its own before the count, which then sees all that was committed before the lock was had.
    for tenant_id, max_jobs in await store.lock_job_quotas(tx, sorted(new)):
        standing = await jobs.count(tx, tenant_id, bound=max_jobs + 1)
        if standing + new[tenant_id] > max_jobs:
            has = "more" if standing > max_jobs else str(standing)
            raise QuotaExceeded(
                f"tenant {tenant_id!r} may have {max_jobs} jobs and has {has}: {new[tenant_id]} new ones are too many",
                hint="delete some, or ask the operator for a larger quota",
            )
