"""`rota job`: definitions go in whole or not at all, and a job is steered by its id."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rota.clock import SystemClock
from rota.domain.attempt import Outcome
from rota.domain.job import Job
from tests.cli.conftest import Cli

NIGHTLY = {
    "job_id": "nightly",
    "handler": "billing",
    "schedule": {"kind": "cron", "expression": "0 2 * * *", "tz": "Europe/Berlin"},
    "payload": {"limit": 123456789012345678901234567890, "note": "[red]ü[/red]"},
}
ON_DEMAND = {"job_id": "on-demand", "handler": "report"}


def ids(document: dict[str, Any]) -> list[str]:
    return [job["job_id"] for job in document["jobs"]]


def test_each_line_of_a_file_of_payloads_is_a_run(rota: Cli, tmp_path: Path) -> None:
    rota("job", "put", "-", typed=json.dumps(ON_DEMAND))
    file = tmp_path / "payloads.jsonl"
    file.write_text('{"n": 1}\r\n\n{"n": 123456789012345678901234567890, "t": "a\u2028b"}\n', encoding="utf-8")
    said = rota("job", "run", "on-demand", "--payloads", str(file), "--idempotency-key", "load-1")
    assert (said.code, said.out.strip()) == (0, "2 lines: 2 runs in the queue")
    with file.open("a", encoding="utf-8") as more:
        more.write('{"n": 3}')
    said = rota("job", "run", "on-demand", "--payloads", str(file), "--idempotency-key", "load-1")
    assert (said.code, said.out.strip()) == (0, "3 lines: 1 run in the queue, 2 made before")
    made = rota.json("job", "run", "on-demand", "--payloads", "-", typed='{"n": 1}\n{"n": 1}')["runs"]
    assert [one["outcome"] for one in made] == ["created", "created"]
    run = rota.json("run", "show", made[0]["run_id"])
    assert (run["payload"], run["state"]) == ({"n": 1}, "pending")
    assert len(rota.json("run", "list", "--job", "on-demand")["runs"]) == 5
    file.write_text('{"n": 1}\n\n{"n": 4}\n')
    said = rota("job", "run", "on-demand", "--payloads", str(file), "--idempotency-key", "load-1")
    assert said.code == 1
    assert "line 3: the key stands for another request, which made run " in said.out


@pytest.mark.parametrize(
    ("typed", "words", "trouble"),
    [
        ("", (), "payloads: '-' has no lines"),
        ('{"n": 1}\n[1]\n', (), "line 2: must be a JSON object"),
        ('{"n": 1}\n\n{"n"', (), "line 3: is not JSON"),
        ('{"n": 1}\n{"t": "\\u0000"}', (), "payload: "),
        ('{"n": 1}', ("--payload", "{}"), "payload: does not go with --payloads"),
        ('{"n": 1}', ("--at", "2035-01-01T00:00:00Z"), "at: does not go with --payloads"),
        ('{"n": 1}', ("--wait",), "wait: does not go with --payloads"),
    ],
)
def test_payloads_that_are_none_make_no_run(rota: Cli, typed: str, words: tuple[str, ...], trouble: str) -> None:
    rota("job", "put", "-", typed=json.dumps(ON_DEMAND))
    said = rota("job", "run", "on-demand", "--payloads", "-", *words, typed=typed)
    assert said.code == 2
    assert trouble in said.err
    assert rota.json("run", "list", "--job", "on-demand")["runs"] == []


def test_a_file_of_jobs_goes_in_and_again_changes_nothing(rota: Cli, tmp_path: Path) -> None:
    file = tmp_path / "jobs.json"
    file.write_text(json.dumps([NIGHTLY, ON_DEMAND]))
    first = rota.json("job", "put", str(file))["jobs"]
    assert [(job["job_id"], job["version"], job["changed"]) for job in first] == [
        ("nightly", 1, True), ("on-demand", 1, True),
    ]  # fmt: skip
    assert [job["changed"] for job in rota.json("job", "put", str(file))["jobs"]] == [False, False]
    shown = rota.json("job", "show", "nightly")
    assert shown["job"]["payload"] == NIGHTLY["payload"]
    assert shown["state"] == "active"
    assert shown["next_slot"].endswith(":00:00Z")
    assert "[red]ü[/red]" in rota("job", "show", "nightly").out


def test_one_bad_job_keeps_all_out_and_is_named_by_its_place_and_field(rota: Cli) -> None:
    jobs = [ON_DEMAND, {**NIGHTLY, "payload": {"text": "x\x00"}}]
    said = rota("job", "put", "-", typed=json.dumps(jobs))
    assert said.code == 2
    assert said.err.startswith("error: jobs[1].payload: ")
    assert rota.json("job", "list")["jobs"] == []


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"job_id": "x" * 201, "handler": "h"}, "job_id"),
        ({"job_id": "a\x00b", "handler": "h"}, "job_id"),
        ({"job_id": "a"}, "handler"),
        ({"job_id": "a", "handler": "h", "colour": "red"}, "colour"),
        ({"job_id": "a", "handler": "h", "payload": {"text": "x" * 262_144}}, "payload"),
        (
            {"job_id": "a", "handler": "h", "schedule": {"kind": "cron", "expression": "0 0 31 2 *"}},
            "schedule.expression",
        ),
        (
            {"job_id": "a", "handler": "h", "schedule": {"kind": "cron", "expression": "@daily", "tz": "X"}},
            "schedule.tz",
        ),
        ("text", "job"),
    ],
)
def test_bad_input_is_refused_by_field(bare: Cli, document: object, field: str) -> None:
    said = bare("job", "put", "-", "--json", typed=json.dumps(document))
    assert said.code == 2
    assert said.document["error"]["field"] == field


def test_what_is_no_definition_is_refused_with_what_to_do(bare: Cli) -> None:
    assert bare("job", "put", "-", typed="{").err.startswith("error: file: '-' is not JSON")
    assert "rota job put nightly --cron" in bare("job", "put", "nightly").err
    assert bare("job", "put", "away.json").err.startswith("error: file: ")
    both = bare("job", "put", "a", "--cron", "@daily", "--every", "5m")
    assert both.err == "error: schedule: is given as cron and every (give one of them)\n"
    assert bare("job", "put", "a", "--every", "5m", "--tz", "UTC").err.startswith("error: tz: belongs to --cron")
    assert bare("job", "put", "a", "--payload", "[1]").err.startswith("error: payload: ")
    assert bare("job", "put", "a", "--misfire", "catch_up").err.startswith("error: misfire: ")
    assert bare("job", "put", "a", "--timeout", "soon").err.startswith("error: timeout: ")


def test_a_job_is_defined_by_options(rota: Cli) -> None:
    rota.json(
        "job", "put", "sync", "--handler", "sync-all", "--cron", "*/5 * * * *", "--tz", "Asia/Tokyo", "--pool", "slow",
        "--payload", '{"a": 1}', "--misfire", "catch_up:7", "--overlap", "skip", "--timeout", "10m", "--priority", "9",
        "--max-attempts", "1", "--description", "keeps both sides alike",
    )  # fmt: skip
    job = rota.json("job", "show", "sync")["job"]
    assert job["handler"] == "sync-all"
    assert job["schedule"]["tz"] == "Asia/Tokyo"
    assert job["payload"] == {"a": 1}
    assert job["misfire"] == {"policy": "catch_up", "limit": 7, "max_age": 2678400.0}
    assert (job["pool"], job["overlap"], job["timeout"], job["priority"], job["max_attempts"]) == (
        "slow", "skip", 600.0, 9, 1,
    )  # fmt: skip
    rota.json("job", "put", "tick", "--every", "1h30m")
    assert rota.json("job", "show", "tick")["job"]["schedule"]["every"] == "1h30m"
    rota.json("job", "put", "launch", "--at", "2035-01-01T00:00:00Z")
    assert rota.json("job", "next", "launch")["slots"] == ["2035-01-01T00:00:00Z"]


def test_the_flow_of_a_job_is_defined_by_options(rota: Cli) -> None:
    rota.json(
        "job", "put", "sync", "--overlap", "queue_one", "--start-deadline", "10m", "--max-concurrency", "3",
        "--concurrency-key", "payload.customer", "--key-concurrency", "2", "--limit", "crm=2", "--limit", "mail",
        "--max-losses", "7", "--pause-after", "4", "--jitter", "5m",
    )  # fmt: skip
    job = rota.json("job", "show", "sync")["job"]
    assert (job["overlap"], job["start_deadline"], job["limits"]) == ("queue_one", 600.0, {"crm": 2, "mail": 1})
    assert (job["max_concurrency"], job["concurrency_key"], job["key_concurrency"]) == (3, "payload.customer", 2)
    assert (job["max_losses"], job["pause_after"], job["jitter"]) == (7, 4, 300.0)
    assert rota.json("job", "set", "sync", "--jitter", "1m")["fields"] == ["jitter"]


@pytest.mark.parametrize("limit", ["crm=", "crm=two", "crm=0", "=2", "a b", "crm=1.5", "crm=-1", "crm=9999999999"])
def test_a_limit_that_cannot_be_read_is_refused(bare: Cli, limit: str) -> None:
    assert bare("job", "put", "a", "--limit", limit).err.startswith("error: limits")


def test_a_version_that_moved_on_is_a_conflict(rota: Cli) -> None:
    rota.json("job", "put", "a", "--every", "5m", "--if-version", "0")
    assert rota("job", "put", "a", "--every", "6m", "--if-version", "7").code == 4


def test_a_job_is_paused_with_a_reason_and_resumed(rota: Cli) -> None:
    rota.json("job", "put", "a", "--every", "5m")
    paused = rota.json("job", "pause", "a", "--reason", "the printer is out")
    assert (paused["state"], paused["pause_reason"]) == ("paused", "the printer is out")
    assert "the printer is out" in rota("job", "next", "a").out
    assert rota.json("job", "resume", "a", "--missed", "drop")["state"] == "active"
    assert rota("job", "resume", "a", "--missed", "some").code == 2
    for words in (("pause",), ("resume",), ("show",), ("delete",), ("run",), ("next",)):
        assert rota("job", *words, "nobody").code == 3


def test_a_job_is_run_once_at_a_slot(rota: Cli) -> None:
    rota.json("job", "put", "a", "--handler", "h")
    made = rota.json("job", "run", "a", "--at", "2035-01-01T00:00:00Z", "--payload", '{"b": 2}')
    assert made["scheduled_for"] == "2035-01-01T00:00:00Z"
    assert rota("job", "run", "a", "--at", "2035-01-01T00:00:00Z").code == 4
    run = rota.json("run", "show", made["run_id"])
    assert (run["state"], run["gate"], run["origin"], run["payload"]) == ("pending", "time", "manual", {"b": 2})
    assert rota.json("job", "delete", "a") == {"job_id": "a", "cancelled": 1}
    assert rota("job", "show", "a").code == 3


def test_lists_go_on_after_a_page(rota: Cli) -> None:
    rota.json("job", "put", "-", typed=json.dumps([{"job_id": f"j{n}", "handler": "h"} for n in range(5)]))
    page = rota.json("job", "list", "--limit", "2")
    assert ids(page) == ["j0", "j1"]
    cursor = page["next_cursor"]
    assert f"--cursor {cursor}" in rota("job", "list", "--limit", "2").out
    rest = rota.json("job", "list", "--cursor", cursor, "--limit", "9")
    assert (ids(rest), rest["next_cursor"]) == (["j2", "j3", "j4"], None)
    assert ids(rota.json("job", "list", "--prefix", "j3")) == ["j3"]
    refused = rota("job", "list", "--prefix", "j", "--cursor", cursor, "--json")
    assert (refused.code, refused.document["error"]["code"]) == (2, "invalid-cursor")
    assert rota("job", "list", "--limit", "0").code == 2


def test_recompute_says_how_many_slots_moved(rota: Cli) -> None:
    rota.json("job", "put", "a", "--cron", "@daily")
    assert rota.json("job", "recompute") == {"moved": 0}


def test_jobs_are_listed_by_label_handler_and_whether_they_run(rota: Cli) -> None:
    jobs = [{"job_id": "a", "handler": "h", "labels": {"team": "web"}}, {"job_id": "b", "handler": "g"}]
    rota.json("job", "put", "-", typed=json.dumps(jobs))
    rota.json("job", "pause", "b")
    assert ids(rota.json("job", "list", "--label", "team=web")) == ["a"]
    assert ids(rota.json("job", "list", "--label", "team=ops")) == []
    assert ids(rota.json("job", "list", "--handler", "g")) == ["b"]
    assert ids(rota.json("job", "list", "--enabled")) == ["a"]
    assert ids(rota.json("job", "list", "--disabled")) == ["b"]


def test_a_pause_has_an_end_and_the_missed_slots_a_choice(rota: Cli) -> None:
    rota.json("job", "put", "a", "--every", "5m")
    paused = rota.json("job", "pause", "a", "--resume-at", "2035-01-01T00:00:00Z")
    assert paused["resume_at"] == "2035-01-01T00:00:00Z"
    assert "2035-01-01T00:00:00Z" in rota("job", "pause", "a", "--resume-at", "2035-01-01T00:00:00Z").out
    dropping = rota.json("job", "pause", "a", "--resume-at", "2035-01-01T00:00:00Z", "--missed", "drop")
    assert dropping["resume_missed"] == "drop"
    assert rota("job", "pause", "a", "--missed", "drop").err.startswith("error: missed: ")
    assert rota("job", "pause", "a", "--resume-at", "2020-01-01T00:00:00Z").err.startswith("error: resume_at: ")
    assert rota("job", "pause", "a", "--resume-at", "soon").code == 2
    for missed in ("once", "catch_up", "policy"):
        rota.json("job", "pause", "a")
        assert rota.json("job", "resume", "a", "--missed", missed)["state"] == "active"


def test_the_same_key_makes_no_second_run(rota: Cli) -> None:
    rota.json("job", "put", "a", "--handler", "h")
    made = rota.json("job", "run", "a", "--idempotency-key", "k-1")
    again = rota.json("job", "run", "a", "--idempotency-key", "k-1")
    assert (made["created"], again["created"], again["run_id"]) == (True, False, made["run_id"])
    assert rota("job", "run", "a", "--idempotency-key", "k-1", "--payload", '{"b": 2}').code == 4
    assert "was made before" in rota("job", "run", "a", "--idempotency-key", "k-1").out


def test_next_slots_tell_the_rule_that_made_them(rota: Cli) -> None:
    rota.json("job", "put", "a", "--cron", "30 2 * * *", "--tz", "Europe/Berlin")
    document = rota.json("job", "next", "a", "--count", "400")
    assert set(document["rules"]) == {"named", "gap", "fold"}
    assert document["starts_at"] == document["slots"]
    assert "fold" in rota("job", "next", "a", "--count", "400").out


def test_a_version_is_one_job_s(rota: Cli) -> None:
    jobs = json.dumps([NIGHTLY, ON_DEMAND])
    assert rota("job", "put", "-", "--if-version", "0", typed=jobs).err.startswith("error: if_version: ")


def test_a_file_of_another_tenant_s_jobs_is_refused(rota: Cli) -> None:
    said = rota("job", "put", "-", typed=json.dumps({**ON_DEMAND, "tenant_id": "acme"}))
    assert (said.code, said.err.startswith("error: tenant_id: ")) == (2, True)
    rota.json("--tenant", "acme", "job", "put", "-", typed=json.dumps({**ON_DEMAND, "tenant_id": "acme"}))
    assert ids(rota.json("job", "list")) == []
    assert ids(rota.json("job", "list", "--tenant", "acme")) == ["on-demand"]


def test_set_changes_what_it_names_and_put_says_what_it_reset(rota: Cli) -> None:
    words = ("--cron", "0 2 * * *", "--tz", "Europe/Berlin", "--description", "bills", "--label", "team=billing")
    rota.json("job", "put", "bills", *words, "--payload", '{"n": 1, "to": "all"}')
    done = rota.json("job", "set", "bills", "--cron", "0 3 * * *", "--payload", '{"n": 2}', "--misfire", "catch_up:3")
    assert (done["fields"], done["reset"]) == (["schedule", "payload", "misfire"], [])
    job = rota.json("job", "show", "bills")["job"]
    assert (job["schedule"]["expression"], job["schedule"]["tz"]) == ("0 3 * * *", "Europe/Berlin")
    assert (job["payload"], job["description"]) == ({"n": 2, "to": "all"}, "bills")
    assert not rota.json("job", "set", "bills", "--cron", "0 3 * * *")["changed"]
    rota.json("job", "set", "bills", "--every", "20s", "--unset", "labels.team")
    job = rota.json("job", "show", "bills")["job"]
    assert (job["schedule"]["kind"], job["labels"]) == ("interval", {})
    said = rota("job", "put", "bills", "--every", "20s", "--payload", '{"n": 2, "to": "all"}')
    assert "bills: back to the default, since not named: misfire, description (`rota job set`" in said.out


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ((), 2, "changes: are missing"),
        (("--tz", "Europe/Berlin"), 2, "schedule.tz: is unknown in a schedule of kind interval"),
        (("--priority", "12"), 2, "priority: must be from 0 to 9"),
        (("--unset", "colour"), 0, ""),
        (("--unset", "pool", "--pool", "x"), 2, "unset: 'pool' is set by another option"),
        (("--unset", "handler"), 2, "handler: is missing"),
        (("--pool", "p", "--if-version", "7"), 4, "is at version 1, not 7"),
    ],
)
def test_a_change_that_cannot_be_is_refused(rota: Cli, words: tuple[str, ...], code: int, text: str) -> None:
    rota.json("job", "put", "j", "--every", "1h")
    said = rota("job", "set", "j", *words)
    assert (said.code, text in said.err) == (code, True), said
    assert rota.json("job", "show", "j")["version"] == 1


def test_a_reset_says_what_is_as_the_code_says_again(rota: Cli) -> None:
    rota.declare(Job(job_id="bills", handler="bills", description="of the code"))
    rota.json("job", "set", "bills", "--priority", "9", "--unset", "description")
    assert "bills: back to the default: priority" in rota("job", "set", "bills", "--unset", "priority").out
    said = rota("job", "reset", "bills")
    assert "bills: as its code declares it again: description" in said.out
    assert "back to the default" not in said.out


def test_a_name_that_is_given_twice_is_refused_by_its_path(bare: Cli) -> None:
    twice = '[{"job_id": "a"}, {"job_id": "b", "payload": {"ids": [{"n": 1, "n": 2}]}}]'
    assert bare("job", "put", "-", typed=twice).err.startswith("error: 1.payload.ids.0.n: is given twice")
    assert bare("job", "set", "a", "--payload", '{"n": {"x": 1, "x": 2}}').err.startswith("error: payload.n.x: ")


def test_many_jobs_are_named_by_a_filter_and_asked_for(rota: Cli) -> None:
    for name in ("b/1", "b/2"):
        rota.json("job", "put", name, "--every", "1h", "--label", "team=billing")
    rota.json("job", "put", "other", "--every", "1h")
    said = rota("job", "pause", "--label", "team=billing")
    assert (said.code, "Pause 2 jobs?" in said.err, "--yes" in said.err) == (2, True, True)
    done = rota.json("job", "pause", "--label", "team=billing", "--reason", "incident", "--yes")
    assert done == {"matched": 2, "done": 2, "left": []}
    assert rota.json("job", "resume", "--prefix", "b/", "--reason", "incident", "--yes")["done"] == 2
    assert rota.json("job", "run", "--prefix", "b/", "--yes")["done"] == 2
    assert rota.json("run", "cancel", "--all", "--label", "team=billing", "--yes") == {
        "cancelled": 2, "asked": 0, "more": False,
    }  # fmt: skip
    assert rota.json("job", "delete", "--all", "--yes")["done"] == 3
    for words in (("job", "pause"), ("job", "pause", "j", "--prefix", "j"), ("run", "cancel", "--label", "team=x")):
        assert rota(*words).code == 2


def test_a_run_that_is_waited_for_says_by_the_exit_code_what_became_of_it(rota: Cli) -> None:
    rota.json("job", "put", "j", "--handler", "h")
    said = rota("job", "run", "j", "--wait", "--timeout", "1ms", "--json")
    assert (said.code, said.document["state"]) == (124, "pending")
    rota.json("run", "cancel", said.document["run_id"])
    words = ("job", "run", "j", "--at", said.document["scheduled_for"], "--wait")
    assert rota(*words).code == 4, "the slot is taken"
    dead = rota.bury("d", error="boom")
    rota.json("job", "run", "d", "--idempotency-key", "k")
    assert rota("run", "list", "--state", "failed").err.count("dead") == 1
    assert [run["run_id"] for run in rota.json("run", "list", "--failed")["runs"]] == [str(dead)]


@pytest.mark.parametrize(("end", "state", "code"), [
    (["succeeded"], "succeeded", 0), (["failed", "succeeded"], "succeeded", 0), (["failed", "failed"], "dead", 1),
    ([], "cancelled", 1),
])  # fmt: skip
def test_what_became_of_a_run_is_the_exit_code_of_waiting_for_it(
    rota: Cli, end: list[str], state: str, code: int
) -> None:
    job = {"job_id": "j", "handler": "j", "max_attempts": 2, "retry": {"initial": 0}}
    rota.json("job", "put", "-", typed=json.dumps(job))
    words = ("job", "run", "j", "--idempotency-key", "k")
    run_id = rota.json(*words)["run_id"]
    if not end:
        rota.json("run", "cancel", run_id)
    for outcome in end:
        rota.attempt("j", Outcome(outcome))
    said = rota(*words, "--wait", "--json")
    assert (said.code, said.document["run_id"], said.document["state"]) == (code, run_id, state)
    assert f"run {run_id} is {state}" in rota(*words, "--wait", "--timeout", "1h").out


def test_a_run_that_ends_later_is_waited_for(rota: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    rota.json("job", "put", "j", "--handler", "j")
    sleep = SystemClock.sleep

    async def work_meanwhile(clock: SystemClock, seconds: float) -> None:
        with ThreadPoolExecutor() as elsewhere:
            elsewhere.submit(rota.attempt, "j", Outcome.SUCCEEDED).result()
        await sleep(clock, 0)

    monkeypatch.setattr(SystemClock, "sleep", work_meanwhile)
    said = rota("job", "run", "j", "--wait", "--timeout", "1h", "--json")
    assert (said.code, said.document["state"]) == (0, "succeeded")


def test_an_import_is_undone_by_its_name(rota: Cli, tmp_path: Path) -> None:
    table = tmp_path / "crontab"
    table.write_text("0 2 * * * /bin/true\n5 2 * * * /bin/false\n")
    rota.json("job", "put", "mine", "--every", "1h")
    source = rota.json("import", "crontab", str(table), "--user")["source"]
    assert rota.json("import", "undo", source, "--yes")["done"] == 2
    assert ids(rota.json("job", "list")) == ["mine"]
    assert rota("import", "undo", "app", "--yes").code == 2
