"""`rota job pause`, `resume`, `delete` and `run`: one job by its id, or all that a filter means."""

import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, cast, get_args

import typer

from rota.cli.boundary import NO
from rota.cli.job_runs import run_payloads
from rota.cli.options import Call, duration_of, instant_of, object_of
from rota.cli.output import counted, instant
from rota.cli.views import jobs_table, values_of
from rota.errors import InvalidInput

if TYPE_CHECKING:
    from rota.wire.control import Control
    from rota.wire.jobs import JobFilterQuestion, ManyAnswer, Missed
    from rota.wire.runs import RunDetail, TriggerAnswer

WAIT_STEP: Final = 0.5
"""Seconds between two looks at a run that is waited for."""
OUT_OF_TIME: Final = 124
"""The exit code of a wait that has ended before its run."""
CONFIRMED_WITHOUT: Final = "say --yes to go on without being asked"

OneJob = Annotated[str | None, typer.Argument(metavar="[JOB]", help="The job's id.", show_default=False)]
Prefix = Annotated[str, typer.Option(help="Not one job: those whose ids begin so.", show_default=False)]
Label = Annotated[str, typer.Option(help="Those with this label: NAME or NAME=VALUE.", show_default=False)]
Handler = Annotated[str, typer.Option(help="Those with this handler.", show_default=False)]
Source = Annotated[str, typer.Option(help="Those of this app or import.", show_default=False)]
Orphaned = Annotated[bool, typer.Option("--orphaned", help="Those that left their code.")]
Everything = Annotated[bool, typer.Option("--all", help="All jobs of the tenant.")]
MissedChoice = Annotated[
    str,
    typer.Option(
        help="What was missed: policy leaves it to the misfire policy, drop forgets it, once makes one run of it,"
        " catch_up makes them all, within the job's bound."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


async def pause(
    call: Call,
    job_id: OneJob = None,
    reason: Annotated[str, typer.Option(help="Why, for whoever looks next.")] = "",
    resume_at: Annotated[
        str | None, typer.Option(help="When it runs again by itself, such as 2026-01-01T00:00:00Z.")
    ] = None,
    missed: MissedChoice = "policy",
    prefix: Prefix = "",
    label: Label = "",
    handler: Handler = "",
    source: Source = "",
    orphaned: Orphaned = False,
    everything: Everything = False,
    yes: Yes = False,
) -> int | None:
    """Make no more runs until resumed, of one job or of all that a filter means; runs that wait or run go on."""
    until, choice = instant_of(resume_at, field="resume_at"), _choice(missed)
    where = _filter(job_id, prefix, label, handler, source, orphaned=orphaned, everything=everything)
    async with call.control() as control:
        if where is not None:
            return await _many(
                call, "pause", yes=yes,
                ask=lambda dry, cursor: control.pause_jobs(
                    where, everything=everything, reason=reason, resume_at=until, missed=choice, dry_run=dry,
                    cursor=cursor,
                ),
            )  # fmt: skip
        assert job_id is not None, "without a filter there is an id"
        stored = await control.pause_job(job_id, reason=reason, resume_at=until, missed=choice)
    end = "`rota job resume` lets it run again" if until is None else f"it runs again at {instant(until)}"
    call.out.answer(values_of(stored), f"job {job_id!r} is paused: {end}")
    return None


def _choice(missed: str) -> "Missed":
    from rota.wire import jobs

    choices = get_args(jobs.Missed)
    if missed not in choices:
        raise InvalidInput("missed", f"{missed!r} is not a choice", hint=f"use one of {', '.join(choices)}")
    return cast("Missed", missed)


async def resume(
    call: Call,
    job_id: OneJob = None,
    missed: MissedChoice = "policy",
    pause_reason: Annotated[
        str, typer.Option("--reason", help="Of many, those that were paused for just this.", show_default=False)
    ] = "",
    prefix: Prefix = "",
    label: Label = "",
    handler: Handler = "",
    source: Source = "",
    orphaned: Orphaned = False,
    everything: Everything = False,
    yes: Yes = False,
) -> int | None:
    """Let a paused job run again, or all that a filter means."""
    choice = _choice(missed)
    where = _filter(job_id, prefix, label, handler, source, orphaned=orphaned, everything=everything)
    async with call.control() as control:
        if where is not None:
            return await _many(
                call, "resume", yes=yes,
                ask=lambda dry, cursor: control.resume_jobs(
                    where, everything=everything, missed=choice, pause_reason=pause_reason, dry_run=dry,
                    cursor=cursor,
                ),
            )  # fmt: skip
        if pause_reason:
            raise InvalidInput("reason", "chooses among many", hint="leave it out, or name a filter")
        assert job_id is not None, "without a filter there is an id"
        stored = await control.resume_job(job_id, missed=choice)
    call.out.answer(values_of(stored), f"job {job_id!r} is {stored.state}", jobs_table([stored]))
    return None


async def delete(
    call: Call,
    job_id: OneJob = None,
    prefix: Prefix = "",
    label: Label = "",
    handler: Handler = "",
    source: Source = "",
    orphaned: Orphaned = False,
    everything: Everything = False,
    yes: Yes = False,
) -> int | None:
    """Delete a job, or all that a filter means, and cancel waiting runs; what runs ends by itself."""
    where = _filter(job_id, prefix, label, handler, source, orphaned=orphaned, everything=everything)
    async with call.control() as control:
        if where is not None:
            return await delete_many(call, control, where, everything=everything, yes=yes)
        assert job_id is not None, "without a filter there is an id"
        deleted = await control.delete_job(job_id)
    call.out.answer(values_of(deleted), f"job {job_id!r} is deleted; waiting runs cancelled: {deleted.cancelled}")
    return None


async def delete_many(
    call: Call, control: "Control", where: "JobFilterQuestion", *, everything: bool = False, yes: bool
) -> int | None:
    """Delete all jobs that a filter means."""
    return await _many(
        call, "delete", yes=yes,
        ask=lambda dry, cursor: control.delete_jobs(where, everything=everything, dry_run=dry, cursor=cursor),
    )  # fmt: skip


async def run(
    call: Call,
    job_id: OneJob = None,
    at: Annotated[str | None, typer.Option(help="The run's slot. (default: now)")] = None,
    payload: Annotated[
        str | None, typer.Option(help="A JSON object for this run alone. (default: the job's own)")
    ] = None,
    payloads: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A run for each line of a file of JSON objects. (-: standard input)"),
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Run again with the same key, it answers with the run that it made.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the run's end: 0 says that it succeeded, 1 that it did not.")
    ] = False,
    timeout: Annotated[
        str | None, typer.Option(help="Wait no longer than this, such as 10m; then 124.", show_default=False)
    ] = None,
    prefix: Prefix = "",
    label: Label = "",
    handler: Handler = "",
    source: Source = "",
    orphaned: Orphaned = False,
    everything: Everything = False,
    yes: Yes = False,
) -> int | None:
    """Make one run of a job, or of each that a filter means, now or at a slot; of paused ones too.

    With --payloads it makes one for each line of a file, all now.
    """
    slot, content = instant_of(at, field="at"), object_of(payload, field="payload")
    patience = duration_of(timeout, field="timeout")
    if patience is not None and not wait:
        raise InvalidInput("timeout", "belongs to --wait", hint="leave it out, or say --wait")
    where = _filter(job_id, prefix, label, handler, source, orphaned=orphaned, everything=everything)
    if payloads is not None:
        for field, is_given in (("payload", payload), ("at", at), ("wait", wait), ("job_id", job_id is None)):
            if is_given:
                raise InvalidInput(field, "does not go with --payloads", hint="many runs of one job, all now")
        assert job_id is not None, "without a filter there is an id"
        return await run_payloads(call, job_id, payloads, key=idempotency_key)
    if where is not None:
        if wait or idempotency_key is not None:
            raise InvalidInput("wait" if wait else "idempotency_key", "is about one job", hint="name it by its id")
        async with call.control() as control:
            return await _many(
                call, "trigger", yes=yes,
                ask=lambda dry, cursor: control.trigger_jobs(
                    where, everything=everything, payload=content, scheduled_for=slot, dry_run=dry, cursor=cursor
                ),
            )  # fmt: skip
    assert job_id is not None, "without a filter there is an id"
    async with call.control() as control:
        made = await control.trigger(job_id, scheduled_for=slot, payload=content, idempotency_key=idempotency_key)
        if wait:
            return await _wait(call, control, made, patience=patience)
    told = "is in the queue" if made.created else "was made before"
    document = {**values_of(made), "created": made.created}
    call.out.answer(document, f"run {made.run_id} {told}: `rota run show {made.run_id}`")
    return None


async def _wait(call: Call, control: "Control", made: "TriggerAnswer", *, patience: timedelta | None) -> int | None:
    """Wait until a run has ended, and answer with it."""
    began = call.clock.monotonic()
    while True:
        ended: RunDetail = await control.get_run(made.run_id)
        if ended.finished_at is not None:
            break
        if patience is not None and call.clock.monotonic() - began >= patience.total_seconds():
            call.out.answer(values_of(ended), f"run {made.run_id} is still {ended.state}")
            return OUT_OF_TIME
        await call.clock.sleep(WAIT_STEP)
    error = f": {ended.error or ended.reason}" if ended.error or ended.reason else ""
    call.out.answer(values_of(ended), f"run {made.run_id} is {ended.state}{error}")
    return None if ended.state == "succeeded" else NO


def _filter(
    job_id: str | None, prefix: str, label: str, handler: str, source: str, *, orphaned: bool, everything: bool
) -> "JobFilterQuestion | None":
    """Return which jobs are meant; None: the one that is named. Raises InvalidInput for both, and for neither."""
    from rota.wire.jobs import JobFilterQuestion

    where = JobFilterQuestion(
        prefix=prefix, label=label, handler=handler, source=source, orphaned=True if orphaned else None
    )
    is_filter = everything or where != JobFilterQuestion()
    if is_filter == (job_id is not None):
        hint = "name a job, or --prefix, --label, --handler, --source, --orphaned or --all"
        raise InvalidInput("job_id", "stands beside a filter" if is_filter else "is missing", hint=hint)
    return where if is_filter else None


async def _many(
    call: Call, verb: str, *, yes: bool, ask: "Callable[[bool, str | None], Awaitable[ManyAnswer]]"
) -> int | None:
    """Count, ask, then do it page by page. Exit code 1: some jobs were left as they are."""
    if not yes:
        count = await ask(True, None)
        if count.matched:
            confirm(f"{verb.capitalize()} {'more than ' if count.more else ''}{counted(count.matched, 'job')}?")
    matched = done = 0
    left: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        said = await ask(False, cursor)
        matched, done = matched + said.matched, done + said.done
        left += [values_of(one) for one in said.left]
        cursor = said.next_cursor
        if cursor is None:
            break
    text = f"{verb}: done for {done} of {counted(matched, 'job')}"
    lines = [f"left as it is: {one['job_id']}: {one['reason']}" for one in left]
    call.out.answer({"matched": matched, "done": done, "left": left}, text, *lines)
    return NO if left else None


def confirm(question: str) -> None:
    """Ask whoever is there. Raises InvalidInput where nobody is, and typer.Abort for a no."""
    if not sys.stdin.isatty():
        raise InvalidInput("yes", f"nobody is there to be asked: {question}", hint=CONFIRMED_WITHOUT)
    typer.confirm(question, abort=True, err=True)
