"""Shell commands: only where they are allowed, and gone when their attempt is over."""

import asyncio
import os
import pwd
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from rota.domain.attempt import Outcome
from rota.errors import SetupFailed
from rota.worker.handlers import HandlerRegistry
from rota.worker.shell import User
from tests.worker.fake_desk import SLOT, FakeDesk
from tests.worker.kit import at_work, lives


async def test_a_shell_run_waits_where_commands_are_not_allowed(desk: FakeDesk, registry: HandlerRegistry) -> None:
    async def other() -> None: ...

    registry.register("other", other)
    shell, other_run = desk.add("shell", {"command": "true"}), desk.add("other")
    async with at_work(desk, registry):
        await desk.until(lambda: other_run.state == "succeeded")
    assert (shell.state, shell.claims) == ("pending", 0)
    assert registry.names == {"other"}


async def test_a_command_gets_its_environment_its_input_and_its_run(
    desk: FakeDesk, registry: HandlerRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROTA_DATABASE_URL", "postgresql://rota:s3cret@db/rota")
    payload = {
        "command": f"(cat; env) > {tmp_path}/out",
        "environment": {"MAILTO": "root"},
        "stdin": "from the crontab\n",
    }
    run = desk.add("shell", payload)
    async with at_work(desk, registry, allow_shell=True) as (_, heart):
        await desk.until(lambda: run.state == "succeeded")
        assert not heart.groups
    lines = (tmp_path / "out").read_text().splitlines()
    assert lines[0] == "from the crontab"
    assert {"MAILTO=root", f"ROTA_JOB_ID={run.job_id}", "ROTA_ATTEMPT=1"} <= set(lines)
    assert f"ROTA_SCHEDULED_FOR={SLOT.isoformat()}" in lines
    assert f"PATH={os.environ['PATH']}" in lines
    assert "s3cret" not in "".join(lines)


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("echo to stdout; echo to stderr >&2; exit 3", "exit status 3: to stdout\nto stderr"),
        ("false", "exit status 1"),
        ("kill -TERM $$", "killed by SIGTERM (signal 15)"),
        ("printf '\\377\\000 postgresql://u:s3cret@h/d'; exit 1", "exit status 1: �\\x00 postgresql://u:***@h/d"),
    ],
)
async def test_a_command_that_fails_says_how(
    desk: FakeDesk, registry: HandlerRegistry, command: str, error: str
) -> None:
    run = desk.add("shell", {"command": command}, max_attempts=1)
    async with at_work(desk, registry, allow_shell=True):
        await desk.until(lambda: run.state == "dead")
    assert (run.outcomes, run.last.error) == ([Outcome.FAILED], error)


async def test_of_much_output_the_end_is_kept(desk: FakeDesk, registry: HandlerRegistry) -> None:
    run = desk.add("shell", {"command": "head -c 5000000 /dev/zero | tr '\\0' x; echo the end; exit 1"}, max_attempts=1)
    async with at_work(desk, registry, allow_shell=True):
        await desk.until(lambda: run.state == "dead")
    error = run.last.error or ""
    assert error.startswith("exit status 1: xxx")
    assert error.endswith("xxxthe end")
    assert len(error) < 4200


async def test_a_command_past_its_timeout_is_killed_with_all_it_started(
    desk: FakeDesk, registry: HandlerRegistry, tmp_path: Path
) -> None:
    command = f"trap '' TERM; sleep 60 & echo $! > {tmp_path}/pid; wait; sleep 60"
    run = desk.add("shell", {"command": command}, timeout=0.3, max_attempts=1)
    async with at_work(desk, registry, allow_shell=True):
        await desk.until(lambda: run.state == "dead")
        assert run.outcomes == [Outcome.TIMED_OUT]
        await desk.until(lambda: not lives(int((tmp_path / "pid").read_text())))


async def test_something_left_in_the_background_does_not_hold_the_run(
    desk: FakeDesk, registry: HandlerRegistry, tmp_path: Path
) -> None:
    run = desk.add("shell", {"command": f"sleep 60 & echo $! > {tmp_path}/pid"})
    async with at_work(desk, registry, allow_shell=True):
        await desk.until(lambda: run.state == "succeeded", within=5)
    os.kill(int((tmp_path / "pid").read_text()), 9)


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        ({}, "payload.command: must be a text without NUL, and not empty"),
        ({"command": "a\x00b"}, "payload.command: must be a text without NUL, and not empty"),
        ({"command": "true", "stdin": 1}, "payload.stdin: must be a text or null"),
        ({"command": "true", "environment": ["A=1"]}, "payload.environment: must be an object of texts"),
        ({"command": "true", "environment": {"A=B": "1"}}, "payload.environment: 'A=B' must be a name with a text"),
        ({"command": "true", "cwd": "/"}, "payload: unknown key 'cwd'"),
    ],
)
async def test_a_payload_that_is_no_command_is_given_up(
    desk: FakeDesk, registry: HandlerRegistry, payload: dict[str, object], error: str
) -> None:
    run = desk.add("shell", payload)
    async with at_work(desk, registry, allow_shell=True):
        await desk.until(lambda: run.state == "dead")
    assert run.outcomes == [Outcome.GAVE_UP]
    assert (run.last.error or "").startswith(error)


