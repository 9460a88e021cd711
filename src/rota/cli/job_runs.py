"""Many runs of one job from a file of payloads, for `rota job run JOB --payloads FILE`."""

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from rota.cli.boundary import NO
from rota.cli.definitions import FILE_LIMIT, read_bytes
from rota.cli.options import Call, object_of
from rota.cli.output import counted
from rota.cli.views import values_of
from rota.errors import InvalidInput

if TYPE_CHECKING:
    from rota.wire.runs import MadeRun

SHOWN: Final = 20
"""The most refused lines that are shown one by one."""
_WHY: Final = {
    "reused": "the key stands for another request, which made run",
    "taken": "somebody took its instant just then: run",
}


async def run_payloads(call: Call, job_id: str, source: str, *, key: str | None) -> int | None:
    """Make a run for each line of a file. Exit code 1: some lines made none.

    With a key each line has one of its own, the key and the line's number: the command can be given again.
    """
    lines = read_payloads(source)
    items: list[dict[str, Any]] = [
        {"payload": payload, "idempotency_key": None if key is None else f"{key}:{number}"} for number, payload in lines
    ]
    async with call.control() as control:
        made = await control.trigger_many(job_id, items)
    refused = [
        (number, one) for (number, _), one in zip(lines, made, strict=True) if one.outcome in _WHY
    ]  # fmt: skip
    outcomes = Counter(one.outcome for one in made)
    told = [f"{counted(len(lines), 'line')}: {counted(outcomes['created'], 'run')} in the queue"]
    if outcomes["repeated"]:
        told.append(f"{outcomes['repeated']} made before")
    if refused:
        told.append(f"{len(refused)} refused")
    shown = [_refusal(number, one) for number, one in refused[:SHOWN]]
    if len(refused) > SHOWN:
        shown.append(f"and {len(refused) - SHOWN} more")
    call.out.answer({"runs": [values_of(one) for one in made]}, ", ".join(told), *shown)
    return NO if refused else None


def _refusal(number: int, one: "MadeRun") -> str:
    return f"line {number}: {_WHY[one.outcome]} {one.run_id}"


def read_payloads(source: str) -> list[tuple[int, dict[str, Any]]]:
    """Return a file's payloads with the numbers of their lines; empty lines are passed over.

    Raises InvalidInput, which names the line.
    """
    try:
        text = read_bytes(source, limit=FILE_LIMIT).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput("payloads", f"{source!r} is not UTF-8: {error.reason} at byte {error.start}") from None
    found = []
    # Not by splitlines, which ends lines at characters that stand in texts.
    for number, line in enumerate(text.split("\n"), start=1):
        payload = object_of(line.strip() or None, field=f"line {number}")
        if payload is not None:
            found.append((number, payload))
    if not found:
        raise InvalidInput("payloads", f"{source!r} has no lines", hint='one JSON object a line, such as {"n": 1}')
    return found
