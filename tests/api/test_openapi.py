"""The API against its own description: whatever is sent, nothing is a fault, and nothing is answered undocumented.

Requests are generated from OpenAPI, valid and invalid ones; half of them name things that there are.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from rota.api.app import create_app
from rota.api.binding import bind
from rota.api.serving import serve
from rota.clock import SystemClock
from rota.testing import RotaKit, TestCluster
from tests.services.stories import every

EXAMPLES: Final = 12
CHECKS: Final = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    allow_header_conformance,
]


class Place:
    """A served API in a thread of its own, since schemathesis asks without a loop."""

    def __init__(self, cluster: TestCluster) -> None:
        self.url = ""
        self.tokens: dict[GenerationMode, str] = {}
        self.known: dict[str, str] = {}
        self._cluster = cluster
        self._ready = threading.Event()
        self._end: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Place":
        self._thread.start()
        self._ready.wait(60)
        assert self.url, "the API did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._thread.join(60)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        self._end = lambda: loop.call_soon_threadsafe(stop.set)
        async with self._cluster.kit() as kit, asyncio.TaskGroup() as group:
            await self._furnish(kit)
            app = create_app(kit.rota, calls_per_second=1e6)
            group.create_task(_pass_time(kit, stop))
            group.create_task(serve(app, bind("127.0.0.1", 0), stop=stop, started=self._started))

    async def _furnish(self, kit: RotaKit) -> None:
        """Let there be jobs, a run that waits and one that runs, a worker, and tokens: an operator's and a tenant's."""
        for mode, tenant_id in zip(GenerationMode, ("*", "default"), strict=True):
            _, self.tokens[mode] = await kit.rota.access.create_token(
                tenant_id=tenant_id, scopes=["admin"], name="", expires_at=None, actor="test"
            )
        await kit.definitions.put([every("1h")])
        for _ in range(2):
            await kit.on_demand.trigger("tick", tenant_id="default")
        worker = kit.worker("w-1", handlers={"h"})
        await worker.announce()
        claim = (await worker.claim_one()).claim
        self.known = {
            "job_id": "tick", "run_id": str(claim.run_id), "lease_token": str(claim.key.token), "worker_id": "w-1",
            "instance": str(worker.instance), "tenant_id": "acme", "token_id": "unknown12345",
        }  # fmt: skip

    def names(self, parts: Any) -> Any:
        """Return parts of a request that name what there is."""
        if not isinstance(parts, dict):
            return parts
        return {name: self.known.get(name, value) for name, value in parts.items()}

    def _started(self, url: str) -> None:
        self.url = url
        self._ready.set()


async def _pass_time(kit: RotaKit, stop: asyncio.Event) -> None:
    """Let a second pass in each hundredth, so that long polls are short."""
    while not stop.is_set():
        await SystemClock().wait(stop, 0.01)
        kit.clock.advance(1)


@pytest.fixture(scope="module")
def place(rota_cluster: TestCluster) -> Iterator[Place]:
    with Place(rota_cluster) as place:
        yield place


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_the_api_answers_as_it_says(place: Place, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_url(f"{place.url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations() if isinstance(result, Ok)]
    assert len(operations) >= 38
    # What deletes comes last, so that the others find something.
    for operation in sorted(operations, key=lambda operation: operation.method == "delete"):
        ask(place, operation, mode)


def ask(place: Place, operation: Any, mode: GenerationMode) -> None:
    """Send requests to one operation and hold the answers against what is documented."""

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    @given(case=operation.as_strategy(generation_mode=mode), exists=st.booleans())
    def asked(case: Any, exists: bool) -> None:
        if exists:
            case.path_parameters, case.body = place.names(case.path_parameters), place.names(case.body)
        response = case.call(headers={"Authorization": f"Bearer {place.tokens[mode]}"}, timeout=20)
        assert response.status_code != 500, response.text
        case.validate_response(response, checks=CHECKS)

    # What takes neither parameters nor a body cannot be asked for wrongly.
    with suppress(Unsatisfiable):
        asked()
