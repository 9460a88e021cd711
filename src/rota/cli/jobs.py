"""`rota job`: define jobs, look at them, and steer them."""

from typing import Annotated, Final

import typer

from rota.cli.filters import Cursor, more_line
from rota.cli.job_edits import JobId, put, reset, set_
from rota.cli.job_steering import delete, pause, resume, run
from rota.cli.next import slots_table
from rota.cli.options import Call, command
from rota.cli.output import Table
from rota.cli.views import jobs_table, runs_table, schedule_words, skipped_table, values_of, why_parts

SHOWN: Final = 5
"""Runs, and ranges of the slot ledger, that `job show` lists."""


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Define jobs, look at them, and steer them.", no_args_is_help=True)
    command(group, "put", over_http=True)(put)
    command(group, "set", over_http=True)(set_)
    command(group, "reset", over_http=True)(reset)
    command(group, "list", over_http=True)(list_)
    command(group, "show", over_http=True)(show)
    command(group, "pause", over_http=True)(pause)
    command(group, "resume", over_http=True)(resume)
    command(group, "delete", over_http=True)(delete)
    command(group, "run", over_http=True)(run)
    command(group, "next", over_http=True)(next_)
    command(group, "why", over_http=True)(why)
    command(group, "recompute", without=("tenant",))(recompute)
    app.add_typer(group, name="job", rich_help_panel="Jobs")


async def list_(
    call: Call,
    prefix: Annotated[str, typer.Option(help="Jobs whose ids begin so.", show_default=False)] = "",
    label: Annotated[str, typer.Option(help="Jobs with this label: NAME or NAME=VALUE.", show_default=False)] = "",
    handler: Annotated[str, typer.Option(help="Jobs with this handler.", show_default=False)] = "",
    enabled: Annotated[
        bool | None, typer.Option("--enabled/--disabled", help="Jobs that make runs, or those that make none.")
    ] = None,
    owner: Annotated[str, typer.Option(help="Jobs of the code, or of an operator.", show_default=False)] = "",
    source: Annotated[str, typer.Option(help="Jobs of this app or import.", show_default=False)] = "",
    orphaned: Annotated[
        bool | None, typer.Option("--orphaned/--declared", help="Jobs that left their code, or those that did not.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The most jobs.")] = 100,
    cursor: Cursor = None,
) -> None:
    """List jobs in the order of their ids."""
    async with call.control() as control:
        page = await control.list_jobs(
            prefix=prefix, label=label, handler=handler, enabled=enabled, owner=owner, source=source, orphaned=orphaned,
            limit=limit, cursor=cursor,
        )  # fmt: skip
    call.out.answer(values_of(page), jobs_table(page.jobs) if page.jobs else "no jobs", *more_line(page.next_cursor))


async def show(call: Call, job_id: JobId) -> None:
    """Show a job with its latest runs and the slots that made none."""
    async with call.control() as control:
        stored = await control.get_job(job_id)
        runs = (await control.job_runs(job_id, limit=SHOWN)).runs
        skipped = await control.skipped(job_id, limit=SHOWN)
    document = values_of(stored)
    facts: list[tuple[str, object]] = [("schedule", schedule_words(stored))]
    facts += [(name, value) for name, value in document.items() if name not in ("job_id", "job", "problem")]
    facts += [
        (name, value)
        for name, value in (document["job"] or {}).items()
        if name not in ("job_id", "tenant_id", "schedule")
    ]
    parts: list[str | Table] = [Table(columns=("job", job_id), rows=facts)]
    parts += [runs_table(runs)] if runs else ["no runs"]
    parts += [skipped_table(skipped)] if skipped else []
    document["runs"] = [values_of(run) for run in runs]
    document["skipped"] = [values_of(part) for part in skipped]
    call.out.answer(document, *parts)


async def next_(
    call: Call, job_id: JobId, count: Annotated[int, typer.Option(min=1, max=1000, help="How many slots.")] = 5
) -> None:
    """List a job's next slots, each with the rule that made it."""
    async with call.control() as control:
        stored = await control.get_job(job_id)
        answer = await control.next_slots(job_id, count=count)
    slots = [slot.slot for slot in answer.slots]
    rules = [slot.rule for slot in answer.slots]
    document = {
        "job_id": job_id,
        "state": stored.state,
        "words": answer.words,
        "slots": slots,
        "local": [slot.local for slot in answer.slots],
        "rules": rules,
        "starts_at": [slot.starts_at for slot in answer.slots],
        "warnings": answer.warnings,
    }
    parts: list[str | Table] = [f"{answer.words} ({stored.state})"]
    if stored.state == "paused":
        parts.append(f"paused, so none of these makes a run: {stored.pause_reason or 'no reason given'}")
    tz = ((stored.job or {}).get("schedule") or {}).get("tz", "UTC")
    call.out.answer(document, *parts, slots_table(slots, tz, rules) if slots else "no further slot")


async def why(call: Call, job_id: JobId) -> None:
    """Say why a job makes no run, or what its oldest run waits for."""
    async with call.control() as control:
        reason = await control.why_job(job_id)
    call.out.answer(values_of(reason), *why_parts(reason))


async def recompute(call: Call) -> None:
    """Compute all future slots anew, after new time zone data."""
    from rota.domain.ids import SHARD_COUNT

    async with call.opened() as rota:
        moved = await rota.definitions.recompute(range(SHARD_COUNT))
    call.out.answer({"moved": moved}, f"{moved} jobs have another next slot than before")
