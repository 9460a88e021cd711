"""Schedulers share the shards: they join, die, fall behind, and no shard ever has two owners that count."""

from collections import Counter
from collections.abc import Sequence

import pytest

from rota.assembly import SchedulerProcess, assemble
from rota.domain.shard import KEEP_INTERVAL, SHARD_LEASE
from rota.errors import DatabaseUnavailable
from rota.testing import RotaKit
from tests.services.stories import SECOND, TEN_SECONDS, Faulty, every, execute, fetch, tick_all

SHARDS = 64
TWO_LEASES = 2 * SHARD_LEASE


def shares(kit: RotaKit, processes: Sequence[SchedulerProcess]) -> list[int]:
    """Return how many shards each believes to own, having made sure that no two believe in the same one."""
    owned = [set(process.owned.shards(now=kit.clock.now())) for process in processes]
    twice = [shard for shard, owners in Counter(shard for one in owned for shard in one).items() if owners > 1]
    assert not twice, f"shards with two owners: {twice}"
    return [len(one) for one in owned]


async def keep(kit: RotaKit, processes: Sequence[SchedulerProcess], *, rounds: int) -> None:
    """Let the keepers look, each every KEEP_INTERVAL, holding after each look that no shard has two owners."""
    for _ in range(rounds):
        kit.clock.advance(KEEP_INTERVAL)
        for process in processes:
            await process.keeper.tick()
            shares(kit, processes)


ROUNDS_IN_TWO_LEASES = TWO_LEASES // KEEP_INTERVAL


async def test_a_second_scheduler_takes_its_half_within_two_looks(rota_kit: RotaKit) -> None:
    first, second = rota_kit.process, rota_kit.scheduler("scheduler-2")
    await keep(rota_kit, [first], rounds=1)
    assert shares(rota_kit, [first]) == [SHARDS]
    await keep(rota_kit, [first, second], rounds=2)
    assert shares(rota_kit, [first, second]) == [32, 32]


async def test_the_shards_of_a_dead_scheduler_have_owners_again_within_two_leases(rota_kit: RotaKit) -> None:
    first, second = rota_kit.process, rota_kit.scheduler("scheduler-2")
    await keep(rota_kit, [first, second], rounds=3)
    await keep(rota_kit, [second], rounds=ROUNDS_IN_TWO_LEASES)
    assert shares(rota_kit, [first, second]) == [0, SHARDS]


async def test_five_join_three_die_and_one_comes_back(rota_kit: RotaKit) -> None:
    everybody = [rota_kit.scheduler(f"scheduler-{number}") for number in range(5)]
    for count in range(1, 6):
        await keep(rota_kit, everybody[:count], rounds=2)
        found = shares(rota_kit, everybody[:count])
        assert sum(found) == SHARDS
        assert max(found) - min(found) <= 1
    await keep(rota_kit, everybody[3:], rounds=ROUNDS_IN_TWO_LEASES)
    assert shares(rota_kit, everybody) == [0, 0, 0, 32, 32]
    reborn = rota_kit.scheduler("scheduler-0")
    alive = [reborn, *everybody[3:]]
    await keep(rota_kit, alive, rounds=2)
    assert sorted(shares(rota_kit, alive)) == [21, 21, 22]


async def test_a_scheduler_that_leaves_is_replaced_at_the_next_look(rota_kit: RotaKit) -> None:
    first, second = rota_kit.process, rota_kit.scheduler("scheduler-2")
    await keep(rota_kit, [first, second], rounds=3)
    await first.keeper.leave()
    await keep(rota_kit, [second], rounds=1)
    assert shares(rota_kit, [first, second]) == [0, SHARDS]


