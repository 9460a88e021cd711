"""Identities: the same on every node, both ways, and in the order of time."""

from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rota.domain.ids import SHARD_COUNT, job_uid, run_id, shard_of, slot_of, to_milliseconds
from rota.errors import InvalidInput

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_MILLISECOND = datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)

uids = st.integers(min_value=0, max_value=(1 << 62) - 1)
slots = st.integers(min_value=0, max_value=(LAST_MILLISECOND - EPOCH) // MILLISECOND).map(
    lambda milliseconds: EPOCH + milliseconds * MILLISECOND
)
names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)


@given(uids, slots)
@example((1 << 62) - 1, LAST_MILLISECOND)
@example(0, EPOCH)
@example(1, datetime(2038, 1, 19, 3, 14, 8, tzinfo=UTC))
def test_an_id_leads_back_to_its_slot(uid: int, slot: datetime) -> None:
    """B84: the same instant out as in, in 1970, past 2038, up to 9999."""
    assert slot_of(run_id(uid, slot)) == (uid, slot)


@given(uids, slots)
def test_a_run_id_is_a_uuid_of_version_8_that_carries_the_fields_as_documented(uid: int, slot: datetime) -> None:
    run = run_id(uid, slot)
    assert run.version == 8
    assert run.variant == "specified in RFC 4122"
    assert run.int >> 80 == to_milliseconds(slot)
    assert run.int >> 64 & 0xFFFF == 0x8000
    assert run.int & ((1 << 62) - 1) == uid


@given(uids, uids, slots, slots)
def test_ids_sort_by_time_as_numbers_and_as_text(one: int, other: int, earlier: datetime, later: datetime) -> None:
    first, second = sorted((earlier, later))
    if first == second:
        return
    assert run_id(one, first) < run_id(other, second)
    assert str(run_id(one, first)) < str(run_id(other, second))


@given(st.datetimes(min_value=datetime(1970, 1, 1)), st.integers(-14 * 60, 14 * 60))
def test_a_slot_means_its_instant_whatever_zone_it_is_written_in(naive: datetime, minutes: int) -> None:
    slot = naive.replace(microsecond=0, year=min(naive.year, 9990), day=min(naive.day, 28), tzinfo=UTC)
    elsewhere = slot.astimezone(timezone(timedelta(minutes=minutes)))
    assert run_id(7, elsewhere) == run_id(7, slot)


@pytest.mark.parametrize(
    ("slot", "reason"),
    [
        (datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC), "finer than a millisecond"),
        (datetime(2026, 1, 1, 0, 0, 0, 999999, tzinfo=UTC), "finer than a millisecond"),
        (EPOCH - MILLISECOND, "before 1970"),
        (datetime(1, 1, 1, tzinfo=UTC), "before 1970"),
        (datetime(2026, 1, 1), "no zone"),
    ],
)
def test_an_instant_that_cannot_be_a_slot_is_refused(slot: datetime, reason: str) -> None:
    """B84: refused, never cut off."""
    with pytest.raises(InvalidInput, match=reason) as refusal:
        run_id(1, slot)
    assert refusal.value.field == "scheduled_for"


@pytest.mark.parametrize(
    "stranger",
    [
        UUID(int=0),
        UUID("00000000-0000-4000-8000-000000000001"),  # version 4
        UUID("00000000-0000-8001-8000-000000000001"),  # a reserved bit
        UUID("00000000-0000-8000-c000-000000000001"),  # another variant
        UUID("ffffffff-ffff-8000-8000-000000000001"),  # past the year 9999
    ],
)
def test_a_uuid_that_rota_did_not_make_is_refused(stranger: UUID) -> None:
    with pytest.raises(InvalidInput) as refusal:
        slot_of(stranger)
    assert refusal.value.field == "run_id"


@given(names, names)
def test_a_jobs_number_is_its_own(tenant: str, job: str) -> None:
    uid = job_uid(tenant, job)
    assert 0 <= uid < 1 << 62
    assert uid == job_uid(tenant, job)
    # The border between the two names counts, so no tenant can name its way into another's job.
    assert uid != job_uid(tenant + job[0], job[1:])


def test_a_jobs_number_never_changes() -> None:
    uid = job_uid("default", "nightly-billing")
    assert (uid, shard_of(uid)) == (0x145672C1FB418F77, 55), "stored rows are found by these numbers"


@pytest.mark.parametrize("shard_count", [2, 3, 64, 100])
def test_jobs_spread_evenly_over_shards(shard_count: int) -> None:
    jobs = 1000 * shard_count
    counts = [0] * shard_count
    for number in range(jobs):
        counts[shard_of(job_uid("default", f"job-{number}"), shard_count=shard_count)] += 1
    # Binomial with mean 1000 and a standard deviation below 32: five of them either way.
    assert max(counts) < 1160
    assert min(counts) > 840


def test_a_cluster_has_64_shards_that_all_fit_a_smallint() -> None:
    assert SHARD_COUNT == 64
    assert {shard_of(uid) for uid in range(1000)} == set(range(64))
