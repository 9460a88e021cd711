"""`rota doctor`: checks a live cluster. Exit code 1 says that something was found."""

from typing import Annotated

import typer

from rota.cli.boundary import NO
from rota.cli.options import Call, command
from rota.cli.output import Table, counted, to_json


def register(app: typer.Typer) -> None:
    command(app, "doctor", without=("tenant",), panel="Look")(doctor)


async def doctor(
    call: Call,
    audit_all: Annotated[
        bool, typer.Option("--all", help="Check the slots of every schedule, however many there are.")
    ] = False,
) -> int | None:
    """Check the conservation law, versions, clocks, shards, and what waits for nobody. Changes nothing."""
    async with call.opened() as rota:
        checks = await rota.doctor.examine(audit_all=audit_all)
    findings = sum(len(check.findings) for check in checks)
    document = {
        "ok": findings == 0,
        "checks": [
            {"name": check.name, "ok": check.ok, "findings": list(check.findings), "facts": check.facts}
            for check in checks
        ],
    }
    rows: list[tuple[str, str, str]] = []
    for check in checks:
        rows += [(check.name, "finding", finding) for finding in check.findings]
        if check.ok:
            rows.append((check.name, "ok", _facts(check.facts)))
    verdict = "all is well" if findings == 0 else counted(findings, "finding")
    call.out.answer(document, Table(columns=("check", "result", "what"), rows=rows), verdict)
    return NO if findings else None


def _facts(facts: dict[str, object]) -> str:
    """Return the simple facts in one line; what is nested stays with --json."""
    simple = {name: fact for name, fact in facts.items() if not isinstance(fact, list | dict)}
    return ", ".join(f"{name} {to_json(fact).strip(chr(34))}" for name, fact in simple.items())
