"""Jobs, runs and attempts as commands show them: JSON documents and table rows, in the vocabulary's words."""

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from rota.cli.output import Table, summary

if TYPE_CHECKING:
    from rota.services.definitions import PutResult
    from rota.store.jobs import StoredJob
    from rota.store.runs import AttemptView, DeadLetter, RunView, SkippedView


def job_to_json(stored: "StoredJob") -> dict[str, Any]:
    """Return the definition as `job put` takes it, under `job`, and beside it where the job stands.

    `job` is null for a stored definition that is refused; `problem` says why.
    """
    return {
        "job_id": stored.job_id,
        "tenant_id": stored.tenant_id,
        "state": stored.state,
        "version": stored.version,
        "next_slot": stored.next_slot,
        "paused_at": stored.paused_at,
        "pause_reason": stored.pause_reason,
        "quarantined": stored.quarantined,
        "created_at": stored.created_at,
        "updated_at": stored.updated_at,
        "job": None if stored.job is None else stored.job.to_json(),
        "problem": stored.problem,
    }


def jobs_table(page: Sequence["StoredJob"]) -> Table:
    rows = [
        (
            stored.job_id,
            stored.state,
            stored.job and stored.job.handler,
            schedule_words(stored),
            stored.next_slot,
            stored.job and stored.job.pool,
            stored.version,
        )
        for stored in page
    ]
    columns = ("job", "state", "handler", "schedule", "next slot", "pool", "version")
    return Table(columns=columns, rows=rows, right=frozenset({"version"}))


def schedule_words(stored: "StoredJob") -> str:
    if stored.job is None:
        return f"cannot be read: {stored.problem}"
    return "on demand" if stored.job.schedule is None else stored.job.schedule.describe()


def put_to_json(result: "PutResult") -> dict[str, Any]:
    return values_of(result)


def put_table(results: Sequence["PutResult"]) -> Table:
    rows = [
        (result.job_id, change_word(result), result.version, result.next_slot, "; ".join(result.warnings))
        for result in results
    ]
    columns = ("job", "change", "version", "next slot", "warnings")
    return Table(columns=columns, rows=rows, right=frozenset({"version"}))


def change_word(result: "PutResult") -> str:
    """Return created, changed or unchanged."""
    if not result.changed:
        return "unchanged"
    return "created" if result.created else "changed"


def run_to_json(run: "RunView") -> dict[str, Any]:
    return values_of(run)


def runs_table(runs: Sequence["RunView"]) -> Table:
    """Return the runs; who works on them and since when is known, and shown, only while one of them runs."""
    running = any(run.worker_id for run in runs)
    rows = [
        (
            run.run_id,
            run.job_id,
            run.scheduled_for,
            run.state if run.gate in (None, "open") else f"{run.state} ({run.gate})",
            f"{run.attempt}/{run.max_attempts}",
            run.finished_at,
            *((run.started_at, run.worker_id) if running else ()),
        )
        for run in runs
    ]
    columns = ("run", "job", "slot", "state", "attempt", "finished", *(("started", "worker") if running else ()))
    return Table(columns=columns, rows=rows, right=frozenset({"attempt"}))


def attempts_table(attempts: Sequence["AttemptView"]) -> Table:
    rows = [
        (
            attempt.attempt,
            attempt.outcome,
            attempt.started_at,
            attempt.ended_at - attempt.started_at,
            attempt.worker_id,
            summary(attempt.error),
        )
        for attempt in attempts
    ]
    columns = ("attempt", "outcome", "started", "duration", "worker", "error")
    return Table(columns=columns, rows=rows, title="attempts", right=frozenset({"attempt", "duration"}))


def dead_table(letters: Sequence["DeadLetter"]) -> Table:
    rows = [
        (letter.run_id, letter.job_id, letter.scheduled_for, letter.died_at, letter.attempt, summary(letter.error))
        for letter in letters
    ]
    columns = ("run", "job", "slot", "died", "attempt", "error")
    return Table(columns=columns, rows=rows, right=frozenset({"attempt"}))


def skipped_table(ranges: Sequence["SkippedView"]) -> Table:
    rows = [(part.first_slot, part.last_slot, part.slots, part.reason, part.recorded_at) for part in ranges]
    columns = ("first", "last", "slots", "reason", "recorded")
    return Table(columns=columns, rows=rows, title="slots that made no run", right=frozenset({"slots"}))


def values_of(view: Any) -> dict[str, Any]:
    """Return a view's fields by name, less the numbers that only the store needs."""
    return {spec.name: getattr(view, spec.name) for spec in fields(view) if spec.name != "job_uid"}
