"""Opens a desk in memory, and takes long to import, as everything does on a busy host."""

import threading

from tests.worker.fake_desk import open_fake_desk

__all__ = ["open_fake_desk"]

IMPORT_TIME = 3.0
"""Seconds: longer than the leases of the test that uses it."""

threading.Event().wait(IMPORT_TIME)
