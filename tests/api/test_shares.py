"""A tenant's share of what everybody needs: the reserved connections, long polls, and memory for bodies."""

import asyncio
import io
from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import uuid4

import pytest

from rota.api import body, polls
from rota.api import claim_sizes as sizes
from rota.domain.attempt import Report
from rota.services.completion import Completion, Reported
from rota.services.fleet import Fleet, Health
from tests.api.conftest import Caller, Served, soon


class Reports:
    """Notes what is reported in one go, and lets it through when it may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[int] = []
        self.may_go = asyncio.Event()
        self.may_go.set()
        settle = Completion.settle

        async def noted(completion: Completion, reports: Sequence[Report]) -> Reported:
            self.batches.append(len(reports))
            await self.may_go.wait()
            return await settle(completion, reports)

        monkeypatch.setattr(Completion, "settle", noted)


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Reports:
    return Reports(monkeypatch)


async def claimed(who: Caller) -> dict[str, Any]:
    await who.put_job()
    await who.trigger()
    [run] = await who.claim()
    return {"run_id": run["run_id"], "lease_token": run["lease_token"]}


async def test_a_report_said_a_thousand_times_is_written_down_once(me: Caller, reports: Reports) -> None:
    said = {**await claimed(me), "status": "succeeded"}
    answer = (await me.post("/v1/runs:complete", {"reports": [said] * 1000})).ok()
    assert answer["accepted"] == [{"run_id": said["run_id"], "state": "succeeded"}] * 1000
    assert reports.batches == [1]


async def test_of_two_different_ends_in_one_call_the_first_counts(me: Caller, reports: Reports) -> None:
    run = await claimed(me)
    said = [{**run, "status": status} for status in ("dead", "succeeded", "dead")]
    answer = (await me.post("/v1/runs:complete", {"reports": said})).ok()
    assert answer["accepted"] == [{"run_id": run["run_id"], "state": "dead"}] * 2
    assert answer["lost"] == [run["lease_token"]]
    assert reports.batches == [1, 1]


async def test_one_token_beside_many_runs_is_no_long_story(me: Caller, reports: Reports) -> None:
    run = await claimed(me)
    runs = [await me.trigger() for _ in range(20)]
    said = [{"run_id": run_id, "lease_token": run["lease_token"], "status": "succeeded"} for run_id in runs]
    answer = (await me.post("/v1/runs:complete", {"reports": said})).ok()
    assert len(answer["lost"]) == 20
    assert len(reports.batches) <= 4
    assert (await me.post("/v1/runs:complete", {"reports": [{**run, "status": "succeeded"}]})).ok()["lost"] == []


async def test_a_tenant_with_many_reports_does_not_keep_another_s_waiting(server: Served, reports: Reports) -> None:
    greedy, modest, desk = await server.tenant("greedy"), await server.tenant("modest"), server.app.state.api.desk
    mine, theirs = await claimed(modest), await claimed(greedy)
    reports.may_go.clear()
    sent = [asyncio.create_task(greedy.post("/v1/runs:complete", {"reports": [made_up(theirs)]}))]
    await soon(lambda: reports.batches == [1], server.caller().health)
    flood = {"reports": [made_up(theirs) for _ in range(1000)]}
    sent += [asyncio.create_task(greedy.post("/v1/runs:complete", flood)) for _ in range(3)]
    await soon(lambda: desk.waiting == 3000, server.caller().health)
    asked = asyncio.create_task(modest.complete(mine))
    await soon(lambda: desk.waiting == 3001, server.caller().health)
    reports.may_go.set()
    assert (await asked).ok()["state"] == "succeeded"
    assert len(reports.batches) <= 3, "its report was in the batch that came next"
    await asyncio.gather(*sent)


async def test_reports_of_a_caller_who_left_are_not_written_down(server: Served, reports: Reports) -> None:
    me, desk = await server.tenant(), server.app.state.api.desk
    run = await claimed(me)
    reports.may_go.clear()
    first = asyncio.create_task(me.post("/v1/runs:complete", {"reports": [made_up(run)]}))
    await soon(lambda: reports.batches == [1], me.health)
    many = {"reports": [made_up(run) for _ in range(1000)]}
    leaving = asyncio.ensure_future(me.post("/v1/runs:complete", many))
    await soon(lambda: desk.waiting == 1000, me.health)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    await soon(lambda: desk.waiting == 0, me.health)
    reports.may_go.set()
    await first
    await me.complete(run)
    assert reports.batches == [1, 1]


async def test_a_tenant_has_so_many_long_polls_and_others_have_theirs(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polls, "POLLS_LIMIT", 3)
    many, other = await server.tenant("many"), await server.tenant("other")
    waiting = [asyncio.create_task(many.claim(wait=30)) for _ in range(3)]
    await soon(lambda: server.app.state.api.polls.waiting("many") == 3, many.health)
    refused = await many.post("/v1/claims", {"worker_id": "w-1", "limit": 1, "wait": 30})
    assert (refused.status, refused.code, refused.headers["Retry-After"]) == (429, "too-many-calls", "1")
    assert await many.claim() == [], "whoever does not wait is no poll"
    theirs = asyncio.create_task(other.claim(wait=30))
    await soon(lambda: server.app.state.api.polls.waiting("other") == 1, other.health)
    await other.put_job()
    await other.trigger()
    assert len(await theirs) == 1
    waiting.pop().cancel()
    await soon(lambda: server.app.state.api.polls.waiting("many") == 2, many.health)
    waiting.append(asyncio.create_task(many.claim(wait=30)))
    await soon(lambda: server.app.state.api.polls.waiting("many") == 3, many.health)
    server.stop.set()
    assert await asyncio.gather(*waiting) == [[], [], []]


async def test_many_polls_of_a_tenant_look_less_often(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polls, "LOOKS_PER_INTERVAL", 2)
    many, here = await server.tenant("many"), server.app.state.api.polls
    waiting = [asyncio.create_task(many.claim(wait=30)) for _ in range(6)]
    await soon(lambda: here.waiting("many") == 6, many.health)
    assert (here.interval("many"), here.interval("other"), here.interval(None)) == (3.0, 1.0, 1.0)
    server.stop.set()
    await asyncio.gather(*waiting)


def made_up(run: dict[str, Any]) -> dict[str, Any]:
    """A report with a token of nobody's."""
    return {**run, "lease_token": str(uuid4()), "status": "failed"}


