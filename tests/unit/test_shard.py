"""Shares of shards: fair, settled within two rounds, and never with two owners."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.domain.shard import KEEP_INTERVAL, SHARD_LEASE, ShardLease, fair_share, plan

START = datetime(2026, 1, 1, tzinfo=UTC)
SHARDS = 64


class Cluster:
    """The table of shards and the schedulers that look at it, in plain Python."""

    def __init__(self, shard_count: int = SHARDS) -> None:
        self.now = START
        self.shards = [ShardLease(shard=n, owner=None, epoch=0, expires_at=START) for n in range(shard_count)]
        self.beats: dict[str, datetime] = {}

    def look(self, me: str) -> None:
        """One scheduler's tick: beat, renew, then plan and write."""
        until = self.now + SHARD_LEASE
        self.beats[me] = until
        self.shards = [replace(s, expires_at=until) if self._mine(s, me) else s for s in self.shards]
        live = [name for name, expires_at in self.beats.items() if expires_at > self.now]
        held = [s.shard for s in self.shards if self._mine(s, me)]
        step = plan(self.shards, me=me, held=held, schedulers=live, now=self.now)
        for shard in step.release:
            assert self.shards[shard].owner == me, "only one's own are given up"
            self.shards[shard] = replace(self.shards[shard], owner=None, expires_at=self.now)
        for shard in step.acquire:
            assert self.shards[shard].is_free(now=self.now), "only free ones are taken"
            lease = self.shards[shard]
            self.shards[shard] = replace(lease, owner=me, epoch=lease.epoch + 1, expires_at=until)

    def _mine(self, lease: ShardLease, me: str) -> bool:
        return lease.owner == me and not lease.is_free(now=self.now)

    def owned(self) -> Counter[str]:
        return Counter(s.owner for s in self.shards if s.owner is not None and not s.is_free(now=self.now))


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[frozenset[str], list[str]]]:
    """Phases of a cluster: who lives, and in which order they look."""
    names = [f"scheduler-{n}" for n in range(10)]
    phases = []
    for _ in range(draw(st.integers(1, 5))):
        alive = draw(st.sets(st.sampled_from(names), min_size=1))
        phases.append((frozenset(alive), draw(st.permutations(sorted(alive)))))
    return phases


@given(histories(), st.sampled_from([64, 7, 1]))
@settings(max_examples=60)
def test_shares_settle_within_two_rounds_of_any_joins_and_deaths(
    phases: list[tuple[frozenset[str], list[str]]], shard_count: int
) -> None:
    cluster = Cluster(shard_count)
    for alive, order in phases:
        # The dead of the last phase are noticed once their leases have ended; the living keep looking meanwhile.
        for _ in range(SHARD_LEASE // KEEP_INTERVAL + 1):
            cluster.now += KEEP_INTERVAL
            for name in order:
                cluster.look(name)
        settled = cluster.shards
        for _ in range(2):
            for name in order:
                cluster.look(name)
        owned = cluster.owned()
        assert owned.total() == shard_count
        assert set(owned) <= alive
        shares = [owned[name] for name in alive]
        assert max(shares) - min(shares) <= 1
        still = [lease.owner for lease in cluster.shards]
        for name in order:
            cluster.look(name)
        assert [lease.owner for lease in cluster.shards] == still, "shares that are fair stay where they are"
        assert len(settled) == shard_count


@given(st.integers(2, 10))
def test_a_join_is_settled_after_two_rounds_without_any_lease_ending(schedulers: int) -> None:
    cluster = Cluster()
    for count in range(1, schedulers + 1):
        names = [f"scheduler-{n}" for n in range(count)]
        for _ in range(2):
            for name in names:
                cluster.look(name)
        owned = cluster.owned()
        assert owned.total() == SHARDS
        assert max(owned.values()) - min(owned[name] for name in names) <= 1


def test_a_join_moves_no_more_shards_than_the_newcomers_share() -> None:
    cluster = Cluster()
    for _ in range(2):
        for name in ("a", "b", "c"):
            cluster.look(name)
    before = [lease.owner for lease in cluster.shards]
    for _ in range(2):
        for name in ("a", "b", "c", "d"):
            cluster.look(name)
    moved = sum(lease.owner != owner for lease, owner in zip(cluster.shards, before, strict=True))
    assert moved == SHARDS // 4


def test_a_new_owner_has_a_new_epoch() -> None:
    cluster = Cluster(2)
    cluster.look("a")
    epochs = [lease.epoch for lease in cluster.shards]
    cluster.now += SHARD_LEASE
    cluster.look("b")
    assert [lease.owner for lease in cluster.shards] == ["b", "b"]
    assert all(lease.epoch > epoch for lease, epoch in zip(cluster.shards, epochs, strict=True))


@pytest.mark.parametrize(("off", "free"), [(-1, False), (0, True), (1, True)])
def test_a_lease_ends_at_its_expiry_instant(off: int, free: bool) -> None:
    lease = ShardLease(shard=0, owner="a", epoch=1, expires_at=START)
    assert lease.is_free(now=START + timedelta(microseconds=off)) is free


@given(st.integers(1, 200), st.sets(st.text(min_size=1, max_size=5), min_size=1, max_size=12))
def test_shares_add_up_and_differ_by_one_at_most(shard_count: int, names: set[str]) -> None:
    shares = [fair_share(shard_count, sorted(names), name) for name in names]
    assert sum(shares) == shard_count
    assert max(shares) - min(shares) <= 1


def test_a_scheduler_that_is_not_on_the_list_yet_counts_itself() -> None:
    assert fair_share(64, ["b"], "a") == 32
    assert fair_share(64, [], "a") == 64
