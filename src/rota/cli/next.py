"""`rota next`: what an expression means and when it fires. Needs no database."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import typer

from rota.cli.options import Call, command, instant_of
from rota.cli.output import Table
from rota.domain.schedule import Interval, cron, is_interval, next_slots
from rota.domain.slot_rule import local_time, slot_rule

Expression = Annotated[str, typer.Argument(help="A cron expression, a macro such as @daily, or '@every 1h30m'.")]


def register(app: typer.Typer) -> None:
    command(app, "next", without=("database_url", "data_dir", "tenant", "log_level"), panel="Look")(next_)


def next_(
    call: Call,
    expression: Expression,
    tz: Annotated[
        str, typer.Option(help="IANA zone of the expression's times; of '@every' only for the local times shown.")
    ] = "UTC",
    after: Annotated[
        str | None, typer.Option(help="List slots after this instant, such as 2026-01-01T00:00:00Z. (default: now)")
    ] = None,
    count: Annotated[int, typer.Option(help="How many slots.")] = 5,
    dst: Annotated[str, typer.Option(help="auto, or wall: where clocks change.")] = "auto",
    seconds: Annotated[bool, typer.Option("--seconds", help="The first of six fields is seconds.")] = False,
    anchor: Annotated[str | None, typer.Option(help="An instant on the grid of '@every'.")] = None,
) -> None:
    """Explain an expression in words and list its next slots."""
    start = instant_of(after, field="after") or call.clock.now()
    grid = instant_of(anchor, field="anchor")
    rule: dict[str, Any] = {"tz": tz, "dst": dst, "seconds": seconds}
    # The slots come first: this is the call that refuses what cannot be meant.
    slots = next_slots(expression, after=start, count=count, anchor=grid, **rule)
    schedule = cron(expression) if is_interval(expression) else cron(expression, **rule)
    if grid is not None and isinstance(schedule, Interval):
        schedule = Interval(schedule.every, anchor=grid)
    rules = [slot_rule(schedule, slot) for slot in slots]
    document = {
        "expression": expression,
        "tz": tz,
        "words": schedule.describe(),
        "dst_note": schedule.dst_note,
        "warnings": list(schedule.warnings),
        "after": start,
        "slots": slots,
        "local": [local_time(slot, tz) for slot in slots],
        "rules": rules,
    }
    notes = [f"warning: {warning}" for warning in schedule.warnings]
    call.out.answer(document, schedule.describe(), schedule.dst_note, *notes, slots_table(slots, tz, rules))


def slots_table(slots: Sequence[datetime], tz: str, rules: Sequence[str]) -> Table:
    """Return slots with their local time in a zone, and the rule that made them where one did not just name it."""
    told = any(rule != "named" for rule in rules)
    rows = [(slot, local_time(slot, tz), *((rule,) if told else ())) for slot, rule in zip(slots, rules, strict=True)]
    return Table(columns=("slot (UTC)", f"local ({tz})", *(("rule",) if told else ())), rows=rows)
