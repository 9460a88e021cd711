"""Rota against a small model of its rules: whatever happens in whatever order, both see the same.

Sixty examples of forty steps by default, always the same ones; ROTA_MODEL_EXAMPLES asks for more, and different ones.
"""

import asyncio
import os
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rota.assembly import SchedulerProcess
from rota.domain.attempt import Outcome, Report
from rota.domain.ids import job_uid as uid_of
from rota.domain.ids import run_id, shard_of
from rota.errors import SlotTaken
from rota.services.definitions import Missed
from rota.services.run_request import NOW_NEAR
from rota.store.database import Database
from rota.testing import TestCluster
from rota.testing.kit import KitWork
from tests.model.cluster import Cluster, job_of
from tests.model.rules import Definition, Key, Model, shown
from tests.services.stories import START

SECOND = timedelta(seconds=1)
MILLISECOND = timedelta(milliseconds=1)
NAMES = ["nightly", "hourly", "odd"]
"""What people call jobs. Here a job is known by its name and a plus for each of that name that was deleted before."""
GENERATIONS = 50
SCHEDULERS = ["scheduler-1", "scheduler-2"]

seconds = [timedelta(seconds=n) for n in (1, 1, 3, 5, 5, 9, 10, 10, 10, 11, 29, 30, 31, 60, 95)]
passing = st.sampled_from(seconds)
definitions = st.builds(
    Definition,
    every=st.sampled_from([5 * SECOND, 10 * SECOND, 60 * SECOND]),
    policy=st.sampled_from(["skip", "fire_once", "catch_up_3", "catch_up_2_within_a_minute"]),
    grace=st.sampled_from([timedelta(0), 30 * SECOND]),
    max_attempts=st.integers(1, 3),
    max_losses=st.integers(1, 3),
    pause_after=st.sampled_from([None, None, 1, 2]),
    start_deadline=st.sampled_from([None, None, 9 * SECOND, 30 * SECOND]),
    backoff=st.sampled_from([timedelta(0), 10 * SECOND]),
    lease=st.sampled_from([10 * SECOND, 30 * SECOND, 60 * SECOND]),
    priority=st.sampled_from([0, 5, 9]),
    overlap=st.sampled_from(["allow", "allow", "skip"]),
)
reported = st.sampled_from(
    [Outcome.FAILED, Outcome.FAILED, *(outcome for outcome in Outcome if outcome is not Outcome.LOST)]
)


def name_of(identity: str) -> str:
    return identity.rstrip("+")


def number_of(identity: str) -> int:
    return uid_of("default", name_of(identity), identity.count("+"))


class Held:
    """A claim in some worker's hands, for as long as the example lasts: it may speak up late, and twice."""

    def __init__(self, work: KitWork) -> None:
        self.work = work
        self.key: Key = (self._identity(work), work.claim.key.scheduled_for)
        self.token: UUID = work.claim.key.token

    @staticmethod
    def _identity(work: KitWork) -> str:
        claim, name = work.claim, work.claim.job_id
        generations = (name + "+" * deleted for deleted in range(GENERATIONS))
        return next(identity for identity in generations if number_of(identity) == claim.key.job_uid)

    def __repr__(self) -> str:
        return f"{self.key[0]}@{(self.key[1] - START).total_seconds():g}s#{self.work.claim.attempt}"


