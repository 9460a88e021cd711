"""`rota worker --url`: what is found out before the first claim."""

import asyncio
from typing import Any, cast

import pytest

import rota
from rota.cli.workplace import workplace
from rota.errors import Forbidden
from rota.settings import Settings
from tests.client.stub import Stub, answer, problem

ME = {"tenant_id": "acme", "scopes": ["worker"], "actor": "token:abc", "is_operator": False}
NOW = "2026-01-01T00:00:00+00:00"
NO_CALL: Any = None


def settings(stub: Stub) -> Settings:
    return Settings(url=stub.url, token=cast(Any, "rota_abc_secret"))


async def test_the_first_answer_tells_the_tenant_and_the_time(stub: Stub) -> None:
    stub.say(answer(ME, Rota_Now=NOW))
    async with workplace(NO_CALL, settings(stub)) as place:
        assert place.tenant_id == "acme"
        assert place.clock.now().isoformat() >= NOW
        stop = asyncio.Event()
        stop.set()
        await place.keep_going(stop)
    assert [asked.path for asked in stub.asked] == ["/v1/me"]


async def test_a_token_that_cannot_work_is_refused_at_once(stub: Stub) -> None:
    stub.say(answer({**ME, "scopes": ["read"]}, Rota_Now=NOW))
    with pytest.raises(Forbidden, match="no scope worker, it has read"):
        async with workplace(NO_CALL, settings(stub)):
            pass


async def test_an_app_without_a_tenant_is_registered_for_the_tokens(stub: Stub) -> None:
    app = rota.App()
    app.job("j")(print)
    put = {
        "job_id": "j", "version": 1, "next_run_at": None, "next_slot": None, "changed": True, "created": True,
        "warnings": [],
    }  # fmt: skip
    stub.say(answer(ME, Rota_Now=NOW), answer({"jobs": [put], "orphaned": [], "more_orphaned": False}))
    async with workplace(NO_CALL, settings(stub)) as place:
        said = await place.register(list(app.jobs.values()), app.tenant_id, "jobs")
    assert [job.job_id for job in said.jobs] == ["j"]
    assert (stub.asked[1].path, stub.asked[1].document["source"]) == ("/v1/jobs:declare", "jobs")
    assert stub.asked[1].document["jobs"][0]["tenant_id"] == "acme"


async def test_an_api_that_knows_no_declarations_is_given_puts(stub: Stub) -> None:
    app = rota.App()
    app.job("j")(print)
    put = {
        "job_id": "j", "version": 1, "next_run_at": None, "next_slot": None, "changed": True, "created": True,
        "warnings": [],
    }  # fmt: skip
    unknown = problem(404, "not-found", "there is no such path")
    stub.say(answer(ME, Rota_Now=NOW), unknown, answer({"jobs": [put]}))
    async with workplace(NO_CALL, settings(stub)) as place:
        said = await place.register(list(app.jobs.values()), app.tenant_id, "jobs")
    assert ([job.changed for job in said.jobs], said.orphaned) == ([True], ())
    assert [asked.path for asked in stub.asked[1:]] == ["/v1/jobs:declare", "/v1/jobs:batch"]


async def test_a_token_that_cannot_register_says_what_to_do(stub: Stub) -> None:
    stub.say(answer(ME, Rota_Now=NOW), problem(403, "forbidden", "this needs the scope jobs:write"))
    app = rota.App()
    app.job("j")(print)
    async with workplace(NO_CALL, settings(stub)) as place:
        with pytest.raises(Forbidden, match="--no-register"):
            await place.register(list(app.jobs.values()), app.tenant_id, "jobs")
