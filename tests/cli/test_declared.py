"""What a starting worker says of the jobs that its app declares."""

import asyncio

from structlog.testing import capture_logs

import rota
from rota.app import App
from rota.cli.declaring import AGAIN_LONGEST, Declaration, name_of, tell_declared
from rota.cli.workplace import at_database
from rota.control.principal import operator
from rota.testing import RotaKit
from tests.services.stories import every, stored
from tests.store.stage import uncommitted, until


async def test_a_start_tells_each_field_that_differs_and_each_job_that_left(rota_kit: RotaKit) -> None:
    control = rota_kit.rota.control(operator("code:jobs"))
    nightly, old = every("1h", "nightly", description="bills"), every("1h", "old")
    await control.declare_jobs([nightly, old], source="jobs")
    await control.patch_job("nightly", {"schedule": {"every": "2h"}, "priority": 9})
    newer = nightly.edited(priority=1, description="all bills")
    with capture_logs() as said:
        tell_declared(await control.declare_jobs([newer], source="jobs"), source="jobs")
    events = {(line["event"], line.get("field")): line for line in said}
    assert events["job.differs", "schedule"]["log_level"] == "warning"
    assert '"2h"' in events["job.differs", "schedule"]["stands"]
    assert (events["job.overwritten", "priority"]["code"], events["job.overwritten", "priority"]["stood"]) == ("1", "9")
    assert events["job.changed", "description"]["log_level"] == "info"
    assert events["jobs.orphaned", None]["jobs"] == ["old"]
    assert events["jobs.registered", None]["changed"] == 1


def test_an_app_is_called_by_its_name_or_that_of_its_module() -> None:
    assert name_of(App(name="billing"), "jobs:app") == "billing"
    assert [name_of(App(), target) for target in ("jobs:app", "/srv/x/jobs.py", "pkg.jobs:other")] == [
        "jobs", "jobs", "pkg.jobs:other",
    ]  # fmt: skip


async def test_a_start_goes_on_beside_a_transaction_that_holds_a_changed_job_and_declares_it_later(
    rota_kit: RotaKit,
) -> None:
    app, stop = App(name="jobs"), asyncio.Event()

    @app.job("nightly", schedule=rota.every("1h"), description="all bills")
    def nightly() -> None: ...

    await rota_kit.put(every("1h", "nightly", description="bills"))
    place = at_database(rota_kit.rota)
    declaration = Declaration(place.register, rota_kit.clock, app, source="jobs")

    async def is_over() -> bool:
        rota_kit.clock.advance(AGAIN_LONGEST)
        return later.done()

    with capture_logs() as said:
        async with uncommitted(rota_kit.dsn, "SELECT rota.trigger('nightly')") as caller:
            assert not await declaration.make()
            later = asyncio.ensure_future(declaration.make_later(stop))
            await caller.execute("COMMIT")
            await until(is_over)
    assert later.exception() is None
    job = (await stored(rota_kit, "nightly")).job
    assert job is not None
    assert job.description == "all bills"
    assert said[0]["event"] == "jobs.not_registered"
    assert "'nightly'" in said[0]["error"]
    assert said[-1]["event"] == "jobs.registered"


async def test_a_declaration_for_later_ends_with_its_worker(rota_kit: RotaKit) -> None:
    stop = asyncio.Event()
    declaration = Declaration(at_database(rota_kit.rota).register, rota_kit.clock, App(name="jobs"), source="jobs")
    later = asyncio.ensure_future(declaration.make_later(stop))
    stop.set()
    await later
