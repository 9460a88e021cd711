"""`rota next`: an expression in words, with its slots; no database is needed."""

import subprocess
import sys

from tests.cli.conftest import Cli


def test_an_expression_is_explained_and_its_slots_are_listed_across_a_clock_change(bare: Cli) -> None:
    document = bare.json(
        "next", "0 0 * * *", "--tz", "Europe/Berlin", "--after", "2026-03-28T00:00:00Z", "--count", "2"
    )
    assert document["expression"] == "0 0 * * *"
    assert document["tz"] == "Europe/Berlin"
    assert document["words"] == "at 00:00 every day, Europe/Berlin time"
    assert document["warnings"] == []
    assert document["slots"] == ["2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"]
    assert document["local"] == ["2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00"]


def test_people_read_words_the_note_on_clock_changes_warnings_and_both_times(bare: Cli) -> None:
    said = bare("next", "0 2 13 * 5", "--tz", "Europe/Berlin", "--after", "2026-01-01T00:00:00Z", "--count", "1")
    assert said.code == 0
    for part in ("at 02:00", "Where clocks change", "warning: day-of-month and day-of-week", "2026-01-02T01:00:00Z"):
        assert part in said.out
    assert "2026-01-02T02:00:00+01:00" in said.out


def test_an_interval_follows_its_anchor(bare: Cli) -> None:
    words = ("next", "@every 1h", "--anchor", "2026-01-01T00:30:00Z", "--after", "2026-01-01T00:00:00Z", "--count", "1")
    assert bare.json(*words)["slots"] == ["2026-01-01T00:30:00Z"]


def test_a_refusal_names_the_field_in_text_and_in_json(bare: Cli) -> None:
    said = bare("next", "61 * * * *")
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("error: expression: minute")
    said = bare("next", "* * * * *", "--tz", "Mars/Olympus", "--json")
    assert (said.code, said.err) == (2, "")
    assert said.document["error"]["field"] == "tz"
    assert said.document["error"]["code"] == "invalid-schedule"
    assert bare("next", "* * * * *", "--after", "yesterday").err.startswith("error: after: ")
    assert bare("next", "* * * * *", "--count", "0").err.startswith("error: count: ")
    assert bare("next", "* * * * *", "--dst", "summer").err.startswith("error: dst: ")


def test_what_needs_no_database_loads_nothing_of_it() -> None:
    heavy = "('asyncpg', 'uvloop', 'pydantic', 'structlog', 'rich.console', 'rota.assembly')"
    program = f"import rota.cli.root, sys; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
