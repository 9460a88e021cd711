"""`rota api` as a process: no token, no API; with one it says where it is, answers, and ends when it is told to."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from rota.testing import RotaKit


@asynccontextmanager
async def started(kit: RotaKit) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start the command on a free port; killed when the block ends, if it has not ended by then."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rota.cli", "api", "--port", "0",
        env={**os.environ, "ROTA_DATABASE_URL": kit.dsn}, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(60):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_without_a_token_there_is_no_api(rota_kit: RotaKit) -> None:
    async with started(rota_kit) as process:
        _, said = await process.communicate()
    assert process.returncode == 5
    assert b"rota token create" in said


async def test_the_api_is_served_until_sigterm(rota_kit: RotaKit) -> None:
    _, token = await rota_kit.rota.access.create_token(
        tenant_id="default", scopes=["read"], name="", expires_at=None, actor="test"
    )
    async with started(rota_kit) as process:
        assert process.stderr is not None
        url = None
        while url is None:
            line = (await process.stderr.readline()).decode()
            assert line, "the process ended"
            match = re.search(r"http://127\.0\.0\.1:\d+", line)
            url = match and match[0]
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session:
            async with session.get(f"{url}/v1/me") as answer:
                assert (await answer.json())["tenant_id"] == "default"
            async with session.get(f"{url}/v1/jobs", headers={"Host": "anything.example"}) as answer:
                assert answer.status == 200
        process.send_signal(signal.SIGTERM)
        await process.communicate()
    assert process.returncode == 0
