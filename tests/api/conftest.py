"""The API as it is served: on a loopback port, in the test's loop, over the kit's cluster and its manual clock."""

import asyncio
import io
import json as jsonlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
import pytest_asyncio
from fastapi import FastAPI
from yarl import URL

from rota.api.app import create_app
from rota.api.binding import bind
from rota.api.serving import serve
from rota.testing import RotaKit

ALL = ("read", "jobs:write", "runs:operate", "worker", "admin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back."""

    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return jsonlib.loads(self.body)

    @property
    def code(self) -> str:
        """The code of a problem."""
        assert self.headers["Content-Type"] == "application/problem+json", self.body
        problem = self.json
        assert problem["status"] == self.status
        assert problem["type"] == f"/errors#{problem['code']}"
        return str(problem["code"])

    def ok(self) -> Any:
        """The document of a success."""
        assert 200 <= self.status < 300, (self.status, self.body)
        assert self.status == 204 or self.headers["Content-Type"].startswith("application/json")
        return self.json if self.body else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Somebody with a token, or none, who asks a server."""

    session: aiohttp.ClientSession
    url: str
    headers: dict[str, str]

    def with_headers(self, **headers: str) -> "Caller":
        """The same with more headers; `_` stands for `-`."""
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        return replace(self, headers={**self.headers, **more})

    async def ask(
        self, method: str, path: str, json: Any = None, *, body: bytes | io.BytesIO | None = None,
        kind: str = "application/json", encoding: str | None = None,
    ) -> Answer:  # fmt: skip
        """Ask; the path is sent as it stands, and so is the body, whatever its encoding is said to be."""
        data: bytes | io.BytesIO | None = body if body is not None or json is None else jsonlib.dumps(json).encode()
        headers = self.headers if data is None else {"Content-Type": kind, **self.headers}
        if encoding is not None:
            headers = {"Content-Encoding": encoding, **headers}
        async with self.session.request(
            method, URL(self.url + path, encoded=True), data=data, headers=headers, allow_redirects=False
        ) as response:
            return Answer(status=response.status, headers=response.headers, body=await response.read())

    async def health(self) -> Answer:
        """Ask for nothing but an answer."""
        return await self.get("/healthz")

    async def complete(self, run: Any, status: str = "succeeded", **more: Any) -> Answer:
        """End a claimed run's attempt."""
        said = {"lease_token": run["lease_token"], "status": status, **more}
        return await self.post(f"/v1/runs/{run['run_id']}/complete", said)

    async def get(self, path: str) -> Answer:
        return await self.ask("GET", path)

    async def put(self, path: str, json: Any) -> Answer:
        return await self.ask("PUT", path, json)

    async def post(self, path: str, json: Any = None) -> Answer:
        return await self.ask("POST", path, json)

    async def put_job(self, job_id: str = "tick", **definition: Any) -> Any:
        """Put an on-demand job whose handler is "h", or what is given."""
        return (await self.put(f"/v1/jobs/{quote(job_id, safe='')}", {"handler": "h", **definition})).ok()

    async def trigger(self, job_id: str = "tick") -> str:
        """Make a run; returns its id."""
        return str((await self.post(f"/v1/jobs/{quote(job_id, safe='')}/runs")).ok()["run_id"])

    async def claim(self, **changes: Any) -> list[Any]:
        """Claim as the worker w-1; returns the runs."""
        question = {"worker_id": "w-1", "limit": 10, **changes}
        return list((await self.post("/v1/claims", question)).ok()["runs"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A served API: its application, where it is, and what answers behind it."""

    app: FastAPI
    url: str
    kit: RotaKit
    session: aiohttp.ClientSession
    stop: asyncio.Event

    def caller(self, token: str | None = None, **headers: str) -> Caller:
        """Somebody with this token."""
        base = {} if token is None else {"Authorization": f"Bearer {token}"}
        return Caller(session=self.session, url=self.url, headers=base).with_headers(**headers)

    async def token(self, tenant_id: str = "default", *, scopes: tuple[str, ...] = ALL, **more: Any) -> str:
        """Make a token; returns its text."""
        given = {"name": "", "expires_at": None, "actor": "test", **more}
        return (await self.kit.rota.access.create_token(tenant_id=tenant_id, scopes=scopes, **given))[1]

    async def tenant(self, tenant_id: str = "default", *, scopes: tuple[str, ...] = ALL) -> Caller:
        """Somebody with a token of this tenant."""
        return self.caller(await self.token(tenant_id, scopes=scopes))


Serving = Callable[..., Any]


@pytest.fixture
def serving(rota_kit: RotaKit) -> Serving:
    """Serves an application with these options while a block lasts."""

    @asynccontextmanager
    async def served(**options: Any) -> AsyncIterator[Served]:
        app = create_app(rota_kit.rota, **options)
        stop = asyncio.Event()
        bound: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(serve(app, bind("127.0.0.1", 0), stop=stop, started=bound.set_result))
        try:
            async with asyncio.timeout(20), aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
                url = await bound
                yield Served(app=app, url=url, kit=rota_kit, session=session, stop=stop)
        finally:
            stop.set()
            async with asyncio.timeout(20):
                await task

    return served


@pytest_asyncio.fixture
async def server(serving: Serving) -> AsyncIterator[Served]:
    """A served API that asks for tokens."""
    async with serving() as served:
        yield served


@pytest_asyncio.fixture
async def me(server: Served) -> Caller:
    """Somebody with all scopes of the tenant default."""
    return await server.tenant()


async def soon(condition: Callable[[], bool], turn: Callable[[], Awaitable[Any]]) -> None:
    """Take turns until a condition holds, at most for some seconds."""
    async with asyncio.timeout(30):
        while not condition():
            await turn()
