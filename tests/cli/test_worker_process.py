"""`rota scheduler` and `rota worker` as processes: an imported crontab runs, and SIGTERM ends both cleanly."""

import signal
from pathlib import Path
from urllib.request import urlopen

import pytest

from rota.api.binding import bind
from tests.cli.conftest import Cli
from tests.cli.processes import STUBBORN, process

CRONTAB = "GREETING=hello\n0 0 1 1 * echo $GREETING $ROTA_JOB_ID > said.txt\n0 0 1 1 * echo no such disk >&2; exit 3\n"


@pytest.mark.acceptance
def test_an_imported_crontab_runs_on_a_worker_that_allows_shell(rota: Cli, tmp_path: Path) -> None:
    (tmp_path / "app.crontab").write_text(CRONTAB)
    jobs = rota.json("import", "crontab", str(tmp_path / "app.crontab"))["jobs"]
    greets, fails = (job["job_id"] for job in jobs)
    with (
        process("scheduler", folder=tmp_path, lines_on="stderr", **rota.environment) as scheduler,
        process("worker", "--allow-shell", "default", folder=tmp_path, lines_on="stderr", **rota.environment) as worker,
    ):
        scheduler.until_event("scheduler.started")
        assert worker.until_event("worker.started")[-1]["handlers"] == ["shell"]
        greeting = rota.json("job", "run", greets)["run_id"]
        failing = rota.json("job", "run", fails)["run_id"]
        worker.until(lambda line: line.get("run_id") == failing)
        assert worker.end(signal.SIGTERM) == 0
        assert scheduler.end(signal.SIGTERM) == 0
    assert rota.json("run", "show", greeting)["state"] == "succeeded"
    assert (tmp_path / "said.txt").read_text() == f"hello {greets}\n"
    [attempt] = rota.json("run", "show", failing)["attempts"]
    assert (attempt["outcome"], attempt["error"]) == ("failed", "exit status 3: no such disk")


@pytest.mark.acceptance
@pytest.mark.parametrize("job_id", ["deaf", "default-thread", "own-thread"])
def test_a_worker_that_has_left_ends_whatever_its_handlers_left_behind(rota: Cli, tmp_path: Path, job_id: str) -> None:
    (tmp_path / "jobs.py").write_text(STUBBORN)
    with process("worker", "jobs.py", folder=tmp_path, lines_on="stderr", **rota.environment) as worker:
        worker.until_event("worker.started")
        run_id = rota.json("job", "run", job_id)["run_id"]
        worker.until_event("begun")
        worker.popen.send_signal(signal.SIGTERM)
        worker.until_event("worker.drains")
        worker.popen.send_signal(signal.SIGTERM)
        worker.until_event("worker.stopped")
        assert worker.popen.wait() == 0
    assert [attempt["outcome"] for attempt in rota.json("run", "show", run_id)["attempts"]] == ["released"]


def test_a_worker_wants_an_app_or_the_leave_to_run_shell_jobs(bare: Cli) -> None:
    said = bare("worker")
    assert (said.code, said.err.startswith("error: target: is missing")) == (2, True)
    assert bare("worker", "--allow-shell", "default", "--concurrency", "0").err.startswith("error: concurrency: ")
    for words in (["--allow-shell"], ["--allow-shell", "--drain", "1"], ["--allow-shell", " a"]):
        said = bare("worker", *words)
        assert said.code == 2, words
        assert "allow-shell" in said.err
    assert bare("worker", "jobs.py", "--shell-user", "nobody").err.startswith("error: shell-user: stands alone")
    assert bare("worker", "no.such.module:app").code == 5


@pytest.mark.acceptance
@pytest.mark.parametrize(("debug", "code", "word"), [("0", 5, "error: "), ("1", 1, "Traceback")])
def test_a_worker_that_cannot_begin_ends_and_is_not_started_again(
    rota: Cli, tmp_path: Path, debug: str, code: int, word: str
) -> None:
    (tmp_path / "jobs.py").write_text("import no_such_module\n")
    environment = {**rota.environment, "ROTA_DEBUG": debug}
    with process("worker", "jobs.py", folder=tmp_path, lines_on="stderr", **environment) as worker:
        said = worker.rest()
        assert worker.popen.wait() == code
    assert word in said
    assert "worker.restarted" not in said


def test_a_worker_shows_what_it_did_at_the_port_that_it_logs(rota: Cli, tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(
        'import rota\n\napp = rota.App()\n\n\n@app.job("greet")\ndef greet():\n    pass\n'
    )
    words = ("worker", "jobs.py", "--metrics-port", "0")
    with process(*words, folder=tmp_path, lines_on="stderr", **rota.environment) as worker:
        url = worker.until_event("worker.metrics")[-1]["url"]
        worker.until_event("worker.started")
        rota.json("job", "run", "greet")
        worker.until_event("attempt.ended")
        with urlopen(url, timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        assert worker.end(signal.SIGTERM) == 0
    assert 'rota_attempts_total{handler="greet",outcome="succeeded"} 1.0' in lines
    assert 'rota_attempt_seconds_count{handler="greet"} 1.0' in lines
    assert 'rota_start_delay_seconds_count{pool="default"} 1.0' in lines


def test_a_port_for_metrics_that_is_taken_ends_a_worker_before_it_works(rota: Cli, tmp_path: Path) -> None:
    with bind("127.0.0.1", 0) as taken:
        said = rota("worker", "rota.cli.samples:app", "--metrics-port", str(taken.getsockname()[1]))
    assert said.code == 5
    assert "choose another --metrics-host or --metrics-port" in said.err
