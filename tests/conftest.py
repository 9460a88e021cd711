"""What all tests share: the fixtures that ship to users, and a hypothesis that asserts no wall-clock time."""

import asyncio
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import structlog
import uvloop
from hypothesis import settings

pytest_plugins = ["rota.testing.plugin"]

ROOT: Final = Path(__file__).parent.parent

if sys.dont_write_bytecode:
    # Tests start processes by the hundred. Where no bytecode is kept each one compiles all that it imports, which takes
    # several times as long as what it is started for. It is kept aside here, for them and for xdist's workers.
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(ROOT / ".pytest_cache" / "bytecode")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Rota's processes run on this loop, which is not asyncio's own in all it does.
asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())

# Machines are shared and noisy: an example that takes long is no failure.
settings.register_profile("rota", deadline=None)
settings.load_profile("rota")


@pytest.fixture(autouse=True)
def _logging_of_its_own() -> Iterator[None]:
    """A command that a test runs in this process chooses what is logged: for that test alone."""
    yield
    structlog.reset_defaults()


LONG: Final = (
    "tests/acceptance/",
    "tests/model/",
    "tests/api/test_openapi.py",
    "tests/store/test_plans.py",
    "tests/store/test_version_before.py",
    "tests/cli/test_dev.py",
)
"""Where tests take long: these begin, so that in the end no worker waits for the other one's last test."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long tests first."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Spare the garbage collector what was collected: it would look at five thousand tests again and again."""
    gc.collect()
    gc.freeze()
