"""The Python front: an app gathers jobs and the functions that carry them out."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from rota.domain.job import (
    DEFAULT_MISFIRE,
    DEFAULT_POOL,
    DEFAULT_RETRY,
    DEFAULT_TENANT,
    Job,
    Overlap,
    check_name,
    costs_of_one,
    seconds,
)
from rota.domain.misfire import DEFAULT_GRACE, CatchUp, FireOnce, Misfire, Skip
from rota.domain.retry import RetryPolicy
from rota.domain.schedule import Schedule
from rota.errors import InvalidInput
from rota.worker.handlers import HandlerRegistry, Isolation

F = TypeVar("F", bound=Callable[..., Any])
Duration = timedelta | float


class App:
    """Jobs and handlers of one program.

        app = rota.App()

        @app.job("nightly-billing", schedule=rota.cron("0 2 * * *", tz="Europe/Berlin"))
        def bill(run: rota.Run) -> None: ...

    `rota dev FILE` and `rota worker MODULE:app` find it, put its jobs into the database, and run their handlers. `name`
    tells its jobs from those of other apps of the tenant; without one that is the name of its module.
    """

    def __init__(
        self, *, tenant_id: str = DEFAULT_TENANT, pool: str = DEFAULT_POOL, name: str | None = None
    ) -> None:  # fmt: skip
        if name is not None:
            check_name("name", name)
        self.name = name
        self.tenant_id = tenant_id
        self.pool = pool
        self.jobs: dict[str, Job] = {}
        self.handlers = HandlerRegistry()

    def job(
        self,
        job_id: str,
        *,
        schedule: Schedule | None = None,
        misfire: Misfire = DEFAULT_MISFIRE,
        misfire_grace: Duration = DEFAULT_GRACE,
        payload: Mapping[str, Any] | None = None,
        pool: str | None = None,
        priority: int = 5,
        max_attempts: int = 3,
        retry: RetryPolicy = DEFAULT_RETRY,
        timeout: Duration = timedelta(hours=1),
        lease_duration: Duration = timedelta(seconds=60),
        jitter: Duration = timedelta(0),
        overlap: Overlap = "allow",
        start_deadline: Duration | None = None,
        max_concurrency: int | None = None,
        concurrency_key: str | None = None,
        key_concurrency: int = 1,
        limits: Mapping[str, int] | Sequence[str] = (),
        max_losses: int = 5,
        pause_after: int | None = None,
        labels: Mapping[str, str] | None = None,
        description: str | None = None,
        isolation: Isolation | None = None,
    ) -> Callable[[F], F]:
        """Define a job whose handler is the decorated function, sync or async, which takes the run or nothing.

        `schedule` None makes a job that runs only when it is triggered. Durations are timedeltas or seconds. `limits`
        are names, or names with what a run costs of each.
        `isolation` "process" runs the function in a child process that can be killed; by default coroutine functions
        run in the worker's event loop and plain ones in a thread. The function's docstring is the description unless
        one is given. Raises InvalidInput naming the field.
        """

        def define(function: F) -> F:
            if job_id in self.jobs:
                raise InvalidInput("job_id", f"{job_id!r} is defined twice in this app")
            job = Job(
                job_id=job_id,
                handler=job_id,
                schedule=schedule,
                tenant_id=self.tenant_id,
                payload=payload or {},
                pool=pool or self.pool,
                priority=priority,
                max_attempts=max_attempts,
                retry=retry,
                misfire=misfire,
                misfire_grace=_duration("misfire_grace", misfire_grace),
                timeout=_duration("timeout", timeout),
                lease_duration=_duration("lease_duration", lease_duration),
                jitter=_duration("jitter", jitter),
                overlap=overlap,
                start_deadline=None if start_deadline is None else _duration("start_deadline", start_deadline),
                max_concurrency=max_concurrency,
                concurrency_key=concurrency_key,
                key_concurrency=key_concurrency,
                limits=limits if isinstance(limits, Mapping) else costs_of_one(limits),
                max_losses=max_losses,
                pause_after=pause_after,
                labels=labels or {},
                description=(function.__doc__ or "").strip() if description is None else description,
            )
            self.handlers.register(job_id, function, isolation)
            self.jobs[job_id] = job
            return function

        return define

    def handler(self, name: str, *, isolation: Isolation | None = None) -> Callable[[F], F]:
        """Register the decorated function under a name, for jobs defined elsewhere (imports, `rota job put`)."""

        def register(function: F) -> F:
            self.handlers.register(name, function, isolation)
            return function

        return register


def skip() -> Skip:
    """Missed slots make no run."""
    return Skip()


def fire_once() -> FireOnce:
    """All missed slots collapse into one run, at the latest of them (the default)."""
    return FireOnce()


def catch_up(limit: int, *, max_age: Duration = timedelta(days=31)) -> CatchUp:
    """The latest `limit` missed slots, none older than `max_age`, each make a run, oldest first."""
    return CatchUp(limit, _duration("misfire.max_age", max_age))


def retry(*, initial: Duration = 10.0, factor: float = 2.0, cap: Duration = 3600.0, jitter: float = 0.2) -> RetryPolicy:
    """Exponential backoff: the nth retry waits initial * factor**(n-1), at most `cap`, less up to `jitter` of it."""
    return RetryPolicy(
        initial=_duration("retry.initial", initial), factor=factor, cap=_duration("retry.cap", cap), jitter=jitter
    )


def _duration(field: str, value: Duration) -> timedelta:
    return value if isinstance(value, timedelta) else seconds(field, value)
