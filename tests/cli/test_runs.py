"""`rota run` and `rota dead`: what happened, and the way back."""

import pytest

from tests.cli.conftest import Cli

TRACEBACK = 'ValueError: upstream 500 \x1b[31m\n\nTraceback (most recent call first):\n  File "x.py"'


def test_runs_are_listed_by_job_state_and_age(rota: Cli) -> None:
    dead = str(rota.bury("broken", error=TRACEBACK))
    rota.json("job", "put", "fine", "--handler", "h")
    waiting = rota.json("job", "run", "fine")["run_id"]
    assert {run["run_id"] for run in rota.json("run", "list")["runs"]} == {dead, waiting}
    assert [run["run_id"] for run in rota.json("run", "list", "--job", "fine")["runs"]] == [waiting]
    assert [run["run_id"] for run in rota.json("run", "list", "--state", "dead")["runs"]] == [dead]
    assert rota.json("run", "list", "--state", "blocked")["runs"] == []
    assert len(rota.json("run", "list", "--limit", "1", "--within", "1h")["runs"]) == 1
    assert rota("run", "list", "--state", "asleep").code == 2
    for within in ("long", "99999999d"):
        assert rota("run", "list", "--within", within).err.startswith("error: within: ")


def test_a_run_shows_its_attempts_and_errors_and_moves_no_cursor(rota: Cli) -> None:
    run_id = str(rota.bury("broken", error=TRACEBACK))
    shown = rota.json("run", "show", run_id)
    assert (shown["state"], shown["attempt"], shown["job_id"]) == ("dead", 1, "broken")
    [attempt] = shown["attempts"]
    assert (attempt["outcome"], attempt["worker_id"], attempt["error"]) == ("failed", "w", TRACEBACK)
    text = rota("run", "show", run_id).out
    assert "upstream 500 \\x1b[31m" in text
    assert "\x1b[31m" not in text
    assert 'File "x.py"' in text


def test_a_list_shows_when_ended_runs_began_how_long_they_took_and_their_errors_first_line(rota: Cli) -> None:
    run_id = str(rota.bury("broken", error=TRACEBACK))
    [run] = rota.json("run", "list")["runs"]
    assert run["started_at"] is not None
    assert 0 <= run["duration_seconds"] < 60
    said = rota("run", "list").out
    head = next(line for line in said.splitlines() if "slot" in line)
    assert head.split() == ["run", "job", "slot", "state", "attempt", "started", "duration", "finished", "error"]
    [row] = [line for line in said.splitlines() if run_id in line]
    assert "ValueError: upstream 500" in row
    assert "Traceback" not in said
    rota.json("run", "cancel", rota.json("job", "run", "broken")["run_id"])
    listed = rota("run", "list", "--state", "cancelled").out
    assert "error" not in listed, "what no run has makes no column"


def test_an_id_that_is_none_is_refused_and_one_that_is_unknown_is_not_found(rota: Cli) -> None:
    assert rota("run", "show", "abc").err.startswith("error: run_id: ")
    assert rota("run", "show", "3f8a3cd5-30cb-4a0b-8a0e-29d5ca2c9e0a").code == 2  # a UUID, and none of Rota's
    rota.json("job", "put", "a", "--handler", "h")
    slot = rota.json("job", "run", "a", "--at", "2035-01-01T00:00:00Z")["run_id"]
    unknown = f"{slot[:8]}-{slot[9:13]}-8000-8000-000000000000"
    assert rota("run", "show", unknown).code == 3


def test_dead_letters_are_listed_with_their_error_and_replayed_once(rota: Cli) -> None:
    run_id = str(rota.bury("broken", error="ValueError: upstream 500"))
    [letter] = rota.json("dead", "list")["dead"]
    assert (letter["run_id"], letter["job_id"], letter["error"]) == (run_id, "broken", "ValueError: upstream 500")
    assert rota.json("dead", "list", "--job", "other")["dead"] == []
    assert rota.json("dead", "replay", run_id) == {"replayed": 1, "not_dead": []}
    assert rota.json("run", "show", run_id)["state"] == "pending"
    again = rota("dead", "replay", run_id, "--json")
    assert (again.code, again.document) == (1, {"replayed": 0, "not_dead": [run_id]})


def test_all_dead_letters_are_replayed_only_when_somebody_says_yes(rota: Cli) -> None:
    for job_id in ("a", "b", "c"):
        rota.bury(job_id, error="no")
    said = rota("dead", "replay", "--all")
    assert (said.code, said.err.startswith("error: yes: ")) == (2, True)
    assert rota.json("dead", "replay", "--all", "--yes", "--job", "b")["replayed"] == 1
    assert rota("dead", "replay", "--all", "--yes").out == "2 dead letters are back in the queue\n"
    assert rota.json("dead", "replay", "--all") == {"replayed": 0, "last_at": None}
    assert rota("dead", "replay").code == 2
    assert rota("dead", "replay", "x", "--all").code == 2


