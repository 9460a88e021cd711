"""`rota dev` as a process: from nothing to runs, ended by signals, and on again with the same data."""

import signal
from pathlib import Path
from typing import Any

import pytest

from rota.api.binding import bind
from rota.cli.dev import _named
from rota.settings import Settings
from tests.cli.conftest import Cli
from tests.cli.processes import STUBBORN, process

APP = """
import rota

app = rota.App(pool="mine")


@app.job("hello", schedule=rota.every("1s"))
def hello(run):
    print("handlers print where they like", flush=True)


@app.job("apart", schedule=rota.every("1s"), isolation="process", pool="other")
def apart():
    print("children too", flush=True)


@app.job("endless", schedule=rota.every("1s"))
async def endless(run):
    await run.lease_lost.wait_async()
"""


def has_succeeded(line: dict[str, Any]) -> bool:
    return line.get("state") == "succeeded"


@pytest.mark.acceptance
def test_the_samples_run_and_go_on_after_ctrl_c_and_after_kill_9(tmp_path: Path) -> None:
    with process("dev", "--json", folder=tmp_path, lines_on="stdout") as first:
        lines = first.until_event("first_run_done")
        assert lines[0]["event"] == "started"
        assert lines[0]["data"] == str(tmp_path / ".rota")
        assert any(has_succeeded(line) for line in lines)
        assert first.end(signal.SIGINT) == 0
    with process("dev", "--json", folder=tmp_path, lines_on="stdout") as second:
        second.until(has_succeeded)
        second.end(signal.SIGKILL)
    with process("dev", "--json", folder=tmp_path, lines_on="stdout") as third:
        third.until_event("first_run_done")
        assert third.end(signal.SIGTERM) == 0
    assert (tmp_path / ".rota").stat().st_mode & 0o777 == 0o700


@pytest.mark.acceptance
def test_an_apps_own_jobs_run_in_all_their_pools_and_a_second_signal_ends_at_once(tmp_path: Path, rota: Cli) -> None:
    (tmp_path / "jobs.py").write_text(APP)
    rota.json("job", "put", "-", typed='{"job_id": "sample-tick", "handler": "x", "labels": {"rota.sample": "yes"}}')
    with process("dev", "jobs.py", "--json", folder=tmp_path, lines_on="stdout", **rota.environment) as dev:
        done: set[str] = set()

        def all_ran(line: dict[str, Any]) -> bool:
            done.update([line["job_id"]] if has_succeeded(line) else [])
            return {"hello", "apart"} <= done

        dev.until(all_ran)
        dev.until(lambda line: line.get("job_id") == "endless" and line["state"] == "running")
        dev.popen.send_signal(signal.SIGINT)
        assert dev.until_event("stopping")[-1]["drain_seconds"] == 20.0
        dev.popen.send_signal(signal.SIGINT)
        last = dev.until_event("stopped")
        assert any(line.get("outcome") == "released" for line in last)
        assert dev.popen.wait() == 0
    assert rota.json("job", "show", "sample-tick")["state"] == "paused"
    assert not (tmp_path / ".rota").exists()


@pytest.mark.acceptance
def test_a_handler_that_will_not_stop_keeps_neither_the_process_nor_its_database(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(STUBBORN.replace('"deaf"', '"deaf", schedule=rota.every("1s")'))
    with process("dev", "jobs.py", "--json", "--drain", "0", folder=tmp_path, lines_on="stdout") as dev:
        dev.until(lambda line: line.get("state") == "running")
        assert list((tmp_path / ".rota").rglob("postmaster.pid"))
        dev.popen.send_signal(signal.SIGINT)
        assert any(line.get("outcome") == "released" for line in dev.until_event("stopped"))
        assert dev.popen.wait() == 0
    assert not list((tmp_path / ".rota").rglob("postmaster.pid"))


def test_a_port_that_is_taken_ends_it_before_anything_runs(bare: Cli) -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        said = bare("dev", "--port", str(port))
    assert said.code == 5
    assert said.err.endswith("(choose another --port, or none for a free one)\n")
    assert said.out == ""


def test_two_on_one_data_folder_have_names_of_their_own(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data", name="host-7")
    with _named(settings) as first, _named(settings) as second:
        assert (first, second) == ("dev", "host-7")
    with _named(settings) as next_start:
        assert next_start == "dev"


def test_an_app_that_cannot_be_loaded_ends_it_before_any_database(bare: Cli, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    said = bare("dev", str(tmp_path / "broken.py"))
    assert said.code == 5
    assert "ZeroDivisionError" in said.err
    assert said.err.endswith("(ROTA_DEBUG=1 shows the traceback)\n")
    assert bare("dev", str(tmp_path / "away.py")).code == 5


def test_what_rota_refuses_in_an_app_is_named_by_the_apps_own_line(bare: Cli, tmp_path: Path) -> None:
    file = tmp_path / "never.py"
    file.write_text('import rota\n\nSCHEDULE = rota.cron("0 0 30 2 *")\n')
    assert f"(line 3 of {file})" in bare("dev", str(file)).err
