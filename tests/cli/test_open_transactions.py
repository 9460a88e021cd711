"""Every command beside an application's open transaction: for others as ever, for what it holds within bounds.

A new command fails the first test here until COMMANDS says how it is run.
"""

import asyncio
import shlex
import signal
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import asyncpg
import pytest
from typer.main import get_command

from rota.assembly import Rota, opened
from rota.cli.root import app
from rota.clock import SystemClock
from rota.control.principal import operator
from rota.domain.attempt import Claim, Outcome, Report
from rota.domain.instants import format_instant
from rota.domain.job import Job
from rota.domain.schedule import every
from rota.services import patience
from rota.settings import Settings
from rota.testing import TestCluster
from tests.cli.conftest import Cli
from tests.cli.processes import process

ANSWERED: Final = 30.0
"""Seconds within which everything is answered on a machine that has other things to do; nothing waits for the end."""

OPEN: Final[Mapping[str, Sequence[str]]] = {
    "triggered": (
        "SELECT rota.trigger('{job}', scheduled_for => '{slot}')",
        "SELECT rota.trigger('{job}', idempotency_key => '{job}')",
        "SELECT rota.trigger('{job}', scheduled_for => '{month}')",
        "SELECT rota.trigger('{imported_job}')",
    ),
    "completed": ("SELECT rota.complete('{running}', '{token}')",),
}
"""What applications have done to a job and not committed: each line is a transaction of its own, all open at once."""

DATABASELESS: Final = frozenset({"next", "demo"})
"""Commands that touch nobody's database."""
LASTING: Final = frozenset({"dev", "scheduler", "worker", "api"})
"""Commands that go on until somebody ends them."""

COMMANDS: Final[Mapping[str, int]] = {
    "workers drain w-other": 0,
    "migrate": 0,
    "shards": 0,
    "stats": 0,
    "freeze --reason deploy": 0,
    "freeze --show": 0,
    "unfreeze": 0,
    "freeze --reason deploy --everywhere": 0,
    "unfreeze --everywhere": 0,
    "doctor": 1,
    "audit": 0,
    "job put {job}-new --every 1h": 0,
    "job put {job} --handler h --every 2h": 0,
    "job set {job} --description new": 0,
    "job reset {job}": 0,
    "job list": 0,
    "job show {job}": 0,
    "job next {job}": 0,
    "job why {job}": 0,
    "job run {job}": 0,
    "job run {job} --at {slot}": 0,
    "job run {job} --at {month}": 0,
    "job run {job} --idempotency-key {job}": 0,
    "job run {job} --wait --timeout 1ms": 124,
    "job run --prefix {job} --yes": 0,
    "job recompute": 0,
    "job pause {job}": 0,
    "job resume {job}": 0,
    "job pause --prefix {job} --yes": 0,
    "job resume --prefix {job} --yes": 0,
    "run list": 0,
    "run list --job {job}": 0,
    "run show {waiting}": 0,
    "run why {waiting}": 0,
    "run show {running}": 0,
    "run why {running}": 0,
    "run priority {waiting} 9": 0,
    "run cancel {waiting}": 0,
    "run cancel {running}": 0,
    "run cancel --all --job {job} --yes": 0,
    "slots skipped": 0,
    "dead list": 0,
    "dead replay {dead}": 0,
    "dead replay --all --job {job} --yes": 0,
    "import crontab {crontab}": 0,
    "import undo {imported} --yes": 0,
    "workers list": 0,
    "limit put crm --permits 3": 0,
    "limit list": 0,
    "limit show crm": 0,
    "limit delete crm": 0,
    "pool put slow --ageing 5m": 0,
    "pool list": 0,
    "token create --scope read": 0,
    "token list": 0,
    "token revoke {api_token}": 0,
    "tenant put default --weight 2": 0,
    "tenant list": 0,
    "tenant secret": 0,
    "tenant rotate-secret": 0,
    "job delete {job}": 0,
    "job delete --prefix {job} --yes": 0,
}
"""How every command is run, in this order, and the exit code that it then has."""


