"""Whose a job is: what code declares and an operator changes, over starts and edits of both."""

from typing import Any

import pytest

import rota
from rota.domain.job import Job
from rota.errors import Locked
from rota.services.definitions import Declared
from rota.store.jobs import StoredJob
from rota.testing import RotaKit
from tests.services.stories import every, execute
from tests.store.stage import uncommitted

NIGHTLY = every("1h", "nightly", description="bills")


async def start(kit: RotaKit, *jobs: Job, source: str = "app") -> Declared:
    """What a worker of an app does first."""
    return await kit.definitions.declare(jobs, source=source, tenant_id="default", actor=f"code:{source}")


async def patch(kit: RotaKit, **changes: Any) -> None:
    await kit.definitions.patch("nightly", changes, tenant_id="default", actor="cli:somebody")


async def standing(kit: RotaKit) -> StoredJob:
    return await kit.definitions.get("nightly", tenant_id="default")


def fates(said: Declared) -> dict[str, str]:
    return {part.field: part.fate for result in said.results for part in result.differs}


async def test_an_operators_change_outlives_starts_until_the_code_says_something_new(rota_kit: RotaKit) -> None:
    await start(rota_kit, NIGHTLY)
    await patch(rota_kit, schedule={"every": "2h"}, priority=9)
    for _ in range(2):
        said = await start(rota_kit, NIGHTLY)
        assert (fates(said), said.results[0].changed) == ({"schedule": "kept", "priority": "kept"}, False)
    assert (await standing(rota_kit)).overrides == ("schedule", "priority")
    # The code's new value of one field wins; the other stays the operator's.
    newer = NIGHTLY.edited(schedule=rota.every("3h"))
    assert fates(await start(rota_kit, newer)) == {"schedule": "overwritten", "priority": "kept"}
    stored = await standing(rota_kit)
    assert stored.job == newer.edited(priority=9)
    assert stored.overrides == ("priority",)
    # An operator who goes back to what the code says has changed nothing.
    await patch(rota_kit, priority=None)
    assert (await standing(rota_kit)).overrides == ()
    assert fates(await start(rota_kit, newer)) == {}


async def test_a_start_of_the_same_code_writes_nothing(rota_kit: RotaKit) -> None:
    await start(rota_kit, NIGHTLY)
    before = await standing(rota_kit)
    rota_kit.clock.advance(60)
    assert (await start(rota_kit, NIGHTLY)).results[0].fields == ()
    assert await standing(rota_kit) == before


async def test_a_start_waits_for_no_transaction_that_holds_jobs_which_it_leaves_as_they_are(rota_kit: RotaKit) -> None:
    other = every("1h", "other")
    await start(rota_kit, NIGHTLY, other)
    async with uncommitted(rota_kit.dsn, "SELECT rota.trigger('nightly')"):
        newer = other.edited(priority=9)
        assert [result.changed for result in (await start(rota_kit, NIGHTLY, newer)).results] == [False, True]
        with pytest.raises(Locked):
            await start(rota_kit, NIGHTLY.edited(priority=9), newer)


async def test_a_reset_gives_back_what_the_code_said_last(rota_kit: RotaKit) -> None:
    await start(rota_kit, NIGHTLY)
    await rota_kit.put(NIGHTLY.edited(description="", payload={"n": 1}))
    assert (await standing(rota_kit)).overrides == ("payload", "description")
    done = await rota_kit.definitions.reset("nightly", tenant_id="default")
    assert done.fields == ("payload", "description")
    assert ((await standing(rota_kit)).job, (await standing(rota_kit)).overrides) == (NIGHTLY, ())


async def test_a_pause_is_nothing_that_code_says(rota_kit: RotaKit) -> None:
    await start(rota_kit, NIGHTLY)
    await rota_kit.definitions.pause("nightly", tenant_id="default", reason="incident")
    await start(rota_kit, NIGHTLY.edited(description="new"))
    assert (await standing(rota_kit)).state == "paused"


async def test_code_takes_over_what_an_operator_made_and_says_which_fields_it_overwrote(rota_kit: RotaKit) -> None:
    await rota_kit.put(NIGHTLY.edited(priority=9))
    assert ((await standing(rota_kit)).owner, (await standing(rota_kit)).source) == ("operator", None)
    assert fates(await start(rota_kit, NIGHTLY)) == {"priority": "overwritten"}
    assert ((await standing(rota_kit)).owner, (await standing(rota_kit)).job) == ("code", NIGHTLY)


async def test_a_job_of_a_version_without_owners_becomes_the_codes(rota_kit: RotaKit) -> None:
    await rota_kit.put(NIGHTLY)
    await execute(rota_kit, "UPDATE rota.job SET owner = NULL, declared = NULL, overrides = NULL")
    assert fates(await start(rota_kit, NIGHTLY.edited(description="new"))) == {"description": "changed"}
    assert (await standing(rota_kit)).owner == "code"


async def test_a_job_that_left_the_code_is_an_orphan_until_it_comes_back(rota_kit: RotaKit) -> None:
    other = every("1h", "other")
    await start(rota_kit, NIGHTLY, other)
    await start(rota_kit, every("1h", "third"), source="another-app")
    assert (await start(rota_kit, other)).orphaned == ("nightly",)
    assert (await start(rota_kit, other)).orphaned == ("nightly",), "every start tells"
    stored = await standing(rota_kit)
    assert (stored.state, stored.orphaned_at) == ("active", rota_kit.clock.now()), "it goes on"
    assert (await start(rota_kit, NIGHTLY, other)).orphaned == ()
    assert (await standing(rota_kit)).orphaned_at is None


async def test_of_an_app_in_several_calls_nothing_is_orphaned_in_between(rota_kit: RotaKit) -> None:
    jobs = [every("1h", f"j{n}") for n in range(3)]
    await start(rota_kit, *jobs)
    names = [job.job_id for job in jobs]
    for job in jobs:
        said = await rota_kit.definitions.declare([job], source="app", tenant_id="default", every_id=names)
        assert said.orphaned == ()


async def test_a_put_says_which_fields_it_reset(rota_kit: RotaKit) -> None:
    job = NIGHTLY.edited(retry=rota.retry(initial=1), max_attempts=5)
    await rota_kit.put(job)
    [put] = await rota_kit.put(Job(job_id="nightly", handler="h", schedule=rota.every("20s")))
    assert put.fields == ("schedule", "max_attempts", "retry", "description")
    assert put.reset == ("max_attempts", "retry", "description")
