"""Fixtures of the worker's tests."""

import pytest

from rota.worker.handlers import HandlerRegistry
from tests.worker.fake_desk import FakeDesk


@pytest.fixture
def desk() -> FakeDesk:
    return FakeDesk()


@pytest.fixture
def registry() -> HandlerRegistry:
    return HandlerRegistry()
