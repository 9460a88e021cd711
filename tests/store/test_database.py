"""Connections: the two lanes, statements that do not come back, killed backends, and errors by SQLSTATE."""

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any, cast

import asyncpg
import pytest

from rota.clock import DatabaseClock
from rota.domain.attempt import success
from rota.errors import CommitUnknown, DatabaseUnavailable, InvalidInput, Locked, TooSlow
from rota.store import claims, sessions
from rota.store import database as module
from rota.store.admin import with_database
from rota.store.database import Database, Lane, MissingPartition, repeat, translate
from rota.store.sessions import Bounds
from rota.store.statements import Statement, upkeep
from rota.store.statements import claims as sql
from rota.testing import RotaKit
from tests.store.stage import Impatient, leased, outsider, uncommitted, until, until_gone, until_waiting_for

HOLD = "LOCK TABLE rota.lease IN EXCLUSIVE MODE"
PID = Statement(name="pid", doc="", text="SELECT pg_backend_pid() AS pid", parameters=())


async def pid_of(database: Database, lane: Lane = Lane.WORK) -> int:
    [row] = await database.fetch(PID, lane=lane)
    pid: int = row["pid"]
    return pid


def one(key: Any) -> dict[str, Any]:
    return {
        "shard": key.shard, "job_uid": key.job_uid, "scheduled_for": key.scheduled_for, "token": key.token,
    }  # fmt: skip


# lanes ------------------------------------------------------------------------------------------------------------


async def test_renewals_and_reports_do_not_wait_behind_work_that_has_taken_every_connection(rota_kit: RotaKit) -> None:
    claim, now = await leased(rota_kit), rota_kit.clock.now()
    async with (
        await Database.connect(rota_kit.dsn, size=2, reserved=1) as database,
        database.transaction(),
        database.transaction(),
    ):
        assert await claims.renew(database, [claim.key], now=now)
        assert claim.key.token in (await claims.settle(database, [success(claim.key, now=now)], now=now)).states
        assert await claims.recorded(database, [claim.key])


