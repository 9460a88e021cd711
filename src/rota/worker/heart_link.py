"""One heart process as its worker sees it: its pipe, its voice, and for how long it has said nothing."""

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import Collection
from typing import Final, Self

from rota.clock import Clock
from rota.worker import frames

BURIAL_TIME: Final = 1.0
"""Seconds between a heart's last word and its end; then it is killed."""

BURIAL_LOOK: Final = 0.02
"""Seconds between two looks whether it has ended."""


class HeartLink:
    """One heart process. `silence` is counted in the pauses that its worker has planned and spent waiting for a word.

    It `is_ready` from its first word on: a heart answers only once it could renew.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        pipe: asyncio.WriteTransport,
        voice: asyncio.ReadTransport,
        reader: asyncio.StreamReader,
    ) -> None:
        self._process = process
        self._pipe = pipe
        self._voice = voice
        self.reader = reader
        self.silence = 0.0
        self.is_ready = False

    @classmethod
    async def start(cls, *, inherited: Collection[int] = ()) -> Self:
        """Start a heart process, which keeps the `inherited` descriptors. Raises OSError."""
        loop = asyncio.get_running_loop()
        # Its own session: neither Ctrl-C nor a signal to the worker's process group may reach it.
        process = subprocess.Popen(  # noqa: ASYNC220 - a fork takes a millisecond; its pipes are the loop's
            [sys.executable, "-P", "-m", "rota.worker.heart_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            pass_fds=tuple(inherited),
        )
        assert process.stdin is not None
        assert process.stdout is not None
        pipe, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, process.stdin)
        reader = asyncio.StreamReader()
        voice, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)
        return cls(process, pipe, voice, reader)

    @property
    def pid(self) -> int:
        return self._process.pid

    def write(self, message: frames.Message) -> None:
        """Tell the heart; one that is gone hears nothing, and its successor is told everything anew."""
        if not self._pipe.is_closing():
            with contextlib.suppress(OSError):
                self._pipe.write(frames.pack(message))

    def kill(self) -> None:
        """End it now: it gives nothing back."""
        self._process.kill()

    def close_pipe(self) -> None:
        """Say nothing more."""
        self._pipe.close()

    async def bury(self, clock: Clock) -> None:
        """Take note of a heart that has closed its voice: it is dead, or dies in this moment."""
        self._pipe.close()
        self._voice.close()
        for _ in range(int(BURIAL_TIME / BURIAL_LOOK)):
            if self._process.poll() is not None:
                return
            await clock.sleep(BURIAL_LOOK)
        self._process.kill()
        self.leave_alone()

    def leave_alone(self) -> None:
        """Let it go on by itself; it is reaped when it ends."""
        threading.Thread(target=self._process.wait, name="rota-heart-end", daemon=True).start()
