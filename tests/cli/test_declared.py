"""What a starting worker says of the jobs that its app declares."""

from structlog.testing import capture_logs

from rota.app import App
from rota.cli.processes import name_of, tell_declared
from rota.control.principal import operator
from rota.testing import RotaKit
from tests.services.stories import every


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
