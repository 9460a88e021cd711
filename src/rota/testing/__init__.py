"""Rota for tests: the whole of it on a clock that only the test moves, and a real PostgreSQL.

    pytest_plugins = ["rota.testing.plugin"]        # in conftest.py

    async def test_billing(rota_kit: RotaKit) -> None:
        await rota_kit.put(app)
        rota_kit.clock.set(datetime(2026, 3, 1, 1, tzinfo=UTC))
        await rota_kit.tick()
        results = await rota_kit.run_due(app)

`RotaKit` can also be used without pytest: `async with TestCluster.started() as cluster, cluster.kit() as kit:`.
"""

from rota.clock import ManualClock
from rota.testing.cluster import TestCluster
from rota.testing.kit import KitWorker, RotaKit
from rota.testing.kits import Kits

__all__ = ["KitWorker", "Kits", "ManualClock", "RotaKit", "TestCluster"]
