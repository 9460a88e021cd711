"""Runs commands in the test's own process."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from typer.main import get_command
from typer.testing import CliRunner

from rota.cli.root import app


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a command said, and its exit code; `both` is in the order of saying."""

    code: int
    out: str
    err: str
    both: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


def run(words: Sequence[str], *, typed: str | None = None) -> Said:
    """Run what `rota WORD...` would; `typed` is what it reads."""
    code: Any = None
    with CliRunner().isolation(input=typed) as streams:
        try:
            _command().main(list(words))
        except SystemExit as left:
            code = left.code
        sys.stdout.flush()
        sys.stderr.flush()
        out, err, both = (stream.getvalue().decode() for stream in streams)
    return Said(code=code, out=out, err=err, both=both)


@cache
def _command() -> Any:
    """Return the command with all its options, which Typer would make anew from the functions for every call."""
    return get_command(app)
