"""`rota job put`, `set` and `reset`: what a job is."""

from typing import Annotated, Any

import typer

from rota.cli.definitions import read_changes, read_definitions
from rota.cli.options import Call
from rota.cli.output import Table
from rota.cli.views import put_parts, put_table, values_of
from rota.domain.job import Job
from rota.errors import InvalidInput

JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.", show_default=False)]
Cron = Annotated[str | None, typer.Option(help="A cron expression or macro.")]
Every = Annotated[str | None, typer.Option(help="An interval, such as 5m.")]
At = Annotated[str | None, typer.Option(help="One instant, such as 2026-01-01T00:00:00Z.")]
Tz = Annotated[str | None, typer.Option(help="IANA zone of --cron. (default: UTC)")]
DstRule = Annotated[str | None, typer.Option(help="auto or wall, of --cron. (default: auto)")]
Payload = Annotated[str | None, typer.Option(help="A JSON object for the handler.")]
Pool = Annotated[str | None, typer.Option(help="The pool whose workers run it. (default: default)")]
Priority = Annotated[int | None, typer.Option(help="0 to 9, 9 goes first. (default: 5)")]
MaxAttempts = Annotated[int | None, typer.Option(help="Failures before a run is dead. (default: 3)")]
MaxLosses = Annotated[int | None, typer.Option(help="Lost workers before a run is dead. (default: 5)")]
Timeout = Annotated[str | None, typer.Option(help="The longest attempt, such as 10m. (default: 1h)")]
MisfirePolicy = Annotated[
    str | None, typer.Option(help="skip, fire_once, or catch_up:N for the latest N. (default: fire_once)")
]
OverlapPolicy = Annotated[
    str | None, typer.Option(help="allow, skip, queue, queue_one or replace while a run lives. (default: allow)")
]
StartDeadline = Annotated[str | None, typer.Option(help="Useless after so long, such as 10m.")]
Jitter = Annotated[str | None, typer.Option(help="Starts are spread over so long after the slot, such as 5m.")]
MaxConcurrency = Annotated[int | None, typer.Option(help="The most runs of it at once.")]
ConcurrencyKey = Annotated[str | None, typer.Option(help="Where the payload holds a key, such as payload.customer.")]
KeyConcurrency = Annotated[int | None, typer.Option(help="The most runs at once of a key. (default: 1)")]
LimitNames = Annotated[list[str] | None, typer.Option(help="A limit that its runs are under: NAME or NAME=COST.")]
PauseAfter = Annotated[int | None, typer.Option(help="Dead letters in a row that pause the job.")]
Labels = Annotated[list[str] | None, typer.Option(help="A label: NAME=VALUE.")]
Description = Annotated[str | None, typer.Option(help="What it is for.")]
IfVersion = Annotated[int | None, typer.Option(help="Only if the job stands at this version; 0: only if it is new.")]


async def put(
    call: Call,
    source: Annotated[
        str, typer.Argument(metavar="FILE|-|JOB", help="A JSON file with one job or a list; or a job id.")
    ],
    handler: Annotated[str | None, typer.Option(help="The handler's name. (default: the job's id)")] = None,
    cron: Cron = None,
    every: Every = None,
    at: At = None,
    tz: Tz = None,
    dst: DstRule = None,
    seconds: Annotated[bool, typer.Option("--seconds", help="The first of six fields of --cron is seconds.")] = False,
    payload: Payload = None,
    pool: Pool = None,
    priority: Priority = None,
    max_attempts: MaxAttempts = None,
    max_losses: MaxLosses = None,
    timeout: Timeout = None,
    misfire: MisfirePolicy = None,
    overlap: OverlapPolicy = None,
    start_deadline: StartDeadline = None,
    jitter: Jitter = None,
    max_concurrency: MaxConcurrency = None,
    concurrency_key: ConcurrencyKey = None,
    key_concurrency: KeyConcurrency = None,
    limit: LimitNames = None,
    pause_after: PauseAfter = None,
    label: Labels = None,
    description: Description = None,
    if_version: IfVersion = None,
) -> None:
    """Insert or replace jobs: all of them, or none if one is refused. The same definition again changes nothing.

    What is not named has its default, also in a job that stands; `rota job set` changes only what is named.
    """
    options: dict[str, Any] = {
        "handler": handler, "cron": cron, "every": every, "at": at, "tz": tz, "dst": dst, "seconds": seconds or None,
        "payload": payload, "pool": pool, "priority": priority, "max_attempts": max_attempts, "timeout": timeout,
        "misfire": misfire, "overlap": overlap, "description": description, "max_losses": max_losses,
        "start_deadline": start_deadline, "jitter": jitter, "max_concurrency": max_concurrency,
        "concurrency_key": concurrency_key, "key_concurrency": key_concurrency, "limits": limit or None,
        "pause_after": pause_after,
        "labels": label or None,
    }  # fmt: skip
    given = {name: value for name, value in options.items() if value is not None}
    jobs = read_definitions(source, given, tenant_id=call.tenant_id)
    async with call.control() as control:
        if if_version is None:
            results = await control.put_jobs(jobs)
        else:
            results = [await control.put_job(_only(jobs), if_version=if_version)]
    call.out.answer({"jobs": [values_of(result) for result in results]}, *put_parts(results, whole=True))


