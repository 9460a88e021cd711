"""Shell commands as runs, on workers that allow them.

The payload is {"command": str, "environment": {name: value}, "stdin": str or null, "shell": path}; only `command` must
be there. The command finds its run in ROTA_JOB_ID, ROTA_SCHEDULED_FOR, ROTA_RUN_ID and ROTA_ATTEMPT.

A command may do whatever the user may as whom it runs: whoever puts a tenant's jobs is trusted with that.
"""

import asyncio
import contextlib
import os
import pwd
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Self

import structlog

from rota.errors import GiveUp, SetupFailed
from rota.worker.context import RunContext
from rota.worker.ending import PlainFailure
from rota.worker.handlers import SHELL, Handler
from rota.worker.heart import ProcessGroups

DEFAULT_SHELL: Final = "/bin/sh"

_KEYS: Final = frozenset({"command", "environment", "stdin", "shell", "user"})
"""`user` is what a system crontab named: kept for people, since the command runs as the worker's user."""

PASSWORDS: Final = frozenset({"PGPASSWORD", "PGPASSFILE", "PGSERVICEFILE"})
"""By which the worker itself may come to its database."""

KEPT_OUTPUT: Final = 4096
"""Bytes of a failed command's output that are kept, from its end."""

KILL_GRACE: Final = 1.0
"""Seconds between SIGTERM and SIGKILL for a command that is stopped."""

LAST_OUTPUT_TIME: Final = 0.2
"""Seconds to read what is left after the command's end: something in the background may hold its output open."""

GROUP_LOOK: Final = 1.0
"""Seconds between looks whether such a group still lives."""

BACKGROUND_LIMIT: Final = 100
"""The most ended commands whose background still writes; beyond that the oldest of them is ended."""

_log = structlog.get_logger(__name__)


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


# The loop that workers run on starts no process as somebody else; and what it forks must not run Python, since the
# worker has threads. So a process of its own becomes that user, and then the command.
_BECOME: Final = """
import os, signal, sys
uid, gid, *command = sys.argv[1:]
os.setgroups([])
os.setgid(int(gid))
os.setuid(int(uid))
for number in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)
try:
    os.execv(command[0], command)
except OSError as error:
    sys.exit(f"the command could not be started with {command[0]}: {error}")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Somebody else, as whom commands run."""

    name: str
    uid: int
    gid: int
    home: str

    @classmethod
    def named(cls, name: str) -> Self:
        """Return a user of this system. Raises SetupFailed where there is none, or we may not become it."""
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            raise SetupFailed(f"there is no user {name!r} here", hint="make one that owns nothing") from None
        if os.geteuid() not in (0, found.pw_uid):
            raise SetupFailed(f"commands cannot run as {name!r}", hint="that takes a worker that was started by root")
        return cls(name=name, uid=found.pw_uid, gid=found.pw_gid, home=found.pw_dir)

    def running(self, *command: str) -> tuple[str, ...]:
        """Return the command that runs one as this user, in its own group and no other."""
        if os.geteuid() == self.uid:
            return command
        return (sys.executable, "-I", "-S", "-c", _BECOME, str(self.uid), str(self.gid), *command)


class ShellHandler:
    """Runs a command in a process group of its own. Cancelled, it ends the whole group before it returns.

    What a command leaves in the background goes on for as long as the worker does: as long as it holds the command's
    output open, that is read, and at the worker's end its group is ended. A command that is to outlive the worker sends
    its output elsewhere.
    """

    def __init__(self, groups: ProcessGroups, *, tenant_id: str | None = None, user: str | None = None) -> None:
        self._groups = groups
        self._tenant_id = tenant_id
        self._user = None if user is None else User.named(user)
        self._background: dict[int, asyncio.Task[None]] = {}

    def as_handler(self) -> Handler:
        """Return the handler that a worker with `allow_shell` knows, and no other: elsewhere these runs wait."""
        return Handler(name=SHELL, function=self, isolation="async", takes_run=True)

    def close(self) -> None:
        """End what commands have left in the background and what still writes: nobody would read it any more."""
        for group in list(self._background):
            self._end_background(group)

    async def __call__(self, run: RunContext) -> None:
        if self._tenant_id not in (None, run.tenant_id):
            raise GiveUp(f"this worker runs commands of tenant {self._tenant_id!r} alone")
        command = Command.of(run.payload)
        words = (command.shell, "-c", command.command)
        tail = bytearray()
        with _stdin_of(command) as stdin, _output() as (output, voice):
            try:
                process = await asyncio.create_subprocess_exec(
                    *(words if self._user is None else self._user.running(*words)),
                    env=_environment(command, run, self._user),
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
            reading.cancel()
            self._groups.unguard(process.pid)
            raise
        said = bytes(tail)
        if reading.done():
            self._groups.unguard(process.pid)
        else:
            self._leave_in_background(process.pid, reading, run)
        if code != 0:
            text = said.decode("utf-8", "replace").strip()
            raise PlainFailure(f"{_said(code)}: {text}" if text else _said(code))

    def _leave_in_background(self, group: int, reading: asyncio.Task[None], run: RunContext) -> None:
        """Read on, lest the next write of what the command has left behind end it."""
        _log.info("shell.background", job_id=run.job_id, run_id=str(run.run_id), group=group)
        self._background[group] = asyncio.create_task(self._attend(group, reading), name="rota-shell-background")
        if len(self._background) > BACKGROUND_LIMIT:
            self._end_background(next(iter(self._background)))

    async def _attend(self, group: int, reading: asyncio.Task[None]) -> None:
        """Read for as long as somebody writes; guard the group while it lives: then its id is free."""
        try:
            while not reading.done() and _lives(group):
                await asyncio.wait({reading}, timeout=GROUP_LOOK)
            self._forget(group)
            # A daemon that has left the group may write on.
            await reading
        finally:
            reading.cancel()

    def _end_background(self, group: int) -> None:
        _log.warning("shell.background_ended", group=group)
        if _lives(group):
            _signal(group, signal.SIGTERM)
        self._background[group].cancel()
        self._forget(group)

    def _forget(self, group: int) -> None:
        if self._background.pop(group, None) is not None:
            self._groups.unguard(group)


def _lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def _is_text(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value


@contextlib.contextmanager
def _stdin_of(command: Command) -> Iterator[int]:
    """Open the command's standard input: a file, so that nobody must stay and feed a pipe."""
    with tempfile.TemporaryFile() as file:
        file.write((command.stdin or "").encode("utf-8", "surrogateescape"))
        file.seek(0)
        yield file.fileno()


def _environment(command: Command, run: RunContext, user: User | None) -> dict[str, str]:
    # The worker's own settings stay with it: credentials may be among them.
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("ROTA_") and name not in PASSWORDS
    }
    return {
        **inherited,
        **({} if user is None else {"HOME": user.home, "USER": user.name, "LOGNAME": user.name}),
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