def test_runs_and_dead_letters_are_found_by_handler_label_time_and_error(rota: Cli) -> None:
    first = str(rota.bury("a", error="upstream 500"))
    second = str(rota.bury("b", error="no such file"))

    def found(*words: str) -> set[str]:
        listed = {run["run_id"] for run in rota.json("run", "list", *words)["runs"]}
        assert {letter["run_id"] for letter in rota.json("dead", "list", *words)["dead"]} == listed
        return listed

    assert found("--error", "upstream") == {first}
    assert found("--handler", "b") == {second}
    assert found("--label", "team") == set()
    assert found("--since", "2020-01-01T00:00:00Z") == {first, second}
    assert found("--until", "2020-01-01T00:00:00Z") == set()
    assert rota("run", "list", "--since", "yesterday").err.startswith("error: since: ")
    assert rota("run", "list", "--since", "2020-01-01T00:00:00Z", "--within", "1d").err.startswith("error: within: ")


def test_runs_are_listed_page_by_page(rota: Cli) -> None:
    rota.json("job", "put", "a", "--handler", "h")
    made = [rota.json("job", "run", "a", "--at", f"2035-01-0{day}T00:00:00Z")["run_id"] for day in range(1, 4)]
    page = rota.json("run", "list", "--limit", "2")
    assert [run["run_id"] for run in page["runs"]] == made[:0:-1]
    assert page["next_cursor"] in rota("run", "list", "--limit", "2").out
    rest = rota.json("run", "list", "--cursor", page["next_cursor"])
    assert ([run["run_id"] for run in rest["runs"]], rest["next_cursor"]) == (made[:1], None)
    # Within a time that ends now, the next page needs the very instant at which the first one began.
    within = rota.json("run", "list", "--limit", "2", "--within", "1h")
    on = rota.json("run", "list", "--cursor", within["next_cursor"], "--since", within["since"])
    assert [run["run_id"] for run in on["runs"]] == made[:1]
    assert rota("run", "list", "--cursor", "x").code == 2


def test_a_run_that_waits_is_cancelled_and_one_that_ended_is_not(rota: Cli) -> None:
    rota.json("job", "put", "a", "--handler", "h")
    run_id = rota.json("job", "run", "a", "--at", "2035-01-01T00:00:00Z")["run_id"]
    assert rota.json("run", "cancel", run_id) == {"run_id": run_id, "state": "cancelled", "cancel_requested": False}
    assert rota("run", "cancel", run_id).code == 4
    assert rota("run", "cancel", "x").code == 2
    assert rota.json("run", "show", run_id)["state"] == "cancelled"


def test_dead_letters_are_chosen_and_spread(rota: Cli) -> None:
    for job_id in ("a", "b", "c"):
        rota.bury(job_id, error=f"no {job_id}")
    done = rota.json("dead", "replay", "--all", "--yes", "--error", "no b")
    assert done["replayed"] == 1
    assert "may start at" in rota("dead", "replay", "--all", "--yes", "--rate", "100").out
    assert rota.json("dead", "list")["dead"] == []
    assert rota("dead", "replay", "--error", "x", str(rota.bury("d", error="no"))).err.startswith("error: error: ")
    assert rota("dead", "replay", "--all", "--rate", "0").code == 2


def test_more_dead_letters_than_one_page_are_sent_back_at_their_rate(
    rota: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job_id in ("a", "b", "c"):
        rota.bury(job_id, error="no")
    monkeypatch.setattr("rota.cli.dead.PAGE", 1)
    assert rota.json("dead", "replay", "--all", "--yes", "--rate", "1000")["replayed"] == 3


def test_a_run_says_what_it_waits_for_and_gets_another_priority(rota: Cli) -> None:
    rota.json("job", "put", "a", "--handler", "h")
    assert rota.json("job", "why", "a")["gate"] == "on_demand"
    run_id = rota.json("job", "run", "a")["run_id"]
    assert rota.json("run", "priority", run_id, "9")["priority"] == 9
    assert rota("run", "priority", run_id, "9").out == f"run {run_id} waits with priority 9\n"
    assert rota("run", "priority", run_id, "10").code == 2
    said = rota.json("run", "why", run_id)
    assert (said["gate"], said["handler"], said["held_by"]) == ("handler", "h", [])
    for words in (("run", "why", run_id), ("job", "why", "a")):
        first, *rest = rota(*words).out.splitlines()
        assert first == "No worker of pool default is live."
        assert any(line.split() == ["run_id", run_id] for line in rest)
    rota.json("run", "cancel", run_id)
    assert rota("run", "why", run_id).out.startswith("It is cancelled since ")
    assert rota("run", "priority", run_id, "1").code == 4
    assert rota("run", "why", "x").code == 2
    assert rota("job", "why", "nobody").code == 3
