"""Claims in doubt: whatever a claim took without an answer reaches its worker, and nobody else, once it can."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

from rota.domain.attempt import Claim, Outcome, Report
from rota.domain.job import LONGEST_LEASE, Job
from rota.domain.run import RunState
from rota.errors import DatabaseUnavailable, Locked
from rota.services import dispatch as module
from rota.services.dispatch import DOUBT_EAGER, DOUBT_PAUSE, Dispatch
from rota.store import database as store_database
from rota.store.database import STATEMENT_TIMEOUT
from rota.testing import RotaKit
from tests.services.stories import Faulty, states
from tests.store.stage import Impatient, outsider, rows_of, uncommitted, until, until_gone, until_waiting_for


class Claimer:
    """A worker's claims over a database with trouble, on a clock whose sleeps are over at once."""

    def __init__(self, kit: RotaKit, database: Faulty) -> None:
        self.kit = kit
        self.database = database
        self.clock = Impatient(kit.clock.now())
        self.dispatch = Dispatch(database, self.clock)

    async def claim(self, *, limit: int = 1, worker_id: str = "w-1") -> list[Claim]:
        return await self.dispatch.claim(worker_id=worker_id, pool="default", handlers=frozenset({"h"}), limit=limit)

    async def has_runs(self, count: int) -> None:
        await self.kit.put(Job(job_id="tick", handler="h", max_attempts=1))
        for number in range(count):
            slot = self.kit.clock.now() - timedelta(seconds=number)
            await self.kit.on_demand.trigger("tick", tenant_id="default", scheduled_for=slot)


@asynccontextmanager
async def awaited_standby(kit: RotaKit) -> AsyncIterator[None]:
    """Let commits wait for a standby that is not there, while the block lasts."""
    async with outsider(kit.dsn, synchronous_commit="local") as other:
        await other.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        await other.execute("SELECT pg_reload_conf()")
        probing = asyncio.create_task(_until_commits_wait(kit, other))
        try:
            await probing
            yield
        finally:
            await other.execute("ALTER SYSTEM RESET synchronous_standby_names")
            await other.execute("SELECT pg_reload_conf()")


async def _until_commits_wait(kit: RotaKit, other: Any) -> None:
    """Commit again and again until a commit waits; then leave it."""
    async with outsider(kit.dsn, application_name="probe") as probe:

        async def commit() -> None:
            while True:
                await probe.execute("SELECT pg_logical_emit_message(true, 'test', 'x')")

        committing = asyncio.create_task(commit())
        waits = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'probe' AND wait_event = 'SyncRep'"
        await until(partial(other.fetchval, waits))
        committing.cancel()
        await asyncio.wait({committing})


@pytest_asyncio.fixture
async def claimer(rota_kit: RotaKit) -> AsyncIterator[Claimer]:
    async with await Faulty.connect(rota_kit.dsn) as database:
        yield Claimer(rota_kit, database)


async def test_a_claim_in_doubt_outlives_a_long_outage(claimer: Claimer) -> None:
    """The answer is lost, and the database away for longer than anybody waits: the run is not lost to its worker."""
    await claimer.has_runs(1)
    claimer.database.trouble = {"claim_runs": "lost", "claimed_under": "refused"}
    begun = claimer.clock.monotonic()
    for _ in range(3):
        with pytest.raises(DatabaseUnavailable):
            await claimer.claim()
    claimer.clock.advance(10 * STATEMENT_TIMEOUT)
    assert claimer.clock.monotonic() - begun > STATEMENT_TIMEOUT
    assert claimer.database.asked["claim_runs"] == 1, "nothing new is taken while something may be held"
    claimer.database.trouble = {}
    [claim] = await claimer.claim()
    report = Report(key=claim.key, outcome=Outcome.SUCCEEDED)
    assert await claimer.kit.rota.completion.report([report]) == {claim.key.token: RunState.SUCCEEDED}
    assert await states(claimer.kit) == ["succeeded"]
    assert await claimer.claim() == []


async def test_a_claim_that_commits_late_is_handed_over_and_holds_up_no_other(claimer: Claimer) -> None:
    await claimer.has_runs(2)
    claimer.database.trouble = {"claim_runs": "late"}
    assert await claimer.claim() == []
    claimer.database.trouble = {}
    [first] = await claimer.claim()
    [commit] = claimer.database.late
    await commit()
    claimer.clock.advance(LONGEST_LEASE - timedelta(seconds=1))
    [second] = await claimer.claim()
    assert first.run_id != second.run_id
    assert await claimer.claim() == []


