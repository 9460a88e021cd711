"""What a worker says over HTTP. Every call here can be repeated: the instance, the claim id or the token is its key."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

from rota.client.caller import Caller, asked
from rota.wire.access import RotateQuestion, SigningSecret
from rota.wire.document import Document
from rota.wire.work import (
    ANY_HANDLER,
    AnnounceAnswer,
    AnnounceQuestion,
    ClaimAnswer,
    ClaimedRun,
    ClaimQuestion,
    CompleteAnswer,
    CompleteAnswers,
    CompleteOne,
    CompleteQuestion,
    CompleteQuestions,
    HeartbeatAnswer,
    HeartbeatQuestion,
    LeaseQuestion,
    Progress,
    RenewAnswer,
    RenewQuestion,
    Status,
)


class WorkerCalls(Caller):
    """The calls of workers; they need a token with the scope `worker`."""

    async def announce(
        self,
        *,
        worker_id: str,
        instance: UUID,
        pool: str = "default",
        handlers: Sequence[str] = (ANY_HANDLER,),
        concurrency: int = 1,
        claimed: int | None = None,
    ) -> bool:
        """Say that a worker lives, every few seconds. True asks it to claim no more. Raises InvalidInput.

        `claimed` is how many runs it has claimed since its start.
        """
        question = asked(
            AnnounceQuestion, worker_id=worker_id, instance=instance, pool=pool, handlers=handlers,
            concurrency=concurrency, claimed=claimed,
        )  # fmt: skip
        said = await self._call("PUT", f"/v1/workers/{instance}", question=question, answer=AnnounceAnswer)
        return said.drain

    async def retire(self, instance: UUID) -> None:
        """Say that a worker leaves; one that is not known has left already."""
        await self._call("DELETE", f"/v1/workers/{instance}", answer=Document)

    async def claim(
        self,
        *,
        worker_id: str,
        pool: str = "default",
        handlers: Sequence[str] = (ANY_HANDLER,),
        limit: int = 1,
        wait: float = 0.0,
        claim_id: UUID | None = None,
        instance: UUID | None = None,
        concurrency: int | None = None,
    ) -> list[ClaimedRun]:
        """Take at most `limit` runs, waiting for the first one up to `wait` seconds. Raises InvalidInput.

        Asked again with the same `claim_id`, it returns what that claim still holds, so an answer that was lost
        loses no run. Without one, the client makes one.
        """
        question = asked(
            ClaimQuestion, worker_id=worker_id, pool=pool, handlers=handlers, limit=limit, wait=wait,
            claim_id=claim_id or uuid4(), instance=instance, concurrency=concurrency,
        )  # fmt: skip
        said = await self._call(
            "POST", "/v1/claims", question=question, answer=ClaimAnswer, repeatable=True, wait=wait
        )  # fmt: skip
        return list(said.runs)

    async def renew(
        self,
        leases: Sequence[tuple[UUID, UUID]],
        *,
        worker_id: str,
        progress: Mapping[UUID, tuple[float | None, str | None]] | None = None,
    ) -> RenewAnswer:
        """Extend the leases of (run_id, lease_token), at most 1,000. Raises InvalidInput.

        `progress` says by lease token how far some of these runs are: a share from 0 to 1 and a note, or None for no
        news of it.
        """
        told = {token: asked(Progress, value=value, note=note) for token, (value, note) in (progress or {}).items()}
        held = tuple(
            LeaseQuestion(run_id=run_id, lease_token=token, progress=told.get(token)) for run_id, token in leases
        )
        question = asked(RenewQuestion, worker_id=worker_id, leases=held)
        return await self._call("POST", "/v1/leases:renew", question=question, answer=RenewAnswer, repeatable=True)

    async def heartbeat(
        self, run_id: UUID, lease_token: UUID, *, progress: float | None = None, note: str | None = None
    ) -> HeartbeatAnswer:
        """Extend one lease, and say how far the run is, from 0 to 1. Raises LeaseLost, InvalidInput."""
        told = None if progress is None and note is None else asked(Progress, value=progress, note=note)
        question = asked(HeartbeatQuestion, lease_token=lease_token, progress=told)
        return await self._call(
            "POST", f"/v1/runs/{run_id}/heartbeat", question=question, answer=HeartbeatAnswer, repeatable=True
        )

    async def complete(
        self,
        run_id: UUID,
        lease_token: UUID,
        status: Status,
        *,
        error: str | None = None,
        retry_after: float | None = None,
        result: Any = None,
    ) -> CompleteAnswer:
        """End an attempt; the same again is answered alike. Raises LeaseLost, InvalidInput."""
        question = asked(
            CompleteQuestion, lease_token=lease_token, status=status, error=error, retry_after=retry_after,
            result=result,
        )  # fmt: skip
        return await self._call(
            "POST", f"/v1/runs/{run_id}/complete", question=question, answer=CompleteAnswer, repeatable=True
        )

    async def complete_many(self, reports: Sequence[CompleteOne]) -> CompleteAnswers:
        """End attempts, at most 1,000: each by itself, so that a lost one does not keep the others."""
        question = asked(CompleteQuestions, reports=tuple(reports))
        return await self._call("POST", "/v1/runs:complete", question=question, answer=CompleteAnswers, repeatable=True)

    async def signing_secret(self, *, tenant: str | None = None) -> SigningSecret:
        """Return the key that signs the calls of this tenant's HTTP targets; with an operator's token, of any's."""
        headers = {} if tenant is None else {"Rota-Tenant": tenant}
        return await self._call("GET", "/v1/signing-secret", headers=headers, answer=SigningSecret)

    async def rotate_signing_secret(self, *, keep_seconds: float = 86_400) -> SigningSecret:
        """Make another key; calls are signed with both for that long. Needs the scope admin. Raises InvalidInput."""
        question = asked(RotateQuestion, keep_seconds=keep_seconds)
        return await self._call("POST", "/v1/signing-secret/rotate", question=question, answer=SigningSecret)
