"""What a heart does after its worker's end: it gives leases back, in batches that do not wait for each other."""

import asyncio
from io import BytesIO
from typing import cast

import pytest

from rota.domain.attempt import Outcome
from rota.worker import frames
from rota.worker.heart_process import BATCH, HeartProcess
from rota.worker.lease_book import line_of
from tests.worker.fake_desk import FakeDesk
from tests.worker.floor_app import app
from tests.worker.kit import info_of

OPENED: list[tuple[str, dict[str, object]]] = []
DESKS: dict[str, FakeDesk] = {}


def open_desk(url: str, **options: object) -> FakeDesk:
    """Where the heart of these tests finds its desk."""
    OPENED.append((url, options))
    return DESKS[url]


def heart(url: str, **options: object) -> HeartProcess:
    hello = {
        "url": url, "options": options, "opener": "tests.worker.test_surrender:open_desk", "worker_pid": 1,
    }  # fmt: skip
    return HeartProcess(hello, cast(asyncio.WriteTransport, None))


async def test_a_batch_that_cannot_be_given_back_keeps_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rota.worker.heart_process.SURRENDER_TIME", 1.0)
    desk = DESKS["one://"] = FakeDesk()
    runs = [desk.add("wait_async") for _ in range(BATCH + 1)]
    claims = [claim for _ in range(3) for claim in await desk.claim(info_of(app.handlers), limit=BATCH)]
    assert len(claims) == BATCH + 1
    one = heart("one://")
    hold = frames.pack({"hold": [[*line_of(claim.key, duration=60.0), 60.0] for claim in claims]})
    message = frames.read_blocking(BytesIO(hold))
    assert message is not None
    one._book.take(message, now=0.0)
    bad = claims[0].key.token
    desk.refuses = lambda report: report.key.token == bad
    await one._part(None)
    assert [run.state for run in runs].count("running") == BATCH
    assert runs[-1].outcomes == [Outcome.LOST]


async def test_the_desk_is_opened_with_the_token_that_came_by_the_pipe() -> None:
    DESKS["two://"] = FakeDesk()
    await heart("two://", token="rota_a_b", tenant="acme")._open()
    assert OPENED[-1] == ("two://", {"token": "rota_a_b", "tenant": "acme"})
