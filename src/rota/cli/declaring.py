"""What a starting worker does about the jobs of its app: declares them, and says what that did."""

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from rota.errors import DatabaseUnavailable, Locked, RotaError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from rota.app import App
    from rota.clock import Clock
    from rota.domain.job import Job
    from rota.wire.jobs import DeclareAnswer

    Register = Callable[[Sequence[Job], str, str], Awaitable[DeclareAnswer]]

AGAIN_FIRST: Final = 5.0
AGAIN_LONGEST: Final = 60.0
"""Seconds after which jobs that a transaction holds are declared again: twice as long each time."""

_EVENTS: Final = {"kept": "job.differs", "overwritten": "job.overwritten", "changed": "job.changed"}

log = structlog.get_logger()


class Declaration:
    """The jobs of one app, declared under its name: at the start, or as soon as nobody holds those that changed."""

    def __init__(self, register: "Register", clock: "Clock", app: "App", *, source: str) -> None:
        self._register = register
        self._clock = clock
        self._app = app
        self._source = source

    async def make(self) -> bool:
        """Declare; False when a transaction holds a job that has changed. Raises what the registering raises."""
        try:
            said = await self._register(list(self._app.jobs.values()), self._app.tenant_id, self._source)
        except Locked as error:
            log.warning(
                "jobs.not_registered", source=self._source, error=str(error),
                hint="runs go on by the old definitions; it is tried again until that transaction has ended",
            )  # fmt: skip
            return False
        tell_declared(said, source=self._source)
        return True

    async def make_later(self, stop: asyncio.Event) -> None:
        """Declare again and again until it is done, or stopped. What is refused by then is said and left."""
        wait = AGAIN_FIRST
        while not await self._clock.wait(stop, wait):
            try:
                if await self.make():
                    return
            except DatabaseUnavailable as error:
                log.warning("jobs.not_registered", source=self._source, error=str(error))
            except RotaError as error:
                log.error("jobs.refused", source=self._source, error=str(error))
                return
            wait = min(2 * wait, AGAIN_LONGEST)


def name_of(app: "App", target: str | None) -> str:
    """Return the name under which an app declares its jobs."""
    from rota.worker.loading import source_of

    assert target is not None, "an app was loaded from somewhere"
    return app.name or source_of(target)


def tell_declared(said: "DeclareAnswer", *, source: str) -> None:
    """Log what a declaration did: each field in which the code differs from what stood there, and what left the code.

    An operator's value that stays, or that the code has overwritten, is a warning; an edit of the code is none.
    """
    for job in said.jobs:
        for part in job.differs:
            tell = log.info if part.fate == "changed" else log.warning
            tell(
                _EVENTS[part.fate], job_id=job.job_id, field=part.field, code=part.code,
                **{"stands" if part.fate == "kept" else "stood": part.stood},
            )  # fmt: skip
    if said.orphaned:
        log.warning(
            "jobs.orphaned", source=source, jobs=list(said.orphaned), more=said.more_orphaned,
            hint=f"they go on: `rota job pause` or `rota job delete` with --orphaned --source {source}",
        )  # fmt: skip
    log.info("jobs.registered", source=source, jobs=len(said.jobs), changed=sum(job.changed for job in said.jobs))
