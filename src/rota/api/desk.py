"""What workers say to this server, each for its tenant: tokens prove leases, and single calls go together."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final
from uuid import UUID

from rota.api.cluster import Cluster
from rota.api.coalescer import Coalescer
from rota.api.recent import Recent
from rota.clock import Clock
from rota.domain.attempt import Claim, Lease, LeaseKey, Outcome, Report, check_result
from rota.domain.ids import shard_of, slot_of
from rota.domain.progress import Progress
from rota.domain.retry import DELAY_LIMIT
from rota.domain.run import RunState
from rota.errors import LeaseLost
from rota.wire.work import CompleteQuestion, Status

JOBS_KEPT: Final = 100_000
"""Of how many jobs the tenant is remembered."""

OUTCOMES: Final[dict[Status, Outcome]] = {
    "succeeded": Outcome.SUCCEEDED,
    "failed": Outcome.FAILED,
    "dead": Outcome.GAVE_UP,
    "released": Outcome.RELEASED,
    "timed_out": Outcome.TIMED_OUT,
    "snoozed": Outcome.SNOOZED,
    "lost": Outcome.LOST,
    "cancelled": Outcome.CANCELLED,
}


class ServerDesk:
    """Renewals and reports. `tenant_id` None stands for a worker of all tenants.

    A lease of another tenant's run is lost to whoever asks, as is one that never was.
    """

    def __init__(self, cluster: Cluster, stopwatch: Clock) -> None:
        self._cluster = cluster
        self._tenants: Recent[int, str] = Recent(JOBS_KEPT)
        self._renewals: Coalescer[LeaseKey, Lease | None] = Coalescer(self._renew_batch, stopwatch)
        self._reports: Coalescer[Report, RunState | None] = Coalescer(self._report_batch, stopwatch)

    def remember(self, claims: Iterable[Claim]) -> None:
        """Remember whose jobs these are."""
        for claim in claims:
            self._tenants.put(claim.key.job_uid, claim.tenant_id)

    async def heartbeat(self, key: LeaseKey, *, tenant_id: str | None) -> Lease:
        """Extend one lease, together with others' heartbeats. Raises LeaseLost."""
        lease = await self._renewals.call(key) if await self._own([key], tenant_id) else None
        if lease is None:
            raise LeaseLost(key.run_id)
        return lease

    async def renew(
        self, keys: Sequence[LeaseKey], *, tenant_id: str | None, progress: Mapping[UUID, Progress] | None = None
    ) -> dict[UUID, Lease]:
        """Extend leases, and note how far some runs are; returns token -> lease of those that are still held."""
        own = await self._own(keys, tenant_id)
        return await self._cluster.completion.renew(own, progress=progress) if own else {}

    async def complete(self, report: Report, *, tenant_id: str | None) -> RunState:
        """End one attempt, together with others' reports; returns the run's state. Raises LeaseLost."""
        state = await self._reports.call(report) if await self._own([report.key], tenant_id) else None
        if state is None:
            raise LeaseLost(report.key.run_id)
        return state

    async def complete_many(self, reports: Sequence[Report], *, tenant_id: str | None) -> list[RunState | None]:
        """End attempts; returns each one's run's state, None where the lease was lost."""
        # Whole keys: a token beside a run of one's own proves nothing for another's.
        own = set(await self._own([report.key for report in reports], tenant_id))
        states = iter(await self._report_batch([report for report in reports if report.key in own]))
        return [next(states) if report.key in own else None for report in reports]

    async def note_progress(self, key: LeaseKey, value: float | None, note: str | None) -> None:
        """Note how far a run is."""
        await self._cluster.completion.note_progress(key, value, note)

    async def release(self, claims: Sequence[Claim]) -> None:
        """Give back what was claimed for somebody who has gone meanwhile."""
        await self._cluster.completion.report([Report(key=claim.key, outcome=Outcome.RELEASED) for claim in claims])

    async def _renew_batch(self, keys: Sequence[LeaseKey]) -> list[Lease | None]:
        renewed = await self._cluster.completion.renew(keys)
        return [renewed.get(key.token) for key in keys]

    async def _report_batch(self, reports: Sequence[Report]) -> list[RunState | None]:
        """Report in as few calls as there are reports on one token: the second of those is refused or a repetition."""
        states: list[RunState | None] = [None] * len(reports)
        for places in _rounds([report.key.token for report in reports]):
            ended = await self._cluster.completion.report([reports[place] for place in places])
            for place in places:
                states[place] = ended.get(reports[place].key.token)
        return states

    async def _own(self, keys: Sequence[LeaseKey], tenant_id: str | None) -> list[LeaseKey]:
        """Return the keys of this tenant's runs."""
        if tenant_id is None:
            return list(keys)
        unknown = {key.job_uid: key for key in keys if self._tenants.get(key.job_uid) is None}
        if unknown:
            # Happens once for a job and process, after a restart of the API.
            for uid in await self._cluster.completion.jobs_of_tenant(list(unknown.values()), tenant_id=tenant_id):
                self._tenants.put(uid, tenant_id)
        return [key for key in keys if self._tenants.get(key.job_uid) == tenant_id]


def lease_key(run_id: UUID, token: UUID) -> LeaseKey:
    """Return the key of a lease. Raises InvalidInput for a UUID that is no run's."""
    uid, scheduled_for = slot_of(run_id)
    return LeaseKey(shard_of(uid), uid, scheduled_for, token)


def report_of(run_id: UUID, said: CompleteQuestion) -> Report:
    """Return what a worker says as a report. Raises InvalidInput, TooLarge."""
    check_result(said.result)
    # Bounded before it becomes a length of time, which has an end of its own.
    wait = None if said.retry_after is None else timedelta(seconds=min(said.retry_after, DELAY_LIMIT.total_seconds()))
    return Report(
        key=lease_key(run_id, said.lease_token),
        outcome=OUTCOMES[said.status],
        error=said.error,
        retry_after=wait,
        result=said.result,
    )


def _rounds(tokens: Sequence[UUID]) -> list[list[int]]:
    """Return the places of tokens in rounds, in each of which a token occurs once."""
    rounds: list[list[int]] = []
    seen: dict[UUID, int] = {}
    for place, token in enumerate(tokens):
        number = seen.get(token, 0)
        seen[token] = number + 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(place)
    return rounds
