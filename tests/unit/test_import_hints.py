"""What a refusal of an import tells people to write, Rota itself accepts."""

import re
from datetime import UTC, datetime

import pytest

from rota.domain.schedule import cron
from rota.importers.detect import read_schedules

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CRON_JOB = (
    "{apiVersion: batch/v1, kind: CronJob, metadata: {name: a}, spec: {schedule: SCHEDULE,"
    " jobTemplate: {spec: {template: {spec: {containers: [{name: a, image: b}]}}}}}}"
)
REFUSED = {
    "crontab": (
        "0 15 9 * * 1-5 /opt/a\n0 0 6 * * MON-FRI /opt/a\n0 9 * * 1 2027 /opt/a\n@reboot /opt/a\n61 * * * * /opt/a\n"
        "0 3 ? * * /opt/a\n0 0 30 2 * /opt/a\n0 5-2 * * * /opt/a\n0 0 * * 5-1 /opt/a\n@never /opt/a\n0 0 * * L /opt/a\n"
        "0 0 * * tues /opt/a\n0 0 * 5-2 * /opt/a\n"
    ),
    "anacrontab": "1 5 cron.daily run-parts /etc/cron.daily\n",
    "x.timer": (
        "OnCalendar=Mon *-*-01\nOnCalendar=2027-01-01\nOnCalendar=*-*~1..3\nOnCalendar=whenever\nOnBootSec=15min\n"
        "OnUnitInactiveSec=1h 30min\nOnActiveSec=infinity\nOnClockChange=yes\nOnStartupSec=90\n"
    ),
    "x.yaml": "\n---\n".join(
        CRON_JOB.replace("SCHEDULE", schedule)
        for schedule in ('"61 * * * *"', '"@reboot"', '"0 0 3 * * *"', '"TZ=Mars/X 0 3 * * *"', '"@every"')
    ),
}
_QUOTED = re.compile(r"'((?:@every [^']+|@[a-z]+|[\d*][^' ]*(?: [^' ]+){4}))'")


@pytest.mark.parametrize("file", REFUSED)
def test_what_a_hint_quotes_is_accepted(file: str) -> None:
    result = read_schedules(REFUSED[file].encode(), file=file, now=NOW)
    assert len(result.refused) >= 1
    for refusal in result.refused:
        _, _, hint = refusal.reason.rpartition(" (")
        for quoted in _QUOTED.findall(hint):
            cron(quoted.removesuffix(" COMMAND"))
