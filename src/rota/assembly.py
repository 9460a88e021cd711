"""The composition root: the one place that knows how the parts fit together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

import structlog

from rota.clock import MEASURE_INTERVAL, Clock, DatabaseClock, SystemClock
from rota.control.local import LocalControl
from rota.control.principal import Principal
from rota.domain.addresses import Allowed
from rota.domain.zones import tzdata_version
from rota.errors import DatabaseUnavailable
from rota.services.access import Access
from rota.services.aside import Noticeboard
from rota.services.bulk import Bulk
from rota.services.completion import Completion
from rota.services.definitions import Definitions
from rota.services.dispatch import Dispatch
from rota.services.doctor import Doctor
from rota.services.fleet import Fleet
from rota.services.freezes import Freezes
from rota.services.hints import LIMITS, SCHEDULES, Hints
from rota.services.history import History
from rota.services.limit_keeper import LimitKeeper
from rota.services.limits import Limits
from rota.services.loop import Loop
from rota.services.on_demand import OnDemand
from rota.services.owned import OwnedShards
from rota.services.pools import Pools
from rota.services.reaper import Reaper
from rota.services.scheduler import Scheduler
from rota.services.shard_keeper import ShardKeeper
from rota.services.upkeep import Upkeep
from rota.services.why import Why
from rota.settings import Settings
from rota.store.database import Database
from rota.store.embedded import EmbeddedServer
from rota.store.migrate import Migrated, check_schema, migrate
from rota.version import VERSION
from rota.worker.local import LocalDesk

SERVER_INTERVAL: Final = 1.0
"""Seconds between two looks at the embedded server."""

RESUME_INTERVAL: Final = 1.0
"""Seconds between two looks for paused jobs that are to run again."""

RESUME_BATCH: Final = 100

log = structlog.get_logger()


class ClockKeeper:
    """Measures the primary's clock again and again, so that no host's own clock is ever believed."""

    def __init__(self, database: Database, clock: DatabaseClock) -> None:
        self._database = database
        self._clock = clock

    async def tick(self) -> bool:
        """Measure once."""
        await self._database.measure(self._clock)
        return False

    async def pause(self) -> float:
        """Measure every few seconds."""
        return MEASURE_INTERVAL


class ServerKeeper:
    """Starts the embedded server anew if it dies under a process that needs it to go on."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server

    async def tick(self) -> bool:
        """Look once."""
        if self._server.pid is None:
            log.warning("server.died", log=str(self._server.log_path))
            await self._server.start()
        return False

    async def pause(self) -> float:
        """Look again soon."""
        return SERVER_INTERVAL


class ResumeKeeper:
    """Resumes paused jobs whose time has come, and brings back what freezes that are over have put off."""

    def __init__(self, definitions: Definitions, freezes: Freezes) -> None:
        self._definitions = definitions
        self._freezes = freezes

    async def tick(self) -> bool:
        """Resume one batch. True means: there may be more, tick again."""
        resumed = await self._definitions.resume_due(limit=RESUME_BATCH)
        return await self._freezes.bring_back() or resumed == RESUME_BATCH

    async def pause(self) -> float:
        """Look once a second."""
        return RESUME_INTERVAL