class RotaMachine(RuleBasedStateMachine):
    """Each rule does one thing to Rota and to the model; then both must show the same."""

    held: Bundle[Held] = Bundle("held")

    def __init__(self, runner: asyncio.Runner, dsn: str, database: Database) -> None:
        super().__init__()
        self.cluster = Cluster(runner, dsn, database)
        self.kit = self.cluster.kit
        self.model = Model(self.kit.clock.now())
        self.zombies: list[SchedulerProcess] = []
        self.latest: dict[str, str] = {}
        """The last job of each name."""

    def run(self, coroutine: Any) -> Any:
        return self.cluster.run(coroutine)

    # define -----------------------------------------------------------------------------------------------------------

    @initialize(first=definitions, second=definitions)
    def begin_with_two_jobs_and_one_scheduler(self, first: Definition, second: Definition) -> None:
        self._put("nightly", first)
        self._put("hourly", second)
        self.cluster.start_scheduler("scheduler-1")

    @rule(kind=st.sampled_from(["put", "pause", "resume", "delete", "put", "resume", "delete", "same"]), data=st.data())
    def edit(self, kind: str, data: st.DataObject) -> None:
        known = self._known()
        paused = [name for name in known if self.model.jobs[name].paused]
        if kind == "put":
            self._put(data.draw(st.sampled_from(NAMES)), data.draw(definitions))
        elif kind == "same" and known:
            job_id = data.draw(st.sampled_from(known))
            [result] = self.run(self.kit.put(job_of(name_of(job_id), self.model.jobs[job_id].definition)))
            assert not result.changed
        elif kind == "pause" and known:
            job_id = data.draw(st.sampled_from(known))
            self.run(self.kit.definitions.pause(name_of(job_id), tenant_id="default", reason="a look"))
            self.model.pause(job_id)
        elif kind == "resume" and paused:
            job_id, drop = data.draw(st.sampled_from(paused)), data.draw(st.booleans())
            missed: Missed = "drop" if drop else "policy"
            self.run(self.kit.definitions.resume(name_of(job_id), tenant_id="default", missed=missed))
            self.model.resume(job_id, drop=drop)
        elif kind == "delete" and known:
            job_id = data.draw(st.sampled_from(known))
            cancelled = self.run(self.kit.definitions.delete(name_of(job_id), tenant_id="default"))
            assert cancelled == self.model.delete(job_id)

    def _put(self, name: str, definition: Definition) -> None:
        job = job_of(name, definition)
        self.run(self.kit.put(job))
        job_id = self.latest.get(name, name)
        if name in self.latest and not self.model.jobs[job_id].exists:
            job_id += "+"
        self.latest[name] = job_id
        self.model.put(job_id, shard_of(uid_of(*job.name)), definition)

    def _known(self) -> list[str]:
        return [name for name, job in self.model.jobs.items() if job.exists]

    # time and schedulers ----------------------------------------------------------------------------------------------

    @rule(by=passing)
    def time_passes_and_schedulers_look(self, by: timedelta) -> None:
        self.model.now = self.kit.clock.advance(by)
        self.model.look(self.run(self.cluster.look()))

    @rule(by=st.sampled_from([*seconds, timedelta(minutes=5), timedelta(hours=1)]))
    def time_passes_and_nobody_looks(self, by: timedelta) -> None:
        """An outage; workers go silent, leases lapse, slots pass."""
        self.model.now = self.kit.clock.advance(by)

    @rule(kind=st.sampled_from(["start", "start", "stop", "wake"]), name=st.sampled_from(SCHEDULERS))
    def schedulers_come_and_go(self, kind: str, name: str) -> None:
        """One starts, also under the name of one that lives or was stopped; one is stopped, and wakes in mid-tick."""
        if kind == "start":
            if name in self.cluster.schedulers:
                self.zombies.append(self.cluster.schedulers[name])
            self.cluster.start_scheduler(name)
        elif kind == "stop" and name in self.cluster.schedulers:
            self.zombies.append(self.cluster.schedulers.pop(name))
        elif kind == "wake" and self.zombies:
            self._wake(self.zombies.pop())

    @rule(mine=st.permutations(SCHEDULERS), by=passing)
    def a_scheduler_is_stopped_and_wakes_after_another_took_its_shards(self, mine: list[str], by: timedelta) -> None:
        stopped, other = mine
        self.cluster.start_scheduler(stopped)
        self.time_passes_and_schedulers_look(SECOND)
        zombie = self.cluster.schedulers.pop(stopped)
        if other not in self.cluster.schedulers:
            self.cluster.start_scheduler(other)
        self.time_passes_and_schedulers_look(10 * SECOND)
        self.model.now = self.kit.clock.advance(by)
        self._wake(zombie)

    def _wake(self, zombie: SchedulerProcess) -> None:
        rightly, believed = self.run(self.cluster.wake_zombie(zombie))
        self.model.make_runs(rightly)
        self.model.open_gates(believed)
        self.model.expire(believed)

    # on demand --------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self._known())
    @rule(ahead=st.booleans(), data=st.data())
    def trigger(self, ahead: bool, data: st.DataObject) -> None:
        """A run now, or one that takes the place of the next slot."""
        job_id = data.draw(st.sampled_from(self._known()))
        # Past so many in one instant "now" lies anywhere near, which no rule tells.
        ahead |= all((job_id, self.model.now + n * MILLISECOND) in self.model.runs for n in range(NOW_NEAR))
        slot = self.model.jobs[job_id].next_slot if ahead else None
        expected = self.model.trigger(job_id, slot)
        try:
            self.run(self.kit.on_demand.trigger(name_of(job_id), tenant_id="default", scheduled_for=slot))
        except SlotTaken:
            assert not expected
        else:
            assert expected

    @precondition(lambda self: any(self.model.jobs[job_id].exists for job_id, _ in self.model.runs))
    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        """Dead letters for the most part; any other run is left alone."""
        keys = sorted(key for key in self.model.runs if self.model.jobs[key[0]].exists)
        dead = [key for key in keys if self.model.runs[key].state == "dead"]
        key = data.draw(st.sampled_from(dead or keys))
        run = run_id(number_of(key[0]), key[1])
        assert self.run(self.kit.on_demand.replay([run])) == ({run} if self.model.replay(key) else set())

    # workers ----------------------------------------------------------------------------------------------------------

    @rule(target=held, limit=st.integers(1, 4))
    def claim(self, limit: int) -> MultipleResults[Held]:
        return multiple(*self._claim(limit))

    @rule(target=held, by=passing, outcomes=st.lists(reported | reported | st.none(), min_size=1, max_size=4))
    def a_worker_serves(self, by: timedelta, outcomes: list[Outcome | None]) -> MultipleResults[Held]:
        """Whatever came due is claimed and reported on, except what the worker keeps for later."""
        self.time_passes_and_schedulers_look(by)
        claimed = self._claim(len(outcomes))
        for each, outcome in zip(claimed, outcomes, strict=False):
            if outcome is not None:
                self._report(each, outcome, 10 * SECOND)
        return multiple(*claimed)

    @rule(
        target=held,
        silent=st.sampled_from([10 * SECOND, 30 * SECOND, 31 * SECOND]),
        renews=st.booleans(),
        outcome=reported,
    )
    def a_worker_goes_silent_and_wakes_late(
        self, silent: timedelta, renews: bool, outcome: Outcome
    ) -> MultipleResults[Held]:
        claimed = self._claim(2)
        self.time_passes_and_schedulers_look(silent)
        again = self._claim(1)
        for each in claimed:
            if renews:
                self._renew(each)
            self._report(each, outcome, timedelta(0))
        return multiple(*claimed, *again)

    @rule(work=held)
    def renew(self, work: Held) -> None:
        """Also by a worker that was silent for long."""
        self._renew(work)

    @rule(work=held, outcome=reported, snooze=st.sampled_from([timedelta(0), 10 * SECOND, 60 * SECOND]))
    def report(self, work: Held, outcome: Outcome, snooze: timedelta) -> None:
        """Any report by anybody who ever held the run: on time, late, or once more."""
        self._report(work, outcome, snooze)

    def _claim(self, limit: int) -> list[Held]:
        ready = self.model.ready()
        claimed = [Held(work) for work in self.run(self.kit.worker("w", handlers=["h"]).claim(limit=limit))]
        assert len(claimed) == len(ready[:limit]), "as many as there are"
        # A limit that a claim meets for the first time lets go at its second look, behind what the first one took.
        if not any(self.model.takes_turns(job_id) for job_id, _ in ready):
            best = [self.model.rank(key) for key in ready[:limit]]
            assert [self.model.rank(each.key) for each in claimed] == best, "best first"
        for each in claimed:
            assert self.model.may_start(each.key)
            assert each.work.claim.attempt == self.model.runs[each.key].charged + 1
            self.model.claim(each.key, each.token)
        return claimed

    def _renew(self, work: Held) -> None:
        renewal = self.run(work.work.desk.renew([work.work.claim.key]))
        expected = self.model.renew(work.key, work.token)
        assert renewal.renewed == ({} if expected is None else {work.token: expected})
        assert renewal.lost == (frozenset() if expected else {work.token})

    def _report(self, work: Held, outcome: Outcome, snooze: timedelta) -> None:
        report = Report(
            key=work.work.claim.key,
            outcome=outcome,
            error=None if outcome is Outcome.SUCCEEDED else "told by the model",
            retry_after=snooze if outcome is Outcome.SNOOZED else None,
        )
        accepted = self.run(work.work.desk.report([report]))
        assert accepted == ({work.token} if self.model.report(work.key, work.token, outcome, snooze) else set())

    # what must hold ---------------------------------------------------------------------------------------------------

    @invariant()
    def rota_shows_what_the_model_shows(self) -> None:
        seen, model = self.run(self.cluster.seen()), self.model
        assert seen.runs == shown(model)
        assert seen.attempts == {key: run.ended for key, run in model.runs.items() if run.ended}
        assert seen.ledger == model.ledger
        assert seen.dead == {key for key, run in model.runs.items() if run.state == "dead"}
        assert seen.schedules == {
            name: (job.next_slot, None if job.paused else job.next_slot)
            for name, job in model.jobs.items()
            if job.exists
        }

    def teardown(self) -> None:
        """In the end everything lives again: what is left is looked at, finished, and accounted for."""
        try:
            self.cluster.start_scheduler("scheduler-1")
            self.time_passes_and_schedulers_look(60 * SECOND)
            self.rota_shows_what_the_model_shows()
            self.run(self.kit.check())
        finally:
            super().teardown()


