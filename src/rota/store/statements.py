"""SQL as first-class texts: every statement stands, named and explained, in a file of `sql/`.

A file holds `-- name: x`, comment lines that say what it does, then one statement with `$name` parameters, in psql's
reach once those are replaced. Loaded once, when the module is imported.

Two statements that differ in a line have one text. `-- name: y` followed by `-- like: x` and comment lines only is the
statement x, with those of its comment lines in force that begin with `-- y: `, and without its lines that end in
`-- not: y`:

    -- name: x
    SELECT n FROM t
     WHERE n > $n
     -- y: AND m = $m
     ORDER BY n -- not: y
     -- y: ORDER BY m, n
    ;

    -- name: y
    -- like: x
    -- The rows of one m.

What whole statements share is a fragment: text under `-- fragment: z`, which stands where a line says `-- use: z`.
"""

import re
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

_NAME: Final = re.compile(r"^-- (name|fragment): ([a-z_]+)$", re.MULTILINE)
_LIKE: Final = re.compile(r"^-- like: ([a-z_]+)$", re.MULTILINE)
_USE: Final = re.compile(r"^-- use: ([a-z_]+)$", re.MULTILINE)
_PARAMETER: Final = re.compile(r"\$([a-z_]+)")


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement: its name, what it says of itself, its text with $1.. and the parameters in that order."""

    name: str
    doc: str
    text: str
    parameters: tuple[str, ...]

    def arguments(self, values: dict[str, Any]) -> list[Any]:
        """Return the values in the statement's order; a missing or unknown name is a programming error."""
        assert values.keys() == set(self.parameters), (
            f"{self.name} takes {sorted(self.parameters)}, was given {sorted(values)}"
        )
        return [values[name] for name in self.parameters]


class Statements:
    """The statements of one file, as attributes."""

    def __init__(self, file: str) -> None:
        text = files("rota.store").joinpath("sql", file).read_text(encoding="utf-8")
        self._statements = {statement.name: statement for statement in parse(text)}

    def __getattr__(self, name: str) -> Statement:
        try:
            return self._statements[name]
        except KeyError:
            raise AttributeError(f"no statement is called {name}") from None

    def __iter__(self) -> Any:
        return iter(self._statements.values())


def parse(text: str) -> list[Statement]:
    """Return the statements of a file's text."""
    parts = _NAME.split(text)
    texts = list(zip(parts[1::3], parts[2::3], parts[3::3], strict=True))
    fragments = {name: _without_remarks(body) for kind, name, body in texts if kind == "fragment"}
    bodies = {
        name: _USE.sub(lambda used: fragments[used[1]], body) for kind, name, body in texts if kind == "name"
    }  # fmt: skip
    return [_parse(name, _resolved(name, bodies)) for name in bodies]


def _resolved(name: str, bodies: dict[str, str]) -> str:
    """Return a statement's own body; a variant's is that of its model, with the variant's lines in force."""
    body = bodies[name]
    like = _LIKE.search(body)
    if like is None:
        return body
    mark = re.compile(rf"^\s*-- {name}: ", re.MULTILINE)
    lines = bodies[like[1]].splitlines()
    model = "\n".join(line for line in lines if not line.startswith("--") and not line.endswith(f"-- not: {name}"))
    assert mark.search(model), f"{name} is like {like[1]}, which has no line for it"
    return body.replace(like[0], "") + mark.sub("", model)


def _without_remarks(body: str) -> str:
    return "\n".join(line for line in body.strip().splitlines() if not line.startswith("--"))


def _parse(name: str, body: str) -> Statement:
    lines = body.strip().splitlines()
    doc = [line.removeprefix("--").strip() for line in lines if line.startswith("--")]
    text = "\n".join(line for line in lines if not line.strip().startswith("--")).strip().rstrip(";")
    parameters = tuple(dict.fromkeys(_PARAMETER.findall(text)))
    numbers = {parameter: number for number, parameter in enumerate(parameters, start=1)}
    return Statement(name, " ".join(doc), _PARAMETER.sub(lambda m: f"${numbers[m[1]]}", text), parameters)


due = Statements("due.sql")
claims = Statements("claims.sql")
shards = Statements("shards.sql")
workers = Statements("workers.sql")
jobs = Statements("jobs.sql")
runs = Statements("runs.sql")
upkeep = Statements("upkeep.sql")
doctor = Statements("doctor.sql")
audit = Statements("audit.sql")
access = Statements("access.sql")
fleet = Statements("fleet.sql")
limits = Statements("limits.sql")
pools = Statements("pools.sql")
why = Statements("why.sql")
flow = Statements("flow.sql")
parking = Statements("parking.sql")
bulk = Statements("bulk.sql")
freeze = Statements("freeze.sql")
aside = Statements("aside.sql")

ALL: Final = (
    due, claims, shards, workers, jobs, runs, upkeep, doctor, audit, access, fleet, limits, pools, why, flow, parking,
    bulk, freeze, aside,
)  # fmt: skip
