"""How a session with the database is opened, and what the server ends in it by itself.

No wait on the database is longer than the server allows: a statement, a lock, a transaction of ours that stands idle.
What a caller has given up is thereby over before it asks again, and a socket that we close ends what ran behind it.
The bounds are sent at connecting. A pooler may refuse them, keep no prepared statements, or both: the first session
shows which, and from then on every statement brings its bounds along in a transaction of its own.
"""

import asyncio
import socket
import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import asyncpg
import structlog
from asyncpg.connect_utils import SessionAttribute

from rota.errors import DatabaseUnavailable
from rota.store.statements import upkeep

CONNECT_TIMEOUT: Final = 5.0
CHECK_INTERVAL: Final = 0.5
"""Seconds after which the server sees that the socket of a statement's caller is closed, and ends the statement."""
IDLE_LIMIT: Final = 10.0
"""Seconds that a transaction of ours may wait for its next statement."""

UNKEPT_STATEMENTS: Final = frozenset({"26000", "42P05"})
"""SQLSTATEs of prepared statements that are not those of the session: a pooler mixed the sessions up."""
UNKEPT_HINT: Final = "set PgBouncer's max_prepared_statements to 100 (from version 1.21 on), or pool_mode to session"

_REFUSALS: Final = frozenset({"08P01", "0A000", "22023", "42501", "42704"})
"""SQLSTATEs with which a pooler, or a server, refuses settings at connecting."""
_KEEPALIVES: Final = {"tcp_keepalives_idle": "30", "tcp_keepalives_interval": "10", "tcp_keepalives_count": "3"}
_OWN_KEEPALIVES: Final = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}
log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How long the server lets a statement run, and wait for a lock, in seconds.

    With `keeps_plans` a statement is planned once in a session, and not for each set of values: planning the long ones
    takes several times as long as running them. Their plans are tested without any values.
    """

    statement: float
    lock: float
    keeps_plans: bool = False

    @property
    def settings(self) -> dict[str, str]:
        """The server's settings that say so."""
        return {
            "statement_timeout": _milliseconds(self.statement),
            "lock_timeout": _milliseconds(self.lock),
            "idle_in_transaction_session_timeout": _milliseconds(IDLE_LIMIT),
            "client_connection_check_interval": _milliseconds(CHECK_INTERVAL),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """What stands between us and the server, as a session showed it."""

    is_pooled: bool = False
    takes_settings: bool = True
    keeps_statements: bool = True
    statement: float = 0.0
    """What a session is bounded to without our saying so, in seconds; 0: to nothing."""
    lock: float = 0.0

    def holds(self, bounds: Bounds) -> bool:
        """Whether a statement is bounded, and prepared, without a transaction of its own."""
        if not self.is_pooled and self.takes_settings:
            return True
        return self.is_bounded(bounds) and self.keeps_statements

    def is_bounded(self, bounds: Bounds) -> bool:
        """Whether a session stands under these bounds, or closer ones, by itself."""
        return 0 < self.statement <= bounds.statement and 0 < self.lock <= bounds.lock

    def begin(self, bounds: Bounds) -> str:
        """Return the command that begins a transaction within the bounds."""
        if self.holds(bounds):
            return "BEGIN"
        settings = bounds.settings
        if not self.is_pooled:
            # The server itself refused them: it is on a system where this one does not exist.
            del settings["client_connection_check_interval"]
        return "; ".join(("BEGIN", *(f"SET LOCAL {name} = {value}" for name, value in settings.items())))


class Sessions:
    """Opens sessions of one process; learns the way from the first one."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._way: Way | None = None
        self._learning = asyncio.Lock()

    @property
    def way(self) -> Way:
        """What the first session showed; until then, what most are."""
        return self._way or Way()

    async def open(self, bounds: Bounds, **options: Any) -> Any:
        """Return a new connection. Raises what the driver raises, and DatabaseUnavailable for a standby."""
        if self._way is None:
            async with self._learning:
                if self._way is None:
                    return await self._open_first(bounds, options)
        return await self._with_plans(await self._open(bounds, self.way, options), bounds, self.way)

    async def _open_first(self, bounds: Bounds, options: dict[str, Any]) -> Any:
        way = Way()
        try:
            connection = await self._open(bounds, way, options)
        except asyncpg.PostgresError as error:
            if error.sqlstate not in _REFUSALS:
                raise
            way = Way(takes_settings=False)
            connection = await self._open(bounds, way, options)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                self._way = await _seen(connection, way)
        except BaseException:
            connection.terminate()
            raise
        if self._way.is_pooled or not self._way.takes_settings:
            log.warning("database.pooled", pooled=self._way.is_pooled, takes_settings=self._way.takes_settings,
                        keeps_statements=self._way.keeps_statements, role_is_bounded=self._way.lock > 0,
                        hint="hints do not arrive through a pooler; `rota doctor` says what it lacks")  # fmt: skip
        if self._way.keeps_statements:
            return await self._with_plans(connection, bounds, self._way)
        await connection.close(timeout=CONNECT_TIMEOUT)
        return await self._open(bounds, self._way, options)

    async def _with_plans(self, connection: Any, bounds: Bounds, way: Way) -> Any:
        """Let the session keep its plans; not one of a pooler's, which is somebody else's next."""
        if bounds.keeps_plans and not way.is_pooled:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    await connection.execute("SET plan_cache_mode = force_generic_plan")
            except BaseException:
                connection.terminate()
                raise
        return connection

    async def _open(self, bounds: Bounds, way: Way, options: dict[str, Any]) -> Any:
        given = dict(options)
        settings = given.pop("server_settings", {})
        if way.takes_settings:
            settings = {**settings, **bounds.settings, **_KEEPALIVES}
            # A pooler does not report what this asks for, and would be asked by a statement that it may not keep.
            given["target_session_attrs"] = SessionAttribute.read_write
        if not way.keeps_statements:
            given["statement_cache_size"] = 0
        connection = await asyncpg.connect(self.dsn, timeout=CONNECT_TIMEOUT, server_settings=settings, **given)
        keep_alive(connection)
        return connection


def keep_alive(connection: Any) -> None:
    """Let the machine notice within half a minute that the other side of a connection is gone."""
    transport = getattr(connection, "_transport", None)
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OWN_KEEPALIVES.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def _seen(connection: Any, way: Way) -> Way:
    """Return what a session shows of the way to the server; within a transaction, which no pooler takes apart."""
    name = f"rota_{uuid.uuid4().hex}"
    async with connection.transaction():
        row = await (await connection.prepare(upkeep.seen_session.text, name=name)).fetchrow(name)
        pooled = row["pid"] != connection.get_server_pid()
        if pooled and row["has_own_name"]:
            # It would stay in the server's session, which is somebody else's next.
            await connection.execute(f"DEALLOCATE {name}")
    if row["is_standby"] or row["is_read_only"]:
        raise DatabaseUnavailable("the server takes no writes", hint="Rota needs the one primary")
    return Way(
        is_pooled=pooled, takes_settings=way.takes_settings, keeps_statements=not (pooled and row["has_own_name"]),
        statement=row["statement"], lock=row["lock"],
    )  # fmt: skip


def _milliseconds(seconds: float) -> str:
    return str(int(timedelta(seconds=seconds) / timedelta(milliseconds=1)))
