"""How the hot statements reach their rows: by an index or a ctid, at size, and when the statistics lie."""

import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio

from rota.domain.attempt import Claim, LeaseKey, success
from rota.services.rounds import Round
from rota.store import claims, due, runs
from rota.store.database import Database, Lane
from rota.store.statements import ALL
from rota.testing import TestCluster
from tests.store.stage import generic_plan, outsider

NOW = datetime(2026, 1, 20, tzinfo=UTC)
SIZE = 20_000
"""Jobs, and runs of each queue; the SQL below says the number again."""
BATCH = 500
SHARDS = list(range(64))
HOT = ("schedule", "pending", "lease", "job")
CLAIMED_BY = {"pending_open", "pending_limit", "pending_limit_pool"}
CLAIMS = ("claim_runs", "claim_limited")
"""The indexes by which a claim reads the queue: the turns', and one of those over runs that wait for a limit."""
STATEMENTS = {statement.name: statement.text for file in ALL for statement in file}

JOBS = """
INSERT INTO rota.job (shard, job_uid, tenant_id, job_id, version, handler, payload, pool, priority, max_attempts,
  retry, misfire, misfire_grace_ms, timeout_ms, lease_ms, jitter_ms, overlap, labels, description, created_at,
  updated_at)
SELECT n % 64, n, 'default', 'job-' || n, 1, 'h', '{}', 'default', 5, 3, '{}', '{}', 0, 60000, 60000, 0, 'allow',
       '{}', '', 'epoch', 'epoch' FROM generate_series(1, 20000) n"""
SCHEDULES = """
INSERT INTO rota.schedule (shard, job_uid, next_run_at, next_slot, version, since)
SELECT n % 64, n, at, at, 1, 'epoch'
  FROM generate_series(1, 20000) n, LATERAL (SELECT '2026-01-20Z'::timestamptz + n * interval '1 s' AS at) t"""
RUNS = """
INSERT INTO rota.run (shard, job_uid, scheduled_for, created_at, origin)
SELECT n % 64, n, $1::timestamptz, $1, 'schedule' FROM generate_series(1, 20000) n"""
QUEUE = """
INSERT INTO rota.pending (shard, job_uid, scheduled_for, rank, available_at, attempt, gate, pool, handler,
  tenant_id, priority)
SELECT n % 64, n, $1::timestamptz, n, $1::timestamptz, 0, CASE WHEN n % $2::integer = 0 THEN 'open' ELSE 'time' END,
       'default', 'h', 'default', 5 FROM generate_series(1, 20000) n"""
