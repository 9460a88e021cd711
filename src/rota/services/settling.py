"""From an attempt's end to the ledger: each run is decided by itself, and one that cannot be written stops no other."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import structlog

from rota.domain.attempt import Ended, Verdict, after_attempt, set_apart
from rota.errors import DatabaseUnavailable
from rota.store import claims
from rota.store.claims import Settled
from rota.store.database import Database
from rota.store.partitions import through_attach

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What became of verdicts, and those that could not be written, each with its error."""

    settled: Settled
    refused: tuple[tuple[Verdict, Exception], ...] = ()


def decided(ended: Sequence[Ended], *, now: datetime) -> list[Verdict]:
    """Return the verdict on each; a run whose future cannot be computed is set apart: buried, with the reason."""
    return [_decided(each, now=now) for each in ended]


async def write(
    database: Database, verdicts: Sequence[Verdict], *, now: datetime, expired_by: datetime | None = None
) -> Written:
    """Write verdicts as `claims.settle` does, halving what is refused until the guilty one stands alone.

    Raises DatabaseUnavailable: what passes by itself is nobody's guilt.
    """
    try:
        settled = await through_attach(lambda: claims.settle(database, verdicts, now=now, expired_by=expired_by))
    except DatabaseUnavailable:
        raise
    except Exception as error:
        if len(verdicts) == 1:
            log.error("attempt.not_written", run_id=str(verdicts[0].key.run_id), error=repr(error))
            return Written(settled=Settled(states={}, awaited={}), refused=((verdicts[0], error),))
    else:
        return Written(settled=settled)
    half = len(verdicts) // 2
    first = await write(database, verdicts[:half], now=now, expired_by=expired_by)
    second = await write(database, verdicts[half:], now=now, expired_by=expired_by)
    return Written(
        settled=Settled(
            states=first.settled.states | second.settled.states,
            awaited=first.settled.awaited | second.settled.awaited,
            locked=first.settled.locked | second.settled.locked,
        ),
        refused=first.refused + second.refused,
    )


def _decided(ended: Ended, *, now: datetime) -> Verdict:
    try:
        return after_attempt(ended, now=now)
    except Exception as error:
        log.error("attempt.undecided", run_id=str(ended.key.run_id), error=repr(error))
        return set_apart(ended.key, ended.outcome, ended.error, f"its future cannot be computed: {error!r}", now=now)