EXPLORES = "ROTA_MODEL_EXAMPLES" in os.environ
EXAMPLES = int(os.environ.get("ROTA_MODEL_EXAMPLES", "60"))


def test_rota_does_what_the_model_says(rota_cluster: TestCluster) -> None:
    """B12, B20, B22, B31, B38, B44, B50, B52: in any order, with each other."""
    with asyncio.Runner() as runner:
        database_context = rota_cluster.database()
        dsn = runner.run(database_context.__aenter__())
        database = runner.run(Database.connect(dsn, size=2, reserved=1))

        class Bound(RotaMachine):
            def __init__(self) -> None:
                super().__init__(runner, dsn, database)

        try:
            run_state_machine_as_test(
                Bound,
                settings=settings(
                    derandomize=not EXPLORES,
                    max_examples=EXAMPLES,
                    stateful_step_count=40,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                    # Shrinking takes minutes, in which the suite seems to hang: whoever explores has the time.
                    phases=tuple(Phase) if EXPLORES else (Phase.explicit, Phase.reuse, Phase.generate),
                ),
            )
        finally:
            runner.run(database.close())
            runner.run(database_context.__aexit__(None, None, None))


@pytest.mark.parametrize("every", [5, 60])
def test_the_model_knows_its_grid(every: int) -> None:
    definition = Definition(
        every=every * SECOND, policy="skip", grace=timedelta(0), max_attempts=1, backoff=timedelta(0), lease=SECOND,
        priority=5, overlap="allow", max_losses=1, pause_after=None, start_deadline=None,
    )  # fmt: skip
    slots = definition.due(definition.after(START), START + 5 * every * SECOND)
    assert slots == [START + n * every * SECOND for n in range(1, 6)]
