"""Where a run goes that lost a worker: apart from others, since it may have been the one that ended it.

Where its handler can be loaded in a child process, it runs there, and takes nobody with it. Where it cannot, it runs
alone: nothing else is in the worker's process meanwhile, so that only what dies alone is charged again and again.
"""

from dataclasses import replace
from typing import Final

from rota.worker.handlers import SHELL, Handler

TURN_TIME: Final = 20.0
"""Seconds for which a run waits in its worker to be alone, or for the end of an older attempt of itself."""

NEXT_TRY: Final = 10.0
"""Seconds after which a run comes back that has waited in vain; that counts as no attempt."""


def is_outside(handler: Handler) -> bool:
    """Tell whether what the handler does happens outside the worker's process, or is Rota's own."""
    return handler.isolation == "process" or handler.takes_claim or handler.name == SHELL


def in_child(handler: Handler, *, has_target: bool) -> Handler | None:
    """Return the handler as one that runs in a child process; None if no child could find its function.

    A script that is not loaded as an app is not imported for this: at its top level it may start a worker.
    """
    if is_outside(handler):
        return handler
    name = getattr(handler.function, "__qualname__", "<unnamed>")
    module = getattr(handler.function, "__module__", None)
    if has_target or (module not in (None, "__main__") and "<" not in name):
        return replace(handler, isolation="process")
    return None
