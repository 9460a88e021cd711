"""Completions: a worker says how its attempts ended."""

from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from rota.api.body import BATCH_BODY_LIMIT
from rota.api.calls import Caller, Routes, TheApi, answer, while_there
from rota.api.desk import LOCKED, report_of
from rota.wire.work import CompleteAnswer, CompleteAnswers, CompleteQuestion, CompleteQuestions


def register(routes: Routes) -> None:
    routes.add(
        "POST", "/v1/runs/{run_id}/complete", complete, needs="worker", gives=CompleteAnswer, problems=(404, 409),
        in_hand=True,
    )  # fmt: skip
    routes.add(
        "POST", "/v1/runs:complete", complete_many, needs="worker", gives=CompleteAnswers, body_limit=BATCH_BODY_LIMIT,
        in_hand=True,
    )  # fmt: skip
    routes.add("POST", "/v1/callbacks/{run_id}", call_back, needs="nothing", gives=CompleteAnswer, problems=(404, 409))


async def complete(call: Caller, run_id: UUID, question: CompleteQuestion) -> Response:
    """End an attempt. The same completion again is answered alike; a lease that was lost gives 409.

    While another transaction holds the lease, perhaps one that completes the run, the answer waits, and is 503 then.
    """
    state = await call.api.desk.complete(report_of(run_id, question), tenant_id=call.works_for)
    return answer(CompleteAnswer(run_id=run_id, state=state))


async def complete_many(call: Caller, question: CompleteQuestions, request: Request) -> Response:
    """End attempts, each by itself: a lost one does not keep the others, and one that is locked is to be sent again."""
    reports = [report_of(said.run_id, said) for said in question.reports]
    states = await while_there(request, call.api.desk.complete_many(reports, tenant_id=call.works_for))
    ended = list(zip(reports, states, strict=True))
    return answer(
        CompleteAnswers(
            accepted=tuple(
                CompleteAnswer(run_id=report.key.run_id, state=state)
                for report, state in ended
                if state is not None and state != LOCKED
            ),
            lost=tuple(report.key.token for report, state in ended if state is None),
            locked=tuple(report.key.token for report, state in ended if state == LOCKED),
        )
    )


async def call_back(api: TheApi, run_id: UUID, question: CompleteQuestion) -> Response:
    """End the attempt of an HTTP target that answered 202. The lease token is the proof; no other is asked for."""
    state = await api.desk.call_back(report_of(run_id, question))
    return answer(CompleteAnswer(run_id=run_id, state=state))
