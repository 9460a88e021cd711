"""SQL as first-class texts: every statement stands, named and explained, in a file of `sql/`.

A file holds `-- name: x`, comment lines that say what it does, then one statement with `$name` parameters, in psql's
reach once those are replaced. Loaded once, when the module is imported.
"""

import re
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

_NAME: Final = re.compile(r"^-- name: ([a-z_]+)$", re.MULTILINE)
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
        parts = _NAME.split(text)
        self._statements = {name: _parse(name, body) for name, body in zip(parts[1::2], parts[2::2], strict=True)}

    def __getattr__(self, name: str) -> Statement:
        try:
            return self._statements[name]
        except KeyError:
            raise AttributeError(f"no statement is called {name}") from None

    def __iter__(self) -> Any:
        return iter(self._statements.values())


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

ALL: Final = (due, claims, shards, workers, jobs, runs, upkeep, doctor)
