"""Jobs, runs and attempts as commands show them: JSON documents and table rows, in the vocabulary's words."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from rota.cli.output import Table, summary

if TYPE_CHECKING:
    from rota.wire.document import Document
    from rota.wire.jobs import JobDocument, PutAnswer, SkippedDocument
    from rota.wire.limits import LimitDocument, PoolDocument
    from rota.wire.runs import AttemptDocument, RunDocument
    from rota.wire.why import WhyDocument
    from rota.wire.work import WorkerDocument


class Put(Protocol):
    """What a put did, whoever tells it."""

    @property
    def changed(self) -> bool: ...
    @property
    def created(self) -> bool: ...


def values_of(document: "Document") -> dict[str, Any]:
    """Return a document as the API gives it, less what `to_json` turns into text later: instants, ids."""
    return document.model_dump()


def jobs_table(page: Sequence["JobDocument"]) -> Table:
    rows = [
        (
            stored.job_id,
            stored.state,
            stored.job and stored.job["handler"],
            schedule_words(stored),
            stored.next_slot,
            stored.job and stored.job["pool"],
            stored.version,
        )
        for stored in page
    ]
    columns = ("job", "state", "handler", "schedule", "next slot", "pool", "version")
    return Table(columns=columns, rows=rows, right=frozenset({"version"}), lesser=("version", "pool", "handler"))


def schedule_words(stored: "JobDocument") -> str:
    if stored.job is None:
        return f"cannot be read: {stored.problem}"
    return words_of(stored.job.get("schedule"))


def words_of(schedule: Mapping[str, Any] | None) -> str:
    """Return a schedule in words; one of a kind that only a newer server knows stays as it is."""
    from rota.domain.schedule import schedule_from_json
    from rota.errors import InvalidInput

    if schedule is None:
        return "on demand"
    try:
        return schedule_from_json(schedule).describe()
    except InvalidInput:
        return str(schedule)


def put_parts(results: Sequence["PutAnswer"], *, whole: bool = False) -> list[str | Table]:
    """Return what puts did for people: a table, then which fields of a job that stood there have changed.

    `whole`: each was given as a whole definition, so what it did not name went back to its default unasked.
    """
    unasked = (", since not named", " (`rota job set` changes only what is named)") if whole else ("", "")
    parts: list[str | Table] = [put_table(results)]
    for result in results:
        if result.fields:
            parts.append(f"{result.job_id}: changed {', '.join(result.fields)}")
        if result.reset:
            why, advice = unasked
            parts.append(f"{result.job_id}: back to the default{why}: {', '.join(result.reset)}{advice}")
    return parts


def put_table(results: Sequence["PutAnswer"]) -> Table:
    rows = [
        (result.job_id, change_word(result), result.version, result.next_slot, "; ".join(result.warnings))
        for result in results
    ]
    columns = ("job", "change", "version", "next slot", "warnings")
    return Table(columns=columns, rows=rows, right=frozenset({"version"}))


def change_word(result: Put) -> str:
    """Return created, changed or unchanged."""
    if not result.changed:
        return "unchanged"
    return "created" if result.created else "changed"


def runs_table(runs: Sequence["RunDocument"]) -> Table:
    """Return the runs; what none of them has, such as a worker or an error, makes no column."""
    found: list[tuple[str, list[object]]] = [
        ("started", [run.started_at for run in runs]),
        ("duration", [_length(run.duration_seconds) for run in runs]),
        ("finished", [run.finished_at for run in runs]),
        ("worker", [run.worker_id for run in runs]),
        ("error", [summary(run.error) for run in runs]),
    ]
    shown = [(name, values) for name, values in found if any(value is not None for value in values)]
    rows = [
        (
            run.run_id,
            run.job_id,
            run.scheduled_for,
            run.state if run.gate in (None, "open") else f"{run.state} ({run.gate})",
            f"{run.attempt}/{run.max_attempts}",
            *(values[number] for _, values in shown),
        )
        for number, run in enumerate(runs)
    ]
    names = [name for name, _ in shown]
    lesser = [
        name
        for name in ("worker", "attempt", "finished", "started", "duration", "error", "slot")
        if name in ("attempt", "slot") or name in names
    ]
    return Table(
        columns=("run", "job", "slot", "state", "attempt", *names),
        rows=rows,
        right=frozenset({"attempt", "duration"}),
        lesser=lesser,
    )


def _length(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def attempts_table(attempts: Sequence["AttemptDocument"]) -> Table:
    told = any(_progress(attempt) for attempt in attempts)
    rows = [
        (
            attempt.attempt,
            attempt.outcome,
            attempt.started_at,
            attempt.ended_at - attempt.started_at,
            attempt.worker_id,
            *((_progress(attempt),) if told else ()),
            summary(attempt.error),
        )
        for attempt in attempts
    ]
    columns = ("attempt", "outcome", "started", "duration", "worker", *(("progress",) if told else ()), "error")
    lesser = ("worker", *columns[5:-1])
    return Table(columns=columns, rows=rows, title="attempts", right=frozenset({"attempt", "duration"}), lesser=lesser)


def _progress(attempt: "AttemptDocument") -> str | None:
    """Return what an attempt had last said of its progress, such as `40% page 12 of 30`."""
    share = None if attempt.progress is None else f"{attempt.progress:.0%}"
    return " ".join(part for part in (share, attempt.progress_note) if part) or None


def dead_table(letters: Sequence["RunDocument"]) -> Table:
    rows = [
        (
            letter.run_id,
            letter.job_id,
            letter.scheduled_for,
            letter.died_at or letter.finished_at,
            letter.attempt,
            summary(letter.error),
        )
        for letter in letters
    ]
    columns = ("run", "job", "slot", "died", "attempt", "error")
    return Table(columns=columns, rows=rows, right=frozenset({"attempt"}), lesser=("attempt", "died", "slot"))


def skipped_table(ranges: Sequence["SkippedDocument"]) -> Table:
    rows = [(part.first_slot, part.last_slot, part.slots, part.reason, part.recorded_at) for part in ranges]
    columns = ("first", "last", "slots", "reason", "recorded")
    return Table(columns=columns, rows=rows, title="slots that made no run", right=frozenset({"slots"}))


def workers_table(workers: Sequence["WorkerDocument"]) -> Table:
    rows = [
        (
            worker.worker_id,
            worker.tenant_id,
            worker.pool,
            ", ".join(worker.handlers),
            worker.concurrency,
            worker.last_claim_at,
            "draining" if worker.draining_at else "live",
            worker.version,
        )
        for worker in workers
    ]
    columns = ("worker", "tenant", "pool", "handlers", "concurrency", "last claim", "state", "version")
    lesser = ("version", "tenant", "concurrency", "handlers")
    return Table(columns=columns, rows=rows, right=frozenset({"concurrency"}), lesser=lesser)


def why_parts(reason: "WhyDocument") -> list[str | Table]:
    """Return a reason for people: its sentence, then what else is known."""
    parts: list[str | Table] = [reason.text]
    known = {name: value for name, value in values_of(reason).items() if value not in (None, (), 0, False)}
    facts = [(name, value) for name, value in known.items() if name not in ("text", "held_by")]
    parts.append(Table(columns=("what", "is"), rows=facts))
    if reason.held_by:
        rows = [(holder.run_id, holder.since, holder.worker_id) for holder in reason.held_by]
        parts.append(Table(columns=("held by run", "since", "worker"), rows=rows))
    return parts


def limits_table(limits: Sequence["LimitDocument"]) -> Table:
    rows = [
        (
            limit.name,
            "all" if limit.tenant_id == "*" else limit.tenant_id,
            limit.kind,
            limit.rate,
            limit.burst,
            None if limit.tokens is None else f"{limit.tokens:.1f}",
            limit.permits,
            limit.in_use,
            limit.waiting,
            limit.version,
        )
        for limit in limits
    ]
    columns = ("limit", "tenant", "kind", "rate", "burst", "tokens", "permits", "in use", "waiting", "version")
    lesser = ("version", "tokens", "burst", "tenant")
    return Table(columns=columns, rows=rows, right=frozenset(columns[3:]), lesser=lesser)


def pools_table(pools: Sequence["PoolDocument"]) -> Table:
    rows = [(pool.pool, timedelta(seconds=pool.ageing), pool.shed_above, pool.updated_at) for pool in pools]
    columns = ("pool", "ageing", "shed above", "updated")
    return Table(columns=columns, rows=rows, right=frozenset(columns[1:3]))