async def test_a_shell_that_does_not_exist_fails_the_attempt(desk: FakeDesk, registry: HandlerRegistry) -> None:
    run = desk.add("shell", {"command": "true", "shell": "/no/such/shell"}, max_attempts=1)
    async with at_work(desk, registry, allow_shell=True):
        await desk.until(lambda: run.state == "dead")
    assert (run.last.error or "").startswith("the command could not be started with /no/such/shell: ")


async def test_what_a_command_leaves_in_the_background_may_write_on(
    desk: FakeDesk, registry: HandlerRegistry, tmp_path: Path
) -> None:
    """Its output has a reader for as long as it lives: its next write does not end it."""
    loop = f"while [ ! -e {tmp_path}/go ]; do echo again; sleep 0.05; done; echo last && touch {tmp_path}/done"
    run = desk.add("shell", {"command": f"({loop}) & echo started"}, max_attempts=1)
    async with at_work(desk, registry, allow_shell=True) as (_, heart):
        await desk.until(lambda: run.state == "succeeded")
        assert heart.groups, "it is ended with the worker, should that die"
        (tmp_path / "go").touch()
        await desk.until((tmp_path / "done").exists)
        await desk.until(lambda: not heart.groups)
    assert run.outcomes == [Outcome.SUCCEEDED]


async def test_what_still_writes_in_the_background_ends_with_its_worker(
    desk: FakeDesk, registry: HandlerRegistry, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    loop = f"echo $$ > {pid}.new; mv {pid}.new {pid}; while :; do echo again; sleep 0.05; done"
    run = desk.add("shell", {"command": f"sh -c '{loop}' & echo started"})
    with capture_logs() as said:
        async with at_work(desk, registry, allow_shell=True):
            await desk.until(lambda: run.state == "succeeded" and pid.exists())
            left = int(pid.read_text())
            assert lives(left)
        await desk.until(lambda: not lives(left))
    assert "shell.background_ended" in [entry["event"] for entry in said]


async def test_a_failed_commands_output_is_kept_though_its_background_still_writes(
    desk: FakeDesk, registry: HandlerRegistry
) -> None:
    run = desk.add("shell", {"command": "sleep 30 & echo no such disk >&2; exit 3"}, max_attempts=1)
    async with at_work(desk, registry, allow_shell=True):
        await desk.until(lambda: run.state == "dead")
    assert run.last.error == "exit status 3: no such disk"


async def test_a_command_of_another_tenant_is_not_run(
    desk: FakeDesk, registry: HandlerRegistry, tmp_path: Path
) -> None:
    run = desk.add("shell", {"command": f"touch {tmp_path}/ran"})
    async with at_work(desk, registry, allow_shell=True, tenant_id="acme"):
        await desk.until(lambda: run.state == "dead")
    assert run.last.error == "this worker runs commands of tenant 'acme' alone"
    assert not (tmp_path / "ran").exists()


AS_A_WORKER = """
import ctypes, os, subprocess, sys
from rota.worker.concealment import conceal, forget_credentials
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as a process that was never another's
LOOK = ["/bin/sh", "-c", "env; cat /proc/$PPID/environ"]
before = subprocess.run(LOOK, capture_output=True, text=True)
assert conceal()
forget_credentials()
after = subprocess.run(LOOK, capture_output=True, text=True)
sys.exit("s3cret" not in before.stdout or "s3cret" in after.stdout or "denied" not in after.stderr.lower())
"""


async def test_no_process_of_the_same_user_reads_what_a_concealed_one_knows() -> None:
    """As a command would: its parent is the worker, whose environment held the token."""
    environment = {**os.environ, "ROTA_TOKEN": "s3cret", "ROTA_DATABASE_URL": "postgresql://u:s3cret@h/d"}
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", AS_A_WORKER, env=environment, cwd="/")
    assert await worker.wait() == 0


async def test_a_command_runs_as_the_user_that_is_named(
    desk: FakeDesk, registry: HandlerRegistry, tmp_path: Path
) -> None:
    """Root may become anybody; whoever is not root, only itself."""
    name = "nobody" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    run = desk.add("shell", {"command": "id -un; exit 1"}, max_attempts=1)
    async with at_work(desk, registry, allow_shell=True, shell_user=name):
        await desk.until(lambda: run.state == "dead")
    assert run.last.error == f"exit status 1: {name}"


@pytest.mark.skipif(os.geteuid() != 0, reason="it takes root to become somebody else")
async def test_a_command_of_another_user_has_that_users_rights_alone(desk: FakeDesk, registry: HandlerRegistry) -> None:
    ask = "id -G; kill -PIPE $$; exit 1"
    asked = desk.add("shell", {"command": ask}, max_attempts=1)
    lost = desk.add("shell", {"command": "true", "shell": "/no/such"}, max_attempts=1)
    async with at_work(desk, registry, allow_shell=True, shell_user="nobody"):
        await desk.until(lambda: asked.state == lost.state == "dead")
    assert asked.last.error == f"killed by SIGPIPE (signal 13): {pwd.getpwnam('nobody').pw_gid}"
    assert "could not be started with /no/such" in str(lost.last.error)


def test_nobody_runs_as_a_user_that_there_is_not() -> None:
    with pytest.raises(SetupFailed, match="no user"):
        User.named("nobody-of-this-name")
