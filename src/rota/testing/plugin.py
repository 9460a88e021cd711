"""Fixtures for pytest: `rota_cluster` once per session (and per xdist worker), `rota_kit` afresh for every test.

Every test that uses `rota_kit` ends with the conservation law being checked.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from rota.testing.cluster import TestCluster
from rota.testing.kit import RotaKit
from rota.testing.kits import Kits


@pytest.fixture(scope="session")
def rota_cluster() -> Iterator[TestCluster]:
    """A PostgreSQL server for this session."""
    # Its own loop, since the fixture outlives the loop of any one test.
    with asyncio.Runner() as runner:
        context = TestCluster.started()
        cluster = runner.run(context.__aenter__())
        try:
            yield cluster
        finally:
            runner.run(context.__aexit__(None, None, None))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def rota_kits(rota_cluster: TestCluster) -> AsyncIterator[Kits]:
    """Kits for tests that share one event loop: their databases, and the sessions with them, are used again."""
    async with Kits(rota_cluster) as kits:
        yield kits


@pytest.fixture
def _rota_kits(request: pytest.FixtureRequest, rota_cluster: TestCluster) -> Kits | TestCluster:
    shares_loop = request.config.getini("asyncio_default_fixture_loop_scope") == "session"
    return request.getfixturevalue("rota_kits") if shares_loop else rota_cluster


@pytest_asyncio.fixture
async def rota_kit(_rota_kits: Kits | TestCluster) -> AsyncIterator[RotaKit]:
    """The whole of Rota on a manual clock over a fresh database, or one as if fresh."""
    async with _rota_kits.kit() as kit:
        yield kit
        await kit.check()
