"""The yardstick: a bare loop over Rota's table layout with full history and fencing, and nothing else.

No limits, tenants, hearts or errors: what this machine can do in these minutes, to hold Rota against.
`claim COUNT SIZE` answers how long each of so many claims took: {"seconds": [...]}.
"""

import asyncio
import json
import os
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import asyncpg
import uvloop

from benchmarks.compare.inside.peer import BULK, DSN, batches, for_ever, main, stopwatch, timed

SLOT: Final = datetime(2026, 11, 29, tzinfo=UTC)
BATCH: Final = 100
IN_FLIGHT: Final = 4 * BATCH
REPORTS: Final = 500
FIRST_RANK: Final = -(1 << 62)

MAKE: Final = """
WITH x AS (SELECT * FROM unnest($1::smallint[], $2::bigint[], $3::timestamptz[], $4::bigint[]) t (s, j, at, rank)),
i AS (
  INSERT INTO yardstick.run (shard, job_uid, scheduled_for, origin, created_at, attempt)
  SELECT s, j, at, 0, $5, 0 FROM x ON CONFLICT DO NOTHING RETURNING shard, job_uid, scheduled_for
)
INSERT INTO yardstick.pending
SELECT i.shard, i.job_uid, i.scheduled_for, 'o', 'default', x.rank, i.scheduled_for, 0
  FROM i JOIN x ON x.s = i.shard AND x.j = i.job_uid AND x.at = i.scheduled_for
"""
CLAIM: Final = """
WITH c AS MATERIALIZED (
  SELECT shard, job_uid, scheduled_for FROM yardstick.pending
   WHERE pool = $1 AND gate = 'o' AND rank >= $5 ORDER BY rank LIMIT $2 FOR UPDATE SKIP LOCKED
),
d AS (
  DELETE FROM yardstick.pending p USING c
   WHERE p.shard = c.shard AND p.job_uid = c.job_uid AND p.scheduled_for = c.scheduled_for
  RETURNING p.shard, p.job_uid, p.scheduled_for, p.attempt, p.rank
),
n AS (SELECT d.*, row_number() OVER () AS i FROM d),
l AS (
  INSERT INTO yardstick.lease
  SELECT shard, job_uid, scheduled_for, attempt + 1, ($6::uuid[])[i], $3, $4::timestamptz,
         $4::timestamptz + interval '60 s'
    FROM n
  RETURNING *
)
SELECT l.shard, l.job_uid, l.scheduled_for, l.attempt, l.token, l.expires_at, j.tenant_id, j.job_id, j.handler,
       j.payload, n.rank
  FROM l JOIN n USING (shard, job_uid, scheduled_for)
  JOIN yardstick.job j ON j.shard = l.shard AND j.job_uid = l.job_uid
"""
SETTLE: Final = """
WITH d AS (
  DELETE FROM yardstick.lease l
   USING unnest($1::smallint[], $2::bigint[], $3::timestamptz[], $4::uuid[]) t (s, j, at, k)
   WHERE l.shard = s AND l.job_uid = j AND l.scheduled_for = at AND l.token = k
  RETURNING l.*
),
u AS (
  UPDATE yardstick.run r SET state = 'succeeded', attempt = d.attempt, finished_at = $5 FROM d
   WHERE r.shard = d.shard AND r.job_uid = d.job_uid AND r.scheduled_for = d.scheduled_for
),
a AS (
  INSERT INTO yardstick.attempt
  SELECT shard, job_uid, scheduled_for, attempt, worker_id, token, claimed_at, $5, 'succeeded', NULL FROM d
  RETURNING 1
)
SELECT count(*) FROM a
"""


async def setup() -> None:
    """Make the tables and 20,000 jobs."""
    connection = await asyncpg.connect(DSN)
    await connection.execute((Path(__file__).parent / "yardstick.sql").read_text())


async def many(count: str) -> None:
    """Make runs: each job's next slot in turn."""
    connection: Any = await asyncpg.connect(DSN)
    jobs = await connection.fetch("SELECT shard, job_uid FROM yardstick.job ORDER BY job_uid")

    async def make(start: int, size: int) -> None:
        chosen = [jobs[(start + i) % len(jobs)] for i in range(size)]
        slot = SLOT + timedelta(seconds=start // len(jobs))
        rank = int(slot.timestamp() * 1000) - 300_000
        await connection.execute(
            MAKE,
            [job["shard"] for job in chosen],
            [job["job_uid"] for job in chosen],
            [slot] * size,
            [rank + random.randrange(1000) for _ in chosen],
            SLOT,
        )

    await timed(int(count), (make(turn * BULK, size) for turn, size in enumerate(batches(int(count)))))


async def claim(count: str, size: str) -> None:
    """Claim again and again, and answer how long each took."""
    connection: Any = await asyncpg.connect(DSN)
    seconds = []
    for _ in range(int(count)):
        started = stopwatch()
        claimed = await connection.fetch(CLAIM, "default", int(size), "w", SLOT, FIRST_RANK, tokens(int(size)))
        seconds.append(stopwatch() - started)
        assert len(claimed) == int(size)
    print(json.dumps({"seconds": seconds}), flush=True)


async def work() -> None:
    """Claim, run a no-op handler in a task of its own and settle, until nothing is left; then stay, to be measured."""
    await Loop(await asyncpg.connect(DSN), await asyncpg.connect(DSN), f"w{os.getpid()}").run()
    await for_ever()


class Loop:
    """One process: claims while it has room, settles what has finished up to 500 at once, both at the same time."""

    def __init__(self, claims: Any, reports: Any, name: str) -> None:
        self._claims, self._reports, self._name = claims, reports, name
        self._room = IN_FLIGHT
        self._has_room = asyncio.Event()
        self._done: asyncio.Queue[Any] = asyncio.Queue()
        self._running: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Run until the queue is empty."""
        settling = asyncio.create_task(self._settle())
        while True:
            await self._until_room(BATCH)
            now = datetime.fromtimestamp(SLOT.timestamp() + stopwatch(), UTC)
            claimed = await self._claims.fetch(CLAIM, "default", BATCH, self._name, now, FIRST_RANK, tokens(BATCH))
            if not claimed:
                break
            self._room -= len(claimed)
            for row in claimed:
                task = asyncio.create_task(self._execute(row))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
        await self._until_room(IN_FLIGHT)
        settling.cancel()

    async def _execute(self, row: Any) -> None:
        await noop()
        self._done.put_nowait(row)

    async def _settle(self) -> None:
        while True:
            rows = [await self._done.get()]
            while not self._done.empty() and len(rows) < REPORTS:
                rows.append(self._done.get_nowait())
            settled = await self._reports.fetchval(
                SETTLE,
                [row["shard"] for row in rows],
                [row["job_uid"] for row in rows],
                [row["scheduled_for"] for row in rows],
                [row["token"] for row in rows],
                datetime.fromtimestamp(SLOT.timestamp() + stopwatch(), UTC),
            )
            assert settled == len(rows)
            self._room += len(rows)
            self._has_room.set()

    async def _until_room(self, room: int) -> None:
        while self._room < room:
            self._has_room.clear()
            await self._has_room.wait()


async def noop() -> None:
    """Do nothing."""


def tokens(count: int) -> list[UUID]:
    """Return as many fresh tokens."""
    return [UUID(int=random.getrandbits(128)) for _ in range(count)]


if __name__ == "__main__":
    main({"setup": setup, "many": many, "claim": claim, "work": work}, uvloop.run)
