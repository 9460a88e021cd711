"""Settings from the environment: every one of them is ROTA_ and its name in capitals."""

import os
import socket
from datetime import timedelta
from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


def _host_and_process() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


class Settings(BaseSettings):
    """What an installation chooses. Command line options come first, then the environment, then these defaults."""

    model_config = SettingsConfigDict(env_prefix="ROTA_", env_ignore_empty=True, frozen=True)

    database_url: str | None = Field(
        default=None, description="postgresql://... of the primary; without it an embedded server runs in data_dir"
    )
    data_dir: Path = Field(default=Path(".rota"), description="where the embedded server keeps its data")
    url: str | None = Field(
        default=None, description="https://... of a Rota API, which commands and workers use in place of a database"
    )
    token: SecretStr | None = Field(default=None, description="the token that the API at url asks for")
    tenant: str = Field(default="default", description="the tenant that commands speak for")
    name: str = Field(default_factory=_host_and_process, description="this process's name as scheduler and worker")
    pool: str = Field(default="default", description="the pool that a worker serves")
    concurrency: int = Field(default=20, ge=1, le=1000, description="runs that a worker has at once")
    drain_seconds: float = Field(
        default=20.0, ge=0, description="when a worker that is told to stop has ended, all in all"
    )
    metrics_host: str = Field(default="127.0.0.1", description="the address on which a worker shows its metrics")
    metrics_port: int | None = Field(
        default=None, ge=0, le=65535, description="the port on which a worker shows its metrics; unset: on none"
    )
    connections: int = Field(default=8, ge=1, le=200, description="connections for claims, scans and commands")
    reserved_connections: int = Field(default=2, ge=1, le=50, description="connections for renewals and reports alone")
    http_allow: str | None = Field(
        default=None, description="internal hosts and networks that HTTP targets may lead to, separated by commas"
    )
    public_url: str | None = Field(
        default=None, description="where HTTP targets reach the API, for answers that come later"
    )
    api_calls_per_second: float = Field(
        default=1000.0, gt=0, le=1e6, description="calls that a tenant without a quota of its own may make"
    )
    log_level: str = Field(default="warning", description="debug, info, warning or error")

    @property
    def drain_time(self) -> timedelta:
        return timedelta(seconds=self.drain_seconds)
