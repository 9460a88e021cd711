"""A server that answers as a test says, and keeps what it was asked; and a clock that waits without waiting."""

import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from rota.clock import SystemClock


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request. `path` is as it came, still encoded."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


class Hang(Exception):
    """In place of an answer: the connection ends without one."""


Said = web.Response | Hang


class Stub:
    """Gives the answers in order; the last one again and again."""

    def __init__(self, url: str, asked: list[Asked], answers: deque[Callable[[], Said]]) -> None:
        self.url = url
        self.asked = asked
        self._answers = answers

    def say(self, *answers: Callable[[], Said]) -> None:
        self._answers.extend(answers)


def answer(document: object = None, *, status: int = 200, **headers: str) -> Callable[[], Said]:
    """An answer in JSON; underscores in headers' names stand for dashes."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda: web.json_response(document if document is not None else {}, status=status, headers=named)


def problem(status: int, code: str, detail: str = "no", **more: object) -> Callable[[], Said]:
    return answer({"type": f"/errors#{code}", "title": code, "status": status, "detail": detail, "code": code, **more},
                  status=status)  # fmt: skip


def no_answer() -> Said:
    return Hang()


@asynccontextmanager
async def stub_server() -> AsyncIterator[Stub]:
    """Yield a server on loopback."""
    asked: list[Asked] = []
    answers: deque[Callable[[], Said]] = deque()

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        body = await request.content.read()
        asked.append(Asked(method=request.method, path=request.raw_path, headers=dict(request.headers), body=body))
        said = (answers.popleft() if len(answers) > 1 else answers[0])()
        if isinstance(said, Hang):
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return said

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    [(_, port)] = runner.addresses
    try:
        yield Stub(f"http://127.0.0.1:{port}", asked, answers)
    finally:
        await runner.cleanup()


class HastyClock(SystemClock):
    """Sleeps at once, and takes note: its stopwatch goes on as if it had slept."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return super().monotonic() + sum(self.slept)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
