"""The desk of a worker that reaches the control plane over HTTP: no database, no credentials but its token."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID, uuid4

from rota.client import Client
from rota.domain.attempt import CLAIM_LIMIT, Claim, LeaseKey, Outcome, Report, check_result, clean_error
from rota.domain.ids import shard_of, slot_of
from rota.domain.progress import Progress
from rota.errors import InvalidInput, LeaseLocked
from rota.wire.work import BATCH_LIMIT, WAIT_LIMIT, ClaimedRun, CompleteAnswers, CompleteOne, Status
from rota.worker.desk import Renewal, WorkerInfo

REPORT_BATCH_CHARACTERS: Final = 2 * 1024 * 1024
"""The most characters of error texts and results in one call, unless a single report has more."""

HEART: Final = "heart"
"""Who renews before any worker has been named: a heart knows leases only."""

_STATUS: Final[dict[Outcome, Status]] = {
    Outcome.SUCCEEDED: "succeeded",
    Outcome.FAILED: "failed",
    Outcome.TIMED_OUT: "timed_out",
    Outcome.GAVE_UP: "dead",
    Outcome.SNOOZED: "snoozed",
    Outcome.RELEASED: "released",
    Outcome.LOST: "lost",
    Outcome.CANCELLED: "cancelled",
}


class RestDesk:
    """Claims, renews and reports through a client, which tries again what is safe to try again.

    A claim whose answer was lost for good is asked for again, under its own id, by the worker's next claim: what it
    took is handed out then, and not left to run out.
    """

    def __init__(self, client: Client, *, owns_client: bool = False) -> None:
        self._client = client
        self._owns_client = owns_client
        self._worker_id = HEART
        self._in_doubt: dict[UUID, UUID] = {}

    async def announce(
        self, worker: WorkerInfo, *, last_claim_at: datetime | None = None, claimed: int | None = None
    ) -> bool:
        return await self._client.announce(
            worker_id=worker.worker_id,
            instance=worker.instance,
            pool=worker.pool,
            handlers=sorted(worker.handlers),
            concurrency=worker.concurrency,
            claimed=claimed,
        )

    async def claim(self, worker: WorkerInfo, *, limit: int) -> list[Claim]:
        if limit <= 0:
            # The server would take it for the question whether there is work.
            return []
        self._worker_id = worker.worker_id
        claim_id = self._in_doubt.setdefault(worker.instance, uuid4())
        runs = await self._client.claim(
            worker_id=worker.worker_id,
            pool=worker.pool,
            handlers=sorted(worker.handlers),
            limit=min(limit, CLAIM_LIMIT),
            claim_id=claim_id,
            instance=worker.instance,
            concurrency=worker.concurrency,
        )
        # Only now: whatever ended the call, this id may stand for runs that are ours.
        del self._in_doubt[worker.instance]
        claims = list(map(_claim, runs))
        if len(claims) > limit:
            # An earlier call asked for more than there is room for now.
            await self.report([Report(key=claim.key, outcome=Outcome.RELEASED) for claim in claims[limit:]])
        return claims[:limit]

    async def renew(self, keys: Sequence[LeaseKey], *, progress: Mapping[UUID, Progress] | None = None) -> Renewal:
        renewal = Renewal(renewed={}, lost=frozenset())
        for batch in _batches(keys):
            said = await self._client.renew(
                [(key.run_id, key.token) for key in batch], worker_id=self._worker_id, progress=progress
            )
            renewal = Renewal(
                renewed=renewal.renewed | {lease.lease_token: lease.lease_expires_at for lease in said.renewed},
                lost=renewal.lost.union(said.lost),
                cancelled=renewal.cancelled.union(lease.lease_token for lease in said.renewed if lease.cancel),
            )
        return renewal

    async def report(self, reports: Sequence[Report]) -> frozenset[UUID]:
        lost: set[UUID] = set()
        locked: set[UUID] = set()
        for batch in _report_batches(reports):
            answers = await self._complete(batch)
            lost.update(answers.lost)
            locked.update(answers.locked)
        accepted = frozenset(report.key.token for report in reports) - lost - locked
        if locked:
            raise LeaseLocked(locked, accepted=accepted)
        return accepted

    async def _complete(self, reports: Sequence[Report]) -> CompleteAnswers:
        try:
            return await self._client.complete_many(list(map(_completion, reports)))
        except InvalidInput:
            if not any(report.took_worker for report in reports):
                raise
            # An API of 0.1.0 does not know of it: there it is a timeout as any other.
            return await self._client.complete_many(
                [_completion(replace(report, took_worker=False)) for report in reports]
            )

    async def retire(self, worker: WorkerInfo) -> None:
        await self._client.retire(worker.instance)

    async def wait_for_work(self, worker: WorkerInfo, *, timeout: float) -> None:
        await self._client.claim(
            worker_id=worker.worker_id,
            pool=worker.pool,
            handlers=sorted(worker.handlers),
            limit=0,
            wait=min(timeout, WAIT_LIMIT),
            instance=worker.instance,
            concurrency=worker.concurrency,
        )

    async def close(self) -> None:
        if self._owns_client:
            await self._client.close()


def _claim(run: ClaimedRun) -> Claim:
    job_uid, scheduled_for = slot_of(run.run_id)
    return Claim(
        key=LeaseKey(shard_of(job_uid), job_uid, scheduled_for, run.lease_token),
        tenant_id=run.tenant_id,
        job_id=run.job_id,
        handler=run.handler,
        payload=run.payload,
        attempt=run.attempt,
        max_attempts=run.max_attempts,
        claimed_at=run.claimed_at,
        expires_at=run.lease_expires_at,
        lease_duration=timedelta(seconds=run.lease_seconds),
        timeout=timedelta(seconds=run.timeout_seconds),
        losses=run.losses,
        available_at=run.available_at,
    )


def _completion(report: Report) -> CompleteOne:
    return CompleteOne(
        run_id=report.key.run_id,
        lease_token=report.key.token,
        status=_STATUS[report.outcome],
        error=None if report.error is None else clean_error(report.error),
        retry_after=None if report.retry_after is None else report.retry_after.total_seconds(),
        result=report.result,
        took_worker=report.took_worker,
    )


def _batches(keys: Sequence[LeaseKey]) -> Iterator[Sequence[LeaseKey]]:
    for start in range(0, len(keys), BATCH_LIMIT):
        yield keys[start : start + BATCH_LIMIT]


def _report_batches(reports: Sequence[Report]) -> Iterator[list[Report]]:
    """Yield the reports in batches of which none is too many or too large."""
    batch: list[Report] = []
    size = 0
    for report in reports:
        length = len(report.error or "") + (0 if report.result is None else len(check_result(report.result) or ""))
        if batch and (len(batch) == BATCH_LIMIT or size + length > REPORT_BATCH_CHARACTERS):
            yield batch
            batch, size = [], 0
        batch.append(report)
        size += length
    if batch:
        yield batch
