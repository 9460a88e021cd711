"""Leases: a worker says that it still has its runs, and hears which of them are lost or to be stopped."""

from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from rota.api.calls import Caller, Routes, answer, while_there
from rota.api.desk import lease_key
from rota.domain.job import check_name
from rota.domain.progress import check_progress
from rota.errors import InvalidInput
from rota.wire.work import HeartbeatAnswer, HeartbeatQuestion, Progress, RenewAnswer, RenewedLease, RenewQuestion


def register(routes: Routes) -> None:
    routes.add(
        "POST", "/v1/runs/{run_id}/heartbeat", heartbeat, needs="worker", gives=HeartbeatAnswer, problems=(404, 409),
        in_hand=True,
    )  # fmt: skip
    routes.add("POST", "/v1/leases:renew", renew, needs="worker", gives=RenewAnswer, in_hand=True)


async def heartbeat(call: Caller, run_id: UUID, question: HeartbeatQuestion) -> Response:
    """Extend one lease, and note how far the run is. `cancel` asks the worker to stop."""
    key = lease_key(run_id, question.lease_token)
    said = _progress(question.progress)
    progress = None if said is None else check_progress(said.value, said.note)
    lease = await call.api.desk.heartbeat(key, tenant_id=call.works_for, progress=progress)
    return answer(HeartbeatAnswer(lease_expires_at=lease.expires_at, cancel=lease.cancel))


async def renew(call: Caller, question: RenewQuestion, request: Request) -> Response:
    """Extend all leases of a worker, and note how far its runs are; the lost ones are listed by their tokens."""
    check_name("worker_id", question.worker_id)
    keys = [lease_key(lease.run_id, lease.lease_token) for lease in question.leases]
    told = {lease.lease_token: _progress(lease.progress) for lease in question.leases if lease.progress is not None}
    news = {token: check_progress(said.value, said.note) for token, said in told.items() if said is not None}
    renewed = await while_there(request, call.api.desk.renew(keys, tenant_id=call.works_for, progress=news))
    held = [
        RenewedLease(
            run_id=key.run_id,
            lease_token=key.token,
            lease_expires_at=renewed[key.token].expires_at,
            cancel=renewed[key.token].cancel,
        )
        for key in keys
        if key.token in renewed
    ]
    lost = tuple(key.token for key in keys if key.token not in renewed)
    return answer(RenewAnswer(renewed=tuple(held), lost=lost))


def _progress(said: Progress | float | None) -> Progress | None:
    """Return a progress in its long form; a bare number is its value. Raises InvalidInput."""
    if said is None or isinstance(said, Progress):
        return said
    if not 0 <= said <= 1:
        raise InvalidInput("progress", f"must be from 0 to 1, not {said:g}")
    return Progress(value=said)
