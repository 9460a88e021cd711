"""The worker of docs/how-to/worker-in-any-language.md, as it stands there: a POSIX shell, curl, and the real API."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from rota.clock import SystemClock
from rota.domain.job import Job
from rota.testing import RotaKit
from tests.client.served import served
from tests.docs.pages import page

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="the script needs curl")

PATIENCE = 180.0
LEASE = timedelta(seconds=60)


def write(folder: Path, **handlers: str) -> None:
    """Write the page's script and some handlers into a folder."""
    [script] = [block for block in page("docs/how-to/worker-in-any-language.md").blocks if block.language == "sh"]
    (folder / "worker.sh").write_text(script.text)
    (folder / "handlers").mkdir()
    for name, body in handlers.items():
        file = folder / "handlers" / name
        file.write_text(f"#!/bin/sh\n{body}\n")
        file.chmod(0o755)


@asynccontextmanager
async def at_work(kit: RotaKit, folder: Path, *, beat: float = 10) -> AsyncIterator[asyncio.subprocess.Process]:
    _, token = await kit.rota.access.create_token(
        tenant_id="default", scopes=["worker"], name="shell", expires_at=None, actor="test"
    )
    async with served(kit) as url:
        worker = await asyncio.create_subprocess_exec(
            *("sh", "worker.sh"),
            cwd=folder,
            env={"PATH": os.environ["PATH"], "ROTA_URL": url, "ROTA_TOKEN": token, "BEAT_SECONDS": str(beat)},
            stdout=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield worker
        finally:
            os.killpg(worker.pid, signal.SIGKILL)
            await worker.wait()


async def until_state(kit: RotaKit, job_id: str, state: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while [run.state for run in await kit.runs(job_id)] != [state]:
            await SystemClock().sleep(0.02)


async def test_a_run_succeeds_and_another_fails_with_what_it_said(rota_kit: RotaKit, tmp_path: Path) -> None:
    write(tmp_path, greet="cat >greeting", fail='echo "no such \\"disk\\" \\\\ ü"; echo second line >&2; exit 3')
    payload = {"to": 'x","lease_token":"y', "attempt": 1, "payload": {"run_id": "z", "handler": "fail"}}
    await rota_kit.put(
        Job(job_id='j","handler":"fail', handler="greet", payload=payload),
        Job(job_id="b", handler="fail", max_attempts=1),
    )
    async with at_work(rota_kit, tmp_path):
        run_id = await rota_kit.on_demand.trigger('j","handler":"fail', tenant_id="default")
        await until_state(rota_kit, 'j","handler":"fail', "succeeded")
        await rota_kit.on_demand.trigger("b", tenant_id="default")
        await until_state(rota_kit, "b", "dead")
    assert (tmp_path / "greeting").read_text() == (
        '{"to":"x\\",\\"lease_token\\":\\"y","attempt":1,"payload":{"run_id":"z","handler":"fail"}}'
    )
    _, [success] = await rota_kit.history.run(run_id)
    assert (success.outcome, success.worker_id.startswith("shell-")) == ("succeeded", True)
    [run] = await rota_kit.runs("b")
    [failure] = await rota_kit.attempts(run)
    assert (failure.outcome, failure.error) == ("failed", 'no such "disk" \\ \nsecond line\n')


async def test_a_lease_is_kept_and_a_cancelled_program_is_stopped(rota_kit: RotaKit, tmp_path: Path) -> None:
    write(tmp_path, endless="exec sleep 1000")
    await rota_kit.put(Job(job_id="j", handler="endless", lease_duration=LEASE))
    run_id = await rota_kit.on_demand.trigger("j", tenant_id="default")
    async with at_work(rota_kit, tmp_path, beat=0.1):
        await until_state(rota_kit, "j", "running")
        [run] = await rota_kit.runs("j")
        rota_kit.clock.advance(LEASE / 2)
        async with asyncio.timeout(PATIENCE):
            while (await rota_kit.runs("j"))[0].lease_expires_at == run.lease_expires_at:
                await SystemClock().sleep(0.02)
        await rota_kit.on_demand.cancel(run_id, tenant_id="default")
        await until_state(rota_kit, "j", "cancelled")