class SchedulerProcess:
    """Everything of a scheduler: its shards, the timer, the reaper and the upkeep, each in a loop of its own."""

    def __init__(self, database: Database, clock: Clock, hints: Hints, *, scheduler_id: str) -> None:
        self.owned = OwnedShards()
        self.keeper = ShardKeeper(
            database, clock, self.owned, scheduler_id=scheduler_id, version=VERSION, tzdata=tzdata_version(),
            last_tick=lambda: self.loops["scheduler"].last_success,
        )  # fmt: skip
        self.scheduler = Scheduler(database, clock, self.owned, hints, scheduler_id=scheduler_id)
        self.reaper = Reaper(database, clock, self.owned, hints)
        definitions = Definitions(database, clock, hints)
        noticeboard = Noticeboard(
            database, clock, self.owned,
            {"slot": self.scheduler.aside, "runs": self.scheduler.runs_aside, "leases": self.reaper.aside,
             "resume": definitions.unresumed},
        )  # fmt: skip
        self.upkeep = Upkeep(database, clock, hints, noticeboard=noticeboard)
        self.limit_keeper = LimitKeeper(database, clock, hints)
        self.resumer = ResumeKeeper(definitions, Freezes(database, clock, hints))
        self._new_schedules = hints.subscribe(SCHEDULES)
        self._edited_limits = hints.subscribe(LIMITS)
        self.loops = {
            "shard_keeper": Loop("shard_keeper", self.keeper, clock),
            "scheduler": Loop("scheduler", self.scheduler, clock, wake=self._new_schedules),
            "reaper": Loop("reaper", self.reaper, clock),
            "limit_keeper": Loop("limit_keeper", self.limit_keeper, clock, wake=self._edited_limits),
            "upkeep": Loop("upkeep", self.upkeep, clock),
            "resumer": Loop("resumer", self.resumer, clock),
        }
        self._clock = clock

    async def run(self, stop: asyncio.Event) -> None:
        """Run until stopped, then give the shards up at once so that nobody waits for a lease to end."""
        # The first look at the shards comes before the timer's, which would find nothing and sleep.
        try:
            await self.keeper.tick()
        except DatabaseUnavailable as error:
            log.warning("scheduler.starts_without_database", error=str(error))
        async with asyncio.TaskGroup() as group:
            for loop in self.loops.values():
                group.create_task(loop.run(stop))
            group.create_task(self._wake_at_stop(stop))
        try:
            await self.keeper.leave()
        except DatabaseUnavailable as error:
            log.warning("scheduler.left_without_goodbye", error=str(error))

    async def _wake_at_stop(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._new_schedules.set()
        self._edited_limits.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rota:
    """An opened cluster: the services, sharing one database and one clock."""

    settings: Settings
    dsn: str
    database: Database
    clock: Clock
    hints: Hints
    definitions: Definitions
    on_demand: OnDemand
    bulk: Bulk
    freezes: Freezes
    history: History
    dispatch: Dispatch
    completion: Completion
    access: Access
    fleet: Fleet
    limits: Limits
    pools: Pools
    why: Why
    doctor: Doctor
    server: EmbeddedServer | None = None

    def scheduler_process(self, scheduler_id: str | None = None) -> SchedulerProcess:
        """Return the parts of a scheduler."""
        return SchedulerProcess(self.database, self.clock, self.hints, scheduler_id=scheduler_id or self.settings.name)

    def control(self, principal: Principal) -> LocalControl:
        """Return what this principal may ask of the cluster."""
        return LocalControl(self, principal)

    def desk(self) -> LocalDesk:
        """Return a desk for a worker in this process."""
        return LocalDesk(self.database, self.clock, self.hints)

    async def keep_going(self, stop: asyncio.Event, *, listen: bool = True) -> None:
        """Keep the clock measured, hints flowing and the embedded server running until stopped."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.hints.run(stop, listen=listen))
            if isinstance(self.clock, DatabaseClock):
                keeper = ClockKeeper(self.database, self.clock)
                group.create_task(Loop("clock", keeper, self.clock).run(stop))
            if self.server is not None:
                group.create_task(Loop("server", ServerKeeper(self.server), SystemClock()).run(stop))


def assemble(
    settings: Settings, *, dsn: str, database: Database, clock: Clock, server: EmbeddedServer | None = None
) -> Rota:
    """Put the services together around a database and a clock."""
    hints = Hints(database, clock)
    definitions = Definitions(database, clock, hints, targets=Allowed.parse(settings.http_allow or ""))
    on_demand = OnDemand(database, clock, hints)
    return Rota(
        settings=settings,
        dsn=dsn,
        database=database,
        clock=clock,
        hints=hints,
        definitions=definitions,
        on_demand=on_demand,
        bulk=Bulk(database, clock, hints, definitions=definitions, on_demand=on_demand),
        freezes=Freezes(database, clock, hints),
        history=History(database, clock),
        dispatch=Dispatch(database, clock),
        completion=Completion(database, clock, hints),
        access=Access(database, clock),
        fleet=Fleet(database, clock),
        limits=Limits(database, clock, hints),
        pools=Pools(database, clock),
        why=Why(database, clock),
        doctor=Doctor(database, clock),
        server=server,
    )


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[EmbeddedServer | None]:
    """Run the embedded server meanwhile, unless a database is configured."""
    if settings.database_url is not None:
        yield None
        return
    async with EmbeddedServer(settings.data_dir) as server:
        yield server


@asynccontextmanager
async def opened(settings: Settings, *, migrating: bool | None = None) -> AsyncIterator[Rota]:
    """Yield an opened cluster; closed when the block ends.

    `migrating` brings the schema up to date first; by default only an embedded database is migrated without being
    asked. Raises SchemaMismatch, DatabaseUnavailable, SetupFailed.
    """
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(settings))
        dsn = _dsn(settings, server)
        if server is not None if migrating is None else migrating:
            await migrate(dsn, now=SystemClock().now())
        else:
            await check_schema(dsn)
        database = await Database.connect(
            dsn, size=settings.connections, reserved=settings.reserved_connections, name=settings.name[:60]
        )
        stack.push_async_callback(database.close)
        clock = DatabaseClock()
        await database.measure(clock)
        yield assemble(settings, dsn=dsn, database=database, clock=clock, server=server)


async def migrate_database(settings: Settings, *, lock_timeout: float) -> Migrated:
    """Bring the configured database's schema up to this program's."""
    async with serving(settings) as server:
        return await migrate(_dsn(settings, server), now=SystemClock().now(), lock_timeout=lock_timeout)


def _dsn(settings: Settings, server: EmbeddedServer | None) -> str:
    if server is not None:
        return server.dsn
    assert settings.database_url is not None, "without a configured database there is an embedded server"
    return settings.database_url
