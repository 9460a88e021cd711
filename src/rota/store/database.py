"""Connections to PostgreSQL: lanes of them, one way to run a statement, and errors that say what to do next.

The server ends what takes too long, and says so: that is not done. A commit has three outcomes: done, not done,
unknown. A statement that may be committing is therefore never cancelled: where the server stays silent the socket is
closed and `CommitUnknown` raised, and the caller, whose every write can be repeated by its own key, asks again.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from copy import copy
from enum import Enum
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import asyncpg

from rota.clock import Clock, DatabaseClock
from rota.errors import CommitUnknown, DatabaseUnavailable, Locked, RotaError, TooSlow
from rota.store.lane_pool import LanePool
from rota.store.sessions import CONNECT_TIMEOUT, UNKEPT_HINT, UNKEPT_STATEMENTS, Bounds, Sessions, Way
from rota.store.statements import Statement, upkeep

STATEMENT_TIMEOUT: Final = 30.0
"""Seconds after which a statement's connection is given up: the server has not even ended it."""
ACQUIRE_TIMEOUT: Final = 5.0
PROBE_TIMEOUT: Final = 5.0
"""Seconds after which a listening connection that gives no sign of life is given up."""

TRANSIENT: Final = frozenset({"40001", "40P01", "55P03", "25006", "55006", "25P03"})
"""SQLSTATEs that pass by themselves."""
TRANSIENT_CLASSES: Final = frozenset({"08", "53", "57", "58"})
"""Classes of them: connections, resources (also a full disk), an operator's hand, the machine's own trouble."""

_PASSING: Final = (
    TimeoutError,
    OSError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.InvalidCachedStatementError,
)

T = TypeVar("T")


class MissingPartition(RotaError):
    """A row's month has no partition yet: make it and ask again."""

    code = "missing-partition"


class Lane(Enum):
    """Pools of their own, so that nobody's waiting stops others.

    Renewals and reports never wait behind claims, scans or a handler's queries; and these never behind what callers ask
    to be changed, which strangers' transactions may hold, or to be read, which may be wide.
    """

    WORK = "work"
    URGENT = "urgent"
    CALLS = "calls"
    READS = "reads"


BOUNDS: Final[Mapping[Lane, Bounds]] = {
    Lane.WORK: Bounds(statement=25.0, lock=2.0, keeps_plans=True),
    Lane.URGENT: Bounds(statement=25.0, lock=1.0, keeps_plans=True),
    Lane.CALLS: Bounds(statement=25.0, lock=0.2),
    Lane.READS: Bounds(statement=10.0, lock=1.0),
}
"""A lock that is waited for as long as this is a stranger's: our own transactions are short."""
assert all(bounds.statement < STATEMENT_TIMEOUT for bounds in BOUNDS.values()), "the server ends a statement first"