async def set_(
    call: Call,
    job_id: JobId,
    handler: Annotated[str | None, typer.Option(help="The handler's name.")] = None,
    cron: Cron = None,
    every: Every = None,
    at: At = None,
    tz: Annotated[str | None, typer.Option(help="IANA zone of the cron schedule.")] = None,
    dst: Annotated[str | None, typer.Option(help="auto or wall, of the cron schedule.")] = None,
    seconds: Annotated[
        bool | None, typer.Option("--seconds/--no-seconds", help="The first of six fields of --cron is seconds.")
    ] = None,
    payload: Annotated[
        str | None, typer.Option(help="A JSON object whose members change; null removes one.", show_default=False)
    ] = None,
    pool: Pool = None,
    priority: Priority = None,
    max_attempts: MaxAttempts = None,
    max_losses: MaxLosses = None,
    timeout: Timeout = None,
    misfire: MisfirePolicy = None,
    overlap: OverlapPolicy = None,
    start_deadline: StartDeadline = None,
    jitter: Jitter = None,
    max_concurrency: MaxConcurrency = None,
    concurrency_key: ConcurrencyKey = None,
    key_concurrency: KeyConcurrency = None,
    limit: LimitNames = None,
    pause_after: PauseAfter = None,
    label: Labels = None,
    description: Description = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(help="A field that goes back to its default, such as schedule, limits.crm or labels.team."),
    ] = None,
    if_version: Annotated[int | None, typer.Option(help="Only if the job stands at this version.", min=1)] = None,
) -> None:
    """Change what is named of a job, and nothing else. The same again changes nothing."""
    options: dict[str, Any] = {
        "handler": handler, "cron": cron, "every": every, "at": at, "tz": tz, "dst": dst, "seconds": seconds,
        "payload": payload, "pool": pool, "priority": priority, "max_attempts": max_attempts, "timeout": timeout,
        "misfire": misfire, "overlap": overlap, "description": description, "max_losses": max_losses,
        "start_deadline": start_deadline, "jitter": jitter, "max_concurrency": max_concurrency,
        "concurrency_key": concurrency_key, "key_concurrency": key_concurrency, "limits": limit or None,
        "pause_after": pause_after,
        "labels": label or None,
    }  # fmt: skip
    given = {name: value for name, value in options.items() if value is not None}
    changes = read_changes(given, unset or [])
    async with call.control() as control:
        result = await control.patch_job(job_id, changes, if_version=if_version)
    call.out.answer(values_of(result), *put_parts([result]))


async def reset(call: Call, job_id: JobId) -> None:
    """Give a job the definition that its code declared last: what an operator changed is gone."""
    async with call.control() as control:
        result = await control.reset_job(job_id)
    parts: list[str | Table] = [put_table([result])]
    if result.fields:
        parts.append(f"{job_id}: as its code declares it again: {', '.join(result.fields)}")
    call.out.answer(values_of(result), *parts)


def _only(jobs: list[Job]) -> Job:
    if len(jobs) != 1:
        raise InvalidInput("if_version", "is about one job", hint="put that job alone")
    return jobs[0]
