"""Workers and the rest of the cluster: who lives, who owns what, how much there is to do."""

from uuid import UUID

from starlette.responses import Response

from rota.api.calls import Caller, Routes, WorkerId, answer
from rota.errors import InvalidInput
from rota.wire.work import AnnounceAnswer, AnnounceQuestion, ShardList, StatsAnswer, WorkerList


def register(routes: Routes) -> None:
    routes.add("GET", "/v1/workers", list_workers, needs="read", gives=WorkerList)
    routes.add("PUT", "/v1/workers/{instance}", announce, needs="worker", gives=AnnounceAnswer, problems=(409,))
    routes.add("DELETE", "/v1/workers/{instance}", retire, needs="worker", gives=None, status=204)
    routes.add("POST", "/v1/workers/{worker_id:segment}/drain", drain, needs="admin", gives=WorkerList, problems=(404,))
    routes.add("GET", "/v1/shards", list_shards, needs="read", gives=ShardList)
    routes.add("GET", "/v1/stats", get_stats, needs="read", gives=StatsAnswer)


async def list_workers(call: Caller) -> Response:
    """Return the live workers of this tenant; an operator's: all."""
    return answer(await call.control.workers())


async def announce(call: Caller, instance: UUID, question: AnnounceQuestion) -> Response:
    """Say that a worker process lives, every few seconds. `drain` asks it to claim no more."""
    if question.instance != instance:
        raise InvalidInput("instance", f"is {question.instance}, and the path says {instance}")
    return answer(AnnounceAnswer(drain=await call.api.announcements.by_itself(question, tenant_id=call.works_for)))


async def retire(call: Caller, instance: UUID) -> Response:
    """Say that a worker process leaves. One that is not known has left already."""
    await call.api.announcements.retire(instance, tenant_id=call.works_for)
    return Response(status_code=204)


async def drain(call: Caller, worker_id: WorkerId) -> Response:
    """Let a worker claim no more: it ends when its runs have. Returns its processes."""
    return answer(await call.control.drain_worker(worker_id))


async def list_shards(call: Caller) -> Response:
    """Return who owns which shard; an operator's."""
    return answer(await call.control.shards())


async def get_stats(call: Caller) -> Response:
    """Return how much waits, runs and is dead."""
    return answer(await call.control.stats())
