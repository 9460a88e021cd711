"""`python -m benchmarks compare`: its arithmetic, its arguments, its pins, and that it leaves no process behind."""

import asyncio
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmarks.compare.command import parse
from benchmarks.compare.environments import INSIDE
from benchmarks.compare.figures import ROWS, Figure, Row, ahead, beside, table
from benchmarks.compare.measures import MEASURES, delays_in_window
from benchmarks.compare.peers import PEERS
from benchmarks.compare.processes import PeerFailed, ask, cpu_below, running

from rota.clock import SystemClock

RATE = "drain_1.rate"
DELAY = "pickup.p50"


def figures(measure: str, values: dict[str, Sequence[float]]) -> list[Figure]:
    return [Figure(peer=peer, measure=measure, value=value) for peer, each in values.items() for value in each]


def line_of(text: str, title: str) -> list[str]:
    [line] = [line for line in text.splitlines() if line.startswith(f"| {title}")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_ratio_is_of_medians_and_above_one_where_rota_is_ahead() -> None:
    measured = figures(RATE, {"rota": [4000, 9000, 6000], "pgqueuer": [4000], "awa": [2000], "yardstick": [8000]})
    measured += figures(DELAY, {"rota": [5.0], "pgqueuer": [10.0], "awa": [4.0]})

    text = table(measured)

    assert line_of(text, "drain, 1 worker")[1:] == ["6,000", "4,000", "2,000", "8,000", "1.50 (pgqueuer)", "0.75"]
    assert line_of(text, "pick-up p50")[1:] == ["5.00", "10.0", "4.00", "–", "0.80 (awa)", "–"]


def test_what_was_not_measured_is_no_row_and_no_ratio() -> None:
    alone = table(figures(RATE, {"pgqueuer": [4000]}))

    assert line_of(alone, "drain, 1 worker")[1:] == ["4,000", "–", "–"]
    assert "pick-up" not in alone
    assert beside([]) is None


def test_a_ratio_to_nothing_is_none() -> None:
    assert ahead(Row("", RATE), 5, 0) is None
    assert ahead(Row("", DELAY, less_is_better=True), 0, 5) is None
    assert ahead(Row("", DELAY, less_is_better=True), 2, 5) == 2.5


def test_other_work_is_told_from_every_drain() -> None:
    assert (
        beside(figures("drain_1.others", {"rota": [0.1], "awa": [0.3]}) + figures("drain_2.others", {"awa": [0.9]}))
        == 0.3
    )


def test_a_start_belongs_to_its_slot_or_to_the_nearest_second() -> None:
    starts = [(10.2, "9.0"), (10.2, "10.0"), (11.3, "-"), (11.95, "-"), (13.0, "-"), (12.0, "13.0")]

    delays = delays_in_window(starts, first=10, seconds=3)

    assert [round(delay, 6) for delay in delays] == [0.2, 0.3, -0.05]


def test_all_is_measured_once_unless_asked_otherwise() -> None:
    assert parse([]).peers == tuple(PEERS)
    assert parse([]).measures == tuple(MEASURES)
    assert parse([]).repeats == 1
    asked = parse(["--peers", "awa, rota,awa", "--measures", "drain", "--repeats", "3"])
    assert (asked.peers, asked.measures, asked.repeats) == (("rota", "awa"), ("drain",), 3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--peers", "rota,celery"], "unknown: celery; known are rota, yardstick, pgqueuer"),
        (["--peers", ","], "names none of rota"),
        (["--measures", "speed"], "unknown: speed; known are make, drain"),
        (["--repeats", "0"], "must be a number from 1 to 20"),
        (["--repeats", "some"], "must be a number from 1 to 20"),
    ],
)
def test_an_argument_that_means_nothing_is_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(arguments)

    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_every_peer_is_pinned_to_one_version_and_has_its_script() -> None:
    exact = {"own": r"$^", "python": r"[a-z][a-z0-9-]*==\d+(\.\d+)+", "node": r"[a-z][a-z-]*@\d+(\.\d+)+"}
    for peer in PEERS.values():
        assert all(re.fullmatch(exact[peer.runtime], pin) for pin in peer.pins), peer.name
        assert bool(peer.pins) == (peer.runtime != "own"), peer.name
        assert (INSIDE / f"{peer.script}{'.js' if peer.runtime == 'node' else '.py'}").is_file()
        assert peer.measures <= MEASURES.keys()


def test_every_row_is_of_a_measure() -> None:
    assert {row.measure.split(".")[0].removesuffix("_1").removesuffix("_2") for row in ROWS} == MEASURES.keys()


PARENT = """
import signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
print(child.pid, flush=True)
signal.pause()
"""


async def until_two_run(output: Path) -> int:
    """Return the process id of the child, once the parent has said it."""
    async with asyncio.timeout(60):
        while not (said := output.read_text().strip()):
            await SystemClock().sleep(0.005)
    return int(said)


async def test_what_was_started_is_ended_with_all_below_it_when_we_are_interrupted(tmp_path: Path) -> None:
    output = tmp_path / "output"
    found: list[int] = []

    async def measure() -> None:
        command = [sys.executable, "-c", PARENT]
        async with running([command], environment=os.environ, folder=tmp_path, output=output) as [parent]:
            found.extend((parent, await until_two_run(output)))
            assert cpu_below(parent) > 0
            interrupted.set()
            await asyncio.Event().wait()

    interrupted = asyncio.Event()
    task = asyncio.create_task(measure())
    await asyncio.wait_for(interrupted.wait(), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    parent, child = found
    assert not Path(f"/proc/{parent}").exists()
    # Its parent is gone, so whoever takes orphans in reaps it: until then it is a zombie.
    stat = Path(f"/proc/{child}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] in "ZX"


async def test_a_script_answers_by_its_last_line_and_a_failed_one_with_what_it_said(tmp_path: Path) -> None:
    async def said(code: str) -> dict[str, Any]:
        return await ask([sys.executable, "-c", code], environment=os.environ, folder=tmp_path)

    assert await said(f"print('first'); print({json.dumps(json.dumps({'runs': 3}))})") == {"runs": 3}
    assert await said("print('only words')") == {}
    with pytest.raises(PeerFailed, match="no such table"):
        await said("raise SystemExit('no such table')")
