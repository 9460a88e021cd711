"""Claims that can be asked for again, and claims of one tenant among others."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from rota.domain.attempt import Claim, Outcome, Report
from rota.domain.job import Job
from rota.errors import CommitUnknown
from rota.services import dispatch as module
from rota.services.dispatch import Dispatch
from rota.testing import RotaKit
from tests.services.stories import HOUR, MINUTE, Faulty, fetch
from tests.store.stage import Impatient, uncommitted, until_waiting_for

ACME = "acme"


class Claimer:
    """A tenant's worker that claims by ids, over a database with trouble, as if by several API processes."""

    def __init__(self, kit: RotaKit, database: Faulty) -> None:
        self.kit = kit
        self.database = database
        self.dispatch = self.process()

    def process(self) -> Dispatch:
        return Dispatch(self.database, Impatient(self.kit.clock.now()))

    async def claim(self, claim_id: UUID | None, *, limit: int = 2, by: Dispatch | None = None) -> list[Claim]:
        return await (by or self.dispatch).claim(
            worker_id="w-1", pool="default", handlers=frozenset({"*"}), limit=limit, tenant_id=ACME, claim_id=claim_id
        )


@pytest_asyncio.fixture
async def claimer(rota_kit: RotaKit) -> AsyncIterator[Claimer]:
    """A claimer, and five runs for it."""
    await have_runs(rota_kit, 5, tenant_id=ACME)
    async with await Faulty.connect(rota_kit.dsn) as database:
        yield Claimer(rota_kit, database)


async def have_runs(kit: RotaKit, count: int, *, tenant_id: str, handler: str = "h", job_id: str = "tick") -> None:
    await kit.put(Job(job_id=job_id, tenant_id=tenant_id, handler=handler))
    for number in range(count):
        slot = kit.clock.now() - timedelta(seconds=number)
        await kit.on_demand.trigger(job_id, tenant_id=tenant_id, scheduled_for=slot)


def success(claim: Claim) -> Report:
    return Report(key=claim.key, outcome=Outcome.SUCCEEDED)


def tokens(claims: list[Claim]) -> set[UUID]:
    return {claim.key.token for claim in claims}


async def test_the_same_claim_gives_the_same_runs_from_whichever_process(claimer: Claimer) -> None:
    claim_id = uuid4()
    first = await claimer.claim(claim_id)
    assert len(first) == 2
    assert tokens(await claimer.claim(claim_id)) == tokens(first)
    assert tokens(await claimer.claim(claim_id, limit=500, by=claimer.process())) == tokens(first)
    another = await claimer.claim(uuid4())
    assert len(another) == 2
    assert not tokens(another) & tokens(first)


async def test_a_claim_asked_for_again_gives_what_is_still_held(claimer: Claimer) -> None:
    claim_id = uuid4()
    first, second = await claimer.claim(claim_id)
    await claimer.kit.rota.completion.report([success(first)])
    assert tokens(await claimer.claim(claim_id)) == {second.key.token}
    await claimer.kit.rota.completion.report([success(second)])
    assert await claimer.claim(claim_id) == [], "and takes nothing new under the old id"


async def test_a_claim_without_runs_notes_nothing_and_may_take_some_later(claimer: Claimer) -> None:
    await claimer.claim(None, limit=5)
    claim_id = uuid4()
    assert await claimer.claim(claim_id) == []
    assert not await fetch(claimer.kit, "SELECT FROM rota.claim")
    await have_runs(claimer.kit, 1, tenant_id=ACME, job_id="later")
    assert len(await claimer.claim(claim_id)) == 1


async def test_an_id_belongs_to_its_worker_and_tenant(claimer: Claimer) -> None:
    await have_runs(claimer.kit, 1, tenant_id="globex")
    claim_id = uuid4()
    first = await claimer.claim(claim_id)
    [foreign] = await claimer.dispatch.claim(
        worker_id="w-1", pool="default", handlers=frozenset({"*"}), limit=2, tenant_id="globex", claim_id=claim_id
    )
    assert foreign.tenant_id == "globex"
    other = await claimer.dispatch.claim(
        worker_id="w-2", pool="default", handlers=frozenset({"*"}), limit=2, tenant_id=ACME, claim_id=claim_id
    )
    assert len(tokens(first) | tokens(other) | {foreign.key.token}) == 5


