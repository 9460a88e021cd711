"""`rota demo`: the story is so, and it says so when it is not."""

import json
from typing import Any

import asyncpg
import pytest
import typer
from typer.testing import CliRunner, Result

from rota.cli import demo
from rota.cli.boundary import Boundary
from rota.services.completion import Completion
from rota.services.reaper import Reaper
from rota.services.scheduler import Scheduler
from rota.testing import TestCluster

STEPS = 11


def run_demo(*words: str) -> Result:
    app = typer.Typer(cls=Boundary)
    app.callback()(lambda: None)  # with one command only, Typer would leave its name out
    demo.register(app)
    return CliRunner().invoke(app, ["demo", *words])


def story(cluster: TestCluster) -> tuple[int, dict[str, Any]]:
    result = run_demo("--json", "--database-url", cluster.server.dsn)
    return result.exit_code, json.loads(result.stdout)


def test_every_line_of_the_story_is_so_with_nothing_but_the_package() -> None:
    result = run_demo()
    assert result.exit_code == 0, result.output
    lines = [line for line in result.stdout.splitlines() if "t=" in line]
    assert len(lines) == STEPS
    assert all(line.startswith("✓") for line in lines)
    for words in (
        "3 jobs are due, and 3 runs are made",
        "makes none",
        "priority 9 before 5",
        "31 s later the reaper requeues it as attempt 2",
        "is refused",
        "1 dead letter: upstream 500",
        "after 350 s of outage catch_up(3) backfills exactly the last 3 of 35 slots",
        "fire_once makes 1 run, not 35",
        "the conservation law holds",
    ):
        assert words in result.stdout


def test_machines_read_one_document_with_the_measured_facts(rota_cluster: TestCluster) -> None:
    code, document = story(rota_cluster)
    assert (code, document["ok"], len(document["steps"])) == (0, True, STEPS)
    steps = document["steps"]
    assert all(step["ok"] for step in steps)
    assert [step["t"] for step in steps] == [0, 0, 0, 0, 31, 31, 31, 51, 401, 401, 401]
    assert steps[0]["runs_made"] == 3
    assert steps[2]["priorities"] == [9, 5]
    assert steps[4]["next_attempt"] == 2
    assert steps[5]["refused"] is True
    assert steps[6]["outcomes"] == ["lost", "succeeded"]
    assert steps[7]["error"] == "upstream 500"
    assert (steps[8]["slots"], steps[9]["slots"]) == ([380, 390, 400], [400])
    assert steps[10]["breaches"] == []


async def nothing(*_: object, **__: object) -> bool:
    return False


async def everything(_: object, reports: Any) -> frozenset[Any]:
    return frozenset(report.key.token for report in reports)


@pytest.mark.parametrize(
    ("service", "method", "broken", "stops_at"),
    [
        (Scheduler, "tick", nothing, "0 runs are made"),
        (Reaper, "tick", nothing, "nobody reaped it"),
        (Completion, "report", everything, "it completes 0"),
    ],
    ids=["no-scheduler", "no-reaper", "reports-thrown-away"],
)
def test_a_broken_service_breaks_the_story(
    monkeypatch: pytest.MonkeyPatch, rota_cluster: TestCluster, service: type, method: str, broken: Any, stops_at: str
) -> None:
    monkeypatch.setattr(service, method, broken)
    code, document = story(rota_cluster)
    assert (code, document["ok"]) == (1, False)
    *before, last = document["steps"]
    assert all(step["ok"] for step in before)
    assert last["ok"] is False
    assert stops_at in last["text"]


def test_the_line_that_is_not_so_is_marked(monkeypatch: pytest.MonkeyPatch, rota_cluster: TestCluster) -> None:
    monkeypatch.setattr(Reaper, "tick", nothing)
    result = run_demo("--database-url", rota_cluster.server.dsn)
    assert result.exit_code == 1
    assert [line for line in result.stdout.splitlines() if line.startswith("✗")] == [
        "✗  t=  31 s  31 s later the run is running in attempt 1: nobody reaped it"
    ]
    assert "promised: 31 s later the reaper requeues it as attempt 2" in result.stdout


async def databases(dsn: str) -> set[str]:
    connection = await asyncpg.connect(dsn)
    try:
        return {row["datname"] for row in await connection.fetch("SELECT datname FROM pg_database")}
    finally:
        await connection.close()


async def test_the_scratch_database_is_gone_afterwards(rota_cluster: TestCluster) -> None:
    before = await databases(rota_cluster.server.dsn)
    during: set[str] = set()
    async for _ in demo.tell(rota_cluster.server.dsn):
        during = during or await databases(rota_cluster.server.dsn) - before
    assert len(during) == 1
    assert await databases(rota_cluster.server.dsn) == before


def test_a_server_that_is_not_there_is_one_clear_error() -> None:
    result = run_demo("--database-url", "postgresql://nobody@127.0.0.1:1/none")
    assert result.exit_code == 5
    assert "error: " in result.stderr