async def test_a_scheduler_restarted_under_its_name_owns_its_shards_again_after_one_lease(rota_kit: RotaKit) -> None:
    await keep(rota_kit, [rota_kit.process], rounds=1)
    again = rota_kit.scheduler("scheduler-1")
    await keep(rota_kit, [again], rounds=SHARD_LEASE // KEEP_INTERVAL)
    assert shares(rota_kit, [again]) == [SHARDS]


@pytest.mark.parametrize("trouble", ["all_shards", "live_schedulers"])
async def test_trouble_after_a_write_costs_no_shard_that_it_gave(rota_kit: RotaKit, trouble: str) -> None:
    """A restarted scheduler adopts its shards under new epochs; a question that fails then does not make it forget."""
    await keep(rota_kit, [rota_kit.process], rounds=1)
    async with await Faulty.connect(rota_kit.dsn) as database:
        cluster = assemble(rota_kit.rota.settings, dsn=rota_kit.dsn, database=database, clock=rota_kit.clock)
        again = cluster.scheduler_process("scheduler-1")
        for _ in range(SHARD_LEASE // KEEP_INTERVAL + 1):
            rota_kit.clock.advance(KEEP_INTERVAL)
            database.trouble = {trouble: "refused"}
            with pytest.raises(DatabaseUnavailable):
                await again.keeper.tick()
            assert shares(rota_kit, [again]) == [SHARDS], "adopted, and renewed since"
        database.trouble = {}
        await keep(rota_kit, [again], rounds=1)
        assert shares(rota_kit, [again]) == [SHARDS]


async def test_a_stale_namesake_that_leaves_takes_no_shard_from_its_successor(rota_kit: RotaKit) -> None:
    stale, successor = rota_kit.process, rota_kit.scheduler("scheduler-1")
    await keep(rota_kit, [stale], rounds=1)
    await successor.keeper.tick()
    await stale.keeper.leave()
    [row] = await fetch(rota_kit, "SELECT count(*) AS shards FROM rota.shard WHERE owner = 'scheduler-1'")
    assert row["shards"] == SHARDS
    await keep(rota_kit, [successor], rounds=1)
    assert shares(rota_kit, [successor]) == [SHARDS]


async def test_an_owner_that_could_not_renew_stops_believing_when_its_lease_ends(rota_kit: RotaKit) -> None:
    await keep(rota_kit, [rota_kit.process], rounds=1)
    rota_kit.clock.advance(SHARD_LEASE - SECOND)
    assert shares(rota_kit, [rota_kit.process]) == [SHARDS]
    rota_kit.clock.advance(SECOND)
    assert shares(rota_kit, [rota_kit.process]) == [0]


async def test_an_owner_whose_shard_was_taken_notices_at_its_next_look(rota_kit: RotaKit) -> None:
    await keep(rota_kit, [rota_kit.process], rounds=1)
    await execute(rota_kit, "UPDATE rota.shard SET owner = 'stranger', epoch = epoch + 1 WHERE shard = 7")
    await keep(rota_kit, [rota_kit.process], rounds=1)
    assert 7 not in rota_kit.process.owned.shards(now=rota_kit.clock.now())


@pytest.mark.parametrize("same_name", [False, True])
async def test_a_stale_owner_makes_no_runs_and_moves_no_schedule(rota_kit: RotaKit, same_name: bool) -> None:
    """A scheduler stopped between its look at the clock and its write: the epoch refuses what it believes."""
    await rota_kit.put(every("10s"))
    stale = rota_kit.process
    await stale.keeper.tick()
    epochs = stale.owned.epochs(now=rota_kit.clock.now())
    rota_kit.clock.advance(SHARD_LEASE)
    second = rota_kit.scheduler("scheduler-1" if same_name else "scheduler-2")
    await second.keeper.tick()
    assert shares(rota_kit, [second]) == [SHARDS]
    stale.owned.hold(epochs, expires_at=rota_kit.clock.now() + SHARD_LEASE)
    before = await fetch(rota_kit, "SELECT * FROM rota.schedule")
    await stale.scheduler.tick()
    assert await rota_kit.runs("tick") == []
    assert await fetch(rota_kit, "SELECT * FROM rota.schedule") == before
    await second.scheduler.tick()
    assert len(await rota_kit.runs("tick")) == 1


async def test_two_schedulers_make_each_slot_of_many_jobs_once_while_a_third_comes_and_goes(rota_kit: RotaKit) -> None:
    await rota_kit.put(*(every("10s", f"job-{number}") for number in range(40)))
    first, second, third = rota_kit.process, rota_kit.scheduler("scheduler-2"), rota_kit.scheduler("scheduler-3")
    for round_ in range(24):
        rota_kit.clock.advance(KEEP_INTERVAL)
        await tick_all(rota_kit, first, second, *([third] if 6 <= round_ < 14 else []))
    # The third died with its shards at second 35: whoever has them now made up for it.
    for number in range(40):
        runs = await rota_kit.runs(f"job-{number}")
        assert len({run.scheduled_for for run in runs}) == len(runs)
        assert runs[-1].scheduled_for == rota_kit.clock.now()
        assert len(runs) == 60 // (TEN_SECONDS // SECOND), "no more than 20 s late, so within the grace"