def names_of(command: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the names of all commands below one."""
    if not hasattr(command, "commands"):
        yield " ".join(path)
        return
    for name, below in command.commands.items():
        yield from names_of(below, (*path, name))


def test_every_command_is_run_beside_open_transactions() -> None:
    known = set(names_of(get_command(app)))
    run = {name for name in known for line in COMMANDS if f"{line} ".startswith(f"{name} ")}
    assert known - run == DATABASELESS | LASTING


class Stage:
    """A database with two jobs, and imports, of which applications may hold one: `cast` says what words stand for."""

    def __init__(self, cluster: TestCluster, folder: Path) -> None:
        self.folder = folder
        self._runner = asyncio.Runner()
        self._database = cluster.database()

    def __enter__(self) -> "Stage":
        self.dsn = self._runner.run(self._database.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._database.__aexit__(None, None, None))
        self._runner.close()

    def cast(self, job_id: str) -> dict[str, str]:
        """Make a job with a run that waits, one that runs and one that is dead, and a crontab beside it."""
        file = self.folder / f"{job_id}.crontab"
        file.write_text(f"0 2 * * * /usr/bin/{job_id}\n")
        return self._runner.run(self._make(job_id)) | {"job": job_id, "crontab": str(file)}

    async def _make(self, job_id: str) -> dict[str, str]:
        job = Job(
            job_id=job_id,
            handler=job_id,
            schedule=every("1h"),
            max_attempts=1,
            lease_duration=timedelta(minutes=30),
        )
        async with opened(Settings(database_url=self.dsn)) as rota:
            control = rota.control(operator("code:app", "default"))
            await control.declare_jobs([job], source=job_id)
            dead = await self._claimed(rota, job_id)
            assert await rota.completion.report([Report(key=dead.key, outcome=Outcome.FAILED, error="boom")])
            running = await self._claimed(rota, job_id)
            waiting = await rota.on_demand.trigger(job_id, tenant_id="default")
            await rota.fleet.announce(
                instance=uuid4(), worker_id=f"w-{job_id}", pool="default", handlers=[job_id], concurrency=1
            )
            token = await control.create_token(scopes=["read"])
            entry = Job(job_id=f"imported/{job_id}", handler="shell", payload={"command": "true"})
            await rota.definitions.put([entry], source=f"import-{job_id}")
            [coming] = (await control.next_slots(job_id, count=1)).slots
        return {
            "slot": format_instant(coming.slot),
            "month": f"{rota.clock.now() + timedelta(days=200):%Y-%m-01T00:00:00Z}",
            "dead": str(dead.run_id),
            "running": str(running.run_id),
            "token": str(running.key.token),
            "waiting": str(waiting),
            "imported": f"import-{job_id}",
            "imported_job": entry.job_id,
            "api_token": token.token_id,
        }

    async def _claimed(self, rota: Rota, job_id: str) -> Claim:
        await rota.on_demand.trigger(job_id, tenant_id="default")
        [claim] = await rota.dispatch.claim(
            worker_id=f"w-{job_id}", pool="default", handlers=frozenset({job_id}), limit=1
        )
        return claim

    @contextmanager
    def held(self, command: str) -> Iterator[None]:
        """An application that has done this much, and commits at the block's end."""
        other: Any = self._runner.run(asyncpg.connect(self.dsn))
        try:
            self._runner.run(other.execute(f"BEGIN; {command}"))
            yield
            self._runner.run(other.execute("COMMIT"))
        finally:
            other.terminate()


@pytest.fixture(scope="module")
def stage(rota_cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(rota_cluster, tmp_path_factory.mktemp("open")) as stage:
        yield stage


@pytest.fixture(scope="module")
def held(stage: Stage) -> Iterator[Mapping[str, Mapping[str, str]]]:
    """What the words stand for, by what has been done to the job."""
    casts = {what: stage.cast(what) for what in OPEN}
    with ExitStack() as transactions:
        for what, commands in OPEN.items():
            for command in commands:
                transactions.enter_context(stage.held(command.format(**casts[what])))
        yield casts


@pytest.fixture
def rota(monkeypatch: pytest.MonkeyPatch, stage: Stage) -> Cli:
    monkeypatch.setenv("ROTA_DATABASE_URL", stage.dsn)
    return Cli()


TOLD: Final[Mapping[str, Set[str]]] = {
    "triggered": {
        "job put {job} --handler h --every 2h",
        "job set {job} --description new",
        "job reset {job}",
        "job run {job} --at {slot}",
        "job run {job} --at {month}",
        "job run {job} --idempotency-key {job}",
        "job pause {job}",
        "job resume {job}",
        "job pause --prefix {job} --yes",
        "import undo {imported} --yes",
        "job delete {job}",
        "job delete --prefix {job} --yes",
    },
    "completed": {"run cancel {running}", "run cancel --all --job {job} --yes"},
}
"""Commands that need the very rows that are held; all others work."""


def is_told(document: Any) -> bool:
    """Whether an answer says that a transaction holds what was asked for."""
    if "error" in document:
        return bool(document["error"]["code"] == "locked")
    if "more" in document:
        return bool(document["more"])  # runs are not told one by one
    return bool(document["left"]) and all("is held by a transaction" in one["reason"] for one in document["left"])


def test_every_command_goes_on_for_others(stage: Stage, held: object, rota: Cli) -> None:
    cast = stage.cast("other")
    for line, code in COMMANDS.items():
        said = rota(*shlex.split(line.format(**cast)), "--json")
        assert said.code == code, (line, said)


@pytest.mark.parametrize("what", OPEN)
def test_what_is_held_is_worked_on_or_told_to_be_held(
    held: Mapping[str, Mapping[str, str]], rota: Cli, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(patience, "PATIENCE", 0.1)
    stopwatch = SystemClock()
    told = set()
    for line, code in COMMANDS.items():
        if "{" not in line:
            continue  # it is about no job
        began = stopwatch.monotonic()
        said = rota(*shlex.split(line.format(**held[what])), "--json")
        assert stopwatch.monotonic() - began < ANSWERED, line
        if said.code != code:
            assert is_told(said.document), (line, said)
            told.add(line)
    assert told == TOLD[what]


APP: Final = """
import rota

app = rota.App(name="{held}")


@app.job("sweep", schedule=rota.every("1s"))
def sweep():
    pass


@app.job("{held}", schedule=rota.every("1h"), max_attempts=1, lease_duration=1800)
def held():
    pass
"""


@pytest.mark.acceptance
def test_processes_start_work_and_end_beside_what_is_held(
    stage: Stage, held: Mapping[str, Mapping[str, str]], rota: Cli, tmp_path: Path
) -> None:
    """Also a worker whose own job is held, as its code has not changed."""
    (tmp_path / "jobs.py").write_text(APP.replace("{held}", held["triggered"]["job"]))
    with (
        process("scheduler", folder=tmp_path, lines_on="stderr", **rota.environment) as scheduler,
        process("api", "--port", "0", folder=tmp_path, lines_on="stderr", **rota.environment) as api,
        process("worker", "jobs.py", folder=tmp_path, lines_on="stderr", **rota.environment) as worker,
    ):
        scheduler.until_event("scheduler.started")
        api.until_event("api.started")
        worker.until(lambda line: line.get("job") == "sweep")
        assert [one.end(signal.SIGTERM) for one in (worker, api, scheduler)] == [0, 0, 0]
    with process("dev", "jobs.py", "--json", folder=tmp_path, lines_on="stdout", **rota.environment) as dev:
        dev.until(lambda line: line.get("job_id") == "sweep" and line.get("state") == "succeeded")
        assert dev.end(signal.SIGTERM) == 0