class Connection:
    """One connection inside a transaction, or one lent for a single statement."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    async def fetch(self, statement: Statement, /, *, within: float | None = None, **values: Any) -> list[Any]:
        """Run a statement; rows can be read by column name. Raises DatabaseUnavailable, CommitUnknown."""
        arguments = statement.arguments(values)
        return await self._guarded(
            lambda: self._raw.fetch(statement.text, *arguments), within or STATEMENT_TIMEOUT, statement.name
        )

    async def execute(self, name: str, command: str) -> str:
        """Run a command without values, and return what the server says of it."""
        done: str = await self._guarded(lambda: self._raw.execute(command), STATEMENT_TIMEOUT, name)
        return done

    async def _guarded(self, call: Callable[[], Awaitable[T]], within: float, name: str) -> T:
        async def run() -> T:
            # A connection that has ended refuses the call itself.
            return await call()

        task = asyncio.ensure_future(run())
        try:
            await asyncio.wait({task}, timeout=within)
        finally:
            if not task.done():
                # Timed out, or we were cancelled: closing the socket leaves the outcome to the server alone.
                self._raw.terminate()
                task.add_done_callback(_swallow)
        if not task.done():
            raise CommitUnknown(f"{name} gave no answer within {within:g} s")
        try:
            return task.result()
        except Exception as error:
            raise translate(error, name) from error


class Database:
    """The primary. Opened by `Database.connect`, closed by `close` or as an async context manager."""

    def __init__(self, pools: dict[Lane, LanePool], sessions: Sessions) -> None:
        self._pools = pools
        self._sessions = sessions
        self._lane = Lane.WORK

    @classmethod
    async def connect(cls, dsn: str, *, size: int = 8, reserved: int = 2, name: str = "rota") -> Self:
        """Prepare the lanes for a primary that takes writes; connections are made when they are first needed.

        `size` are for claims, scans and commands, `reserved` for renewals and reports; half of `size` more are for what
        callers change, and as many for what they list.

        Works through a transaction pooler too; see `way`.
        """
        sessions = Sessions(dsn)
        beside = max(1, size // 2)
        sizes = {Lane.WORK: size, Lane.URGENT: reserved, Lane.CALLS: beside, Lane.READS: beside}
        pools = {lane: LanePool(_opening(sessions, lane, name), size=limit) for lane, limit in sizes.items()}
        return cls(pools, sessions)

    def on(self, lane: Lane) -> Self:
        """Return the same database, whose statements take this lane unless they name another."""
        other = copy(self)
        other._lane = lane
        return other

    def size_of(self, lane: Lane) -> int:
        """Return the most connections of a lane."""
        return self._pools[lane].size

    @property
    def sessions(self) -> int:
        """How many sessions are open."""
        return sum(pool.open_count for pool in self._pools.values())

    @property
    def is_at_rest(self) -> bool:
        """Whether it is open, and none of its sessions in use."""
        return all(pool.is_at_rest for pool in self._pools.values())

    @property
    def way(self) -> Way:
        """What stands between this process and the server."""
        return self._sessions.way

    @property
    def needs_transactions(self) -> bool:
        """Whether a pooler makes each statement take a transaction of its own: three round trips more."""
        return not self.way.holds(BOUNDS[Lane.WORK])

    async def fetch(
        self, statement: Statement, /, *, lane: Lane | None = None, within: float | None = None, **values: Any
    ) -> list[Any]:
        """Run one statement in a transaction of its own: one round trip."""
        lane = lane or self._lane
        async with self._lend(lane) as connection:
            if self.way.holds(BOUNDS[lane]):
                return await connection.fetch(statement, within=within, **values)
            async with self._begun(connection, lane):
                return await connection.fetch(statement, within=within, **values)

    @asynccontextmanager
    async def transaction(self, *, lane: Lane | None = None) -> AsyncIterator[Connection]:
        """Lend a connection inside a transaction that commits when the block ends well."""
        lane = lane or self._lane
        async with self._lend(lane) as connection, self._begun(connection, lane):
            yield connection

    @asynccontextmanager
    async def _begun(self, connection: Connection, lane: Lane) -> AsyncIterator[None]:
        await connection.execute("begin", self.way.begin(BOUNDS[lane]))
        try:
            yield
        except BaseException:
            with suppress(Exception):
                await connection.execute("rollback", "ROLLBACK")
            raise
        done = await connection.execute("commit", "COMMIT")
        assert done == "COMMIT", "a statement failed, and the block went on as if it had not"

    @asynccontextmanager
    async def listening(self, channel: str, told: Callable[[str], None]) -> AsyncIterator["Line"]:
        """Listen on a channel over a connection of its own, while the block lasts.

        Raises DatabaseUnavailable, also where a pooler stands between: nothing would ever arrive.
        """
        try:
            raw: Any = await self._sessions.open(BOUNDS[Lane.WORK])
        except Exception as error:
            raise translate(error, "listen", sent=False) from error
        line = Line(raw)
        try:
            if self.way.is_pooled:
                raise DatabaseUnavailable("listen: hints do not arrive through a pooler")
            await Connection(raw)._guarded(
                lambda: raw.add_listener(channel, lambda _c, _pid, _channel, payload: told(payload)),
                CONNECT_TIMEOUT,
                "listen",
            )
            yield line
        finally:
            raw.terminate()

    async def measure(self, clock: DatabaseClock) -> None:
        """Measure the primary's clock once: the host's clock is never believed."""
        async with self._lend(Lane.URGENT) as connection:
            sent = clock.monotonic()
            [row] = await connection.fetch(upkeep.database_now)
            clock.observe(sent=sent, received=clock.monotonic(), database=row["now"])

    async def close(self, *, within: float = 5.0) -> None:
        """Close all lanes; what is still in use after `within` seconds is cut off."""
        for pool in self._pools.values():
            try:
                async with asyncio.timeout(within):
                    await pool.close()
            except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                pool.terminate()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @asynccontextmanager
    async def _lend(self, lane: Lane) -> AsyncIterator[Connection]:
        pool = self._pools[lane]
        try:
            raw = await pool.acquire(within=ACQUIRE_TIMEOUT)
        except Exception as error:
            raise translate(error, "no connection to the database", sent=False) from error
        try:
            yield Connection(raw)
        finally:
            pool.release(raw)


class Line(asyncio.Event):
    """A connection that listens; set when it has ended."""

    def __init__(self, raw: Any) -> None:
        super().__init__()
        self._raw = raw
        self._turn = asyncio.Lock()
        raw.add_termination_listener(lambda _: self.set())

    async def probe(self) -> None:
        """Ask for a sign of life: a line that somebody cut on the way looks like one on which nothing is said.

        Raises DatabaseUnavailable, and the line has ended.
        """
        await self.ask(upkeep.backend)

    async def ask(self, statement: Statement, /, **values: Any) -> list[Any]:
        """Run a short statement in this very session, in the order of the calls. Raises DatabaseUnavailable."""
        async with self._turn:
            return await Connection(self._raw).fetch(statement, within=PROBE_TIMEOUT, **values)


def translate(error: Exception, name: str, *, sent: bool = True) -> Exception:
    """Return the error of Rota that a driver's error stands for; a programming error stays what it is.

    Told apart by SQLSTATE, never by text. `sent` tells whether a statement was on its way: without one, no commit can
    be in doubt.
    """
    if isinstance(error, RotaError):
        return error
    state = getattr(error, "sqlstate", None)
    # A row without a partition is a check violation that names no constraint.
    if isinstance(error, asyncpg.CheckViolationError) and error.constraint_name is None:
        return MissingPartition(f"{name}: {error}")
    state_class = (state or "")[:2]
    ended = isinstance(error, asyncpg.PostgresConnectionError | ConnectionError) or state_class == "08"
    # A backend that ends, told to or by a crash, says so also when its statement has just committed.
    severity = getattr(error, "severity_en", None) or getattr(error, "severity", None)
    if sent and (ended or severity in ("FATAL", "PANIC")):
        return CommitUnknown(f"{name}: the connection ended: {error}")
    if state in UNKEPT_STATEMENTS:
        return DatabaseUnavailable(f"{name}: a pooler keeps no prepared statements", hint=UNKEPT_HINT)
    if state == "55P03":
        return Locked(f"{name}: another transaction holds what this needs")
    if state == "57014":
        return TooSlow(f"{name}: the server ended it, since it took too long")
    # A wrong name or password is the address's fault, not the program's.
    refused = not sent and state_class in ("28", "3D")
    transient = state in TRANSIENT or state_class in TRANSIENT_CLASSES
    if ended or refused or transient or isinstance(error, _PASSING):
        return DatabaseUnavailable(f"{name}: {str(error) or type(error).__name__}")
    return error


async def repeat(action: Callable[[], Awaitable[T]], *, clock: Clock, tries: int = 5, first_wait: float = 0.05) -> T:
    """Run an action that can be repeated by its own key until it works, at most `tries` times.

    Waits double from `first_wait` seconds. Raises the last DatabaseUnavailable, and Locked at once: whoever holds the
    row may do so for long.
    """
    for turn in range(tries - 1):
        try:
            return await action()
        except Locked:
            raise
        except DatabaseUnavailable:
            await clock.sleep(first_wait * 2**turn)
    return await action()


def _opening(sessions: Sessions, lane: Lane, name: str) -> Callable[[], Awaitable[Any]]:
    """Return the function by which a pool opens its connections."""

    async def open_connection() -> Any:
        return await sessions.open(BOUNDS[lane], server_settings={"application_name": name})

    return open_connection


def _swallow(task: "asyncio.Future[Any]") -> None:
    if not task.cancelled():
        task.exception()
