"""Claims: a worker takes runs, and waits for them if there are none."""

from starlette.requests import Request
from starlette.responses import Response

from rota.api.calls import Call, Caller, Routes
from rota.api.polls import Poll
from rota.domain.attempt import Claim
from rota.domain.job import check_name
from rota.wire.work import ClaimAnswer, ClaimedRun, ClaimQuestion


def register(routes: Routes) -> None:
    routes.add("POST", "/v1/claims", claim, needs="worker", gives=ClaimAnswer, problems=(409,))


async def claim(call: Caller, question: ClaimQuestion, request: Request) -> Response:
    """Take at most `limit` runs of a pool, waiting up to `wait` seconds for the first one.

    The worker counts as live by this. The same `claim_id` again returns what that claim still holds.
    """
    for name, value in (("worker_id", question.worker_id), ("pool", question.pool)):
        check_name(name, value)
    for handler in question.handlers:
        check_name("handlers", handler)
    polls = call.api.polls
    async with polls.listening(request, tenant_id=call.works_for, pool=question.pool, wait=question.wait) as poll:
        claims = await _take(call, question, poll)
        call.api.desk.remember(claims)
        if claims and poll.caller_is_gone and question.claim_id is None:
            # Nobody knows of these leases, and nobody can ask for them again.
            await call.api.desk.release(claims)
    runs = [_document(claim).model_dump_json().encode() for claim in claims]
    carried = call.api.claim_sizes.carried(call.works_for, question, [len(run) for run in runs])
    if surplus := claims[carried:]:
        # Their payloads are too large to travel together: others take them, or this worker does next time.
        await call.api.desk.release(surplus)
    return Response(b'{"runs":[%s]}' % b",".join(runs[:carried]), media_type="application/json")


async def _take(call: Call, question: ClaimQuestion, poll: Poll) -> list[Claim]:
    """Look, and look again at each hint, at least every second, as long as the caller waits."""
    polls, tenant_id = call.api.polls, call.works_for
    while True:
        poll.begin_look()
        async with polls.turn(tenant_id):
            if poll.caller_is_gone:
                return []
            if claims := await _look(call, question):
                return claims
        if not poll.seconds_left:
            return []
        was_hinted = await poll.sleep(
            at_most=min(polls.interval(tenant_id), call.cluster.dispatch.seconds_until_token(question.pool))
        )
        if was_hinted and question.limit == 0:
            return []
        if not poll.seconds_left and poll.caller_is_gone:
            return []


async def _look(call: Call, question: ClaimQuestion) -> list[Claim]:
    """Say that the worker lives, and take what there is for it."""
    announcements, tenant_id = call.api.announcements, call.works_for
    drains = await announcements.by_claim(question, tenant_id=tenant_id)
    if question.limit == 0 or drains:
        return []
    claims = await call.cluster.dispatch.claim(
        worker_id=question.worker_id,
        pool=question.pool,
        handlers=frozenset(question.handlers),
        limit=call.api.claim_sizes.limit(tenant_id, question),
        tenant_id=tenant_id,
        claim_id=question.claim_id,
    )
    announcements.note_claim(question, tenant_id=tenant_id)
    return claims


def _document(claim: Claim) -> ClaimedRun:
    return ClaimedRun(
        run_id=claim.run_id,
        tenant_id=claim.tenant_id,
        job_id=claim.job_id,
        scheduled_for=claim.key.scheduled_for,
        handler=claim.handler,
        payload=claim.payload,
        attempt=claim.attempt,
        max_attempts=claim.max_attempts,
        lease_token=claim.key.token,
        claimed_at=claim.claimed_at,
        lease_expires_at=claim.expires_at,
        lease_seconds=claim.lease_duration.total_seconds(),
        timeout_seconds=claim.timeout.total_seconds(),
        losses=claim.losses,
        available_at=claim.available_at,
    )