async def test_work_without_a_free_connection_is_refused_after_a_while(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await Database.connect(dsn, size=1) as database:
        await pid_of(database)
        monkeypatch.setattr(module, "ACQUIRE_TIMEOUT", 0.05)
        async with database.transaction():
            with pytest.raises(DatabaseUnavailable, match="no connection to the database: TimeoutError") as refused:
                await pid_of(database)
        assert not isinstance(refused.value, CommitUnknown), "nothing was sent"
        assert await pid_of(database)


# statements that do not come back ---------------------------------------------------------------------------------


async def test_what_a_caller_gave_up_ends_in_the_server_before_anybody_lets_go(rota_kit: RotaKit) -> None:
    """The lock that it waits for is held on: the closed socket alone ends the statement."""
    claim, now = await leased(rota_kit), rota_kit.clock.now()
    async with await Database.connect(rota_kit.dsn, size=1, reserved=1) as database:
        pid = await pid_of(database, Lane.URGENT)
        async with uncommitted(rota_kit.dsn, HOLD) as other, outsider(rota_kit.dsn) as watcher:
            with pytest.raises(CommitUnknown, match=r"note_progress gave no answer within 0\.2 s"):
                await database.fetch(
                    sql.note_progress, lane=Lane.URGENT, within=0.2, progress=0.5, note=None, **one(claim.key)
                )
            assert await pid_of(database, Lane.URGENT) != pid, "the pool goes on with a new connection"
            await until_gone(watcher, pid)
            await other.execute("COMMIT")
        [run] = await rota_kit.runs("job")
        assert run.progress is None
        assert await claims.renew(database, [claim.key], now=now)


async def test_a_caller_that_is_cancelled_ends_its_statement(rota_kit: RotaKit) -> None:
    claim, now = await leased(rota_kit), rota_kit.clock.now()
    async with await Database.connect(rota_kit.dsn, size=1, reserved=1) as database:
        pid = await pid_of(database, Lane.URGENT)
        async with uncommitted(rota_kit.dsn, HOLD) as other, outsider(rota_kit.dsn) as watcher:
            noting = asyncio.create_task(
                database.fetch(sql.note_progress, lane=Lane.URGENT, progress=0.5, note=None, **one(claim.key))
            )
            assert await until_waiting_for(other) == [pid]
            noting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await noting
            await until_gone(watcher, pid)
        assert await claims.renew(database, [claim.key], now=now)


async def test_a_commit_that_takes_too_long_is_in_doubt_and_ends_too(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with await Database.connect(dsn, size=1) as database, outsider(dsn) as other:
        # A deferred check that waits for a lock makes COMMIT itself wait.
        await other.execute(
            "CREATE TABLE slow (n int); CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NULL; END $$;"
            "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED"
            " FOR EACH ROW EXECUTE FUNCTION wait()"
        )
        await other.execute("SELECT pg_advisory_lock(7)")
        pid = await pid_of(database)
        monkeypatch.setattr(module, "STATEMENT_TIMEOUT", 0.2)
        with pytest.raises(CommitUnknown, match="commit gave no answer"):
            async with database.transaction() as tx:
                await tx._raw.execute("INSERT INTO slow VALUES (1)")
        monkeypatch.undo()
        assert await pid_of(database) != pid
        await until_gone(other, pid)
        assert await other.fetchval("SELECT count(*) FROM slow") == 0


# bounds in the server ---------------------------------------------------------------------------------------------

BOUND = {
    "statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "client_connection_check_interval",
}  # fmt: skip
SET = Statement(
    name="set", doc="", parameters=("names",),
    text="SELECT name, setting::int AS value FROM pg_settings WHERE name = ANY ($1)",
)  # fmt: skip


@pytest.mark.parametrize("lane", Lane)
async def test_every_connection_is_bounded_in_the_server_before_its_client_gives_up(dsn: str, lane: Lane) -> None:
    async with await Database.connect(dsn) as database:
        found = {row["name"]: row["value"] for row in await database.fetch(SET, lane=lane, names=sorted(BOUND))}
    assert found.keys() == BOUND
    assert all(found.values())
    assert found["lock_timeout"] < found["statement_timeout"] < module.STATEMENT_TIMEOUT * 1000


async def test_a_lock_that_a_stranger_holds_is_waited_for_a_while_and_nothing_is_done(rota_kit: RotaKit) -> None:
    claim = await leased(rota_kit)
    async with await Database.connect(rota_kit.dsn, reserved=1) as database:
        pid = await pid_of(database, Lane.URGENT)
        async with uncommitted(rota_kit.dsn, HOLD):
            with pytest.raises(Locked, match="note_progress: another transaction holds what this needs") as refused:
                await database.fetch(sql.note_progress, lane=Lane.URGENT, progress=0.5, note=None, **one(claim.key))
            assert not isinstance(refused.value, CommitUnknown)
            assert await pid_of(database, Lane.URGENT) == pid, "the connection is as good as before"


async def test_a_statement_that_takes_too_long_is_ended_by_the_server_and_nothing_is_done(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cast("dict[Lane, Bounds]", module.BOUNDS), Lane.WORK, Bounds(statement=0.1, lock=0.1))
    forever = Statement(name="forever", doc="", text="SELECT pg_sleep(3600)", parameters=())
    async with await Database.connect(dsn, size=1) as database:
        pid = await pid_of(database)
        with pytest.raises(TooSlow, match="forever: the server ended it") as refused:
            await database.fetch(forever)
        assert not isinstance(refused.value, CommitUnknown)
        assert await pid_of(database) == pid


async def test_a_transaction_of_ours_that_stands_idle_is_ended(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "IDLE_LIMIT", 0.1)

    async def change(database: Database, other: Any) -> None:
        async with database.transaction() as tx:
            [row] = await tx.fetch(PID)
            await tx.execute("delete", "DELETE FROM rota.shard")
            await until_gone(other, row["pid"])

    async with await Database.connect(dsn, size=1) as database, outsider(dsn) as other:
        with pytest.raises(DatabaseUnavailable):
            await change(database, other)
        assert await other.fetchval("SELECT count(*) FROM rota.shard") == 64


async def test_a_block_that_hides_the_failure_of_its_statement_is_not_taken_for_committed(dsn: str) -> None:
    divide = Statement(name="divide", doc="", text="SELECT 1 / 0", parameters=())

    async def change(database: Database) -> None:
        async with database.transaction() as tx:
            with suppress(asyncpg.DivisionByZeroError):
                await tx.fetch(divide)

    async with await Database.connect(dsn, size=1) as database:
        with pytest.raises(AssertionError, match="a statement failed"):
            await change(database)
        assert await pid_of(database)


# killed backends --------------------------------------------------------------------------------------------------


async def test_a_backend_killed_in_a_statement_leaves_the_commit_in_doubt_and_the_next_call_works(
    rota_kit: RotaKit,
) -> None:
    claim, now = await leased(rota_kit), rota_kit.clock.now()
    async with await Database.connect(rota_kit.dsn, size=1, reserved=1) as database:
        async with uncommitted(rota_kit.dsn, HOLD) as other:
            settling = asyncio.create_task(claims.settle(database, [success(claim.key, now=now)], now=now))
            [pid] = await until_waiting_for(other)
            await other.execute(f"SELECT pg_terminate_backend({pid})")
            with pytest.raises(CommitUnknown, match="settle_attempts: the connection ended"):
                await settling
        assert claim.key.token in (await claims.settle(database, [success(claim.key, now=now)], now=now)).states


async def test_idle_backends_that_were_killed_cost_a_repeatable_call_nothing(rota_kit: RotaKit) -> None:
    async with await Database.connect(rota_kit.dsn, size=3, reserved=1) as database, outsider(rota_kit.dsn) as other:
        for _ in range(5):
            for lane in Lane:
                pid = await pid_of(database, lane)
                await other.execute(f"SELECT pg_terminate_backend({pid})")
                await until_gone(other, pid)
                assert await repeat(partial(pid_of, database, lane), clock=Impatient(), tries=2) != pid


async def test_a_backend_killed_in_a_transaction_takes_it_back(dsn: str) -> None:
    async with await Database.connect(dsn, size=1, reserved=1) as database, outsider(dsn) as other:

        async def change() -> None:
            async with database.transaction() as tx:
                [row] = await tx.fetch(PID)
                await tx._raw.execute("DELETE FROM rota.shard")
                await other.execute(f"SELECT pg_terminate_backend({row['pid']})")
                await until_gone(other, row["pid"])
                await tx.fetch(PID)

        with pytest.raises(DatabaseUnavailable):
            await change()
        assert await other.fetchval("SELECT count(*) FROM rota.shard") == 64
        assert await pid_of(database)


# transactions -----------------------------------------------------------------------------------------------------


async def test_a_block_that_fails_takes_everything_back_and_the_connection_is_used_again(dsn: str) -> None:
    async with await Database.connect(dsn, size=1) as database, outsider(dsn) as other:
        pid = await pid_of(database)

        async def change(then: Statement | InvalidInput) -> None:
            async with database.transaction() as tx:
                await tx._raw.execute("DELETE FROM rota.shard")
                if isinstance(then, InvalidInput):
                    raise then
                await tx.fetch(then)

        with pytest.raises(InvalidInput, match="field: no"):
            await change(InvalidInput("field", "no"))
        with pytest.raises(asyncpg.DivisionByZeroError):
            await change(Statement(name="divide", doc="", text="SELECT 1 / 0", parameters=()))
        assert await other.fetchval("SELECT count(*) FROM rota.shard") == 64
        assert await pid_of(database) == pid


# opening and closing ----------------------------------------------------------------------------------------------


async def test_closing_ends_every_connection_also_one_that_is_still_lent(dsn: str) -> None:
    async with outsider(dsn) as other:
        database = await Database.connect(dsn, size=2, reserved=1, name="to-be-closed")
        lent = database.transaction()
        tx = await lent.__aenter__()
        await database.close(within=0.05)

        async def look() -> bool:
            count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'to-be-closed'"
            return not await other.fetchval(count)

        await until(look)
        with pytest.raises(DatabaseUnavailable):
            await tx.fetch(PID)
        with pytest.raises(DatabaseUnavailable):
            await lent.__aexit__(None, None, None)
        with pytest.raises(DatabaseUnavailable, match="pool is closed"):
            await pid_of(database)


async def visit(dsn: str) -> int:
    async with await Database.connect(dsn, size=1, reserved=1) as database:
        return await pid_of(database)


async def test_a_server_or_database_that_is_not_there_is_unavailable_and_no_commit_is_in_doubt(dsn: str) -> None:
    for nowhere in (with_database(dsn, "nowhere"), "postgresql://rota@127.0.0.1:1/rota"):
        with pytest.raises(DatabaseUnavailable) as refused:
            await visit(nowhere)
        assert not isinstance(refused.value, CommitUnknown)


async def test_a_primary_that_takes_no_writes_is_refused(dsn: str) -> None:
    async with outsider(dsn) as other:
        name = await other.fetchval("SELECT current_database()")
        await other.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with pytest.raises(DatabaseUnavailable):
        await visit(dsn)


async def test_the_clock_is_measured_against_the_server(dsn: str) -> None:
    clock = DatabaseClock()
    async with await Database.connect(dsn) as database:
        await database.measure(clock)
        [row] = await database.fetch(upkeep.database_now)
    assert abs((clock.now() - row["now"]).total_seconds()) < 1


async def test_listeners_hear_and_learn_that_their_connection_is_gone(dsn: str) -> None:
    heard: list[str] = []
    async with await Database.connect(dsn) as database, database.listening("rota_hint", heard.append) as gone:
        await database.fetch(upkeep.send_hint, topic="pool:default")

        async def look() -> bool:
            return heard == ["pool:default"]

        await until(look)
        async with outsider(dsn) as other:
            await other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
                " AND datname = current_database()"
            )
        async with asyncio.timeout(30):
            await gone.wait()


async def test_nobody_listens_at_a_primary_that_takes_no_writes(dsn: str) -> None:
    async with await Database.connect(dsn) as database, outsider(dsn) as other:
        name = await other.fetchval("SELECT current_database()")
        await other.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        with pytest.raises(DatabaseUnavailable):
            await database.listening("rota_hint", print).__aenter__()


async def test_a_connection_that_ends_before_it_listens_is_trouble_that_passes(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = asyncpg.connect

    async def connect_badly(*arguments: Any, **options: Any) -> Any:
        raw = await connect(*arguments, **options)
        raw.terminate()
        return raw

    monkeypatch.setattr(asyncpg, "connect", connect_badly)
    async with await Database.connect(dsn) as database:
        with pytest.raises(DatabaseUnavailable, match="listen"):
            await database.listening("rota_hint", print).__aenter__()


# errors -----------------------------------------------------------------------------------------------------------


PASSING = {"53000", "53100", "53200", "53300", "53400", "57000", "57014", "57P03", "58000", "58030"}


NAMED = {"55P03": Locked, "57014": TooSlow}


@pytest.mark.parametrize("state", sorted(module.TRANSIENT | PASSING))
def test_a_state_that_passes_by_itself_is_unavailable(state: str) -> None:
    """A full disk refuses a good report: it is sent again, and not taken for poison."""
    found = translate(asyncpg.PostgresError.new({"C": state, "M": "no"}), "x")
    assert type(found) is NAMED.get(state, DatabaseUnavailable)


@pytest.mark.parametrize(
    ("state", "severity"),
    [
        ("08000", "ERROR"), ("08003", "ERROR"), ("08006", "ERROR"), ("08007", "ERROR"),
        ("57P01", "FATAL"), ("57P02", "FATAL"), ("53100", "PANIC"), ("58030", "PANIC"),
    ],
)  # fmt: skip
def test_a_connection_that_ended_leaves_the_commit_in_doubt_if_something_was_sent(state: str, severity: str) -> None:
    """A full disk under the write-ahead log ends the server in a commit."""
    error = asyncpg.PostgresError.new({"C": state, "S": severity, "M": "no"})
    assert type(translate(error, "x")) is CommitUnknown
    assert type(translate(error, "x", sent=False)) is DatabaseUnavailable


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionResetError(104, "reset"), CommitUnknown),
        (TimeoutError(), DatabaseUnavailable),
        (OSError(113, "no route"), DatabaseUnavailable),
        (asyncpg.InterfaceError("closed"), DatabaseUnavailable),
        (CommitUnknown("x"), CommitUnknown),
    ],
)
def test_trouble_of_the_driver_and_the_network_is_told_apart(error: Exception, kind: type[Exception]) -> None:
    assert type(translate(error, "x")) is kind


