"""The embedded server dies under a process that needs it: it is started anew, and nobody has to run a command."""

import os
import signal
from pathlib import Path

import pytest

from rota.assembly import ServerKeeper
from rota.store.database import Database
from rota.store.embedded import EmbeddedServer
from rota.store.statements import upkeep

pytestmark = pytest.mark.acceptance


async def test_a_killed_embedded_server_is_started_anew_on_the_same_data(tmp_path: Path) -> None:
    async with EmbeddedServer(tmp_path / "data") as server:
        keeper = ServerKeeper(server)
        first = server.pid
        assert first is not None
        assert not await keeper.tick()
        assert server.pid == first, "a server that lives is left alone"
        os.kill(first, signal.SIGKILL)
        for _ in range(1_000_000):
            if server.pid != first:
                break
            os.sched_yield()
        await keeper.tick()
        assert server.pid not in (None, first)
        async with await Database.connect(server.dsn) as database:
            assert await database.fetch(upkeep.database_now)
