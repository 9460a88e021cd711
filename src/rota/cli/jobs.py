"""`rota job`: define jobs, look at them, and steer them."""

from typing import Annotated, Any, Final, cast

import typer

from rota.cli.definitions import read_definitions
from rota.cli.next import local_time, slots_table, zone_of
from rota.cli.options import Call, command, instant_of, object_of
from rota.cli.output import Table
from rota.cli.views import (
    job_to_json,
    jobs_table,
    put_table,
    put_to_json,
    run_to_json,
    runs_table,
    schedule_words,
    skipped_table,
    values_of,
)
from rota.errors import InvalidInput

SHOWN: Final = 5
"""Runs, and ranges of the slot ledger, that `job show` lists."""

JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.", show_default=False)]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Define jobs, look at them, and steer them.", no_args_is_help=True)
    command(group, "put")(put)
    command(group, "list")(list_)
    command(group, "show")(show)
    command(group, "pause")(pause)
    command(group, "resume")(resume)
    command(group, "delete")(delete)
    command(group, "run")(run)
    command(group, "next")(next_)
    command(group, "recompute", without=("tenant",))(recompute)
    app.add_typer(group, name="job", rich_help_panel="Jobs")


async def put(
    call: Call,
    source: Annotated[
        str, typer.Argument(metavar="FILE|-|JOB", help="A JSON file with one job or a list; or a job id.")
    ],
    handler: Annotated[str | None, typer.Option(help="The handler's name. (default: the job's id)")] = None,
    cron: Annotated[str | None, typer.Option(help="A cron expression or macro.")] = None,
    every: Annotated[str | None, typer.Option(help="An interval, such as 5m.")] = None,
    at: Annotated[str | None, typer.Option(help="One instant, such as 2026-01-01T00:00:00Z.")] = None,
    tz: Annotated[str | None, typer.Option(help="IANA zone of --cron. (default: UTC)")] = None,
    dst: Annotated[str | None, typer.Option(help="auto or wall, of --cron. (default: auto)")] = None,
    seconds: Annotated[bool, typer.Option("--seconds", help="The first of six fields of --cron is seconds.")] = False,
    payload: Annotated[str | None, typer.Option(help="A JSON object for the handler.")] = None,
    pool: Annotated[str | None, typer.Option(help="The pool whose workers run it. (default: default)")] = None,
    priority: Annotated[int | None, typer.Option(help="0 to 9, 9 goes first. (default: 5)")] = None,
    max_attempts: Annotated[int | None, typer.Option(help="Attempts before a run is dead. (default: 3)")] = None,
    timeout: Annotated[str | None, typer.Option(help="The longest attempt, such as 10m. (default: 1h)")] = None,
    misfire: Annotated[
        str | None, typer.Option(help="skip, fire_once, or catch_up:N for the latest N. (default: fire_once)")
    ] = None,
    overlap: Annotated[str | None, typer.Option(help="allow, or skip while a run lives. (default: allow)")] = None,
    description: Annotated[str | None, typer.Option(help="What it is for.")] = None,
    if_version: Annotated[
        int | None, typer.Option(help="Only if the job stands at this version; 0: only if it is new.")
    ] = None,
) -> None:
    """Insert or replace jobs: all of them, or none if one is refused. The same definition again changes nothing."""
    options: dict[str, Any] = {
        "handler": handler, "cron": cron, "every": every, "at": at, "tz": tz, "dst": dst, "seconds": seconds or None,
        "payload": payload, "pool": pool, "priority": priority, "max_attempts": max_attempts, "timeout": timeout,
        "misfire": misfire, "overlap": overlap, "description": description,
    }  # fmt: skip
    given = {name: value for name, value in options.items() if value is not None}
    jobs = read_definitions(source, given, tenant_id=call.tenant_id)
    async with call.opened() as rota:
        results = await rota.definitions.put(jobs, if_version=if_version)
    call.out.answer({"jobs": [put_to_json(result) for result in results]}, put_table(results))


async def list_(
    call: Call,
    prefix: Annotated[str, typer.Option(help="Jobs whose ids begin so.", show_default=False)] = "",
    after: Annotated[str, typer.Option(help="Go on after this id.", show_default=False)] = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The most jobs.")] = 100,
) -> None:
    """List jobs in the order of their ids."""
    async with call.opened() as rota:
        page = await rota.definitions.page(tenant_id=call.tenant_id, prefix=prefix, after=after, limit=limit)
    more = page[-1].job_id if len(page) == limit else None
    parts: list[str | Table] = [jobs_table(page) if page else "no jobs"]
    if more is not None:
        parts.append(f"there may be more: --after {more!r}")
    call.out.answer({"jobs": [job_to_json(stored) for stored in page], "next_after": more}, *parts)


