"""What a worker knows stays with it: commands that run as its user may not read its environment or memory."""

import ctypes
import os
import sys
from typing import Final

CREDENTIALS: Final = ("ROTA_TOKEN", "ROTA_DATABASE_URL")
"""Settings that have been read, and that nobody who is started from here needs."""

_PR_SET_DUMPABLE: Final = 4


def conceal() -> bool:
    """Let no process of the same user look into this one (`/proc/PID/environ`, `/proc/PID/mem`, ptrace); Linux only.

    Returns whether that is so. A process that is started from here looks after itself.
    """
    if sys.platform != "linux":
        return False
    return bool(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0)


def forget_credentials() -> None:
    """Take what proves us out of the environment that processes started from here inherit."""
    for name in CREDENTIALS:
        os.environ.pop(name, None)
