"""Hints: prompt when they arrive, coalesced on their way, and missed by nobody who polls."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from starlette.requests import Request

from rota.api.polls import LongPolls
from rota.domain.job import Job
from rota.services.hints import CHANNEL, HINTS_PER_SECOND, PROBE_INTERVAL, QUIET, SCHEDULES, Hints, pool_topic
from rota.store import database as store_database
from rota.store.database import Database
from rota.store.statements import upkeep
from rota.testing import RotaKit
from tests.services.stories import WatchedClock, administrator, every, fetch, kill_backends
from tests.store.relay import relayed
from tests.store.stage import outsider, uncommitted, until


@asynccontextmanager
async def running(hints: Hints, *, listen: bool) -> AsyncIterator[None]:
    """Run a process's hints beside the block."""
    stop = asyncio.Event()
    task = asyncio.ensure_future(hints.run(stop, listen=listen))
    try:
        yield
    finally:
        stop.set()
        hints.publish("the end")
        async with asyncio.timeout(20):
            await task


async def test_a_hint_wakes_who_listens_to_its_topic_and_nobody_else(rota_kit: RotaKit) -> None:
    hints = Hints(rota_kit.database, rota_kit.clock)
    mine, other, again = hints.subscribe("pool:a"), hints.subscribe("pool:b"), hints.subscribe("pool:a")
    hints.publish("pool:a")
    assert (mine.is_set(), other.is_set(), again.is_set()) == (True, False, True)


async def test_a_listener_that_has_gone_is_forgotten(rota_kit: RotaKit) -> None:
    hints = Hints(rota_kit.database, rota_kit.clock)
    for _ in range(100):
        hints.subscribe("pool:a")
    assert len(hints._listeners) <= 1


async def test_hints_are_coalesced_and_sent_on_their_own(rota_kit: RotaKit) -> None:
    """A thousand hints on two topics between two sendings are two notifications."""
    clock, heard, told = WatchedClock(), list[str](), asyncio.Event()

    def hear(topic: str) -> None:
        heard.append(topic)
        if topic == "last":
            told.set()

    hints = Hints(rota_kit.database, clock)
    async with rota_kit.database.listening(CHANNEL, hear), running(hints, listen=False):
        await clock.until_begun(1)
        for _ in range(500):
            hints.publish("pool:a")
            hints.publish("pool:b")
        await clock.until_begun(2)
        hints.publish("last")
        clock.advance(timedelta(seconds=1 / HINTS_PER_SECOND))
        async with asyncio.timeout(20):
            await told.wait()
    assert sorted(heard[:-1]) == ["pool:a", "pool:b"]


async def test_another_process_hears_of_new_schedules_and_of_runs(rota_kit: RotaKit) -> None:
    """Two processes: what one defines and makes wakes the other's timer and worker."""
    here, there = WatchedClock(), WatchedClock()
    async with await Database.connect(rota_kit.dsn, size=2, reserved=1) as database:
        far = Hints(database, there)
        schedules, pool = far.subscribe(SCHEDULES), far.subscribe(pool_topic("default"))
        async with running(far, listen=True):
            await there.until_begun(2)  # one waits for hints to send, one for the connection to end
            near = rota_kit.rota.hints
            near._clock = here  # the sender's waits are the test's to see
            async with running(near, listen=False):
                await rota_kit.put(every("10s"))
                async with asyncio.timeout(20):
                    await schedules.wait()
                assert not pool.is_set()
                await rota_kit.advance(10)
                here.advance(1)
                async with asyncio.timeout(20):
                    await pool.wait()


async def test_a_listener_whose_connection_is_killed_listens_again(rota_kit: RotaKit) -> None:
    clock = WatchedClock()
    async with await Database.connect(rota_kit.dsn, size=2, reserved=1) as database:
        hints = Hints(database, clock)
        hint = hints.subscribe("pool:a")
        async with running(hints, listen=True):
            await clock.until_begun(2)
            async with administrator(rota_kit) as admin:
                await kill_backends(admin, rota_kit.dsn)
            # It waits a moment before it connects again, then for the connection to end.
            await clock.until_begun(3)
            begun = clock.begun
            clock.advance(2)
            await clock.until_begun(begun + 2)
            await rota_kit.database.fetch(upkeep.send_hint, topic="pool:a")
            async with asyncio.timeout(20):
                await hint.wait()


async def test_a_hint_that_cannot_be_sent_is_lost_and_ends_nothing(rota_kit: RotaKit) -> None:
    clock = WatchedClock()
    database = await Database.connect(rota_kit.dsn, size=1, reserved=1)
    hints = Hints(database, clock)
    async with running(hints, listen=False):
        await clock.until_begun(1)
        await database.close()
        hints.publish("pool:a")
        await clock.until_begun(2)


