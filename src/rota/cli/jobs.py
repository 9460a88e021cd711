"""`rota job`: define jobs, look at them, and steer them."""

from typing import Annotated, Any, Final, cast, get_args

import typer

from rota.cli.definitions import read_definitions
from rota.cli.filters import Cursor, more_line
from rota.cli.next import slots_table
from rota.cli.options import Call, command, instant_of, object_of
from rota.cli.output import Table, instant
from rota.cli.views import jobs_table, put_table, runs_table, schedule_words, skipped_table, values_of, why_parts
from rota.domain.job import Job
from rota.errors import InvalidInput

SHOWN: Final = 5
"""Runs, and ranges of the slot ledger, that `job show` lists."""

JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.", show_default=False)]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Define jobs, look at them, and steer them.", no_args_is_help=True)
    command(group, "put", over_http=True)(put)
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
    max_attempts: Annotated[int | None, typer.Option(help="Failures before a run is dead. (default: 3)")] = None,
    max_losses: Annotated[int | None, typer.Option(help="Lost workers before a run is dead. (default: 5)")] = None,
    timeout: Annotated[str | None, typer.Option(help="The longest attempt, such as 10m. (default: 1h)")] = None,
    misfire: Annotated[
        str | None, typer.Option(help="skip, fire_once, or catch_up:N for the latest N. (default: fire_once)")
    ] = None,
    overlap: Annotated[
        str | None, typer.Option(help="allow, skip, queue, queue_one or replace while a run lives. (default: allow)")
    ] = None,
    start_deadline: Annotated[str | None, typer.Option(help="Useless after so long, such as 10m.")] = None,
    max_concurrency: Annotated[int | None, typer.Option(help="The most runs of it at once.")] = None,
    concurrency_key: Annotated[
        str | None, typer.Option(help="Where the payload holds a key, such as payload.customer.")
    ] = None,
    key_concurrency: Annotated[int | None, typer.Option(help="The most runs at once of a key. (default: 1)")] = None,
    limit: Annotated[list[str] | None, typer.Option(help="A limit that its runs are under: NAME or NAME=COST.")] = None,
    pause_after: Annotated[int | None, typer.Option(help="Dead letters in a row that pause the job.")] = None,
    description: Annotated[str | None, typer.Option(help="What it is for.")] = None,
    if_version: Annotated[
        int | None, typer.Option(help="Only if the job stands at this version; 0: only if it is new.")
    ] = None,
) -> None:
    """Insert or replace jobs: all of them, or none if one is refused. The same definition again changes nothing."""
    options: dict[str, Any] = {
        "handler": handler, "cron": cron, "every": every, "at": at, "tz": tz, "dst": dst, "seconds": seconds or None,
        "payload": payload, "pool": pool, "priority": priority, "max_attempts": max_attempts, "timeout": timeout,
        "misfire": misfire, "overlap": overlap, "description": description, "max_losses": max_losses,
        "start_deadline": start_deadline, "max_concurrency": max_concurrency, "concurrency_key": concurrency_key,
        "key_concurrency": key_concurrency, "limits": limit or None, "pause_after": pause_after,
    }  # fmt: skip
    given = {name: value for name, value in options.items() if value is not None}
    jobs = read_definitions(source, given, tenant_id=call.tenant_id)
    async with call.control() as control:
        if if_version is None:
            results = await control.put_jobs(jobs)
        else:
            results = [await control.put_job(_only(jobs), if_version=if_version)]
    call.out.answer({"jobs": [values_of(result) for result in results]}, put_table(results))


async def list_(
    call: Call,
    prefix: Annotated[str, typer.Option(help="Jobs whose ids begin so.", show_default=False)] = "",
    label: Annotated[str, typer.Option(help="Jobs with this label: NAME or NAME=VALUE.", show_default=False)] = "",
    handler: Annotated[str, typer.Option(help="Jobs with this handler.", show_default=False)] = "",
    enabled: Annotated[
        bool | None, typer.Option("--enabled/--disabled", help="Jobs that make runs, or those that make none.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The most jobs.")] = 100,
    cursor: Cursor = None,
) -> None:
    """List jobs in the order of their ids."""
    async with call.control() as control:
        page = await control.list_jobs(
            prefix=prefix, label=label, handler=handler, enabled=enabled, limit=limit, cursor=cursor
        )
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


async def pause(
    call: Call,
    job_id: JobId,
    reason: Annotated[str, typer.Option(help="Why, for whoever looks next.")] = "",
    resume_at: Annotated[
        str | None, typer.Option(help="When it runs again by itself, such as 2026-01-01T00:00:00Z.")
    ] = None,
) -> None:
    """Make no more runs until the job is resumed; runs that wait or run go on."""
    until = instant_of(resume_at, field="resume_at")
    async with call.control() as control:
        stored = await control.pause_job(job_id, reason=reason, resume_at=until)
    end = "`rota job resume` lets it run again" if until is None else f"it runs again at {instant(until)}"
    call.out.answer(values_of(stored), f"job {job_id!r} is paused: {end}")


async def resume(
    call: Call,
    job_id: JobId,
    missed: Annotated[
        str,
        typer.Option(
            help="What was missed: policy leaves it to the misfire policy, drop forgets it, once makes one run of it,"
            " catch_up makes them all, within the job's bound."
        ),
    ] = "policy",
) -> None:
    """Let a paused job run again."""
    from rota.wire.jobs import Missed

    choices = get_args(Missed)
    if missed not in choices:
        raise InvalidInput("missed", f"{missed!r} is not a choice", hint=f"use one of {', '.join(choices)}")
    async with call.control() as control:
        stored = await control.resume_job(job_id, missed=cast(Any, missed))
    call.out.answer(values_of(stored), f"job {job_id!r} is {stored.state}", jobs_table([stored]))


async def delete(call: Call, job_id: JobId) -> None:
    """Delete a job and cancel its waiting runs; what runs ends by itself."""
    async with call.control() as control:
        deleted = await control.delete_job(job_id)
    call.out.answer(values_of(deleted), f"job {job_id!r} is deleted; waiting runs cancelled: {deleted.cancelled}")


async def run(
    call: Call,
    job_id: JobId,
    at: Annotated[str | None, typer.Option(help="The run's slot. (default: now)")] = None,
    payload: Annotated[
        str | None, typer.Option(help="A JSON object for this run alone. (default: the job's own)")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Run again with the same key, it answers with the run that it made.")
    ] = None,
) -> None:
    """Make one run of a job, now or at a slot; a paused job too."""
    slot, content = instant_of(at, field="at"), object_of(payload, field="payload")
    async with call.control() as control:
        made = await control.trigger(job_id, scheduled_for=slot, payload=content, idempotency_key=idempotency_key)
    where = "is in the queue" if made.created else "was made before"
    document = {**values_of(made), "created": made.created}
    call.out.answer(document, f"run {made.run_id} {where}: `rota run show {made.run_id}`")


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


def _only(jobs: list[Job]) -> Job:
    if len(jobs) != 1:
        raise InvalidInput("if_version", "is about one job", hint="put that job alone")
    return jobs[0]
