"""`rota next`: what an expression means and when it fires. Needs no database."""

from datetime import datetime
from typing import Annotated, Any

import typer

from rota.cli.options import Call, command, instant_of
from rota.cli.output import Table
from rota.domain.schedule import Interval, Schedule, cron, next_slots
from rota.domain.zones import zone

Expression = Annotated[str, typer.Argument(help="A cron expression, a macro such as @daily, or '@every 1h30m'.")]


def register(app: typer.Typer) -> None:
    command(app, "next", without=("database_url", "data_dir", "tenant", "log_level"), panel="Look")(next_)


def next_(
    call: Call,
    expression: Expression,
    tz: Annotated[str, typer.Option(help="IANA zone of the expression's times.")] = "UTC",
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
    schedule = cron(expression, **rule)
    if grid is not None and isinstance(schedule, Interval):
        schedule = Interval(schedule.every, anchor=grid)
    document = {
        "expression": expression,
        "tz": tz,
        "words": schedule.describe(),
        "dst_note": schedule.dst_note,
        "warnings": list(schedule.warnings),
        "after": start,
        "slots": slots,
        "local": [local_time(slot, tz) for slot in slots],
    }
    notes = [f"warning: {warning}" for warning in schedule.warnings]
    call.out.answer(document, schedule.describe(), schedule.dst_note, *notes, slots_table(slots, tz))


def slots_table(slots: list[datetime], tz: str) -> Table:
    """Return slots with their local time in a zone."""
    rows = [(slot, local_time(slot, tz)) for slot in slots]
    return Table(columns=("slot (UTC)", f"local ({tz})"), rows=rows)


def local_time(slot: datetime, tz: str) -> str:
    """Return the slot as a wall clock in the zone shows it."""
    where = zone(tz)
    return slot.astimezone(where).isoformat()


def zone_of(schedule: Schedule | None) -> str:
    """Return the zone in which people read a schedule's slots."""
    return str(getattr(schedule, "tz", "UTC"))
