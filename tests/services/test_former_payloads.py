"""A run shows the payload that it ran with, whatever its job says since."""

from typing import Any
from uuid import UUID, uuid4

import pytest

from rota.domain.attempt import Outcome, after_attempt
from rota.domain.ids import job_uid
from rota.domain.job import Job
from rota.services.dispatch import Dispatch
from rota.store import claims
from rota.store import jobs as store
from rota.testing import RotaKit
from rota.testing.kit import KitWork
from tests.services.stories import MINUTE, every, execute, fetch


def job(number: int, **changes: Any) -> Job:
    return Job(**{"job_id": "tick", "handler": "h", "payload": {"n": number}, **changes})


async def claimed(kit: RotaKit) -> KitWork:
    return await kit.worker("w-1", handlers=["h"]).claim_one()


async def payload_of(kit: RotaKit, run: UUID) -> Any:
    return (await kit.history.run(run))[0].payload


async def test_an_edit_changes_what_waits_and_not_what_ran_or_runs(rota_kit: RotaKit) -> None:
    await rota_kit.put(job(1))
    finished, running, waiting = [await rota_kit.on_demand.trigger("tick", tenant_id="default") for _ in range(3)]
    await (await claimed(rota_kit)).succeed()
    work = await claimed(rota_kit)
    await rota_kit.put(job(2))
    await rota_kit.put(job(3))
    assert [await payload_of(rota_kit, run) for run in (finished, running, waiting)] == [{"n": 1}, {"n": 1}, {"n": 3}]
    assert {run.run_id: run.payload for run in await rota_kit.runs("tick")}[finished] == {"n": 1}
    await work.succeed()
    last = await claimed(rota_kit)
    assert last.claim.payload == {"n": 3}
    await last.succeed()
    await rota_kit.put(job(4))
    assert [await payload_of(rota_kit, run) for run in (finished, running, waiting)] == [{"n": 1}, {"n": 1}, {"n": 3}]


async def test_a_retry_runs_with_the_definition_of_its_time_and_each_attempt_tells_with_which(
    rota_kit: RotaKit,
) -> None:
    await rota_kit.put(job(1))
    run = await rota_kit.on_demand.trigger("tick", tenant_id="default")
    await (await claimed(rota_kit)).fail()
    await rota_kit.put(job(2))
    assert await payload_of(rota_kit, run) == {"n": 2}, "what it is to run with"
    await rota_kit.advance(MINUTE)
    again = await claimed(rota_kit)
    assert again.claim.payload == {"n": 2}
    await again.succeed()
    await rota_kit.put(job(3))
    view, attempts = await rota_kit.history.run(run)
    assert (view.payload, [attempt.job_version for attempt in attempts]) == ({"n": 2}, [1, 2])


async def test_a_run_with_a_payload_of_its_own_shows_that(rota_kit: RotaKit) -> None:
    await rota_kit.put(job(1))
    run = await rota_kit.on_demand.trigger("tick", tenant_id="default", payload={"own": True})
    await (await claimed(rota_kit)).succeed()
    await rota_kit.put(job(2))
    assert await payload_of(rota_kit, run) == {"own": True}


async def test_a_run_that_was_completed_by_sql_shows_it_too(rota_kit: RotaKit) -> None:
    await rota_kit.put(job(1))
    run = await rota_kit.on_demand.trigger("tick", tenant_id="default")
    work = await claimed(rota_kit)
    await fetch(rota_kit, "SELECT rota.complete($1, $2)", run, work.claim.key.token)
    await rota_kit.put(job(2))
    assert await payload_of(rota_kit, run) == {"n": 1}


async def test_a_claim_that_is_repeated_gives_the_payload_that_it_took(rota_kit: RotaKit) -> None:
    await rota_kit.put(job(1))
    await rota_kit.on_demand.trigger("tick", tenant_id="default")
    dispatch, claim_id = Dispatch(rota_kit.database, rota_kit.clock), uuid4()

    async def claim() -> Any:
        found = await dispatch.claim(
            worker_id="w-1", pool="default", handlers=frozenset({"h"}), limit=1, claim_id=claim_id
        )
        return found[0].payload

    assert await claim() == {"n": 1}
    await rota_kit.put(job(2))
    assert await claim() == {"n": 1}


async def test_of_many_former_payloads_the_last_ones_stay(rota_kit: RotaKit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "FORMER_PAYLOADS", 2)
    runs = []
    for number in range(5):
        await rota_kit.put(job(number, description=f"edit {number}"))
        await rota_kit.put(job(number, description="an edit of something else"))
        runs.append(await rota_kit.on_demand.trigger("tick", tenant_id="default"))
        await (await claimed(rota_kit)).succeed()
    shown = [await payload_of(rota_kit, run) for run in runs]
    assert shown == [None, {"n": 1}, {"n": 2}, {"n": 3}, {"n": 4}], "what is not known any more is not guessed"


async def test_the_last_payload_of_a_deleted_job_stays_its_runs(rota_kit: RotaKit) -> None:
    await rota_kit.put(job(1))
    run = await rota_kit.on_demand.trigger("tick", tenant_id="default")
    await (await claimed(rota_kit)).succeed()
    await rota_kit.put(job(2))
    await rota_kit.definitions.delete("tick", tenant_id="default")
    await rota_kit.put(job(3))
    assert await payload_of(rota_kit, run) == {"n": 1}


async def test_a_run_whose_job_is_deleted_as_it_comes_back_never_waits(rota_kit: RotaKit) -> None:
    """Decided before the delete and written after it, the run is cancelled by the statement that ends its attempt."""
    await rota_kit.put(every("1h"))
    await rota_kit.on_demand.trigger("tick", tenant_id="default")
    key = (await claimed(rota_kit)).claim.key
    [ended] = await claims.facts(rota_kit.database, [key], told={key.token: (Outcome.RELEASED, None, None)})
    await rota_kit.definitions.delete("tick", tenant_id="default")
    await execute(rota_kit, "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''waits''; END'")
    await execute(
        rota_kit, "CREATE TRIGGER refuse BEFORE INSERT ON rota.pending FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    verdict = after_attempt(ended, now=rota_kit.clock.now())
    settled = await claims.settle(rota_kit.database, [verdict], now=rota_kit.clock.now())
    assert settled.states == {key.token: "cancelled"}
    [run] = await rota_kit.runs("tick")
    assert (run.state, run.reason, key.job_uid) == ("cancelled", "job deleted", job_uid("default", "tick"))