async def test_a_hint_that_the_database_cannot_take_ends_nothing_and_keeps_no_other(rota_kit: RotaKit) -> None:
    """A topic too long for a notification, or a full queue of them, is no trouble that passes by itself."""
    clock, heard = WatchedClock(), asyncio.Event()
    hints = Hints(rota_kit.database, clock)
    async with rota_kit.database.listening(CHANNEL, lambda _: heard.set()), running(hints, listen=False):
        await clock.until_begun(1)
        hints.publish("x" * 9000)
        hints.publish("pool:a")
        async with asyncio.timeout(20):
            await heard.wait()


@pytest.mark.parametrize("trouble", ["the connection ends before LISTEN", "a bug"])
async def test_a_process_that_could_not_listen_once_listens_later(
    rota_kit: RotaKit, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    connect, connections = asyncpg.connect, list[Any]()

    async def connect_badly(*arguments: Any, **options: Any) -> Any:
        connections.append(await connect(*arguments, **options))
        if len(connections) == 1:
            connections[0].terminate()
            if trouble == "a bug":
                raise ZeroDivisionError
        return connections[-1]

    monkeypatch.setattr(asyncpg, "connect", connect_badly)
    clock = WatchedClock()
    hints = Hints(rota_kit.database, clock)
    hint = hints.subscribe("pool:a")
    async with running(hints, listen=True):
        await clock.until_begun(2)
        clock.advance(2)
        await clock.until_begun(4)  # it waits for the connection to end, so it has one
        assert len(connections) == 2
        await rota_kit.database.fetch(upkeep.send_hint, topic="pool:a")
        async with asyncio.timeout(20):
            await hint.wait()


async def test_nothing_depends_on_a_hint(rota_kit: RotaKit) -> None:
    """With every hint lost, polling finds the schedule, the run and its retry."""
    await rota_kit.put(every("10s"))
    for _ in range(11):
        rota_kit.clock.advance(await rota_kit.process.scheduler.pause())
        await rota_kit.tick()
    await (await rota_kit.worker("w-1", handlers=["h"]).claim_one()).succeed()


async def test_a_line_that_somebody_cut_on_the_way_is_noticed_and_made_anew(
    rota_kit: RotaKit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing arrives any more and nothing ends: only a sign of life that is asked for tells the difference."""
    clock = WatchedClock()
    async with (
        relayed(rota_kit.dsn, tmp_path) as relay,
        await Database.connect(relay.dsn, size=2, reserved=1) as database,
    ):
        hints = Hints(database, clock)
        hint = hints.subscribe("pool:a")
        async with running(hints, listen=True):
            await clock.until_begun(2)
            monkeypatch.setattr(store_database, "PROBE_TIMEOUT", 0.2)
            relay.cut()
            begun = clock.begun
            clock.advance(PROBE_INTERVAL)
            # Beside the wait for hints to send: the wait before it connects again, with the line given up.
            await clock.until_begun(begun + 2)
            begun = clock.begun
            clock.advance(2)
            await clock.until_begun(begun + 2)
            await rota_kit.database.fetch(upkeep.send_hint, topic="pool:a")
            async with asyncio.timeout(20):
                await hint.wait()


async def test_what_a_process_tells_comes_back_to_it_and_wakes_nobody_again(rota_kit: RotaKit) -> None:
    clock = WatchedClock()
    async with await Database.connect(rota_kit.dsn, size=2, reserved=1) as database:
        hints = Hints(database, clock)
        mine, other = hints.subscribe("pool:a"), hints.subscribe("pool:b")
        async with running(hints, listen=True):
            await clock.until_begun(2)
            hints.publish("pool:a")
            assert mine.is_set()
            mine.clear()
            clock.advance(timedelta(seconds=1))
            await clock.until_begun(3)  # it is sent
            # Notifications come in the order of their commits: once this one is here, so was ours.
            await rota_kit.database.fetch(upkeep.send_hint, topic="pool:b")
            async with asyncio.timeout(20):
                await other.wait()
            assert not mine.is_set()
            await rota_kit.database.fetch(upkeep.send_hint, topic="pool:a")
            async with asyncio.timeout(20):
                await mine.wait()


@asynccontextmanager
async def waiting(kit: RotaKit) -> AsyncIterator[tuple[Hints, WatchedClock]]:
    """Yield the hints of another process, with a line of its own to the database."""
    clock = WatchedClock()
    async with await Database.connect(kit.dsn, size=2, reserved=1) as database:
        hints = Hints(database, clock)
        async with running(hints, listen=True):
            await clock.until_begun(2)  # one waits for hints to send, one for the connection to end
            yield hints, clock


async def bells(kit: RotaKit) -> int:
    """Return how many sessions can be rung at this moment."""
    [row] = await fetch(
        kit,
        "SELECT count(*) AS n FROM pg_locks WHERE locktype = 'advisory' AND classid = 1919907937 AND mode = 'ShareLock'"
        " AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
    )
    return int(row["n"])


@asynccontextmanager
async def heard(kit: RotaKit) -> AsyncIterator[list[str]]:
    """Yield what is said on the channel; by the block's end all of it has come."""
    said, over = list[str](), asyncio.Event()

    def hear(topic: str) -> None:
        said.append(topic)
        if topic == "the end":
            over.set()

    async with kit.database.listening(CHANNEL, hear):
        yield said
        await kit.database.fetch(upkeep.send_hint, topic="the end")
        async with asyncio.timeout(20):
            await over.wait()
    said.remove("the end")


async def no_bells(kit: RotaKit) -> None:
    """Wait until nobody can be rung."""

    async def none_left() -> bool:
        return await bells(kit) == 0

    await until(none_left)


async def test_a_run_made_in_sql_wakes_an_idle_process_once_it_is_committed(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"), Job(job_id="tock", handler="h", pool="other"))
    async with waiting(rota_kit) as (hints, _), outsider(rota_kit.dsn) as other:
        hint, others = hints.subscribe(pool_topic("default")), hints.subscribe(pool_topic("other"))
        looked = hints.holds
        assert await hints.hold_bell("default", since=looked), "what was made since the last look may not have rung"
        assert not await hints.hold_bell("default", since=hints.holds)
        async with heard(rota_kit) as said:
            async with other.transaction():
                await other.fetchval("SELECT rota.trigger('tick')")
                await other.fetchval("SELECT rota.trigger('tick')")
                await other.fetchval("SELECT rota.trigger('tock')")
                assert not hint.is_set()
            async with asyncio.timeout(20):
                await hint.wait()
        assert said == ["pool:default"]
        assert not others.is_set()


@pytest.mark.parametrize("why", ["busy", "rolled back", "silent", "later"])
async def test_nobody_is_rung_without_need(rota_kit: RotaKit, why: str) -> None:
    """A busy process, a transaction that is rolled back or wants to be silent, a run whose time is to come."""
    await rota_kit.put(Job(job_id="tick", handler="h"))
    async with waiting(rota_kit) as (hints, _), outsider(rota_kit.dsn) as other:
        hint = hints.subscribe(pool_topic("default"))
        if why != "busy":
            await hints.hold_bell("default", since=0)
        async with heard(rota_kit) as said:
            await other.execute("BEGIN")
            if why == "silent":
                await other.execute("SET LOCAL rota.bell = 'off'")
            slot = datetime(2035, 1, 1, tzinfo=UTC) if why == "later" else None
            await other.fetchval("SELECT rota.trigger('tick', scheduled_for => $1)", slot)
            await other.execute("ROLLBACK" if why == "rolled back" else "COMMIT")
        assert said == []
        assert not hint.is_set()
        assert await bells(rota_kit) == (why != "busy")


async def put_down(kit: RotaKit, clock: WatchedClock) -> None:
    """Let the time pass for which a bell that rang is held on."""
    await clock.until_asleep(3)
    clock.advance(QUIET)
    await no_bells(kit)


async def test_a_bell_that_rang_is_put_down_and_taken_again(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    async with waiting(rota_kit) as (hints, clock), outsider(rota_kit.dsn) as other:
        hint = hints.subscribe(pool_topic("default"))
        for _ in range(3):
            assert await hints.hold_bell("default", since=hints.holds)
            assert await bells(rota_kit) == 1
            async with heard(rota_kit) as said:
                await other.fetchval("SELECT rota.trigger('tick')")
                async with asyncio.timeout(20):
                    await hint.wait()
                hint.clear()
                await put_down(rota_kit, clock)
                # Whoever was rung is at work: the next ones cost no notification.
                await other.fetchval("SELECT count(*) FROM rota.trigger_many('tick', ARRAY[NULL, NULL]::jsonb[])")
            assert said == ["pool:default"]
            assert not hint.is_set()


async def test_whoever_soon_waits_again_has_held_the_bell_on_and_need_not_look_twice(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    async with waiting(rota_kit) as (hints, clock), outsider(rota_kit.dsn) as other, heard(rota_kit) as said:
        hint = hints.subscribe(pool_topic("default"))
        await hints.hold_bell("default", since=hints.holds)
        for _ in range(3):
            await other.fetchval("SELECT rota.trigger('tick')")
            async with asyncio.timeout(20):
                await hint.wait()
            hint.clear()
            await clock.until_asleep(3)
            assert not await hints.hold_bell("default", since=hints.holds), "what was made meanwhile has rung"
            clock.advance(QUIET)
            assert await bells(rota_kit) == 1
        assert said == ["pool:default"] * 3
        assert hints.holds == 1


async def test_a_bell_that_rings_again_at_once_is_put_down_at_once(rota_kit: RotaKit) -> None:
    """Each ring costs whoever rings; the more often, the less it is worth."""
    await rota_kit.put(Job(job_id="tick", handler="h"))
    async with waiting(rota_kit) as (hints, _), outsider(rota_kit.dsn) as other:
        hint = hints.subscribe(pool_topic("default"))
        for _ in range(2):
            await hints.hold_bell("default", since=hints.holds)
            await other.fetchval("SELECT rota.trigger('tick')")
            async with asyncio.timeout(20):
                await hint.wait()
            hint.clear()
        await no_bells(rota_kit)
        assert await hints.hold_bell("default", since=1), "it is taken anew, so look once more"


async def test_processes_that_wait_share_the_bell(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    async with (
        waiting(rota_kit) as (one, one_clock), waiting(rota_kit) as (two, two_clock), outsider(rota_kit.dsn) as other,
    ):  # fmt: skip
        woken = [hints.subscribe(pool_topic("default")) for hints in (one, two)]
        assert await one.hold_bell("default", since=one.holds)
        assert await two.hold_bell("default", since=two.holds)
        assert await bells(rota_kit) == 2
        await other.fetchval("SELECT rota.trigger('tick')")
        async with asyncio.timeout(20):
            await asyncio.gather(*(hint.wait() for hint in woken))
        for clock in (one_clock, two_clock):
            await clock.until_asleep(3)
            clock.advance(QUIET)
        await no_bells(rota_kit)


async def test_a_lost_line_takes_its_bells_with_it_and_the_next_one_takes_them_again(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    async with waiting(rota_kit) as (hints, clock):
        hint = hints.subscribe(pool_topic("default"))
        assert await hints.hold_bell("default", since=hints.holds)
        async with administrator(rota_kit) as admin:
            await kill_backends(admin, rota_kit.dsn)
        await clock.until_begun(3)  # a moment before it connects again
        assert not await hints.hold_bell("default", since=0), "without a line everybody polls"
        begun = clock.begun
        clock.advance(2)
        await clock.until_begun(begun + 2)
        assert await bells(rota_kit) == 0
        assert await hints.hold_bell("default", since=hints.holds)
        async with outsider(rota_kit.dsn) as other:
            await other.fetchval("SELECT rota.trigger('tick')")
        async with asyncio.timeout(20):
            await hint.wait()


async def test_a_run_whose_transaction_did_not_hear_of_the_waiter_is_found_at_the_next_look(rota_kit: RotaKit) -> None:
    """It asked for the bell before the waiter took it, and commits after the look that follows."""
    await rota_kit.put(Job(job_id="tick", handler="h"))
    worker = rota_kit.worker("w", handlers=["h"])
    async with waiting(rota_kit) as (hints, _), uncommitted(rota_kit.dsn, "SELECT rota.trigger('tick')") as other:
        hint = hints.subscribe(pool_topic("default"))
        assert await hints.hold_bell("default", since=hints.holds)
        assert await worker.claim() == []
        async with heard(rota_kit) as said:
            await other.execute("COMMIT")
        assert said == []
        assert not hint.is_set()
        assert len(await worker.claim()) == 1


async def test_a_long_poll_of_the_api_is_rung(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))

    async def never() -> Any:
        return await asyncio.get_running_loop().create_future()

    async with waiting(rota_kit) as (hints, clock), outsider(rota_kit.dsn) as other:
        polls = LongPolls(hints, clock)
        request = Request({"type": "http", "headers": []}, never)
        async with polls.listening(request, tenant_id="default", pool="default", wait=30.0) as poll:
            poll.begin_look()
            assert await poll.sleep(at_most=1.0), "the bell was taken: look once more"
            poll.begin_look()
            begun = clock.begun
            sleeping = asyncio.ensure_future(poll.sleep(at_most=1.0))
            await clock.until_begun(begun + 1)
            await other.fetchval("SELECT rota.trigger('tick')")
            async with asyncio.timeout(20):
                assert await sleeping
