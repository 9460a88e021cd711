"""The package alone is a worker's; what an extra brings is asked for by its name."""

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from rota.extras import MODULES

ROOT = Path(__file__).parents[2]
PACKAGES = {"yaml": "pyyaml"}
WITHOUT = """
import importlib.abc, runpy, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {modules!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

# find_spec asks the finders in turn and takes an error for an answer, so what is missing is missing for it as well.
sys.meta_path.insert(0, Missing())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in {modules!r} else found(name, package)
sys.argv = ["rota", *{arguments!r}]
runpy.run_module("rota.cli", run_name="__main__")
"""


def project() -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


def names(requirements: list[str]) -> set[str]:
    return {one.split(";")[0].split(">=")[0].strip() for one in requirements}


def without(modules: tuple[str, ...], *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the command line where these modules are not installed."""
    code = WITHOUT.format(modules=set(modules), arguments=arguments)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("extra", sorted(MODULES))
def test_an_extra_brings_the_modules_that_are_asked_for(extra: str) -> None:
    brought = names(project()["optional-dependencies"][extra])
    assert {PACKAGES.get(module, module.replace("_", "-")) for module in MODULES[extra]} <= brought


def test_dev_brings_what_the_other_extras_bring() -> None:
    extras = {extra: names(brought) for extra, brought in project()["optional-dependencies"].items()}
    assert extras["server"] | extras["worker"] <= extras["dev"]
    assert not names(project()["dependencies"]) & extras["dev"]


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("api",), "server"),
        (("dev",), "server,worker"),
        (("import", "crontab", "--dry-run", "-"), "server"),
        (("worker", "--allow-http"), "worker"),
        (("worker", "rota.cli.samples:app", "--metrics-port", "0"), "worker"),
    ],
)
def test_a_command_names_the_extra_that_it_lacks(arguments: tuple[str, ...], extra: str) -> None:
    done = without((*MODULES["server"], *MODULES["worker"]), *arguments)
    assert done.returncode == 5, done.stderr
    assert done.stderr.endswith(f"needs rota[{extra}] (pip install 'rota[{extra}]')\n")


def test_the_embedded_database_names_its_extra() -> None:
    done = without(MODULES["dev"], "job", "list")
    assert done.returncode == 5, done.stderr
    assert "the embedded PostgreSQL is not installed (pip install 'rota[dev]', or set ROTA_DATABASE_URL" in done.stderr


def test_a_worker_and_a_scheduler_start_on_the_package_alone() -> None:
    modules = tuple(module for brought in MODULES.values() for module in brought)
    nowhere = ("--database-url", "postgresql://rota@127.0.0.1:1/rota")
    for arguments in (("scheduler",), ("worker", "rota.cli.samples:app")):
        done = without(modules, *arguments, *nowhere)
        assert done.returncode == 5, done.stderr
        assert "cannot be reached" in done.stderr
        assert "needs rota[" not in done.stderr
