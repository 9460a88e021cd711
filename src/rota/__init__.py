"""Rota: a distributed job scheduler on PostgreSQL.

Define jobs on an `App`, give each a schedule (`cron`, `every`, `once`) and run them with `rota dev` or `rota worker`.
A handler takes a `Run`; it raises `GiveUp` when trying again cannot help, and `RetryLater` to come back later.
`Client` and `SyncClient` reach an installation over HTTP, where a job is a `Job`; `trigger_in`, `trigger_many_in` and
`complete_in` make and finish runs in a transaction of the caller's own.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from rota.app import App, catch_up, fire_once, retry, skip
from rota.domain.job import Job
from rota.domain.schedule import cron, every, next_slots, once
from rota.errors import GiveUp, RetryLater, RotaError
from rota.version import VERSION as __version__
from rota.worker.context import RunContext as Run

if TYPE_CHECKING:
    from rota.client import Client, SyncClient
    from rota.transactional import (
        complete_in,
        complete_in_sync,
        trigger_in,
        trigger_in_sync,
        trigger_many_in,
        trigger_many_in_sync,
    )

__all__ = [
    "App",
    "Client",
    "GiveUp",
    "Job",
    "RetryLater",
    "RotaError",
    "Run",
    "SyncClient",
    "__version__",
    "catch_up",
    "complete_in",
    "complete_in_sync",
    "cron",
    "every",
    "fire_once",
    "next_slots",
    "once",
    "retry",
    "skip",
    "trigger_in",
    "trigger_in_sync",
    "trigger_many_in",
    "trigger_many_in_sync",
]

_LATER: Final = {
    "Client": "rota.client",
    "SyncClient": "rota.client",
    "complete_in": "rota.transactional",
    "complete_in_sync": "rota.transactional",
    "trigger_in": "rota.transactional",
    "trigger_in_sync": "rota.transactional",
    "trigger_many_in": "rota.transactional",
    "trigger_many_in_sync": "rota.transactional",
}
"""What is imported when it is first used: most programs need none of it, and it takes as long as all the rest."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LATER[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
