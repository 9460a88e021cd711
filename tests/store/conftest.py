"""Databases for the store's tests: migrated ones, and one that Rota never saw."""

import itertools
import os
from collections.abc import AsyncIterator

import pytest_asyncio

from rota.store.admin import copy_database, drop_database, with_database
from rota.testing import TestCluster

_numbers = itertools.count(1)


@pytest_asyncio.fixture
async def dsn(rota_cluster: TestCluster) -> AsyncIterator[str]:
    """A fresh, migrated database."""
    async with rota_cluster.database() as dsn:
        yield dsn


@pytest_asyncio.fixture
async def bare_dsn(rota_cluster: TestCluster) -> AsyncIterator[str]:
    """A fresh database without Rota's schema."""
    server, name = rota_cluster.server.dsn, f"bare_{os.getpid()}_{next(_numbers)}"
    await copy_database(server, source="template1", name=name)
    try:
        yield with_database(server, name)
    finally:
        await drop_database(server, name=name)
