"""A command that ends at once has told the others before: nobody waits for the next look."""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import asyncpg
import pytest

from rota.clock import SystemClock
from rota.services.hints import CANCELS, CHANNEL, LIMITS, SCHEDULES
from tests.cli.conftest import Cli


@pytest.fixture
def heard(rota: Cli) -> Iterator[Callable[[], set[str]]]:
    """What other processes have been told since the last call."""
    with asyncio.Runner() as runner:
        connection: Any = runner.run(asyncpg.connect(rota.environment["ROTA_DATABASE_URL"]))
        topics: list[str] = []
        runner.run(connection.add_listener(CHANNEL, lambda *told: topics.append(told[3])))

        def listen() -> set[str]:
            # What was told before this answer comes before it.
            runner.run(connection.fetchval("SELECT 1"))
            told = set(topics)
            topics.clear()
            return told

        yield listen
        connection.terminate()


JOB = json.dumps({"job_id": "j", "handler": "j", "pool": "p"})
STEPS: Sequence[tuple[tuple[str, ...], str]] = (
    (("job", "run", "j"), "pool:p"),
    (("job", "run", "--all", "--yes"), "pool:p"),
    (("job", "put", "tick", "--every", "1h"), SCHEDULES),
    (("job", "set", "tick", "--every", "2h"), SCHEDULES),
    (("limit", "put", "crm", "--permits", "2"), LIMITS),
    (("unfreeze",), SCHEDULES),
)


def test_what_a_command_has_changed_is_told_before_it_ends(rota: Cli, heard: Callable[[], set[str]]) -> None:
    rota.json("job", "put", "-", typed=JOB)
    assert rota("freeze", "--reason", "deploy").code == 0
    heard()
    for words, topic in STEPS:
        assert rota(*words).code == 0
        assert topic in heard(), words
    rota.json("job", "list")
    assert heard() == set()


def test_the_worker_of_a_run_that_is_to_stop_is_told(rota: Cli, heard: Callable[[], set[str]]) -> None:
    rota.json("job", "put", "j", "--handler", "j")
    run_id = rota.json("job", "run", "j")["run_id"]
    rota.claim("j")
    heard()
    assert rota.json("run", "cancel", run_id)["cancel_requested"]
    assert CANCELS in heard()


def test_who_waits_for_a_run_has_told_of_it_before(
    rota: Cli, heard: Callable[[], set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    rota.json("job", "put", "-", typed=JOB)
    sleep = SystemClock.sleep
    told: set[str] = set()

    async def listen_meanwhile(clock: SystemClock, seconds: float) -> None:
        while "pool:p" not in told:
            told.update(await asyncio.to_thread(heard))
        await sleep(clock, seconds)

    monkeypatch.setattr(SystemClock, "sleep", listen_meanwhile)
    assert rota("job", "run", "j", "--wait", "--timeout", "100ms").code == 124
