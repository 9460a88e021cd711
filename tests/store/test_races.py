"""Two at once at the same leases and runs, in an order that the test chooses: who wins, and nothing is done twice."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from rota.domain.attempt import Claim, Lease, LeaseKey, Outcome, Report, Verdict, after_attempt, success
from rota.domain.job import Job
from rota.domain.run import RunState
from rota.errors import CommitUnknown, LeaseLost
from rota.services.completion import Completion
from rota.services.dispatch import Dispatch
from rota.services.hints import Hints
from rota.store import claims
from rota.store.database import Database
from rota.testing import RotaKit
from tests.store.stage import Impatient, Watched, Within, leased, rows_of, uncommitted

RENEWAL = "UPDATE rota.lease SET expires_at = expires_at + interval '1 minute'"

# leases -----------------------------------------------------------------------------------------------------------


async def test_a_lease_that_is_being_renewed_as_it_completes_is_to_be_completed_again(rota_kit: RotaKit) -> None:
    claim, now = await leased(rota_kit), rota_kit.clock.now()
    verdicts = [success(claim.key, now=now)]
    async with uncommitted(rota_kit.dsn, RENEWAL) as other:
        done = await claims.settle(rota_kit.database, verdicts, now=now)
        assert (len(done.states), done.locked) == (0, frozenset({claim.key.token})), (
            "nobody waits, and the lease is not lost"
        )
        await other.execute("COMMIT")
    assert (await claims.settle(rota_kit.database, verdicts, now=now)).states == {claim.key.token: RunState.SUCCEEDED}
    [run] = await rota_kit.runs("job")
    assert run.state == "succeeded"


async def test_a_lease_that_a_long_transaction_has_locked_is_held_and_costs_no_other_its_renewal(
    rota_kit: RotaKit,
) -> None:
    locked, free = await leased(rota_kit, "job-1"), await leased(rota_kit, "job-2")
    now = rota_kit.clock.advance(10)
    completing = f"DELETE FROM rota.lease WHERE job_uid = {locked.key.job_uid}"  # noqa: S608 - our own number
    async with uncommitted(rota_kit.dsn, completing) as other:
        renewed = await claims.renew(rota_kit.database, [locked.key, free.key], now=now)
        assert renewed == {
            locked.key.token: Lease(expires_at=locked.expires_at, cancel=False),
            free.key.token: Lease(expires_at=now + free.lease_duration, cancel=False),
        }
        await other.execute("ROLLBACK")
    assert (await claims.renew(rota_kit.database, [locked.key], now=now))[locked.key.token].expires_at > now


async def test_only_the_lease_that_is_locked_is_asked_for_again(rota_kit: RotaKit) -> None:
    held, now = [await leased(rota_kit, f"job-{n}") for n in range(5)], rota_kit.clock.now()
    verdicts = [success(claim.key, now=now) for claim in held]
    async with await Watched.connect(rota_kit.dsn) as watched:
        async with uncommitted(rota_kit.dsn, f"{RENEWAL} WHERE job_uid = {held[2].key.job_uid}"):
            done = await claims.settle(watched, verdicts, now=now)
        assert done.states.keys() == {claim.key.token for claim in held} - done.locked
        assert done.locked == {held[2].key.token}
        assert watched.rows == [4, *[0] * (claims.ASKS - 1), 1], "and once whether it is there"


async def test_a_renewal_that_commits_first_wins_over_the_reaper(rota_kit: RotaKit) -> None:
    claim = await leased(rota_kit)
    verdict = await lapsed(rota_kit, claim)
    await claims.renew(rota_kit.database, [claim.key], now=rota_kit.clock.now())
    assert await reap(rota_kit, verdict) == {}
    await rota_kit.tick()
    [run] = await rota_kit.runs("job")
    assert (run.state, run.attempt) == ("running", 1)


async def test_a_renewal_under_way_wins_over_the_reaper_which_does_not_wait_for_it(rota_kit: RotaKit) -> None:
    claim = await leased(rota_kit)
    verdict = await lapsed(rota_kit, claim)
    async with uncommitted(rota_kit.dsn, RENEWAL) as other:
        assert await reap(rota_kit, verdict) == {}
        await other.execute("COMMIT")
    assert await claims.renew(rota_kit.database, [claim.key], now=rota_kit.clock.now())


async def test_a_renewal_that_crosses_the_reaper_is_told_the_next_time_that_the_lease_is_lost(
    rota_kit: RotaKit,
) -> None:
    claim = await leased(rota_kit)
    verdict = await lapsed(rota_kit, claim)
    now = rota_kit.clock.now()
    async with rota_kit.database.transaction() as tx:
        assert (await claims.settle(cast(Database, Within(tx)), [verdict], now=now, expired_by=now)).states
        assert (await claims.renew(rota_kit.database, [claim.key], now=now)).keys() == {claim.key.token}
    assert await claims.renew(rota_kit.database, [claim.key], now=now) == {}


async def test_a_report_and_the_reaper_end_an_attempt_once(rota_kit: RotaKit) -> None:
    claim = await leased(rota_kit)
    verdict, now = await lapsed(rota_kit, claim), rota_kit.clock.now()
    async with rota_kit.database.transaction() as tx:
        assert (await claims.settle(cast(Database, Within(tx)), [success(claim.key, now=now)], now=now)).states
        assert await reap(rota_kit, verdict) == {}, "it passes over what another is ending"
    [run] = await rota_kit.runs("job")
    assert [attempt.outcome for attempt in await rota_kit.attempts(run)] == ["succeeded"]


async def test_batches_that_overlap_crosswise_end_without_a_deadlock_and_lose_nothing(rota_kit: RotaKit) -> None:
    held, now = [await leased(rota_kit, f"job-{n}") for n in range(20)], rota_kit.clock.now()
    forth = [success(claim.key, now=now) for claim in held]
    async with uncommitted(rota_kit.dsn, f"{RENEWAL} WHERE job_uid = {held[10].key.job_uid}") as other:
        both = (claims.settle(rota_kit.database, batch, now=now) for batch in (forth, forth[::-1]))
        settled = [token for each in await asyncio.gather(*both) for token in each.states]
        await other.execute("COMMIT")
    settled += (await claims.settle(rota_kit.database, forth, now=now)).states
    assert sorted(settled) == sorted(claim.key.token for claim in held)


async def test_a_lease_that_is_lost_is_asked_for_so_often_and_no_more(rota_kit: RotaKit) -> None:
    claim, now = await leased(rota_kit), rota_kit.clock.now()
    lost = LeaseKey(claim.key.shard, claim.key.job_uid, claim.key.scheduled_for, uuid4())
    async with await Watched.connect(rota_kit.dsn) as watched:
        assert (await claims.renew(watched, [claim.key, lost], now=now)).keys() == {claim.key.token}
        assert watched.rows == [1, *[0] * claims.ASKS], "and once whether it is there"


# claims -----------------------------------------------------------------------------------------------------------


async def test_two_claimers_at_once_get_different_runs_and_neither_waits(rota_kit: RotaKit) -> None:
    await have_pending(rota_kit, 6)
    async with rota_kit.database.transaction() as tx:
        first = await claim(cast(Database, Within(tx)), rota_kit, 4)
        second = await claim(rota_kit.database, rota_kit, 4)
    assert (len(first), len(second)) == (4, 2)
    assert not {each.run_id for each in first} & {each.run_id for each in second}


async def test_fifty_claimers_take_two_hundred_runs_each_once(rota_kit: RotaKit) -> None:
    await have_pending(rota_kit, 200)
    taken: list[Claim] = []

    async def work(database: Database, name: int) -> None:
        dispatch = Dispatch(database, rota_kit.clock)
        for _ in range(200):
            got = await dispatch.claim(worker_id=f"w-{name}", pool="default", handlers=frozenset({"h"}), limit=3)
            if not got:
                return
            taken.extend(got)

    async with await Database.connect(rota_kit.dsn, size=25) as database:
        await asyncio.gather(*(work(database, name) for name in range(50)))
    assert len(taken) == len({each.run_id for each in taken}) == len({each.key.token for each in taken}) == 200
    assert await rows_of(rota_kit) == {"run": 200, "pending": 0, "lease": 200}


async def test_a_claim_whose_answer_was_lost_is_read_back(rota_kit: RotaKit) -> None:
    await have_pending(rota_kit, 5)
    async with await AnswerLost.connect(rota_kit.dsn) as database:
        database.lose("claim_runs")
        dispatch = Dispatch(database, rota_kit.clock)
        got = await dispatch.claim(worker_id="w", pool="default", handlers=frozenset({"h"}), limit=3)
        assert len(got) == 3
        assert (await rows_of(rota_kit))["lease"] == 3
        direct = {each.key: each for each in await claims.claimed_under(database, tokens_of(got), worker_id="w")}
        assert direct == {each.key: each for each in got}
        assert await claims.renew(database, [each.key for each in got], now=rota_kit.clock.now())


async def test_a_claim_that_never_arrived_is_read_back_as_nothing(rota_kit: RotaKit) -> None:
    await have_pending(rota_kit, 5)
    async with await AnswerLost.connect(rota_kit.dsn) as database:
        database.lose("claim_runs", before=True)
        dispatch = Dispatch(database, rota_kit.clock)
        assert await dispatch.claim(worker_id="w", pool="default", handlers=frozenset({"h"}), limit=3) == []
        assert len(await dispatch.claim(worker_id="w", pool="default", handlers=frozenset({"h"}), limit=3)) == 3


@pytest.mark.parametrize("before", [True, False], ids=["not-done", "done"])
async def test_a_report_in_doubt_is_asked_again_and_counts_once(rota_kit: RotaKit, before: bool) -> None:
    held = await leased(rota_kit)
    clock = Impatient(rota_kit.clock.now())
    async with await AnswerLost.connect(rota_kit.dsn) as database:
        database.lose("settle_attempts", before=before)
        report = Report(key=held.key, outcome=Outcome.FAILED, error="upstream 500")
        told = await Completion(database, clock, Hints(database, clock)).report([report])
        assert told == {held.key.token: RunState.PENDING}
    [run] = await rota_kit.runs("job")
    assert [attempt.error for attempt in await rota_kit.attempts(run)] == ["upstream 500"]


# operators --------------------------------------------------------------------------------------------------------


async def test_two_operators_replay_a_dead_letter_once(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="job", handler="h", max_attempts=1))
    run = await rota_kit.on_demand.trigger("job", tenant_id="default")
    await (await rota_kit.worker("w", handlers=["h"]).claim_one()).fail()
    answers = await asyncio.gather(*(rota_kit.on_demand.replay([run]) for _ in range(8)))
    assert sorted(map(len, answers)) == [0] * 7 + [1]
    await (await rota_kit.worker("w", handlers=["h"]).claim_one()).succeed()


async def test_a_job_deleted_while_it_runs_leaves_the_run_to_its_worker_and_tries_it_no_more(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="job", handler="h"))
    run = await rota_kit.on_demand.trigger("job", tenant_id="default")
    work = await rota_kit.worker("w", handlers=["h"]).claim_one()
    await rota_kit.definitions.delete("job", tenant_id="default")
    await work.renew()
    await work.fail()
    with pytest.raises(LeaseLost):
        await work.renew()
    assert (await rota_kit.history.run(run))[0].state == "cancelled"


# helpers ----------------------------------------------------------------------------------------------------------


class AnswerLost(Database):
    """A database whose connection ends once: after a statement has committed, or before it is sent."""

    _lost: str | None = None
    _before = False

    def lose(self, statement: str, *, before: bool = False) -> None:
        self._lost, self._before = statement, before

    async def fetch(self, statement: Any, /, **options: Any) -> list[Any]:
        if statement.name != self._lost:
            return await super().fetch(statement, **options)
        self._lost = None
        if not self._before:
            await super().fetch(statement, **options)
        raise CommitUnknown(f"{statement.name}: the connection ended")


async def lapsed(kit: RotaKit, held: Claim) -> Verdict:
    """Let a lease lapse; return the reaper's verdict on it, not yet written."""
    now = kit.clock.advance(held.lease_duration + timedelta(seconds=1))
    [ended] = await claims.expired(
        kit.database, [held.key.shard], now=now, resumed_at=now - timedelta(days=1), limit=10, error="lost"
    )
    return after_attempt(ended, now=now)


async def reap(kit: RotaKit, verdict: Verdict) -> dict[UUID, RunState]:
    now = kit.clock.now()
    return (await claims.settle(kit.database, [verdict], now=now, expired_by=now)).states


async def have_pending(kit: RotaKit, count: int) -> None:
    await kit.put(Job(job_id="many", handler="h"))
    start = kit.clock.now()
    for n in range(count):
        await kit.on_demand.trigger("many", tenant_id="default", scheduled_for=start - timedelta(seconds=n))


async def claim(database: Database, kit: RotaKit, count: int) -> list[Claim]:
    taken = await claims.claim_runs(
        database, pool="default", handlers=["h"], worker_id="w", tokens=[uuid4() for _ in range(count)], limit=count,
        place=claims.Place(), turns=count, now=kit.clock.now(),
    )  # fmt: skip
    return taken.claims


def tokens_of(taken: Sequence[Claim]) -> list[UUID]:
    return [each.key.token for each in taken]
