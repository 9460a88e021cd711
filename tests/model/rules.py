"""The mission's rules as a small model in plain Python: no SQL, no batches, no index, one dictionary of runs.

It knows what every operation should do and nothing of how Rota does it. Slots are enumerated one by one; a schedule is
the grid of 1970. Tokens are the ones that Rota handed out: the model only decides which of them still counts.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Literal
from uuid import UUID

from rota.domain.misfire import COUNT_LIMIT

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
AGEING: Final = timedelta(minutes=1)
NOTHING: Final = timedelta(0)
NO_GRACE: Final = timedelta(microseconds=-1)

State = Literal["pending", "running", "succeeded", "dead", "cancelled"]
Policy = Literal["skip", "fire_once", "catch_up_3", "catch_up_2_within_a_minute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What of a job matters to the rules."""

    every: timedelta
    policy: Policy
    grace: timedelta
    max_attempts: int
    max_losses: int
    pause_after: int | None
    start_deadline: timedelta | None
    backoff: timedelta
    lease: timedelta
    priority: int
    overlap: Literal["allow", "skip"]

    def after(self, instant: datetime) -> datetime:
        """Return the first slot strictly after an instant."""
        return EPOCH + ((instant - EPOCH) // self.every + 1) * self.every

    def due(self, first: datetime, now: datetime) -> list[datetime]:
        """Return the slots from `first` up to now."""
        slots = []
        while first <= now:
            slots.append(first)
            first = self.after(first)
        return slots


@dataclass(slots=True)
class ModelJob:
    """A job and the first slot that is neither a run nor in the ledger."""

    shard: int
    definition: Definition
    next_slot: datetime
    paused: bool = False
    exists: bool = True
    dead_since: datetime = EPOCH
    """Dead letters from then on count towards a pause."""


@dataclass(slots=True)
class ModelLease:
    token: UUID
    attempt: int
    waited_since: datetime
    expires_at: datetime
    duration: timedelta
    has_turn: bool


@dataclass(slots=True)
class ModelRun:
    """A run: where it stands, and every attempt that ended."""

    state: State
    priority: int
    charged: int = 0
    losses: int = 0
    scheduled: bool = False
    deadline_at: datetime | None = None
    finished_at: datetime = EPOCH
    available_at: datetime | None = None
    open: bool = True
    since: datetime | None = None
    lease: ModelLease | None = None
    ended: dict[UUID, tuple[int, str]] = field(default_factory=dict)

    @property
    def shown_attempt(self) -> int:
        return self.lease.attempt if self.lease else self.charged


@dataclass(frozen=True, slots=True)
class Entry:
    """A range of the slot ledger."""

    job_id: str
    first: datetime
    last: datetime
    slots: int | None
    reason: str


def counted(slots: list[datetime]) -> int | None:
    """A long range is recorded without its number of slots."""
    return len(slots) if len(slots) <= COUNT_LIMIT else None


Key = tuple[str, datetime]


@dataclass(slots=True)
class Model:
    """The whole cluster as the rules see it."""

    now: datetime
    jobs: dict[str, ModelJob] = field(default_factory=dict)
    runs: dict[Key, ModelRun] = field(default_factory=dict)
    ledger: set[Entry] = field(default_factory=set)

    # define -----------------------------------------------------------------------------------------------------------

    def put(self, job_id: str, shard: int, definition: Definition) -> None:
        """A new job, or a changed schedule, counts from now on; what was due by the old one goes into the ledger."""
        job = self.jobs.get(job_id)
        if job is None or not job.exists:
            self.jobs[job_id] = ModelJob(shard, definition, definition.after(self.now), dead_since=self.now)
            return
        if definition.every != job.definition.every:
            self._drop(job_id, "paused" if job.paused else "misfire")
            job.next_slot = definition.after(self.now)
        if definition.priority != job.definition.priority:
            # What waits follows; what runs keeps the priority that it was claimed with.
            for run in self.runs_of(job_id):
                run.priority = definition.priority if run.state == "pending" else run.priority
        job.definition = definition

    def pause(self, job_id: str) -> None:
        self.jobs[job_id].paused = True

    def resume(self, job_id: str, *, drop: bool) -> None:
        job = self.jobs[job_id]
        if job.paused and drop:
            self._drop(job_id, "paused")
        elif job.paused and job.next_slot <= self.now:
            self._fire(job_id, job, after_a_pause=True)
        job.paused, job.dead_since = False, self.now

    def delete(self, job_id: str) -> int:
        """What waits is cancelled, what runs goes on. Returns the number of runs cancelled."""
        self.jobs[job_id].exists = False
        waiting = [run for run in self.runs_of(job_id) if run.state == "pending"]
        for run in waiting:
            run.state = "cancelled"
        return len(waiting)

    def _drop(self, job_id: str, reason: str) -> None:
        job = self.jobs[job_id]
        slots = job.definition.due(job.next_slot, self.now)
        if slots:
            self.ledger.add(Entry(job_id, slots[0], slots[-1], counted(slots), reason))
            job.next_slot = job.definition.after(self.now)

    # due, run ---------------------------------------------------------------------------------------------------------

    def look(self, shards: Iterable[int]) -> None:
        """Schedulers that own these shards do all that is to do: reap first, then make runs, open gates, and expire."""
        looked_at = set(shards)
        self.reap(looked_at)
        self.make_runs(looked_at)
        self.open_gates(looked_at)
        self.expire(looked_at)

    def reap(self, shards: set[int]) -> None:
        for (job_id, _), run in self.runs.items():
            if self.jobs[job_id].shard in shards and run.lease and run.lease.expires_at <= self.now:
                self._settle(job_id, run, "lost", NOTHING)
        for job_id, job in self.jobs.items():
            if job.shard in shards and any(
                run.state == "dead" and run.finished_at == self.now for run in self.runs_of(job_id)
            ):
                self._pause_failing(job_id)

    def make_runs(self, shards: set[int]) -> None:
        for job_id, job in self.jobs.items():
            if job.shard in shards and job.exists and not job.paused and job.next_slot <= self.now:
                self._fire(job_id, job)

    def open_gates(self, shards: set[int]) -> None:
        for (job_id, _), run in self.runs.items():
            if self.jobs[job_id].shard in shards and run.state == "pending" and run.available_at is not None:
                run.open = run.open or run.available_at <= self.now

    def expire(self, shards: set[int]) -> None:
        """What has not begun when its deadline comes is cancelled; a slot's run stands in the ledger as well."""
        for (job_id, slot), run in self.runs.items():
            if self.jobs[job_id].shard in shards and run.state == "pending" and self._is_useless(run):
                run.state = "cancelled"
                if run.scheduled:
                    self.ledger.add(Entry(job_id, slot, slot, 1, "start_deadline"))

    def _is_useless(self, run: ModelRun) -> bool:
        return run.deadline_at is not None and run.deadline_at <= self.now

    def _fire(self, job_id: str, job: ModelJob, *, after_a_pause: bool = False) -> None:
        """What a pause held back was missed, however short it was; what a scheduler is late with has a grace."""
        due = job.definition.due(job.next_slot, self.now)
        kept = self._kept(job.definition, due, grace=NO_GRACE if after_a_pause else job.definition.grace)
        dropped = due[: len(due) - len(kept)]
        if dropped:
            reason = "paused" if after_a_pause else "misfire"
            self.ledger.add(Entry(job_id, dropped[0], dropped[-1], counted(dropped), reason))
        if (patience := job.definition.start_deadline) is not None:
            late = [slot for slot in kept if slot + patience <= self.now]
            for slot in late:
                self.ledger.add(Entry(job_id, slot, slot, 1, "start_deadline"))
            kept = kept[len(late) :]
        if job.definition.overlap == "skip" and kept:
            busy = any(self._lives(slot, run) for (owner, slot), run in self.runs.items() if owner == job_id)
            stays = [] if busy else kept[-1:]
            for slot in kept[: len(kept) - len(stays)]:
                self.ledger.add(Entry(job_id, slot, slot, 1, "overlap"))
            kept = stays
        for slot in kept:
            if (job_id, slot) not in self.runs:  # a manual run at a slot is that slot
                deadline = None if patience is None else slot + patience
                self.runs[job_id, slot] = ModelRun(
                    "pending",
                    job.definition.priority,
                    available_at=slot,
                    since=slot,
                    scheduled=True,
                    deadline_at=deadline,
                )
        job.next_slot = job.definition.after(self.now)

    def _lives(self, slot: datetime, run: ModelRun) -> bool:
        """A run lives from its slot on, whatever delays it then; one that is wanted at a slot to come does not yet."""
        if run.state == "pending":
            assert run.available_at is not None
            return min(slot, run.available_at) <= self.now
        return run.state == "running"

    def _kept(self, definition: Definition, due: list[datetime], *, grace: timedelta) -> list[datetime]:
        if self.now - due[0] <= grace:
            return due
        match definition.policy:
            case "skip":
                return [slot for slot in due if self.now - slot <= grace]
            case "fire_once":
                return due[-1:]
            case "catch_up_3":
                return due[-3:]
            case "catch_up_2_within_a_minute":
                return [slot for slot in due if self.now - slot <= timedelta(minutes=1)][-2:]

    def trigger(self, job_id: str, slot: datetime | None) -> bool:
        """A run on request; False when the slot is a run already. Without a slot: the first free millisecond."""
        at = slot or self.now
        while slot is None and (job_id, at) in self.runs:
            at += timedelta(milliseconds=1)
        if (job_id, at) in self.runs:
            return False
        starts = self.now if slot is None else max(slot, self.now)
        definition = self.jobs[job_id].definition
        patience = definition.start_deadline
        deadline = None if patience is None else starts + patience
        self.runs[job_id, at] = ModelRun(
            "pending",
            definition.priority,
            available_at=starts,
            since=starts,
            open=starts <= self.now,
            deadline_at=deadline,
        )
        return True

    def replay(self, key: Key) -> bool:
        run = self.runs[key]
        if run.state != "dead":
            return False
        run.state, run.available_at, run.since, run.open = "pending", self.now, self.now, True
        run.priority = self.jobs[key[0]].definition.priority
        return True

    # claim, attempt, complete -----------------------------------------------------------------------------------------

    def rank(self, key: Key) -> timedelta:
        """Smaller goes first: a priority point is worth a minute of waiting."""
        run = self.runs[key]
        assert run.since is not None
        return run.since - EPOCH - run.priority * AGEING

    def ready(self) -> list[Key]:
        """Return the runs that a worker can have, best first: of a job whose runs take turns no more than one."""
        waiting = sorted((key for key in self.runs if self.may_start(key)), key=self.rank)
        seen: set[str] = set()
        found = []
        for job_id, slot in waiting:
            if not self.takes_turns(job_id) or job_id not in seen:
                found.append((job_id, slot))
            seen.add(job_id)
        return found

    def may_start(self, key: Key) -> bool:
        run = self.runs[key]
        if run.state != "pending" or not run.open or self._is_useless(run):
            return False
        return not self.takes_turns(key[0]) or not any(
            other.lease is not None and other.lease.has_turn for other in self.runs_of(key[0])
        )

    def takes_turns(self, job_id: str) -> bool:
        return self.jobs[job_id].definition.overlap == "skip"

    def claim(self, key: Key, token: UUID) -> None:
        run, lease = self.runs[key], self.jobs[key[0]].definition.lease
        assert run.since is not None
        run.lease = ModelLease(
            token, run.charged + 1, run.since, self.now + lease, lease, has_turn=self.takes_turns(key[0])
        )
        run.state, run.deadline_at = "running", None

    def renew(self, key: Key, token: UUID) -> datetime | None:
        """A lease lasts again from now while its token counts, also past its end, until somebody reclaimed it."""
        lease = self.runs[key].lease
        if lease is None or lease.token != token:
            return None
        lease.expires_at = self.now + lease.duration
        return lease.expires_at

    def report(self, key: Key, token: UUID, outcome: str, snooze: timedelta) -> bool:
        """Whether a report is accepted: by the token that counts, or as the very same report once more."""
        run = self.runs[key]
        if run.lease is None or run.lease.token != token:
            accepted = token in run.ended and run.ended[token][1] == outcome
        else:
            accepted = True
            self._settle(key[0], run, outcome, snooze)
        if accepted and run.state == "dead":
            self._pause_failing(key[0])
        return accepted

    def _settle(self, job_id: str, run: ModelRun, outcome: str, snooze: timedelta) -> None:
        lease, job = run.lease, self.jobs[job_id]
        assert lease is not None
        run.lease = None
        run.ended[lease.token] = (lease.attempt, outcome)
        run.charged = lease.attempt
        run.losses += outcome == "lost"
        failures = lease.attempt - run.losses
        if outcome == "succeeded":
            run.state, run.finished_at = "succeeded", self.now
        elif outcome == "cancelled" or not job.exists:
            run.state = "cancelled"
        elif (
            outcome == "gave_up"
            or (outcome in ("failed", "timed_out") and failures >= job.definition.max_attempts)
            or (outcome == "lost" and run.losses >= job.definition.max_losses)
        ):
            run.state, run.finished_at = "dead", self.now
        else:
            run.state = "pending"
            wait = NOTHING
            if outcome in ("released", "snoozed"):
                run.charged -= 1
            if outcome == "snoozed":
                wait = max(snooze, timedelta(seconds=1))
            if outcome in ("failed", "timed_out"):
                wait = min(job.definition.backoff * 2 ** (failures - 1), timedelta(hours=1))
            if outcome == "lost" and run.losses > 1:
                wait = min(job.definition.backoff * 2 ** (run.losses - 2), timedelta(hours=1))
            keeps_its_place = outcome in ("lost", "released") and not wait
            run.available_at = run.since = lease.waited_since if keeps_its_place else self.now + wait
            run.open = not wait

    def _pause_failing(self, job_id: str) -> None:
        """So many dead letters in a row, in the order in which runs ended, pause their job."""
        job = self.jobs[job_id]
        wanted = job.definition.pause_after
        if wanted is None or job.paused or not job.exists:
            return
        ended = [
            (run.finished_at, run.state == "succeeded", slot)
            for (owner, slot), run in self.runs.items()
            if owner == job_id and run.state in ("succeeded", "dead") and run.finished_at > job.dead_since
        ]
        latest = sorted(ended, reverse=True)[:wanted]
        job.paused = len(latest) == wanted and not any(succeeded for _, succeeded, _ in latest)

    # laws -------------------------------------------------------------------------------------------------------------

    def runs_of(self, job_id: str) -> list[ModelRun]:
        return [run for (owner, _), run in self.runs.items() if owner == job_id]


def shown(model: Model) -> dict[Key, tuple[str, int, bool | None, datetime | None, UUID | None]]:
    """Return what the tables should show of each run: state, attempt, whether its gate is open, since when, token."""
    return {
        key: (
            run.state,
            run.shown_attempt,
            run.open if run.state == "pending" else None,
            run.available_at if run.state == "pending" else None,
            run.lease.token if run.lease else None,
        )
        for key, run in model.runs.items()
    }
