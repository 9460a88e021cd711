"""Fixtures of the client's tests."""

from collections.abc import AsyncIterator

import pytest

from rota.client import Client
from tests.client.stub import HastyClock, Stub, stub_server


@pytest.fixture
async def stub() -> AsyncIterator[Stub]:
    async with stub_server() as one:
        yield one


@pytest.fixture
def clock() -> HastyClock:
    return HastyClock()


@pytest.fixture
async def client(stub: Stub, clock: HastyClock) -> AsyncIterator[Client]:
    async with Client(stub.url, "rota_abc_secret", clock=clock) as one:
        yield one