async def test_two_processes_asked_for_one_claim_at_once_take_runs_once(claimer: Claimer) -> None:
    claim_id = uuid4()
    async with uncommitted(claimer.kit.dsn) as other:
        # Both have taken runs, and wait to note it, for as long as a third may note the same claim.
        note = "INSERT INTO rota.claim VALUES ($1, 'w-1', $2, '{}', 'epoch')"
        await other.execute(note, ACME, claim_id)
        both = [asyncio.create_task(claimer.claim(claim_id, by=claimer.process())) for _ in range(2)]
        await until_waiting_for(other, waiters=2)
        await other.execute("ROLLBACK")
        first, second = await asyncio.gather(*both)
    assert tokens(first) == tokens(second)
    assert len(first) == 2
    [row] = await fetch(claimer.kit, "SELECT count(*) AS leases FROM rota.lease")
    assert row["leases"] == 2


async def test_a_claim_whose_answer_is_lost_is_read_back(claimer: Claimer) -> None:
    claimer.database.trouble = {"claim_runs": "lost"}
    assert len(await claimer.claim(uuid4())) == 2
    assert claimer.database.asked["claim_runs"] == 1


async def test_a_claim_that_may_commit_yet_says_so_and_is_found_when_asked_again(claimer: Claimer) -> None:
    claim_id = uuid4()
    claimer.database.trouble = {"claim_runs": "late"}
    with pytest.raises(CommitUnknown):
        await claimer.claim(claim_id)
    claimer.database.trouble = {}
    [commit] = claimer.database.late
    await commit()
    assert len(await claimer.claim(claim_id)) == 2
    [row] = await fetch(claimer.kit, "SELECT count(*) AS leases FROM rota.lease")
    assert row["leases"] == 2


async def test_old_claims_are_forgotten(claimer: Claimer) -> None:
    await claimer.claim(uuid4())
    await claimer.kit.advance(MINUTE)
    [row] = await fetch(claimer.kit, "SELECT count(*) AS kept FROM rota.claim")
    assert row["kept"] == 1
    claimer.kit.clock.advance(HOUR)
    await claimer.kit.tick()
    assert not await fetch(claimer.kit, "SELECT FROM rota.claim")


async def test_a_tenant_s_worker_takes_its_tenant_s_runs_alone(rota_kit: RotaKit) -> None:
    await have_runs(rota_kit, 3, tenant_id="globex")
    await have_runs(rota_kit, 2, tenant_id=ACME)
    claimed = await rota_kit.worker("w-1", handlers=["h"], tenant_id=ACME).claim(limit=10)
    assert [work.claim.tenant_id for work in claimed] == [ACME, ACME]
    everything = await rota_kit.worker("w-2", handlers=["h"]).claim(limit=10)
    assert {work.claim.tenant_id for work in everything} == {"globex"}


async def test_any_handler_is_not_shell_nor_http_and_http_is_every_url(rota_kit: RotaKit) -> None:
    url = "https://example.com/hook"
    for job_id, handler in (("fine", "whatever"), ("command", "shell"), ("target", url)):
        await have_runs(rota_kit, 1, tenant_id="default", handler=handler, job_id=job_id)
    [work] = await rota_kit.worker("w-1", handlers=["*"]).claim(limit=10)
    assert work.claim.handler == "whatever"
    [target] = await rota_kit.worker("w-2", handlers=["http"]).claim(limit=10)
    assert target.claim.handler == url, "the run is called by its job's own URL"


async def test_one_claim_at_a_time_stands_at_the_database_for_each_pool_and_tenant(rota_kit: RotaKit) -> None:
    await have_runs(rota_kit, 2, tenant_id=ACME)
    await have_runs(rota_kit, 1, tenant_id="globex")

    async def claim(tenant_id: str) -> list[Claim]:
        return await rota_kit.rota.dispatch.claim(
            worker_id="w-1", pool="default", handlers=frozenset({"h"}), limit=1, tenant_id=tenant_id
        )

    async with uncommitted(rota_kit.dsn, "LOCK TABLE rota.lease IN SHARE MODE") as other:
        waiting = [asyncio.create_task(claim(tenant)) for tenant in (ACME, ACME, "globex")]
        await until_waiting_for(other, waiters=2)
        waiters = await other.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        assert waiters == 2
        await other.execute("COMMIT")
        assert [len(claims) for claims in await asyncio.gather(*waiting)] == [1, 1, 1]


async def test_no_number_of_pools_fills_the_memory(rota_kit: RotaKit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROUNDS", 3)
    dispatch = rota_kit.rota.dispatch
    for number in range(10):
        await dispatch.claim(worker_id="w-1", pool=f"pool-{number}", handlers=frozenset({"h"}), limit=1)
    assert (len(dispatch._rounds), len(dispatch._turns)) == (3, 0)
