"""Transactions that commit in two phases, on a server that allows them: they may make runs like any other."""

import asyncpg
import pytest

from rota.domain.job import Job
from rota.services.hints import CHANNEL
from rota.store.statements import upkeep
from rota.testing import TestCluster, cluster
from tests.services.stories import fetch
from tests.store.stage import outsider, uncommitted


async def test_a_transaction_that_made_runs_is_prepared_though_somebody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "SETTINGS", {**cluster.SETTINGS, "max_prepared_transactions": "5"})
    async with TestCluster.started() as started, started.kit() as kit:
        await kit.put(Job(job_id="tick", handler="h"))
        many = "SELECT count(*) FROM rota.trigger_many('tick', ARRAY['{}', NULL]::jsonb[])"
        async with kit.database.listening(CHANNEL, lambda _: None) as line, outsider(kit.dsn) as other:
            [row] = await line.ask(upkeep.hold_bell, pool="default")
            assert row["is_held"]
            async with uncommitted(kit.dsn, "SELECT rota.trigger('tick')", many, "PREPARE TRANSACTION 'one'"):
                pass
            # What is prepared holds its instants; nobody waits for it.
            async with uncommitted(kit.dsn, "SET lock_timeout = '20s'", "SELECT rota.trigger('tick')", many, "COMMIT"):
                pass
            await other.execute("COMMIT PREPARED 'one'")
            with pytest.raises(asyncpg.FeatureNotSupportedError, match="NOTIFY"):
                async with uncommitted(
                    kit.dsn, "SET LOCAL rota.bell = 'on'", "SELECT rota.trigger('tick')", "PREPARE TRANSACTION 'two'"
                ):
                    pass
        assert len(await fetch(kit, "SELECT FROM rota.pending")) == 6
