"""Checks a live cluster: the conservation law, versions, clocks, shards, and what waits for nobody."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any, Final

from rota.clock import Clock, DatabaseClock
from rota.domain import reasons
from rota.domain.duration import format_duration
from rota.domain.instants import format_instant
from rota.domain.zones import tzdata_version
from rota.errors import InvalidInput
from rota.store import aside as aside_store
from rota.store import doctor as store
from rota.store import freeze, runs
from rota.store.database import BOUNDS, Database, Lane
from rota.store.doctor import AuditedSchedule, AuditedSlot
from rota.store.due import parse_schedule
from rota.store.sessions import UNKEPT_HINT

SHOWN: Final = 20
"""The most findings of one kind that are listed."""
AUDIT_PAGE: Final = 1000
SLOTS_AUDITED: Final = 200
"""The most slots per schedule that are checked, the latest ones."""
AUDIT_LIMIT: Final = 20_000
"""The most schedules that one check looks at, unless it is asked for all."""
LATELY: Final = timedelta(days=1)
SECOND: Final = timedelta(seconds=1)
LATE: Final = timedelta(seconds=5)
CLOCK_ERROR: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question and its answer; `findings` is empty when all is well."""

    name: str
    findings: tuple[str, ...]
    facts: dict[str, Any]

    @property
    def ok(self) -> bool:
        return not self.findings


