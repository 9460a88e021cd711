"""The client of Rota's HTTP API: `Client` for programs with an event loop, `SyncClient` for those without."""

from rota.client.client import Client
from rota.client.sync import SyncClient

__all__ = ["Client", "SyncClient"]
