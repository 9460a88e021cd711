"""Every statement on its own: readable, told all that it needs, and planned on the migrated schema."""

import re
from collections.abc import AsyncIterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import rota
import rota.store
from rota.store.statements import ALL, Statement, parse
from rota.testing import TestCluster
from tests.store.stage import generic_plan, outsider

EVERY = [statement for file in ALL for statement in file]
SOURCES = "".join(path.read_text(encoding="utf-8") for path in Path(rota.__file__).parent.rglob("*.py"))
OBVIOUS = 5
"""A statement of at most so many lines may speak for itself."""
VOLATILE = re.compile(
    r"\b(now|clock_timestamp|statement_timestamp|transaction_timestamp|timeofday|random|gen_random_uuid|uuidv[47]|nextval)"
    r" *\(|\b(current_timestamp|current_date|current_time|localtime|localtimestamp)\b|'(now|today|tomorrow|yesterday)'",
    re.IGNORECASE,
)

each = pytest.mark.parametrize("statement", EVERY, ids=lambda statement: statement.name)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def connection(rota_cluster: TestCluster) -> AsyncIterator[Any]:
    """One connection to a migrated database, for statements that change nothing."""
    async with rota_cluster.database() as dsn, outsider(dsn) as other:
        yield other


@each
def test_a_statement_says_what_it_does_where_its_text_does_not(statement: Statement) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", statement.name)
    if len(statement.text.splitlines()) > OBVIOUS:
        assert statement.doc, f"{statement.name} needs a sentence"
    assert not statement.doc or statement.doc.endswith((".", "?"))


@each
def test_a_statement_is_short_enough_to_stay_prepared(statement: Statement) -> None:
    """asyncpg keeps no prepared statement of more than 15 KiB, and plans it at each call."""
    assert len(statement.text) < 15 * 1024


@each
def test_a_statement_is_told_the_time_and_asks_no_chance(statement: Statement) -> None:
    found = VOLATILE.search(statement.text)
    assert (found is not None) == (statement.name == "database_now"), found


@each
@pytest.mark.asyncio(loop_scope="module")
async def test_a_statement_is_prepared_and_planned(statement: Statement, connection: Any) -> None:
    prepared = await connection.prepare(statement.text)
    assert len(prepared.get_parameters()) == len(statement.parameters)
    assert await generic_plan(connection, statement.text)


@each
def test_a_statement_is_used(statement: Statement) -> None:
    assert re.search(rf"\b(\w*sql|upkeep)\.{statement.name}\b", SOURCES)


def test_a_variant_is_its_model_with_its_own_lines() -> None:
    text = (
        "-- name: x\n-- Rows.\n"
        "SELECT n FROM t\n WHERE n > $n\n  AND k = 1 -- not: y\n  -- y: AND m = $m\n ORDER BY n;\n\n"
        "-- name: y\n-- like: x\n-- The rows of one m.\n"
    )
    model, variant = parse(text)
    assert (model.parameters, variant.parameters) == (("n",), ("n", "m"))
    assert (model.doc, variant.doc) == ("Rows.", "The rows of one m.")
    assert variant.text == "SELECT n FROM t\n WHERE n > $1\nAND m = $2\n ORDER BY n"
    assert "k = 1" in model.text
    with pytest.raises(AssertionError, match="no line for it"):
        parse(text.replace("-- y:", "-- z:"))


def test_names_are_given_once() -> None:
    names = [statement.name for statement in EVERY]
    assert len(names) == len(set(names))


def test_every_file_is_loaded_and_its_parameters_have_names() -> None:
    texts = {entry.name: entry.read_text(encoding="utf-8") for entry in files("rota.store").joinpath("sql").iterdir()}
    assert sum(text.count("-- name: ") for text in texts.values()) == len(EVERY)
    assert not [name for name, text in texts.items() if re.search(r"\$[0-9]", text)]


def test_a_missing_or_unknown_parameter_is_a_programming_error() -> None:
    statement = next(statement for statement in EVERY if statement.name == "get_job")
    assert statement.arguments({"job_uid": 2, "shard": 1}) == [1, 2]
    for values in ({"shard": 1}, {"shard": 1, "job_uid": 2, "tenant": "t"}):
        with pytest.raises(AssertionError, match="get_job takes"):
            statement.arguments(values)
    with pytest.raises(AttributeError, match="no statement is called gone"):
        _ = ALL[0].gone


def test_nobody_writes_sql_beside_the_files() -> None:
    """Statements are in sql/; what is built from names (partitions, whole databases, migrations) is the exception."""
    exceptions = {"admin.py", "migrate.py", "snapshot.py", "spare.py"}
    sources = {
        entry.name: entry.read_text(encoding="utf-8")
        for entry in files(rota.store).iterdir()
        if entry.name.endswith(".py") and entry.name not in exceptions
    }
    assert sources
    assert not [name for name, text in sources.items() if re.search(r"\"(SELECT|INSERT|UPDATE|DELETE|WITH) ", text)]