class Doctor:
    """Every check is a bounded read; none changes anything."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def examine(self, *, audit_all: bool = False) -> list[Check]:
        """Return all checks."""
        return [
            await self._server(),
            self._connection(),
            self._own_clock(),
            await self._fleet(),
            await self.conservation(),
            await self.permits(),
            await self.slots(limit=None if audit_all else AUDIT_LIMIT),
            await self._schedulers_keep_up(),
            await self._quarantine(),
            await self._freezes(),
            await self._missed(),
            await self._waiting(),
            await self._tables(),
        ]

    async def conservation(self) -> Check:
        """Every unfinished run has exactly one row in `pending` or `lease`; no finished one has any."""
        found = await store.misplaced(self._database, limit=SHOWN)
        if found:
            # A wide read and a run that moves meanwhile can contradict each other once, not twice.
            found = [finding for finding in await store.misplaced(self._database, limit=SHOWN) if finding in found]
        return Check(name="conservation", findings=tuple(found), facts={})

    async def permits(self) -> Check:
        """Every permit in use is that of one lease: none leaks, and none is counted twice."""
        found = await store.stray_permits(self._database, limit=SHOWN)
        if found:
            # As above: a lease that ends meanwhile can contradict itself once.
            found = [finding for finding in await store.stray_permits(self._database, limit=SHOWN) if finding in found]
        return Check(name="permits", findings=tuple(found), facts={})

    async def slots(self, *, limit: int | None = AUDIT_LIMIT) -> Check:
        """Every slot that came due since its schedule began is a run or stands in the slot ledger."""
        findings: list[str] = []
        audited, after = 0, (-1, -1)
        while page := await store.schedules_to_audit(self._database, after=after, limit=AUDIT_PAGE):
            after = (page[-1].shard, page[-1].job_uid)
            audited += len(page)
            names = {(row.shard, row.job_uid): row.job_id for row in page}
            due = [slot for row in page for slot in self._due_slots(row)]
            for missing in await store.unaccounted(self._database, due):
                name = names[missing.shard, missing.job_uid]
                findings.append(f"job {name!r} has neither a run nor an entry for {missing.slot.isoformat()}")
            if len(findings) >= SHOWN or (limit is not None and audited >= limit):
                break
        return Check(name="slots", findings=tuple(findings[:SHOWN]), facts={"schedules": audited})

    def _due_slots(self, row: AuditedSchedule) -> list[AuditedSlot]:
        """Return the slots from the schedule's beginning up to the first that is still to be looked at."""
        try:
            schedule = parse_schedule(row.schedule)
        except InvalidInput:
            return []  # reported as quarantined once it comes due
        horizon = row.next_slot or self._clock.now()
        slots = schedule.latest_slots(horizon, after=row.since, count=SLOTS_AUDITED)
        return [AuditedSlot(row.shard, row.job_uid, slot) for slot in takewhile(_before(row.next_slot), slots)]

    async def _server(self) -> Check:
        facts = await store.server(self._database)
        findings = ["the server takes no writes: Rota needs the one primary"] if facts["read_only"] else []
        return Check(name="server", findings=tuple(findings), facts=facts)

    def _connection(self) -> Check:
        """What stands between this process and the server; asked after the first statement, which showed it."""
        way = self._database.way
        findings = []
        if not way.keeps_statements:
            findings.append(f"a pooler keeps no prepared statements, which costs round trips: {UNKEPT_HINT}")
        if way.is_pooled and not way.is_bounded(BOUNDS[Lane.WORK]):
            findings.append(
                "a pooler does not pass on Rota's statement_timeout and lock_timeout, so each statement brings them"
                " along, three round trips more: give them to Rota's role (ALTER ROLE ... IN DATABASE ... SET)"
            )
        facts = {"pooled": way.is_pooled, "hints": not way.is_pooled, "keeps_statements": way.keeps_statements}
        return Check(name="connection", findings=tuple(findings), facts=facts)

    def _own_clock(self) -> Check:
        if not isinstance(self._clock, DatabaseClock):
            return Check(name="clock", findings=(), facts={})
        error = self._clock.error_bound()
        findings = [f"this host knows the primary's time only to {error:.3f} s"] if error > CLOCK_ERROR else []
        return Check(name="clock", findings=tuple(findings), facts={"error_seconds": round(error, 6)})

    async def _fleet(self) -> Check:
        facts = await store.fleet(self._database, now=self._clock.now())
        findings = []
        if facts["owned_shards"] < facts["shards"]:
            missing = facts["shards"] - facts["owned_shards"]
            findings.append(f"{missing} of {facts['shards']} shards have no scheduler: their jobs do not start")
        if not facts["workers"]:
            findings.append("no worker is live: runs wait")
        versions = sorted({*(facts["tzdata"] or ()), tzdata_version()})
        if len(versions) > 1:
            findings.append(f"processes disagree on tz data ({', '.join(versions)}): upgrade them, then recompute")
        return Check(name="fleet", findings=tuple(findings), facts={**facts, "own_tzdata": tzdata_version()})

    async def _schedulers_keep_up(self) -> Check:
        now = self._clock.now()
        facts = await store.overdue(self._database, now=now)
        oldest: datetime | None = facts["oldest"]
        findings = [f"{facts['due']} schedules are due, the oldest for {format_duration(now - oldest)}"] if (
            oldest is not None and now - oldest > LATE
        ) else []  # fmt: skip
        return Check(name="due", findings=tuple(findings), facts=facts)

    async def _missed(self) -> Check:
        now = self._clock.now()
        counts = await runs.skipped_counts(self._database, since=now - LATELY, until=now + SECOND)
        findings = [
            f"{count.slots} slots of {count.jobs} jobs were missed in the last 24 h: `rota slots skipped` lists them"
            for count in counts
            if count.reason == "misfire"
        ]
        return Check(name="missed", findings=tuple(findings), facts={count.reason: count.slots for count in counts})

    async def _freezes(self) -> Check:
        held = await freeze.holding(self._database, None, limit=SHOWN)
        findings = [
            f"{'everything' if one.tenant_id == '*' else f'tenant {one.tenant_id!r}'} is frozen since"
            f" {format_instant(one.frozen_at)} by {one.actor}: {one.reason}"
            for one in held
        ]
        return Check(name="freeze", findings=tuple(findings), facts={})

    async def _quarantine(self) -> Check:
        rows = await store.quarantined(self._database, limit=SHOWN)
        findings = [f"job {row['job_id']!r} of tenant {row['tenant_id']!r}: {row['quarantined']}" for row in rows]
        apart = await store.set_apart(self._database, limit=SHOWN)
        findings += [
            f"job {row['job_id']!r} of tenant {row['tenant_id']!r} is damaged ({row['fields']}), and goes on without"
            " what cannot be read: put it anew"
            for row in await store.damaged(self._database, limit=SHOWN)
        ]
        aside = await aside_store.since(self._database, self._clock.now() - LATE, now=self._clock.now(), limit=SHOWN)
        findings += [
            f"job {job.job_id!r} of tenant {job.tenant_id!r} is set aside since {format_instant(job.since)}:"
            f" {reasons.aside_words({job.what: job.reason})}"
            for job in aside
        ]
        findings += [f"run {row['run_id']} of job {row['job_id']!r}: {row['reason']}" for row in apart]
        return Check(name="quarantine", findings=tuple(findings), facts={})

    async def _waiting(self) -> Check:
        rows = await store.waiting(self._database, limit=SHOWN)
        findings = [
            f"{_waits(row['runs'])} in pool {row['pool']!r} for a worker that knows the handler {row['handler']!r}"
            for row in rows
            if row["gate"] == "handler"
        ]
        unserved = await store.unserved_pools(self._database, now=self._clock.now(), limit=SHOWN)
        findings += [f"{_waits(row['runs'])} in pool {row['pool']!r}, which no live worker serves" for row in unserved]
        return Check(name="waiting", findings=tuple(findings), facts={"by_gate": rows})

    async def _tables(self) -> Check:
        return Check(name="tables", findings=(), facts={"tables": await store.table_health(self._database)})


def _waits(runs: int) -> str:
    return "1 run waits" if runs == 1 else f"{runs} runs wait"


def _before(end: datetime | None) -> Any:
    return lambda slot: end is None or slot < end