@pytest.mark.parametrize("state", ["42601", "42P01", "23505", "22012", "42501", "54000", "XX000"])
def test_a_programming_error_stays_what_it_is(state: str) -> None:
    error = asyncpg.PostgresError.new({"C": state, "M": "no"})
    assert translate(error, "x") is error


@pytest.mark.parametrize("state", sorted(sessions.UNKEPT_STATEMENTS))
def test_a_pooler_that_mixes_prepared_statements_up_is_told_by_the_setting_that_it_lacks(state: str) -> None:
    found = translate(asyncpg.PostgresError.new({"C": state, "M": "no"}), "claim_runs")
    assert type(found) is DatabaseUnavailable
    assert "max_prepared_statements" in str(found)


def test_a_missing_partition_is_told_from_a_broken_check() -> None:
    assert isinstance(translate(asyncpg.PostgresError.new({"C": "23514", "M": "no partition"}), "x"), MissingPartition)
    broken = asyncpg.PostgresError.new({"C": "23514", "M": "no", "n": "job_priority_check"})
    assert translate(broken, "x") is broken


async def test_repeating_stops_after_its_tries_with_the_last_error() -> None:
    clock, calls = Impatient(), list[float]()

    async def fail() -> None:
        calls.append(clock.monotonic())
        raise DatabaseUnavailable(f"call {len(calls)}")

    with pytest.raises(DatabaseUnavailable, match="call 4"):
        await repeat(fail, clock=clock, tries=4, first_wait=1)
    assert calls == [0, 1, 3, 7]


async def test_only_what_passes_by_itself_is_repeated() -> None:
    calls = list[int]()

    async def fail() -> None:
        calls.append(1)
        raise InvalidInput("field", "no")

    with pytest.raises(InvalidInput):
        await repeat(fail, clock=Impatient())
    assert len(calls) == 1
