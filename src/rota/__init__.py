"""Rota: a distributed job scheduler on PostgreSQL.

Define jobs on an `App`, give each a schedule (`cron`, `every`, `once`) and run them with `rota dev` or `rota worker`.
A handler takes a `Run`; it raises `GiveUp` when trying again cannot help, and `RetryLater` to come back later.
"""

from rota.app import App, catch_up, fire_once, retry, skip
from rota.domain.schedule import cron, every, next_slots, once
from rota.errors import GiveUp, RetryLater, RotaError
from rota.version import VERSION as __version__
from rota.worker.context import RunContext as Run

__all__ = [
    "App",
    "GiveUp",
    "RetryLater",
    "RotaError",
    "Run",
    "__version__",
    "catch_up",
    "cron",
    "every",
    "fire_once",
    "next_slots",
    "once",
    "retry",
    "skip",
]
