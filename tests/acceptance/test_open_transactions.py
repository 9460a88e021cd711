"""An application's open transaction holds what it touched, and nothing else: whoever asks for the rest is answered."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, cast

import pytest

from rota.domain.job import Job
from rota.errors import LeaseLost
from rota.store.database import BOUNDS, Lane
from rota.store.sessions import Bounds
from rota.testing import RotaKit
from tests.api.conftest import Answer, Caller, Served
from tests.api.conftest import server as server
from tests.api.conftest import serving as serving
from tests.services.stories import every, states
from tests.store.stage import outsider, uncommitted, until, until_waiting_for

CALLERS = 30
ANSWERED = 30.0
"""Seconds within which everything is answered on a machine that has other things to do; nothing waits for the end."""
KEYED = """SELECT rota.trigger('once', '{"n": 1}', 'default', NULL, 'order-4711')"""
KEY = {"Idempotency-Key": "order-4711"}


def is_told(answer: Answer, what: str) -> bool:
    """Whether an answer says what is held, and when to ask again."""
    assert (answer.status, answer.code) == (503, "locked"), answer.body
    assert int(answer.headers["Retry-After"]) >= 1
    return what in answer.json["detail"]


async def until_nobody_waits(kit: RotaKit) -> None:
    """Wait until no process of the server waits for a lock any more; the transaction that holds it is still open."""
    async with outsider(kit.dsn) as other:

        async def look() -> bool:
            return not await other.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted")

        await until(look)


@asynccontextmanager
async def answered() -> AsyncIterator[None]:
    async with asyncio.timeout(ANSWERED):
        yield


async def others_go_on(served: Served, me: Caller, job_id: str, number: int) -> None:
    """Everything that is not about what is held succeeds."""
    async with answered():
        assert (await me.with_headers(Idempotency_Key=f"other-{number}").post("/v1/jobs/once/runs")).status == 201
        assert (await me.post(f"/v1/jobs/{job_id}/pause", {"reason": "deploy"})).status == 200
        assert (await me.post(f"/v1/jobs/{job_id}/resume", {})).status == 200
        await me.put_job(job_id, description=f"edit {number}")
        run_id = await me.trigger(job_id)
        assert [run["run_id"] for run in await me.claim(handlers=["h"], limit=100)].count(run_id) == 1
        ready = (await served.caller().get("/readyz")).json
        assert "the database does not answer" not in ready["problems"]


async def test_a_key_that_an_open_transaction_holds_stops_nobody_else(server: Served) -> None:
    me, kit = await server.tenant(), server.kit
    for job_id in ("once", "other"):
        await me.put_job(job_id)
    mine = me.with_headers(**KEY)
    async with uncommitted(kit.dsn, KEYED) as other:
        asking = [asyncio.create_task(mine.post("/v1/jobs/once/runs", {"payload": {"n": 1}})) for _ in range(CALLERS)]
        await others_go_on(server, me, "other", 1)
        async with answered():
            for answer in await asyncio.gather(*asking):
                assert is_told(answer, "the Idempotency-Key 'order-4711' is held by a transaction")
        await until_nobody_waits(kit)
        await others_go_on(server, me, "other", 2)
        await other.execute("ROLLBACK")
    async with answered():
        made = await asyncio.gather(*(mine.post("/v1/jobs/once/runs", {"payload": {"n": 1}}) for _ in range(CALLERS)))
    assert sorted(answer.status for answer in made) == [200] * (CALLERS - 1) + [201]
    assert len({answer.json["run_id"] for answer in made}) == 1


EDITS: dict[str, tuple[str, str, Any]] = {
    "put": ("PUT", "/v1/jobs/held", {"handler": "h", "description": "new"}),
    "patch": ("PATCH", "/v1/jobs/held", {"description": "new"}),
    "pause": ("POST", "/v1/jobs/held/pause", {"reason": "deploy"}),
    "resume": ("POST", "/v1/jobs/held/resume", {}),
    "delete": ("DELETE", "/v1/jobs/held", None),
}


@pytest.mark.parametrize("edit", EDITS)
async def test_an_edit_of_a_job_that_an_open_transaction_triggered_is_told_so(server: Served, edit: str) -> None:
    me, kit = await server.tenant(), server.kit
    for job_id in ("once", "held", "other"):
        await me.put_job(job_id)
    method, path, document = EDITS[edit]
    async with uncommitted(kit.dsn, "SELECT rota.trigger('held')") as other:
        asking = [asyncio.create_task(me.ask(method, path, document)) for _ in range(CALLERS // 3)]
        await others_go_on(server, me, "other", 1)
        async with answered():
            for answer in await asyncio.gather(*asking):
                assert is_told(answer, "job 'held' is held by a transaction")
            # A share of the job is enough for a run.
            await me.trigger("held")
        await until_nobody_waits(kit)
        await other.execute("COMMIT")
    async with answered():
        assert (await me.ask(method, path, document)).ok() is not None or edit == "delete"


async def test_a_slot_that_an_open_transaction_takes_is_told_so(server: Served) -> None:
    me, kit = await server.tenant(), server.kit
    for job_id in ("once", "held", "other"):
        await me.put_job(job_id)
    at = "2026-01-01T06:00:00Z"
    async with uncommitted(kit.dsn, f"SELECT rota.trigger('held', scheduled_for => '{at}')") as other:
        asking = [
            asyncio.create_task(me.post("/v1/jobs/held/runs", {"scheduled_for": at})) for _ in range(CALLERS // 3)
        ]
        await others_go_on(server, me, "other", 1)
        async with answered():
            for answer in await asyncio.gather(*asking):
                assert is_told(answer, "of job 'held' is held by a transaction")
        await until_nobody_waits(kit)
        await other.execute("COMMIT")
    async with answered():
        assert (await me.post("/v1/jobs/held/runs", {"scheduled_for": at})).code == "slot-taken"


async def test_a_run_that_an_open_transaction_completes_cannot_be_cancelled_just_now(server: Served) -> None:
    me, kit = await server.tenant(), server.kit
    for job_id in ("once", "other"):
        await me.put_job(job_id)
    await kit.put(Job(job_id="held", handler="apart"))
    await me.trigger("held")
    [run] = await me.claim(handlers=["apart"])
    complete = f"SELECT rota.complete('{run['run_id']}', '{run['lease_token']}')"
    path = f"/v1/runs/{run['run_id']}/cancel"
    async with uncommitted(kit.dsn, complete) as other:
        asking = [asyncio.create_task(me.post(path)) for _ in range(CALLERS // 3)]
        await others_go_on(server, me, "other", 1)
        async with answered():
            for answer in await asyncio.gather(*asking):
                assert is_told(answer, f"run {run['run_id']} is held by a transaction")
        await until_nobody_waits(kit)
        await other.execute("COMMIT")
    async with answered():
        assert (await me.post(path)).code == "run-finished"
    assert await states(kit, "held") == ["succeeded"]


OPEN: dict[str, str] = {
    "a coming slot": "SELECT rota.trigger('held', scheduled_for => '2026-01-01T00:00:10Z')",
    "a key": "SELECT rota.trigger('held', idempotency_key => 'order-4711')",
    "a month to come": "SELECT rota.trigger('held', scheduled_for => '2026-04-20T00:00:00Z')",
    "a year to come": "SELECT rota.trigger('held', scheduled_for => '2041-04-20T00:00:00Z')",
    "a completion": "SELECT rota.complete('{run_id}', '{token}')",
}


@pytest.mark.parametrize("opened", OPEN)
async def test_every_loop_goes_on_for_others_beside_an_open_transaction(rota_kit: RotaKit, opened: str) -> None:
    """Slots are made, paused jobs resumed, lapsed leases taken back, reports recorded, months kept: at their pace."""
    kit = rota_kit
    ten = timedelta(seconds=10)
    await kit.put(
        every("10s", "tick"), every("10s", "held", pause_after=1, max_attempts=1), every("10s", "paused"),
        every("10s", "held-too"), Job(job_id="lapsing", handler="lapsing", lease_duration=ten),
    )  # fmt: skip
    for job_id in ("paused", "held-too"):
        await kit.definitions.pause(job_id, tenant_id="default", reason="x", resume_at=kit.clock.now() + ten / 2)
    for job_id in ("held", "lapsing"):
        await kit.on_demand.trigger(job_id, tenant_id="default")
    worker = kit.worker("w-1", handlers=["h", "lapsing"])
    held, lapsing = sorted(await worker.claim(limit=2), key=lambda work: work.claim.job_id)
    command = OPEN[opened].format(run_id=held.claim.run_id, token=held.claim.key.token)
    # The same application triggers a job besides whose pause is to end.
    async with uncommitted(kit.dsn, command, "SELECT rota.trigger('held-too')") as other:
        async with asyncio.timeout(4 * ANSWERED):
            await kit.advance(12)
            done = await worker.claim(limit=100)
            assert {work.claim.job_id for work in done} >= {"tick", "paused", "lapsing"}
            for work in done:
                await work.succeed()
            if opened != "a completion":
                await held.fail()
            await kit.advance(18)
            for work in await worker.claim(limit=100):
                await work.succeed()
            for job_id in ("tick", "paused"):
                assert await states(kit, job_id) == ["succeeded"] * 3, job_id
            assert await states(kit, "lapsing") == ["succeeded"]
            with pytest.raises(LeaseLost):
                await lapsing.succeed()
        assert not await other.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted")
        await other.execute("COMMIT")
    await kit.advance(30)
    assert (await kit.definitions.get("held-too", tenant_id="default")).paused_at is None
    [ended, *_] = await kit.runs("held")
    assert ended.state == ("succeeded" if opened == "a completion" else "dead")


TENANTS = ("acme", "globex", "initech", "umbrella")


@pytest.fixture
def patient_reads(server: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    """Lets lists wait for a lock, so that one stands for a list that takes long; and sets how long they may take."""
    # A session keeps the bounds that it was opened with, and may outlive its test: none is used on either side.
    end_idle = server.kit.database._pools[Lane.READS].end_idle

    def set_limit(seconds: float) -> None:
        monkeypatch.setitem(cast("dict[Lane, Bounds]", BOUNDS), Lane.READS, Bounds(statement=seconds, lock=60.0))
        end_idle()

    yield set_limit
    end_idle()


DEAD = "/v1/runs?state=dead"


async def test_slow_lists_of_many_tenants_leave_claims_and_edits_their_connections(
    server: Served, patient_reads: Callable[[float], None]
) -> None:
    patient_reads(20.0)
    me = await server.tenant()
    readers = [await server.tenant(tenant) for tenant in TENANTS for _ in range(5)]
    for job_id in ("once", "other"):
        await me.put_job(job_id)
    async with uncommitted(server.kit.dsn, "LOCK TABLE rota.dead") as other:
        reading = [asyncio.create_task(reader.get(DEAD)) for reader in readers]
        size = server.kit.database.size_of(Lane.READS)
        assert len(await until_waiting_for(other, waiters=size)) == size
        await others_go_on(server, me, "other", 1)
        await other.execute("ROLLBACK")
    async with answered():
        assert {answer.status for answer in await asyncio.gather(*reading)} <= {200, 429, 503}
        (await readers[0].get(DEAD)).ok()


async def test_a_list_that_takes_too_long_is_ended_in_the_server(
    server: Served, patient_reads: Callable[[float], None]
) -> None:
    patient_reads(0.3)
    me = await server.tenant()
    async with uncommitted(server.kit.dsn, "LOCK TABLE rota.dead"), answered():
        answer = await me.get(DEAD)
        assert (answer.status, answer.code) == (503, "too-slow")
        await until_nobody_waits(server.kit)


async def test_a_list_ends_with_its_caller(server: Served, patient_reads: Callable[[float], None]) -> None:
    patient_reads(20.0)
    me = await server.tenant()
    async with uncommitted(server.kit.dsn, "LOCK TABLE rota.dead") as other, answered():
        reading = asyncio.create_task(me.get(DEAD))
        await until_waiting_for(other)
        reading.cancel()
        await asyncio.wait({reading})
        await until_nobody_waits(server.kit)
