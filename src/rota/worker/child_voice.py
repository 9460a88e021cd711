"""What a child process says to its worker: answers at once, progress in between and not too often."""

import contextlib
import os
import socket
import threading
from typing import Final

from rota.domain.progress import Progress
from rota.worker import frames
from rota.worker.context import TellProgress

TELL_INTERVAL: Final = 0.25
"""Seconds between two messages of progress."""


class Voice:
    """The child's end of the connection. Progress is sent by a thread of its own: a handler never waits for it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._pid = os.getpid()
        self._sending = threading.Lock()
        self._knowing = threading.Lock()  # never held while something is sent
        self._some = threading.Event()
        self._pause = threading.Event()
        self._run = 0
        self._latest: Progress | None = None
        self._has_thread = False

    def begin(self) -> TellProgress:
        """Return how the next run tells its progress; what one says after its answer is nobody's."""
        run = self._run

        def tell(said: Progress) -> None:
            if os.getpid() != self._pid:
                return  # a fork of the handler: the connection is not its own
            with self._knowing:
                if run != self._run:
                    return
                self._latest = said.after(self._latest)
                is_first, self._has_thread = not self._has_thread, True
            if is_first:
                threading.Thread(target=self._serve, name="rota-progress", daemon=True).start()
            self._some.set()

        return tell

    def say(self, message: frames.Message) -> None:
        """Send a message, and before it what the run has said of its progress: that is over with it."""
        with self._sending:
            with self._knowing:
                self._run += 1
                latest, self._latest = self._latest, None
            told = b"" if latest is None else frames.pack({"progress": latest})
            self._connection.sendall(told + frames.pack(message))

    def _serve(self) -> None:
        # When the parent is gone, the listening thread ends this process.
        with contextlib.suppress(OSError):
            while True:
                self._some.wait()
                self._some.clear()
                with self._sending:
                    with self._knowing:
                        latest, self._latest = self._latest, None
                    if latest is not None:
                        self._connection.sendall(frames.pack({"progress": latest}))
                self._pause.wait(TELL_INTERVAL)