async def test_a_claim_whose_caller_is_cancelled_is_handed_to_its_next_call(claimer: Claimer) -> None:
    assert await claimer.claim() == [], "from here on the statement is prepared, and sent in one go"
    await claimer.has_runs(1)
    async with uncommitted(claimer.kit.dsn, "LOCK TABLE rota.lease IN SHARE MODE") as other:
        claiming = asyncio.create_task(claimer.claim())
        [pid] = await until_waiting_for(other)
        claiming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claiming
        await other.execute("COMMIT")
        await until_gone(other, pid)
    # Let go at last, the statement was done, or ended since its caller had left: the run is its worker's either way.
    assert len(await claimer.claim()) == 1


async def test_a_claim_that_never_arrived_is_asked_for_as_long_as_a_lease_that_it_could_have_made(
    claimer: Claimer,
) -> None:
    await claimer.has_runs(0)
    claimer.database.trouble = {"claim_runs": "late"}
    assert await claimer.claim() == []
    claimer.database.trouble = {}
    asked = claimer.database.asked
    claimer.clock.advance(DOUBT_EAGER - 1)
    assert await claimer.claim() == []
    assert asked["claimed_under"] == 2, "it may be running yet"
    claimer.clock.advance(LONGEST_LEASE.total_seconds() - DOUBT_EAGER)
    for _ in range(10):
        assert await claimer.claim() == []
    assert asked["claimed_under"] == 3, "it may commit yet, and a look a second is enough"
    claimer.clock.advance(1)
    for _ in range(10):
        assert await claimer.claim() == []
    assert asked["claimed_under"] == 4, "that look was believed"


async def test_a_table_that_is_locked_leaves_no_claim_in_doubt_and_no_run_leased(claimer: Claimer) -> None:
    """The server ends the wait and says so: nothing comes true later under a token that no worker knows."""
    await claimer.has_runs(2)
    async with uncommitted(claimer.kit.dsn, "LOCK TABLE rota.pending"):
        for _ in range(2):
            with pytest.raises(Locked):
                await claimer.claim()
    assert claimer.database.asked["claim_runs"] == 2
    assert claimer.database.asked["claimed_under"] == 0
    assert (await rows_of(claimer.kit))["lease"] == 0
    assert len(await claimer.claim(limit=2)) == 2


async def test_a_claim_whose_commit_waits_for_a_standby_reaches_its_worker_when_it_comes_through(
    rota_kit: RotaKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A closed socket does not end such a wait, and its end makes the lease: the doubt has to outlast it."""
    async with await Faulty.connect(rota_kit.dsn) as database, outsider(rota_kit.dsn) as other:
        claimer = Claimer(rota_kit, database)
        await claimer.has_runs(1)
        async with awaited_standby(rota_kit):
            monkeypatch.setattr(store_database, "STATEMENT_TIMEOUT", 0.5)
            assert await claimer.claim() == []
            monkeypatch.undo()
            claimer.clock.advance(LONGEST_LEASE / 2)
            assert await claimer.claim() == []
        await until(partial(other.fetchval, "SELECT count(*) FROM rota.lease"))
        claimer.clock.advance(DOUBT_PAUSE)
        claimer.database.trouble = {"claim_runs": "refused"}
        assert len(await claimer.claim()) == 1


async def test_what_is_more_than_a_call_wants_is_kept_for_the_next(claimer: Claimer) -> None:
    await claimer.has_runs(5)
    claimer.database.trouble = {"claim_runs": "lost", "claimed_under": "refused"}
    with pytest.raises(DatabaseUnavailable):
        await claimer.claim(limit=5)
    claimer.database.trouble = {"claim_runs": "refused"}
    given = [await claimer.claim(limit=2) for _ in range(3)]
    assert [len(claims) for claims in given] == [2, 2, 1]
    assert len({claim.run_id for claims in given for claim in claims}) == 5


async def test_only_the_worker_that_claimed_gets_it_and_only_once(claimer: Claimer) -> None:
    await claimer.has_runs(1)
    claimer.database.trouble = {"claim_runs": "lost", "claimed_under": "refused"}
    with pytest.raises(DatabaseUnavailable):
        await claimer.claim()
    claimer.database.trouble = {}
    assert await claimer.claim(worker_id="w-2") == []
    at_once = await asyncio.gather(claimer.claim(), claimer.claim())
    assert sorted(map(len, at_once)) == [0, 1]


async def test_no_number_of_claims_in_doubt_fills_the_memory(
    rota_kit: RotaKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DOUBTS", 3)
    async with await Faulty.connect(rota_kit.dsn) as database:
        claimer = Claimer(rota_kit, database)
        database.trouble = {"claim_runs": "late"}
        for number in range(10):
            assert await claimer.claim(worker_id=f"w-{number}") == []
        assert len(claimer.dispatch._doubts) == 3
