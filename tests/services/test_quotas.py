"""Quotas of jobs and payloads: exact, also when many put at once, and only for what is new."""

import asyncio
from typing import Any

import pytest

from rota.domain.job import Job
from rota.errors import QuotaExceeded, TooLarge
from rota.services.access import Access
from rota.services.quota import REMEMBERED, Quotas
from rota.store.database import Database
from rota.testing import RotaKit
from tests.services.stories import every, fetch


async def limit(kit: RotaKit, tenant_id: str = "acme", **given: Any) -> None:
    """Set a tenant's quotas, and wait until they hold everywhere."""
    asked = {"max_jobs": None, "max_payload_bytes": None, "calls_per_second": None, "actor": "cli:ada"}
    await Access(kit.database, kit.clock).put_tenant(tenant_id, **{**asked, **given})
    kit.clock.advance(REMEMBERED)


def job(job_id: str, **changes: Any) -> Job:
    return every("1h", job_id, tenant_id="acme", **changes)


async def count(kit: RotaKit, tenant_id: str = "acme") -> int:
    return len(await kit.definitions.page(tenant_id=tenant_id, limit=1000))


# jobs -----------------------------------------------------------------------------------------------------------------


async def test_a_tenant_has_no_more_jobs_than_it_may_have(rota_kit: RotaKit) -> None:
    await limit(rota_kit, max_jobs=3)
    await rota_kit.put(job("a"), job("b"))
    with pytest.raises(QuotaExceeded, match="may have 3 jobs and has 2: 2 new ones are too many"):
        await rota_kit.put(job("c"), job("d"))
    assert await count(rota_kit) == 2, "all of a batch, or nothing"
    await rota_kit.put(job("c"))
    await rota_kit.put(job("a", priority=9), job("b", priority=9), job("c"))
    with pytest.raises(QuotaExceeded):
        await rota_kit.put(job("d"))
    await rota_kit.put(*(every("1h", f"theirs-{number}") for number in range(10)))


async def test_a_deleted_job_makes_room_and_one_that_comes_back_takes_it(rota_kit: RotaKit) -> None:
    await limit(rota_kit, max_jobs=1)
    await rota_kit.put(job("a"))
    await rota_kit.definitions.delete("a", tenant_id="acme")
    await rota_kit.put(job("b"))
    with pytest.raises(QuotaExceeded):
        await rota_kit.put(job("a"))


async def test_what_stands_beyond_a_lowered_quota_stays_and_can_be_edited(rota_kit: RotaKit) -> None:
    await rota_kit.put(*(job(f"job-{number}") for number in range(10)))
    await limit(rota_kit, max_jobs=2)
    await rota_kit.put(*(job(f"job-{number}", priority=9) for number in range(10)))
    with pytest.raises(QuotaExceeded, match="has more"):
        await rota_kit.put(job("one-more"))
    await limit(rota_kit, max_jobs=0)
    with pytest.raises(QuotaExceeded):
        await rota_kit.put(job("one-more"))


async def test_a_job_quota_is_exact_however_many_put_at_once(rota_kit: RotaKit) -> None:
    await limit(rota_kit, max_jobs=10)
    async with await Database.connect(rota_kit.dsn) as other:
        second = type(rota_kit.definitions)(other, rota_kit.clock, rota_kit.rota.hints)
        places = (rota_kit.definitions, second) * 8
        answers = await asyncio.gather(
            *(place.put([job(f"{number}-{n}") for n in range(3)]) for number, place in enumerate(places)),
            return_exceptions=True,
        )
    refused = [answer for answer in answers if isinstance(answer, BaseException)]
    assert {type(error) for error in refused} == {QuotaExceeded}
    assert await count(rota_kit) == 9
    assert len(refused) == 13


async def test_tenants_do_not_wait_for_each_other(rota_kit: RotaKit) -> None:
    """Only a tenant with such a quota takes turns, and only when jobs are made."""
    await limit(rota_kit, max_jobs=10)
    await rota_kit.put(job("a"))
    async with rota_kit.database.transaction() as tx:
        await tx._raw.execute("SELECT FROM rota.tenant FOR UPDATE")
        async with asyncio.timeout(20):
            await rota_kit.put(job("a", priority=9))
            await rota_kit.put(every("1h", "theirs"))


async def test_a_batch_of_several_tenants_is_held_against_the_quota_of_each(rota_kit: RotaKit) -> None:
    await limit(rota_kit, max_jobs=1)
    await limit(rota_kit, "default", max_jobs=2)
    with pytest.raises(QuotaExceeded, match="'default'"):
        await rota_kit.put(job("a"), *(every("1h", f"theirs-{number}") for number in range(3)))
    assert await fetch(rota_kit, "SELECT FROM rota.job") == []
    await rota_kit.put(job("a"), *(every("1h", f"theirs-{number}") for number in range(2)))


# payloads -------------------------------------------------------------------------------------------------------------


async def test_a_payload_larger_than_its_tenant_may_have_is_refused(rota_kit: RotaKit) -> None:
    await limit(rota_kit, max_payload_bytes=10)
    await rota_kit.put(job("a", payload={"n": 1234}))
    with pytest.raises(TooLarge) as refusal:
        await rota_kit.put(job("a", payload={"n": 12345}))
    assert (refusal.value.field, refusal.value.reason) == ("payload", "has 11 bytes")
    with pytest.raises(TooLarge, match="of job 'b' has 11 bytes"):
        await rota_kit.put(job("a", priority=9), job("b", payload={"é": 1234}))
    assert await count(rota_kit) == 1
    await rota_kit.put(every("1h", "theirs", payload={"n": 12345}))


async def test_what_stands_beyond_a_lowered_payload_quota_is_not_an_edit(rota_kit: RotaKit) -> None:
    large = job("a", payload={"n": 12345})
    await rota_kit.put(large)
    await limit(rota_kit, max_payload_bytes=10)
    [again] = await rota_kit.put(large)
    assert not again.changed
    with pytest.raises(TooLarge):
        await rota_kit.put(large.edited(priority=9))


async def test_a_quota_is_read_once_in_a_while(rota_kit: RotaKit) -> None:
    quotas = Quotas(rota_kit.database, rota_kit.clock)
    await quotas.check_payload_quota({"n": 12345}, tenant_id="acme")
    await Access(rota_kit.database, rota_kit.clock).put_tenant(
        "acme", max_jobs=None, max_payload_bytes=10, calls_per_second=None, actor="cli:ada"
    )
    await quotas.check_payload_quota({"n": 12345}, tenant_id="acme")
    rota_kit.clock.advance(REMEMBERED)
    with pytest.raises(TooLarge):
        await quotas.check_payload_quota({"n": 12345}, tenant_id="acme")
    await quotas.check_payload_quota({"n": 12345}, tenant_id="other")
