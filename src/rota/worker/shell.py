"""Shell commands as runs, on workers that allow them.

The payload is {"command": str, "environment": {name: value}, "stdin": str or null, "shell": path}; only `command` must
be there. The command finds its run in ROTA_JOB_ID, ROTA_SCHEDULED_FOR, ROTA_RUN_ID and ROTA_ATTEMPT.
"""

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Self

from rota.errors import GiveUp
from rota.worker.context import RunContext
from rota.worker.ending import PlainFailure
from rota.worker.handlers import SHELL, Handler
from rota.worker.heart import ProcessGroups

DEFAULT_SHELL: Final = "/bin/sh"

_KEYS: Final = frozenset({"command", "environment", "stdin", "shell", "user"})
"""`user` is what a system crontab named: kept for people, since the command runs as the worker's user."""

KEPT_OUTPUT: Final = 4096
"""Bytes of a failed command's output that are kept, from its end."""

KILL_GRACE: Final = 1.0
"""Seconds between SIGTERM and SIGKILL for a command that is stopped."""

LAST_OUTPUT_TIME: Final = 0.2
"""Seconds to read what is left after the command's end: something in the background may hold its output open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What a payload asks for."""

    command: str
    environment: dict[str, str] = field(default_factory=dict)
    stdin: str | None = None
    shell: str = DEFAULT_SHELL

    @classmethod
    def of(cls, payload: dict[str, Any]) -> Self:
        """Return the payload's command. Raises GiveUp: a payload does not get better by trying again."""
        if unknown := payload.keys() - _KEYS:
            raise GiveUp(f"payload: unknown key {min(unknown)!r} (a shell run has {', '.join(sorted(_KEYS))})")
        command = cls(
            command=payload.get("command", ""),
            environment=payload.get("environment") or {},
            stdin=payload.get("stdin"),
            shell=payload.get("shell") or DEFAULT_SHELL,
        )
        command._check()
        return command

    def _check(self) -> None:
        if not _is_text(self.command) or not self.command.strip():
            raise GiveUp("payload.command: must be a text without NUL, and not empty")
        if not _is_text(self.shell):
            raise GiveUp("payload.shell: must be a path")
        if self.stdin is not None and not isinstance(self.stdin, str):
            raise GiveUp("payload.stdin: must be a text or null")
        if not isinstance(self.environment, dict):
            raise GiveUp("payload.environment: must be an object of texts")
        for name, value in self.environment.items():
            if not name or not _is_text(name) or "=" in name or not _is_text(value):
                raise GiveUp(f"payload.environment: {name!r} must be a name with a text, both without NUL")


class ShellHandler:
    """Runs a command in a process group of its own. Cancelled, it ends the whole group before it returns."""

    def __init__(self, groups: ProcessGroups) -> None:
        self._groups = groups

    async def __call__(self, run: RunContext) -> None:
        command = Command.of(run.payload)
        tail = bytearray()
        with _stdin_of(command) as stdin, _output() as (output, voice):
            try:
                process = await asyncio.create_subprocess_exec(
                    *(command.shell, "-c", command.command),
                    env=_environment(command, run),
                    stdin=stdin,
                    stdout=voice,
                    stderr=voice,
                    start_new_session=True,
                )
            except OSError as error:
                raise PlainFailure(f"the command could not be started with {command.shell}: {error}") from error
            self._groups.guard(process.pid)
            reading = asyncio.create_task(_keep_tail(output, tail))
        try:
            code = await process.wait()
            await asyncio.wait({reading}, timeout=LAST_OUTPUT_TIME)
        except BaseException:
            await _end_group(process)
            raise
        finally:
            reading.cancel()
            self._groups.unguard(process.pid)
        if code != 0:
            said = tail.decode("utf-8", "replace").strip()
            raise PlainFailure(f"{_said(code)}: {said}" if said else _said(code))


def shell_handler(groups: ProcessGroups) -> Handler:
    """Return the handler that a worker with `allow_shell` knows, and no other: elsewhere these runs wait."""
    return Handler(name=SHELL, function=ShellHandler(groups), isolation="async", takes_run=True)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value


@contextlib.contextmanager
def _stdin_of(command: Command) -> Iterator[int]:
    """Open the command's standard input: a file, so that nobody must stay and feed a pipe."""
    with tempfile.TemporaryFile() as file:
        file.write((command.stdin or "").encode("utf-8", "surrogateescape"))
        file.seek(0)
        yield file.fileno()


def _environment(command: Command, run: RunContext) -> dict[str, str]:
    # The worker's own settings stay with it: a database URL may be among them.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ROTA_")}
    return {
        **inherited,
        **command.environment,
        "ROTA_JOB_ID": run.job_id,
        "ROTA_SCHEDULED_FOR": run.scheduled_for.isoformat(),
        "ROTA_RUN_ID": str(run.run_id),
        "ROTA_ATTEMPT": str(run.attempt),
    }


@contextlib.contextmanager
def _output() -> Iterator[tuple[int, int]]:
    """Make the command's output: the end to read, which `_keep_tail` closes, and the end to write.

    A pipe of our own: asyncio takes a process for running while anything holds one of its pipes.
    """
    output, voice = os.pipe()
    try:
        yield output, voice
    except BaseException:
        os.close(output)
        raise
    finally:
        os.close(voice)


async def _keep_tail(output: int, tail: bytearray) -> None:
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(output, "rb", buffering=0)
    )
    try:
        while chunk := await stream.read(65536):
            tail += chunk
            del tail[:-KEPT_OUTPUT]
    finally:
        transport.close()


async def _end_group(process: asyncio.subprocess.Process) -> None:
    try:
        _signal(process.pid, signal.SIGTERM)
        ended = asyncio.ensure_future(process.wait())
        await asyncio.wait({ended}, timeout=KILL_GRACE)
    finally:
        _signal(process.pid, signal.SIGKILL)
        await process.wait()


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _said(code: int) -> str:
    if code > 0:
        return f"exit status {code}"
    try:
        return f"killed by {signal.Signals(-code).name} (signal {-code})"
    except ValueError:
        return f"killed by signal {-code}"
