"""How a heart settles what its worker held: what it reports of each run when the worker has gone, or had to be ended.

A worker that died is suspect of having been killed by a run inside it: those are charged with the loss, and each of
them runs apart the next time. What ran outside of it could not do that and goes back uncharged, as the neighbours of a
run do that held the event loop.
"""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from rota.domain.attempt import Outcome, Report
from rota.worker.lease_book import Held

WORKER_GONE: Final = "worker lost: its process ended without giving its runs back"
NEIGHBOUR_GONE: Final = "worker lost: its process ended; this run was outside of it and is not charged"
ENDED: Final = "the worker was ended: another run's handler held its event loop"
_AT_LAST: Final = "the worker's process was ended"


def given_back(held: Sequence[Held]) -> list[Report]:
    """Return the reports of a worker that leaves."""
    return [Report(key=lease.key, outcome=Outcome.RELEASED) for lease in held]


def after_death(held: Sequence[Held]) -> list[Report]:
    """Return the reports of a worker that died: lost is what was inside it; where nothing was, all that it had."""
    inside = [lease for lease in held if not lease.is_apart] or held
    outside = [lease for lease in held if lease.is_apart] if inside is not held else []
    return [
        *(Report(key=lease.key, outcome=Outcome.LOST, error=WORKER_GONE) for lease in inside),
        *(Report(key=lease.key, outcome=Outcome.RELEASED, error=NEIGHBOUR_GONE) for lease in outside),
    ]


def after_silence(held: Sequence[Held], *, holder: UUID | None, now: float) -> list[Report]:
    """Return the reports of a worker that was ended since its event loop stood still past an attempt's time.

    `holder` is the attempt whose handler had the loop. Where that is not known, each of those inside may have been it.
    """
    inside = [lease for lease in held if not lease.is_apart]
    suspects = [lease for lease in inside if lease.key.token == holder] or inside
    guilty = {lease.key.token for lease in suspects}
    is_sure = len(guilty) == 1
    reports = []
    for lease in held:
        if lease.key.token not in guilty:
            reports.append(Report(key=lease.key, outcome=Outcome.RELEASED, error=ENDED))
        elif is_sure and lease.deadline <= now:
            text = f"no result within its timeout: the handler held the worker's event loop, and {_AT_LAST}"
            reports.append(Report(key=lease.key, outcome=Outcome.TIMED_OUT, error=text, took_worker=True))
        else:
            whose = "this handler" if is_sure else f"one of {len(guilty)} handlers, perhaps this one,"
            text = f"worker lost: {whose} held its event loop past the timeout of an attempt, and {_AT_LAST}"
            reports.append(Report(key=lease.key, outcome=Outcome.LOST, error=text))
    return reports
