"""Fixtures for pytest: `rota_cluster` once per session (and per xdist worker), `rota_kit` afresh for every test.

Every test that uses `rota_kit` ends with the conservation law being checked.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from rota.testing.cluster import TestCluster
from rota.testing.kit import RotaKit


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


@pytest_asyncio.fixture
async def rota_kit(rota_cluster: TestCluster) -> AsyncIterator[RotaKit]:
    """The whole of Rota on a manual clock over a fresh database."""
    async with rota_cluster.kit() as kit:
        yield kit
        await kit.check()