async def show(call: Call, job_id: JobId) -> None:
    """Show a job with its latest runs and the slots that made none."""
    tenant_id = call.tenant_id
    async with call.opened() as rota:
        stored = await rota.definitions.get(job_id, tenant_id=tenant_id)
        runs = await rota.history.runs(tenant_id=tenant_id, job_id=job_id, limit=SHOWN)
        skipped = await rota.history.skipped(job_id, tenant_id=tenant_id, limit=SHOWN)
    document = job_to_json(stored)
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
    document["runs"] = [run_to_json(view) for view in runs]
    document["skipped"] = [values_of(part) for part in skipped]
    call.out.answer(document, *parts)


async def pause(
    call: Call, job_id: JobId, reason: Annotated[str, typer.Option(help="Why, for whoever looks next.")] = ""
) -> None:
    """Make no more runs until the job is resumed; runs that wait or run go on."""
    async with call.opened() as rota:
        stored = await rota.definitions.pause(job_id, tenant_id=call.tenant_id, reason=reason)
    call.out.answer(job_to_json(stored), f"job {job_id!r} is paused: `rota job resume` lets it run again")


async def resume(
    call: Call,
    job_id: JobId,
    missed: Annotated[
        str, typer.Option(help="What was missed: policy leaves it to the misfire policy, drop forgets it.")
    ] = "policy",
) -> None:
    """Let a paused job run again."""
    if missed not in ("policy", "drop"):
        raise InvalidInput("missed", f"{missed!r} is not a choice", hint="use policy or drop")
    async with call.opened() as rota:
        stored = await rota.definitions.resume(job_id, tenant_id=call.tenant_id, missed=cast(Any, missed))
    call.out.answer(job_to_json(stored), f"job {job_id!r} is {stored.state}", jobs_table([stored]))


async def delete(call: Call, job_id: JobId) -> None:
    """Delete a job and cancel its waiting runs; what runs ends by itself."""
    async with call.opened() as rota:
        cancelled = await rota.definitions.delete(job_id, tenant_id=call.tenant_id)
    document = {"job_id": job_id, "cancelled": cancelled}
    call.out.answer(document, f"job {job_id!r} is deleted; waiting runs cancelled: {cancelled}")


async def run(
    call: Call,
    job_id: JobId,
    at: Annotated[str | None, typer.Option(help="The run's slot. (default: now)")] = None,
    payload: Annotated[
        str | None, typer.Option(help="A JSON object for this run alone. (default: the job's own)")
    ] = None,
) -> None:
    """Make one run of a job, now or at a slot; a paused job too."""
    from rota.domain.ids import slot_of

    slot, content = instant_of(at, field="at"), object_of(payload, field="payload")
    async with call.opened() as rota:
        made = await rota.on_demand.trigger(job_id, tenant_id=call.tenant_id, scheduled_for=slot, payload=content)
    document = {"run_id": made, "job_id": job_id, "scheduled_for": slot_of(made)[1]}
    call.out.answer(document, f"run {made} is in the queue: `rota run show {made}`")


async def next_(
    call: Call, job_id: JobId, count: Annotated[int, typer.Option(min=1, max=10_000, help="How many slots.")] = 5
) -> None:
    """List a job's next slots."""
    async with call.opened() as rota:
        stored = await rota.definitions.get(job_id, tenant_id=call.tenant_id)
        now = rota.clock.now()
    schedule = stored.job.schedule if stored.job is not None else None
    slots = []
    slot = None if schedule is None else schedule.next_slot(now)
    while schedule is not None and slot is not None:
        slots.append(slot)
        slot = schedule.next_slot(slot) if len(slots) < count else None
    tz = zone_of(schedule)
    document = {
        "job_id": job_id,
        "state": stored.state,
        "words": schedule_words(stored),
        "slots": slots,
        "local": [local_time(slot, tz) for slot in slots],
    }
    parts: list[str | Table] = [f"{schedule_words(stored)} ({stored.state})"]
    if stored.state == "paused":
        parts.append(f"paused, so none of these makes a run: {stored.pause_reason or 'no reason given'}")
    call.out.answer(document, *parts, slots_table(slots, tz) if slots else "no further slot")


async def recompute(call: Call) -> None:
    """Compute all future slots anew, after new time zone data."""
    from rota.domain.ids import SHARD_COUNT

    async with call.opened() as rota:
        moved = await rota.definitions.recompute(range(SHARD_COUNT))
    call.out.answer({"moved": moved}, f"{moved} jobs have another next slot than before")