LEASES = """
INSERT INTO rota.lease (shard, job_uid, scheduled_for, token, claimed_at, expires_at, lease_ms, attempt, worker_id,
  priority)
SELECT n % 64, n, $1::timestamptz, gen_random_uuid(), $1, $1, 60000, 1, 'w', 5 FROM generate_series(1, 20000) n"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def full(rota_cluster: TestCluster) -> AsyncIterator[Any]:
    """A connection to a database of 20,000 jobs, each with a run that waits and one that runs."""
    async with rota_cluster.database() as dsn, outsider(dsn) as other:
        await other.execute(JOBS)
        await other.execute(SCHEDULES)
        for day, place in ((1, None), (2, LEASES), (3, QUEUE)):
            at = datetime(2026, 1, day, tzinfo=UTC)
            await other.execute(RUNS, at)
            if place:
                await other.execute(place, at, *([2] if place is QUEUE else []))
        for table in (*HOT, "run_2026_01"):
            await other.execute(f"ANALYZE rota.{table}")
        yield other


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "name",
    [
        "due_schedules", "next_due", "live_among", "materialise_runs", "open_due_gates", *CLAIMS, "renew_leases",
        "leases_with_jobs", "settle_attempts", "recorded_outcomes", "expired_leases", "trigger_run", "get_run",
        "runs_of_job", "expire_runs", "ask_replaced", "dead_streaks", "make_missed",
        "park_unknown_handlers", "unpark_known_handlers", "reap_attempts",
        "note_progress", "list_jobs", "count_jobs", "due_resumes", "jobs_of_tenant", "renew_with_progress",
        "reroute_pending", "cancel_waiting",
        "waiting_by_tenant", "rerank_pending", "look_at_parked", "open_parked", "parked_keys", "why_run", "why_limits",
        "why_workers", "why_queue", "oldest_waiting",
    ],
)  # fmt: skip
async def test_a_hot_statement_reads_no_table_from_end_to_end(full: Any, name: str) -> None:
    plan = await generic_plan(full, STATEMENTS[name])
    # Partitions of other months are empty, and pruned when the statement runs.
    read = {node["Relation Name"] for node in nodes(plan) if node["Node Type"] == "Seq Scan"}
    assert not read & {*HOT, "run_2026_01"}, f"{name} scans {read}"


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "name",
    [
        *CLAIMS, "open_parked", "renew_leases", "renew_with_progress", "settle_attempts", "reap_attempts",
        "open_due_gates", "materialise_runs", "expire_runs", "ask_replaced",
    ],
)  # fmt: skip
async def test_a_hot_write_finds_its_rows_by_ctid(full: Any, name: str) -> None:
    plan = await generic_plan(full, STATEMENTS[name])
    assert "Tid Scan" in {node["Node Type"] for node in nodes(plan)}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", ["settle_attempts", "live_among", "forget_idle_permits"])
async def test_what_waits_is_looked_for_by_its_key_and_never_as_a_whole(full: Any, name: str) -> None:
    """EXISTS beside another condition is planned as a hash of the table, whatever its indexes are."""
    plan = await generic_plan(full, STATEMENTS[name])
    looks = [node for node in nodes(plan) if node.get("Index Name", "").startswith("pending")]
    assert looks
    for look in looks:
        assert "limit_key =" in look["Index Cond"] or "job_uid =" in look["Index Cond"], look


@pytest.mark.asyncio(loop_scope="module")
async def test_a_page_of_jobs_is_read_in_order_by_the_index_over_the_names(full: Any) -> None:
    plan = await generic_plan(full, STATEMENTS["list_jobs"])
    [scan] = [node for node in nodes(plan) if node.get("Index Name") == "job_live"]
    for bound in ("job_id >", "job_id >=", "job_id <"):
        assert bound in scan["Index Cond"], "the page's bounds are the index's, not a filter over what it gives"
    above = [node for node in nodes(plan) if scan in node.get("Plans", ())]
    assert [node["Node Type"] for node in above] == ["Limit"], "what a shard gives is in order already"


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", CLAIMS)
async def test_a_claim_walks_the_index_of_its_order(full: Any, name: str) -> None:
    assert await indexes_over_pending(full, name) <= CLAIMED_BY


@pytest.mark.parametrize("analyzed", ["while empty", "while deep in one pool", "never"])
async def test_a_claim_walks_its_index_whatever_the_statistics_say(dsn: str, analyzed: str) -> None:
    async with outsider(dsn) as other:
        await mislead(other, analyzed)
        for name in CLAIMS:
            assert await indexes_over_pending(other, name) <= CLAIMED_BY


@pytest.mark.parametrize("analyzed", ["while empty", "while deep in one pool", "never"])
async def test_a_look_at_a_limit_jumps_from_pool_to_pool_and_from_tenant_to_tenant(dsn: str, analyzed: str) -> None:
    async with outsider(dsn) as other:
        await mislead(other, analyzed)
        plan = await generic_plan(other, STATEMENTS["look_at_parked"])
        jumps = [node for node in nodes(plan) if node.get("Index Name") == "pending_limit_pool"]
        conditions = [node["Index Cond"] for node in jumps]
        assert sum("ROW(pool, tenant_id) >" in condition for condition in conditions) == 3
        assert sum("(pool >" in condition for condition in conditions) == 2
        assert "Sort" not in {
            node["Node Type"] for node in nodes(plan) for below in node.get("Plans", ()) if below in jumps
        }


async def mislead(other: Any, analyzed: str) -> None:
    """Let the statistics of the queue say something else than what it is."""
    if analyzed == "while empty":
        await other.execute("VACUUM (ANALYZE) rota.pending")
    if analyzed == "while deep in one pool":
        await other.execute(QUEUE, NOW, 1)
        await other.execute("VACUUM (ANALYZE) rota.pending")
        await other.execute("DELETE FROM rota.pending")
        await other.execute("VACUUM rota.pending")


async def indexes_over_pending(other: Any, name: str) -> set[str]:
    """Return the indexes over the queue by which a claim reads."""
    plan = await generic_plan(other, STATEMENTS[name])
    return {name for node in nodes(plan) if (name := node.get("Index Name", "")).startswith("pending")}


class Cycle:
    """Claims, renews and settles queues of runs through the store's functions, and counts what the server read."""

    def __init__(self, database: Database, other: Any, *, day: int) -> None:
        self._database = database
        self._other = other
        self._at = datetime(2026, 1, day, tzinfo=UTC)
        self._looks = 0

    async def plan_on_empty_tables(self) -> None:
        """Run everything so often that the connections keep a plan, while there is nothing to be found."""
        nothing = LeaseKey(1, 1, NOW, uuid.uuid4())
        for _ in range(12):
            await self._claim(Round(None))
            await claims.renew(self._database, [nothing] * 10, now=NOW)
            await claims.settle(self._database, [success(nothing, now=NOW)], now=NOW)
            await claims.expired(self._database, SHARDS, now=NOW, resumed_at=NOW, limit=BATCH, error="lost")
            await due.open_due_gates(self._database, SHARDS, now=NOW, per_shard=10)
            await due.next_due(self._database, SHARDS)

    async def run(self) -> None:
        """Take 20,000 runs from queue to history."""
        await self._other.execute(RUNS, self._at)
        await self._other.execute(QUEUE, self._at, 10)
        while await due.open_due_gates(self._database, SHARDS, now=NOW, per_shard=64):
            pass
        round_, held = Round(None), list[Claim]()
        for _ in range(SIZE // BATCH):
            taken = await self._claim(round_)
            round_.move(taken, limit=BATCH)
            held += taken.claims
        assert len({claim.run_id for claim in held}) == SIZE
        assert not await claims.expired(self._database, SHARDS, now=NOW, resumed_at=NOW, limit=BATCH, error="lost")
        for start in range(0, SIZE, BATCH):
            keys = [claim.key for claim in held[start : start + BATCH]]
            assert len(await claims.renew(self._database, keys, now=NOW)) == BATCH
            ended = await claims.settle(self._database, [success(key, now=NOW) for key in keys], now=NOW)
            assert len(ended.states) == BATCH
            assert await runs.get(self._database, runs.SlotKey(keys[0].job_uid, keys[0].scheduled_for))

    async def read_from_end_to_end(self) -> dict[str, int]:
        """Return the rows that sequential scans have read so far, by table."""
        for lane in Lane:
            async with self._database.transaction(lane=lane) as tx:
                await tx._raw.execute("SELECT pg_stat_force_next_flush()")  # counts are kept back for a second
        rows = await self._other.fetch(
            "SELECT relname, seq_tup_read FROM pg_stat_user_tables WHERE relname = ANY ($1)", [*HOT]
        )
        return {row["relname"]: row["seq_tup_read"] for row in rows}

    async def _claim(self, round_: Round) -> claims.Taken:
        self._looks += 1
        tokens = [uuid.uuid4() for _ in range(BATCH)]
        return await claims.claim_runs(
            self._database, pool="default", handlers=["h"], worker_id="w", tokens=tokens, limit=BATCH,
            place=round_.place(0.0, limit=BATCH), turns=round_.turns(BATCH), now=NOW,
            with_limits=self._looks % 2 == 0,
        )  # fmt: skip


@pytest.mark.parametrize("pinned", [True, False], ids=["old-snapshot", "truly-empty"])
async def test_plans_made_on_emptied_tables_hold_when_those_are_deep(dsn: str, pinned: bool) -> None:
    """Statistics say that the tables are empty; the plans that the connections keep were made while they were."""
    async with outsider(dsn) as other, outsider(dsn) as reader:
        for table in ("pending", "lease"):
            await other.execute(f"ALTER TABLE rota.{table} SET (autovacuum_enabled = false)")
        await other.execute(JOBS)
        await other.execute("ANALYZE rota.job")
        if pinned:
            await reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            await reader.execute("SELECT count(*) FROM rota.lease")
        async with await Database.connect(dsn, size=1, reserved=1) as database:
            await Cycle(database, other, day=1).run()
        for table in ("pending", "lease"):
            await other.execute(f"VACUUM (ANALYZE) rota.{table}")
            assert await other.fetchval("SELECT reltuples FROM pg_class WHERE oid = $1::regclass", f"rota.{table}") == 0
        async with await Database.connect(dsn, size=1, reserved=1) as database:
            cycle = Cycle(database, other, day=2)
            await cycle.plan_on_empty_tables()
            before = await cycle.read_from_end_to_end()
            await cycle.run()
            assert await cycle.read_from_end_to_end() == before


async def test_the_queue_and_the_leases_keep_a_floor_of_pages(dsn: str) -> None:
    """Below some ten pages reading a table from end to end looks cheap, and a plan that does so outlives its reason."""
    async with outsider(dsn) as other:
        for table in ("pending", "lease"):
            await other.execute(f"VACUUM (ANALYZE) rota.{table}")
            assert await other.fetchval("SELECT pg_relation_size($1::regclass) / 8192", f"rota.{table}") >= 40
