"""Which rule made a slot, where clocks change and where they do not."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from rota.domain.schedule import Schedule, cron, every, once
from rota.domain.slot_rule import local_time, slot_rule, zone_of

BERLIN_SPRING = datetime(2026, 3, 29, tzinfo=UTC)
BERLIN_AUTUMN = datetime(2026, 10, 24, 23, 59, tzinfo=UTC)
NEW_YORK_SPRING = datetime(2026, 3, 8, 6, tzinfo=UTC)
NEW_YORK_AUTUMN = datetime(2026, 11, 1, 4, 59, tzinfo=UTC)


def rules(schedule: Schedule, *, after: datetime, count: int) -> list[tuple[str, str]]:
    """The next slots' times of day in UTC, each with its rule."""
    found: list[tuple[str, str]] = []
    slot = schedule.next_slot(after)
    while slot is not None and len(found) < count:
        found.append((f"{slot:%H:%M}", slot_rule(schedule, slot)))
        slot = schedule.next_slot(slot)
    return found


@pytest.mark.parametrize(
    ("expression", "tz", "after", "expected"),
    [
        # 02:00 to 03:00 is skipped: what was named there stands at the change, what is named at 03:00 is itself.
        ("30 2 * * *", "Europe/Berlin", BERLIN_SPRING, [("01:00", "gap"), ("00:30", "named")]),
        ("0,30 2,3 * * *", "Europe/Berlin", BERLIN_SPRING, [("01:00", "named"), ("01:30", "named")]),
        ("30 2 * * *", "America/New_York", NEW_YORK_SPRING, [("07:00", "gap"), ("06:30", "named")]),
        # An hourly job follows elapsed time: nothing is moved.
        ("30 * * * *", "Europe/Berlin", BERLIN_SPRING, [("00:30", "named"), ("01:30", "named")]),
        # 02:00 to 03:00 comes twice: a nightly job takes the first, an hourly one both.
        ("30 2 * * *", "Europe/Berlin", BERLIN_AUTUMN, [("00:30", "fold"), ("01:30", "named")]),
        ("30 * * * *", "Europe/Berlin", BERLIN_AUTUMN, [("00:30", "fold"), ("01:30", "fold"), ("02:30", "named")]),
        ("0 * * * *", "Europe/Berlin", BERLIN_AUTUMN, [("00:00", "fold"), ("01:00", "fold"), ("02:00", "named")]),
        ("30 1 * * *", "America/New_York", NEW_YORK_AUTUMN, [("05:30", "fold"), ("06:30", "named")]),
        ("0 2 * * *", "America/New_York", NEW_YORK_AUTUMN, [("07:00", "named")]),
    ],
)
def test_a_slot_where_clocks_change_is_told_from_one_that_is_just_named(
    expression: str, tz: str, after: datetime, expected: list[tuple[str, str]]
) -> None:
    assert rules(cron(expression, tz=tz), after=after, count=len(expected)) == expected


@pytest.mark.parametrize("schedule", [cron("30 2 * * *"), every("1h"), once(datetime(2026, 3, 29, 1, tzinfo=UTC))])
def test_without_a_zone_of_its_own_every_slot_is_named(schedule: Schedule) -> None:
    assert {rule for _, rule in rules(schedule, after=BERLIN_SPRING, count=3)} == {"named"}


def test_a_year_of_a_nightly_job_has_one_gap_and_one_fold() -> None:
    schedule = cron("30 2 * * *", tz="Europe/Berlin")
    slots = schedule.latest_slots(datetime(2027, 1, 1, tzinfo=UTC), after=datetime(2026, 1, 1, tzinfo=UTC), count=400)
    made = [slot_rule(schedule, slot) for slot in slots]
    assert (made.count("gap"), made.count("fold"), made.count("named")) == (1, 1, 363)
    assert max(later - earlier for earlier, later in pairwise(slots)) < timedelta(hours=26)


def test_the_last_slots_of_the_calendar_have_a_rule_and_a_local_time() -> None:
    schedule = cron("59 23 31 12 *", tz="America/New_York")
    last = datetime(9999, 12, 31, 23, 30, tzinfo=UTC)
    assert slot_rule(cron("0 * * * *", tz="Asia/Tokyo"), last) == "named"
    assert local_time(last, "Asia/Tokyo") == "9999-12-31T23:30:00+00:00"
    assert local_time(last, zone_of(schedule)) == "9999-12-31T18:30:00-05:00"
    assert (zone_of(None), zone_of(every("1h"))) == ("UTC", "UTC")
