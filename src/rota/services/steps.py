"""What scheduler and resume have in common: the job's own rules on slots that are to run, and the run of a slot."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from rota.domain.jitter import jitter_of
from rota.domain.job import ONE_WAITS
from rota.domain.misfire import Due, Skipped
from rota.domain.run import Gate
from rota.store.due import NewRun

_ONE_OF_MANY: Final = ONE_WAITS | {"skip"}
"""Overlap policies under which only one of the slots that came due together makes a run."""


def admitted(
    decision: Due, *, overlap: str, start_deadline: timedelta | None, busy: bool, now: datetime
) -> tuple[list[datetime], list[Skipped]]:
    """Return the slots to run and the ledger's entries: the decision, less what overlap and deadline take away.

    `busy` tells whether a run of the job lives; it only matters to the overlap policy "skip".
    """
    run, skipped = list(decision.run), list(decision.skipped)
    if start_deadline is not None:
        late = [slot for slot in run if now - slot >= start_deadline]
        skipped += _ledger(late, reason="start_deadline")
        run = run[len(late) :]
    if overlap in _ONE_OF_MANY and run:
        # Of those that came due together the latest; with "skip" none while a run lives.
        kept = [] if overlap == "skip" and busy else run[-1:]
        skipped += _ledger(run[: len(run) - len(kept)], reason="overlap")
        run = kept
    return run, skipped


def new_run(
    job_uid: int, slot: datetime, *, jitter: timedelta, start_deadline: timedelta | None, now: datetime
) -> NewRun:
    """Return the run of a slot as it is queued: behind the time gate while its jitter lasts."""
    available_at = slot + jitter_of(job_uid, slot, width=jitter) if jitter else slot
    gate = Gate.TIME if available_at > now else Gate.OPEN
    deadline_at = None if start_deadline is None else slot + start_deadline
    return NewRun(scheduled_for=slot, available_at=available_at, deadline_at=deadline_at, gate=gate)


def _ledger(slots: Sequence[datetime], *, reason: str) -> list[Skipped]:
    return [Skipped(first=slot, last=slot, slots=1, reason=reason) for slot in slots]
