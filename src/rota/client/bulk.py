"""The part of the client that is about many jobs or runs at once."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import uuid4

from rota.client.address import segment
from rota.client.caller import PART_BYTES, Caller, asked, in_parts, json_of
from rota.domain.job import check_payload
from rota.errors import InvalidInput
from rota.wire.jobs import (
    JobFilterQuestion,
    ManyAnswer,
    ManyQuestion,
    Missed,
    PauseManyQuestion,
    ResumeManyQuestion,
    TriggerManyQuestion,
)
from rota.wire.runs import (
    RUNS_LIMIT,
    CancelManyAnswer,
    CancelManyQuestion,
    MadeRun,
    MadeRuns,
    RunFilterQuestion,
    RunItem,
    RunOfJobItem,
    run_items,
)


class BulkCalls(Caller):
    """Calls about jobs and runs that a filter means. An empty filter needs `everything`; a dry run only counts."""

    async def pause_jobs(
        self, where: JobFilterQuestion, *, everything: bool = False, reason: str = "",
        resume_at: datetime | None = None, missed: Missed = "policy", dry_run: bool = False, limit: int = 100,
        cursor: str | None = None,
    ) -> ManyAnswer:  # fmt: skip
        """Pause jobs; those that are paused keep their own pause. Raises InvalidInput, InvalidCursor."""
        question = asked(
            PauseManyQuestion, filter=where, all=everything, reason=reason, resume_at=resume_at, missed=missed,
            dry_run=dry_run, limit=limit, cursor=cursor,
        )  # fmt: skip
        return await self._call("POST", "/v1/jobs:pause", question=question, answer=ManyAnswer, repeatable=True)

    async def resume_jobs(
        self, where: JobFilterQuestion, *, everything: bool = False, missed: Missed = "policy", pause_reason: str = "",
        dry_run: bool = False, limit: int = 100, cursor: str | None = None,
    ) -> ManyAnswer:  # fmt: skip
        """Resume jobs, with a `pause_reason` only those that were paused for just that."""
        question = asked(
            ResumeManyQuestion, filter=where, all=everything, missed=missed, pause_reason=pause_reason,
            dry_run=dry_run, limit=limit, cursor=cursor,
        )  # fmt: skip
        return await self._call("POST", "/v1/jobs:resume", question=question, answer=ManyAnswer, repeatable=True)

    async def delete_jobs(
        self, where: JobFilterQuestion, *, everything: bool = False, dry_run: bool = False, limit: int = 100,
        cursor: str | None = None,
    ) -> ManyAnswer:  # fmt: skip
        """Delete jobs, and cancel their waiting runs."""
        question = asked(ManyQuestion, filter=where, all=everything, dry_run=dry_run, limit=limit, cursor=cursor)
        return await self._call("POST", "/v1/jobs:delete", question=question, answer=ManyAnswer)

    async def trigger_jobs(
        self, where: JobFilterQuestion, *, everything: bool = False, payload: Mapping[str, Any] | None = None,
        scheduled_for: datetime | None = None, dry_run: bool = False, limit: int = 100, cursor: str | None = None,
    ) -> ManyAnswer:  # fmt: skip
        """Make one run of each job, now or at one slot, where a job that has a run is left."""
        question = asked(
            TriggerManyQuestion, filter=where, all=everything, payload=None if payload is None else dict(payload),
            scheduled_for=scheduled_for, dry_run=dry_run, limit=limit, cursor=cursor,
        )  # fmt: skip
        return await self._call("POST", "/v1/jobs:trigger", question=question, answer=ManyAnswer)

    async def trigger_many(
        self, job_id: str, items: Sequence[RunItem | Mapping[str, Any]]
    ) -> list[MadeRun]:  # fmt: skip
        """Make many runs of a job, and say of each in order what it came to.

            await client.trigger_many("send-welcome", [{"payload": {"customer": n}} for n in customers])

        More than 1,000 are made by several calls, each in one transaction: where a later one is refused, what was made
        before stays. A call is repeated like a trigger, under keys that the client makes for items without one; only
        with keys of your own can the same items be given again. Raises NotFound, InvalidInput which names the item,
        TooLarge, Shed.
        """
        return await self._make_runs(f"/v1/jobs/{segment('job_id', job_id)}/runs:batch", run_items(RunItem, items))

    async def trigger_runs(self, items: Sequence[RunOfJobItem | Mapping[str, Any]]) -> list[MadeRun]:
        """Do the same with runs of several jobs, which the items name."""
        return await self._make_runs("/v1/runs:batch", run_items(RunOfJobItem, items))

    async def _make_runs(self, path: str, items: Iterable[RunItem]) -> list[MadeRun]:
        # All are looked at before the first are made.
        written = [_written(item, number) for number, item in enumerate(items)]
        made: list[MadeRun] = []
        for part in in_parts(written, count=RUNS_LIMIT, size=PART_BYTES) if written else [[]]:
            question = b'{"items":[%s]}' % b",".join(part)
            try:
                said = await self._call("POST", path, question=question, answer=MadeRuns, repeatable=True)
            except InvalidInput as error:
                raise _counted_on(error, len(made)) from None
            made += said.runs
        return made

    async def cancel_runs(
        self, where: RunFilterQuestion, *, everything: bool = False, dry_run: bool = False, limit: int = 1000
    ) -> CancelManyAnswer:
        """Cancel runs that wait, and ask the workers of those that run; the audit log gets one entry."""
        question = asked(CancelManyQuestion, filter=where, all=everything, dry_run=dry_run, limit=limit)
        return await self._call("POST", "/v1/runs:cancel", question=question, answer=CancelManyAnswer)


def _written(item: RunItem, number: int) -> bytes:
    """Return an item as it travels, under a key. Raises InvalidInput, which names it."""
    try:
        if item.payload is not None:
            check_payload(item.payload)
        keyed = item if item.idempotency_key is not None else item.model_copy(update={"idempotency_key": str(uuid4())})
        return json_of(keyed)
    except InvalidInput as error:
        raise error.at(f"items[{number}]") from None


def _counted_on(error: InvalidInput, before: int) -> InvalidInput:
    """Return a part's refusal with the item's place in the whole list."""
    field = re.sub(r"^items\[(\d+)\]", lambda match: f"items[{int(match[1]) + before}]", error.field)
    return type(error)(field, error.reason, hint=error.hint)
