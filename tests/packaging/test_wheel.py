"""The wheel works where the source tree is out of reach: its SQL, migrations and programs travel with it."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def rota(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `rota` command of a virtual environment that has the wheel, and Rota's dependencies from this one."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source / name)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    [wheel] = folder.glob("rota-*.whl")
    shutil.rmtree(source)
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    python = folder / "venv" / "bin" / "python"
    [site] = (folder / "venv" / "lib").glob("python*/site-packages")
    # pip works on that environment, so it does not touch the package that is installed in this one.
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True, capture_output=True)
    # A folder that a .pth names is searched, but its own .pth files are not read: the editable install is out of reach.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    where = subprocess.run(
        [python, "-c", "import rota; print(rota.__file__)"], check=True, capture_output=True, text=True, cwd=folder
    ).stdout.strip()
    assert where.startswith(str(site)), f"rota comes from {where}"
    return python


def run(python: Path, *arguments: str, folder: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ROTA_", "PYTHON"))}
    done = subprocess.run(
        [python, "-m", "rota.cli", *arguments], capture_output=True, text=True, cwd=folder, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_explains_an_expression(rota: Path, tmp_path: Path) -> None:
    answer = json.loads(run(rota, "next", "0 0 * * *", "--after", "2026-01-01T00:00:00Z", "--json", folder=tmp_path))
    assert answer["slots"]


def test_the_wheel_tells_the_whole_story_on_its_own_database(rota: Path, tmp_path: Path) -> None:
    assert json.loads(run(rota, "demo", "--json", folder=tmp_path))["ok"] is True


def test_the_wheel_says_that_it_is_typed(rota: Path) -> None:
    [marker] = rota.parents[1].glob("lib/python*/site-packages/rota/py.typed")
    assert marker.exists()
