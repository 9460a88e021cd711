"""What watches this process from outside: probes of a supervisor or balancer, and Prometheus."""

from typing import Any

from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.responses import Response

from rota.api.calls import Caller, Routes, TheApi, answer
from rota.api.health import SILENT_DATABASE, judged
from rota.errors import DatabaseUnavailable
from rota.wire.document import Document
from rota.wire.work import HealthDocument


class LivingDocument(Document):
    """That there is an answer says it all."""

    alive: bool


def register(routes: Routes) -> None:
    red: dict[int | str, dict[str, Any]] = {503: {"model": HealthDocument, "description": "Not ready: see `problems`."}}
    text: dict[int | str, dict[str, Any]] = {
        200: {"description": "Metrics in Prometheus' text format.", "content": {"text/plain": {}}}
    }
    routes.add("GET", "/healthz", healthz, needs="nothing", gives=LivingDocument)
    routes.add("GET", "/readyz", readyz, needs="nothing", gives=HealthDocument, also=red)
    # Balancers like to ask without wanting to read.
    routes.add("HEAD", "/healthz", healthz, needs="nothing", gives=None, is_shown=False)
    routes.add("HEAD", "/readyz", readyz, needs="nothing", gives=None, is_shown=False)
    routes.add("GET", "/metrics", metrics, needs="read", gives=None, also=text)


async def healthz() -> Response:
    """Answer, which is all that it says: this process lives."""
    return answer(LivingDocument(alive=True))


async def readyz(api: TheApi) -> Response:
    """Say whether schedulers tick, workers claim, and the database answers."""
    try:
        health = await api.health()
    except DatabaseUnavailable:
        return answer(SILENT_DATABASE, status=503)
    document = judged(health, now=api.cluster.clock.now())
    return answer(document, status=200 if document.ready else 503)


async def metrics(call: Caller) -> Response:
    """Numbers of this process and of the whole cluster; an operator's."""
    call.principal.require_operator()
    return Response(await call.api.metrics.scrape(), media_type=CONTENT_TYPE_LATEST)
