"""What workers say to this server, each for its tenant: tokens prove leases, and single calls go together."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final, Literal, NamedTuple
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
from rota.errors import LeaseLocked, LeaseLost
from rota.services.turns import Turns
from rota.wire.access import OPERATOR
from rota.wire.work import CompleteQuestion, Status

JOBS_KEPT: Final = 100_000
"""Of how many jobs the tenant is remembered."""

ROUNDS_LIMIT: Final = 4
"""How many different things a batch says of one lease at most: what comes after them finds no lease any more."""
STRANGERS: Final = ""
"""Whose turn it is at callbacks, which prove a lease and no tenant."""
NO_NEWS: Final[Mapping[UUID, Progress | None]] = {}

LOCKED: Final = "locked"
"""In place of a run's state: another transaction holds the lease, perhaps one that completes the run."""

LOCKED_WAITS: Final = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Seconds after which a report on a locked lease is made again, while its caller waits for the answer."""

Answer = RunState | Literal["locked"] | None

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


class Renewal(NamedTuple):
    """A lease to extend, and how far its run is if there is news of that."""

    key: LeaseKey
    progress: Progress | None


class ServerDesk:
    """Renewals and reports. `tenant_id` None stands for a worker of all tenants.

    All of them go by two batches, one of renewals and one of reports, at whose places the tenants take turns: nobody
    has more of the reserved connections for sending more, or for saying the same again and again.

    A lease of another tenant's run is lost to whoever asks, as is one that never was.
    """

    def __init__(self, cluster: Cluster, stopwatch: Clock) -> None:
        self._cluster = cluster
        self._stopwatch = stopwatch
        self._tenants: Recent[int, str] = Recent(JOBS_KEPT)
        self._turns = Turns(at_once=1)
        self._renewals: Coalescer[Renewal, Lease | None] = Coalescer(self._renew_batch, stopwatch)
        self._reports: Coalescer[Report, Answer] = Coalescer(self._report_batch, stopwatch)

    @property
    def waiting(self) -> int:
        """How many renewals and reports wait for their batch."""
        return self._renewals.waiting + self._reports.waiting

    def remember(self, claims: Iterable[Claim]) -> None:
        """Remember whose jobs these are."""
        for claim in claims:
            self._tenants.put(claim.key.job_uid, claim.tenant_id)

    async def heartbeat(self, key: LeaseKey, *, tenant_id: str | None, progress: Progress | None = None) -> Lease:
        """Extend one lease, and note how far its run is, together with others' heartbeats. Raises LeaseLost."""
        lease = (await self.renew([key], tenant_id=tenant_id, progress={key.token: progress})).get(key.token)
        if lease is None:
            raise LeaseLost(key.run_id)
        return lease

    async def renew(
        self, keys: Sequence[LeaseKey], *, tenant_id: str | None, progress: Mapping[UUID, Progress | None] = NO_NEWS
    ) -> dict[UUID, Lease]:
        """Extend leases, and note how far some runs are; returns token -> lease of those that are still held."""
        own = await self._own(list(dict.fromkeys(keys)), tenant_id)
        asked = [Renewal(key, progress.get(key.token)) for key in own]
        leases = await self._renewals.call_many(asked, owner=_owner(tenant_id))
        return {key.token: lease for key, lease in zip(own, leases, strict=True) if lease is not None}

    async def complete(self, report: Report, *, tenant_id: str | None) -> RunState:
        """End one attempt, together with others' reports; returns the run's state.

        While another transaction holds its lease it is asked for again, by itself. Raises LeaseLost, LeaseLocked.
        """
        if not await self._own([report.key], tenant_id):
            raise LeaseLost(report.key.run_id)
        return await self._complete(report, owner=_owner(tenant_id))

    async def call_back(self, report: Report) -> RunState:
        """End an attempt for whoever has its token and no other proof. Raises LeaseLost, LeaseLocked."""
        return await self._complete(report, owner=STRANGERS)

    async def complete_many(self, reports: Sequence[Report], *, tenant_id: str | None) -> list[Answer]:
        """End attempts; returns each one's run's state, None where the lease was lost, LOCKED where it is locked."""
        # Whole keys: a token beside a run of one's own proves nothing for another's.
        own = set(await self._own([report.key for report in reports], tenant_id))
        first = _each_once(report for report in reports if report.key in own)
        states = await self._reports.call_many(list(first.values()), owner=_owner(tenant_id))
        state_of = dict(zip(first, states, strict=True))
        return [state_of.get(_said(report)) if report.key in own else None for report in reports]

    async def release(self, claims: Sequence[Claim]) -> None:
        """Give back what was claimed for somebody who has gone meanwhile."""
        await self._cluster.completion.report([Report(key=claim.key, outcome=Outcome.RELEASED) for claim in claims])

    async def _complete(self, report: Report, *, owner: str) -> RunState:
        for wait in (*LOCKED_WAITS, None):
            state = await self._reports.call(report, owner=owner)
            if state is None:
                raise LeaseLost(report.key.run_id)
            if state != LOCKED:
                return RunState(state)
            if wait is not None:
                await self._stopwatch.sleep(wait)
        raise LeaseLocked([report.key.token])

    async def _renew_batch(self, asked: Sequence[Renewal]) -> list[Lease | None]:
        news = {renewal.key.token: renewal.progress for renewal in asked if renewal.progress is not None}
        keys = list(dict.fromkeys(renewal.key for renewal in asked))
        renewed = await self._cluster.completion.renew(keys, progress=news)
        return [renewed.get(key.token) for key, _ in asked]

    async def _report_batch(self, reports: Sequence[Report]) -> list[Answer]:
        """Report each outcome of each token once: the second outcome of a token is refused or a repetition."""
        first = _each_once(reports)
        state_of: dict[tuple[LeaseKey, Outcome], Answer] = {}
        for places in _rounds([report.key.token for report in first.values()])[:ROUNDS_LIMIT]:
            said = [list(first)[place] for place in places]
            reported = await self._cluster.completion.settle([first[each] for each in said])
            state_of |= {each: reported.states.get(each[0].token) for each in said}
            state_of |= {each: LOCKED for each in said if each[0].token in reported.locked}
        return [state_of.get(_said(report)) for report in reports]

    async def _own(self, keys: Sequence[LeaseKey], tenant_id: str | None) -> list[LeaseKey]:
        """Return the keys of this tenant's runs."""
        if tenant_id is None:
            return list(keys)
        # Another tenant's job is looked up like one that there is not: the time it takes tells nobody which it is.
        unknown = {key.job_uid: key for key in keys if self._tenants.get(key.job_uid) != tenant_id}
        if unknown:
            # Of its own happens once for a job and process, after a restart of the API.
            async with self._turns.of(tenant_id):
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
        took_worker=said.took_worker,
    )


def _owner(tenant_id: str | None) -> str:
    return OPERATOR if tenant_id is None else tenant_id


def _each_once(reports: Iterable[Report]) -> dict[tuple[LeaseKey, Outcome], Report]:
    """Return the first of every report, in their order, by what makes others the same."""
    once: dict[tuple[LeaseKey, Outcome], Report] = {}
    for report in reports:
        once.setdefault(_said(report), report)
    return once


def _said(report: Report) -> tuple[LeaseKey, Outcome]:
    """Return what makes two reports the same."""
    return report.key, report.outcome


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