async def test_bodies_of_a_tenant_have_so_many_bytes_at_once(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "OWNER_BYTES", 300_000)
    many, other = await server.tenant("many"), await server.tenant("other")
    long = {"handler": "h", "description": "x" * 200_000}
    path, headers = "/v1/jobs/tick", {**many.headers, "Content-Type": "application/json"}
    comes, may_end = asyncio.Event(), asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield b'{"handler": "h", "description": "' + b"x" * 200_000
        comes.set()
        await may_end.wait()
        yield b'"}'

    first = asyncio.ensure_future(many.session.put(many.url + path, data=slowly(), headers=headers))
    await comes.wait()
    await soon(lambda: server.app.state.api.bodies.held("many") > 150_000, many.health)
    refused = await many.put(path, long)
    assert (refused.status, refused.code) == (429, "too-many-calls")
    assert (await other.put(path, long)).code == "invalid-input", "the description alone is too long"
    may_end.set()
    (await first).release()
    assert (await many.put(path, long)).code == "invalid-input"


async def test_a_batch_of_numbers_is_refused_before_they_are_made(me: Caller) -> None:
    numbers = b'{"jobs": [{"job_id": "a", "handler": "h", "payload": {"a": [' + b"1," * 5_000_000 + b"1]}}]}"
    refused = await me.ask("POST", "/v1/jobs:batch", body=io.BytesIO(numbers))
    assert (refused.status, refused.code) == (413, "too-large")
    assert "values" in refused.json["detail"]


async def test_a_claim_carries_so_many_bytes_and_gives_the_rest_back(
    me: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "CLAIM_BYTES", 250_000)
    await me.put_job(payload={"a": "x" * 100_000})
    made = {await me.trigger() for _ in range(5)}
    first = await me.claim()
    assert len(first) == 2
    assert first[0]["payload"] == {"a": "x" * 100_000}
    second, third = await me.claim(), await me.claim()
    assert [len(second), len(third)] == [2, 1]
    assert {run["run_id"] for run in (*first, *second, *third)} == made
    assert all(run["attempt"] == 1 for run in (*first, *second, *third)), "what was given back is not charged"


async def test_however_many_strangers_ask_for_readiness_the_database_is_asked_by_one(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, may_answer, health = 0, asyncio.Event(), Fleet.health

    async def counted(fleet: Fleet) -> Health:
        nonlocal asked
        asked += 1
        await may_answer.wait()
        return await health(fleet)

    monkeypatch.setattr(Fleet, "health", counted)
    asking = [asyncio.create_task(server.caller().get("/readyz")) for _ in range(20)]
    await soon(lambda: asked > 0, server.caller().health)
    for _ in range(20):
        await server.caller().health()
    assert asked == 1
    may_answer.set()
    assert {answer.status for answer in await asyncio.gather(*asking)} == {503}
