"""Jobs come and change: what each edit does to the future, and that none touches the past."""

from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

import rota
from rota.domain.admission import AGEING
from rota.domain.ids import job_uid
from rota.domain.job import Job
from rota.errors import Conflict, InvalidInput, NotFound, VersionConflict
from rota.testing import RotaKit
from tests.services.stories import (
    HOUR,
    MINUTE,
    SECOND,
    START,
    TEN_SECONDS,
    every,
    execute,
    ledger,
    slots,
    stored,
)

# put ------------------------------------------------------------------------------------------------------------------


async def test_a_new_job_makes_no_history_for_a_start_in_the_past(rota_kit: RotaKit) -> None:
    """B27: slots before a job's creation are nobody's."""
    schedule = rota.cron("* * * * *", start=START - timedelta(days=30))
    await rota_kit.put(Job(job_id="tick", handler="h", schedule=schedule, misfire=rota.catch_up(100)))
    await rota_kit.tick()
    assert await slots(rota_kit) == []
    await rota_kit.advance(60)
    assert await slots(rota_kit) == [START + MINUTE]
    earlier = rota.cron("* * * * *", start=START - timedelta(days=300))
    await rota_kit.put(Job(job_id="tick", handler="h", schedule=earlier, misfire=rota.catch_up(100)))
    await rota_kit.tick()
    assert await slots(rota_kit) == [START + MINUTE], "an edit does not make history either"


async def test_the_same_put_changes_nothing(rota_kit: RotaKit) -> None:
    job = Job(
        job_id="tick", handler="h",
        schedule=rota.cron("0 2 * * *", tz="Europe/Berlin", end=datetime(2030, 1, 1, tzinfo=UTC)),
        payload={"n": 1.5, "deep": [{"x": None}], "big": 10**20}, retry=rota.retry(initial=1.5, factor=1.1, jitter=0.3),
        misfire=rota.catch_up(7), labels={"team": "billing"}, start_deadline=HOUR, jitter=MINUTE, description="é",
        overlap="replace", max_concurrency=3, concurrency_key="payload.n", key_concurrency=2,
        limits={"crm": 2, "mail.eu": 1}, max_losses=7, pause_after=4,
    )  # fmt: skip
    [first] = await rota_kit.put(job)
    before = await stored(rota_kit)
    rota_kit.clock.advance(5)
    [again] = await rota_kit.put(job)
    assert (first.changed, again.changed, again.version) == (True, False, first.version)
    assert again.next_slot == first.next_slot
    assert await stored(rota_kit) == before
    assert before.job == job


async def test_a_changed_schedule_counts_from_the_edit_forward_and_backward(rota_kit: RotaKit) -> None:
    """B34: effective at the next tick, whether the next slot moves away or comes nearer."""
    await rota_kit.put(every("1h"))
    await rota_kit.advance(30)
    await rota_kit.put(every("10s"))
    await rota_kit.advance(10)
    assert await slots(rota_kit) == [START + 40 * SECOND]
    await rota_kit.put(every("1h"))
    await rota_kit.advance(60)
    assert await slots(rota_kit) == [START + 40 * SECOND]
    assert (await stored(rota_kit)).next_run_at == START + HOUR


async def test_an_edit_of_anything_else_leaves_the_schedule_where_it_stood(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("1h", misfire=rota.catch_up(5)))
    rota_kit.clock.advance(2 * HOUR)
    await rota_kit.put(every("1h", misfire=rota.catch_up(5), priority=9, description="now urgent"))
    await rota_kit.tick()
    assert await slots(rota_kit) == [START + HOUR, START + 2 * HOUR]


async def test_slots_that_an_edit_overtakes_leave_their_trace(rota_kit: RotaKit) -> None:
    """A slot that came due a moment before its schedule was changed never runs, and is not lost without a word."""
    await rota_kit.put(every("10s"))
    rota_kit.clock.advance(25)
    await rota_kit.put(every("1h"))
    assert await ledger(rota_kit) == [("misfire", START + TEN_SECONDS, START + 2 * TEN_SECONDS, 2)]
    await rota_kit.tick()
    assert await slots(rota_kit) == []


async def test_a_job_put_five_times_in_five_shapes_has_one_schedule(rota_kit: RotaKit) -> None:
    """B40: whatever it was before, one schedule and one run per slot."""
    shapes = [
        rota.cron("* * * * *"), rota.every("1m"), rota.once(START + MINUTE), None,
        rota.cron("*/2 * * * *"), rota.cron("* * * * *", tz="Asia/Tokyo"),
    ]  # fmt: skip
    for schedule in shapes:
        await rota_kit.put(Job(job_id="tick", handler="h", schedule=schedule))
    await rota_kit.advance(120)
    assert await slots(rota_kit) == [START + MINUTE, START + 2 * MINUTE]


async def test_a_job_whose_end_has_passed_is_finished_and_no_error(rota_kit: RotaKit) -> None:
    """B42: nine go on, the tenth says that it is finished; also after a restart."""
    jobs = [every("1m", f"job-{number}") for number in range(9)]
    ended = Job(job_id="ended", handler="h", schedule=rota.every("1m", end=START - MINUTE))
    ending = Job(job_id="ending", handler="h", schedule=rota.every("1m", end=START + MINUTE))
    results = await rota_kit.put(*jobs, ended, ending)
    assert [len(result.warnings) for result in results] == [0] * 9 + [1, 0]
    assert (await stored(rota_kit, "ended")).state == "finished"
    await rota_kit.advance(60)
    rota_kit.clock.advance(600)
    await rota_kit.tick(rota_kit.scheduler("scheduler-2"))
    assert (await stored(rota_kit, "ending")).state == "finished"
    assert await slots(rota_kit, "ending") == [START + MINUTE]
    for job in jobs:
        assert len(await slots(rota_kit, job.job_id)) == 2
        assert (await stored(rota_kit, job.job_id)).state == "active"
    assert [result.changed for result in await rota_kit.put(*jobs, ended, ending)] == [False] * 11


async def test_an_editor_who_read_an_older_version_is_refused(rota_kit: RotaKit) -> None:
    with pytest.raises(VersionConflict, match="there is no job 'tick', so none at version 1"):
        await rota_kit.definitions.put([every("1h")], if_version=1)
    [created] = await rota_kit.definitions.put([every("1h")], if_version=0)
    assert created.version == 1
    with pytest.raises(VersionConflict, match="is there already, at version 1"):
        await rota_kit.definitions.put([every("2h")], if_version=0)
    [edited] = await rota_kit.definitions.put([every("2h")], if_version=1)
    assert edited.version == 2
    with pytest.raises(VersionConflict, match="at version 2, not 1"):
        await rota_kit.definitions.put([every("3h")], if_version=1)
    job = (await stored(rota_kit)).job
    assert job is not None
    assert job.schedule == rota.every("2h")


async def test_a_job_that_stands_twice_in_one_request_is_refused_whole(rota_kit: RotaKit) -> None:
    with pytest.raises(InvalidInput) as refusal:
        await rota_kit.put(every("1h"), every("1h", "other"), every("2h"))
    assert refusal.value.field == "job_id"
    assert await rota_kit.definitions.page(tenant_id="default") == []


@pytest.mark.parametrize("bad", [{"tz": "America/New_Yrok"}, {"tz": "UTC+3"}, {"tz": ""}])
async def test_a_zone_with_a_typo_is_refused_and_changes_nothing(rota_kit: RotaKit, bad: dict[str, Any]) -> None:
    """B92: what is refused loses nothing of what stood there."""
    await rota_kit.put(every("1m"))
    with pytest.raises(InvalidInput) as refusal:
        await rota_kit.put(Job(job_id="tick", handler="h", schedule=rota.cron("* * * * *", **bad)))
    assert refusal.value.field == "tz"
    await rota_kit.advance(60)
    assert await slots(rota_kit) == [START + MINUTE]


# edits while runs wait ------------------------------------------------------------------------------------------------


async def test_waiting_runs_follow_their_job_to_another_pool_and_handler(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s"))
    await rota_kit.advance(10)
    await rota_kit.put(every("10s", pool="big", handler="h2"))
    assert await rota_kit.worker("w-1", handlers=["h", "h2"]).claim() == []
    assert await rota_kit.worker("w-2", handlers=["h"], pool="big").claim() == []
    work = await rota_kit.worker("w-3", handlers=["h2"], pool="big").claim_one()
    assert work.claim.handler == "h2"
    await rota_kit.put(every("10s"))
    await work.release()
    assert (await rota_kit.worker("w-1", handlers=["h"]).claim_one()).claim.run_id == work.claim.run_id


async def test_a_raised_priority_moves_waiting_runs_ahead(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s", "first"), every("10s", "second"))
    await rota_kit.advance(10)
    rota_kit.clock.advance(1)
    await rota_kit.put(every("10s", "second", priority=9))
    [work] = await rota_kit.worker("w-1", handlers=["h"]).claim(limit=1)
    assert work.claim.job_id == "second"
    await work.release()
    await rota_kit.put(every("10s", "second", priority=0))
    claimed = await rota_kit.worker("w-1", handlers=["h"]).claim(limit=2)
    assert [work.claim.job_id for work in claimed] == ["first", "second"]


async def test_low_work_is_next_once_it_has_waited_longer_than_ageing_gives_the_high(rota_kit: RotaKit) -> None:
    """B66: behind ever-new work of the highest priority, for nine times the ageing and no longer."""
    await rota_kit.put(Job(job_id="low", handler="h", priority=0), Job(job_id="high", handler="h", priority=9))
    await rota_kit.on_demand.trigger("low", tenant_id="default")
    worker = rota_kit.worker("w-1", handlers=["h"])
    waited = timedelta(0)
    while waited <= timedelta(hours=1):
        rota_kit.clock.advance(AGEING / 2)
        waited += AGEING / 2
        await rota_kit.on_demand.trigger("high", tenant_id="default")
        work = await worker.claim_one()
        await work.succeed()
        if work.claim.job_id == "low":
            break
    assert 9 * AGEING <= waited <= 9 * AGEING + AGEING / 2


@pytest.mark.parametrize("call", ["get", "pause", "resume", "delete", "trigger"])
async def test_a_job_that_does_not_exist_is_not_found(rota_kit: RotaKit, call: str) -> None:
    asked: dict[str, Any] = {"reason": "x"} if call == "pause" else {}
    service: Any = rota_kit.on_demand if call == "trigger" else rota_kit.definitions
    for job_id in ("batch-test", "00000000-0000-8000-8000-000000000000", "null", "true", "123"):
        with pytest.raises(NotFound, match=job_id):
            await getattr(service, call)(job_id, tenant_id="default", **asked)


async def test_ids_that_look_like_something_else_are_plain_strings(rota_kit: RotaKit) -> None:
    """B86: put, read, listed and run as what they are."""
    names = ["batch-test", "00000000-0000-8000-8000-000000000000", "null", "true", "123", "1e3", "a/b", "%00", "é"]
    await rota_kit.put(*(every("10s", name) for name in names))
    assert [row.job_id for row in await rota_kit.definitions.page(tenant_id="default")] != []
    for name in names:
        assert (await stored(rota_kit, name)).job_id == name
    await rota_kit.advance(10)
    claimed = await rota_kit.worker("w-1", handlers=["h"]).claim(limit=50)
    assert {work.claim.job_id for work in claimed} == set(names)


async def test_tenants_with_one_job_name_do_not_meet(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s", tenant_id="one"), every("1h", tenant_id="other"))
    await rota_kit.advance(10)
    assert len(await rota_kit.runs("tick", tenant_id="one")) == 1
    assert await rota_kit.runs("tick", tenant_id="other") == []
    await rota_kit.definitions.delete("tick", tenant_id="one")
    assert (await rota_kit.definitions.get("tick", tenant_id="other")).state == "active"
    with pytest.raises(NotFound):
        await rota_kit.definitions.get("tick", tenant_id="one")


# pages, tz data -------------------------------------------------------------------------------------------------------


async def test_pages_follow_each_other_without_gap_or_repeat(rota_kit: RotaKit) -> None:
    await rota_kit.put(*(Job(job_id=f"job-{number:02}", handler="h") for number in range(25)))
    seen: list[str] = []
    while page := await rota_kit.definitions.page(tenant_id="default", after=seen[-1] if seen else "", limit=10):
        seen += [row.job_id for row in page]
    assert seen == [f"job-{number:02}" for number in range(25)]
    assert len(await rota_kit.definitions.page(tenant_id="default", prefix="job-1")) == 10


async def test_next_slots_computed_by_old_tz_data_are_computed_anew(rota_kit: RotaKit) -> None:
    """B36: as if an older release had put Berlin's 02:00 an hour elsewhere; paused jobs are corrected too."""
    berlin = rota.cron("0 2 * * *", tz="Europe/Berlin")
    await rota_kit.put(
        *(Job(job_id=name, handler="h", schedule=berlin) for name in ("early", "late", "paused", "right"))
    )
    await rota_kit.definitions.pause("paused", tenant_id="default", reason="a look")
    right = START + HOUR
    await execute(
        rota_kit,
        """UPDATE rota.schedule s SET next_slot = m.at, next_run_at = CASE WHEN next_run_at IS NOT NULL THEN m.at END
             FROM (SELECT shard, job_uid,
                          CASE job_id WHEN 'early' THEN $1::timestamptz WHEN 'right' THEN $2 ELSE $3 END AS at
                     FROM rota.job) m WHERE (s.shard, s.job_uid) = (m.shard, m.job_uid)""",
        right - MINUTE, right, right + HOUR,
    )  # fmt: skip
    assert await rota_kit.definitions.recompute(range(64)) == 3
    assert await rota_kit.definitions.recompute(range(64)) == 0
    for name in ("early", "late", "right"):
        assert (await stored(rota_kit, name)).next_run_at == right
    paused = await stored(rota_kit, "paused")
    assert (paused.next_run_at, paused.next_slot) == (None, right)
    rota_kit.clock.advance(HOUR)
    await rota_kit.tick()
    assert await slots(rota_kit, "late") == [right]


async def test_schedulers_with_different_tz_data_are_reported(rota_kit: RotaKit) -> None:
    """B36: every process reports its version, and a mismatch is a finding."""
    await rota_kit.tick()
    await rota_kit.tick(rota_kit.scheduler("scheduler-2"))
    await execute(rota_kit, "UPDATE rota.scheduler SET tzdata = '2025b' WHERE scheduler_id = 'scheduler-2'")
    [fleet] = [check for check in await rota_kit.rota.doctor.examine() if check.name == "fleet"]
    assert any("2025b" in finding and "recompute" in finding for finding in fleet.findings)


# page -----------------------------------------------------------------------------------------------------------------


async def listed(kit: RotaKit, **where: Any) -> list[str]:
    return [found.job_id for found in await kit.definitions.page(tenant_id="default", **where)]


async def test_pages_walk_through_all_jobs_of_a_tenant_once_in_the_order_of_their_ids(rota_kit: RotaKit) -> None:
    """Whatever the characters, and however many shards the jobs lie in: no id twice, none left out."""
    names = [f"job-{number}" for number in range(150)] + [
        "Job",
        "jöb",
        "job",
        "job/a",
        "job.a",
        "JOB",
        "\U0010ffff",
        "z%_\\",
    ]
    await rota_kit.put(*(every("1h", name) for name in names))
    await rota_kit.put(every("1h", "job-5", tenant_id="acme"))
    walked: list[str] = []
    while part := await listed(rota_kit, after=walked[-1] if walked else "", limit=37):
        assert len(part) <= 37
        walked += part
    assert walked == sorted(names)
    assert await listed(rota_kit, limit=0) == []


async def test_a_prefix_is_what_ids_begin_with_and_no_pattern(rota_kit: RotaKit) -> None:
    names = ["a", "a%", "a%b", "ab", "a_", "b", "A", "a\U0010ffff", "a\U0010ffff" * 3, "ä"]
    await rota_kit.put(*(every("1h", name) for name in names))
    for prefix in ("", "a", "a%", "a_", "a\U0010ffff", "A", "none"):
        assert await listed(rota_kit, prefix=prefix) == sorted(name for name in names if name.startswith(prefix))
    assert await listed(rota_kit, prefix="a", after="a%") == sorted(n for n in names if n.startswith("a") and n > "a%")
    assert await listed(rota_kit, prefix="b", after="A") == ["b"]


async def test_jobs_are_found_by_label_handler_and_whether_they_are_enabled(rota_kit: RotaKit) -> None:
    await rota_kit.put(
        every("1h", "a", labels={"team": "billing"}, handler="h1"),
        every("1h", "b", labels={"team": "ops"}),
        every("1h", "c", labels={"team": "a=b", "urgent": ""}),
        every("1h", "d"),
    )
    await rota_kit.definitions.pause("b", tenant_id="default", reason="a look")
    await execute(rota_kit, "UPDATE rota.job SET quarantined = 'why' WHERE job_id = 'd'")
    assert await listed(rota_kit, label="team") == ["a", "b", "c"]
    assert await listed(rota_kit, label="team=billing") == ["a"]
    assert await listed(rota_kit, label="team=a=b") == ["c"]
    assert await listed(rota_kit, label="urgent=") == ["c"]
    assert await listed(rota_kit, label="billing") == []
    assert await listed(rota_kit, handler="h1") == ["a"]
    assert await listed(rota_kit, handler="h") == ["b", "c", "d"]
    assert await listed(rota_kit, enabled=True) == ["a", "c"]
    assert await listed(rota_kit, enabled=False) == ["b", "d"]
    assert await listed(rota_kit, enabled=True, label="team", handler="h", prefix="c", limit=1) == ["c"]


@pytest.mark.parametrize("field", ["prefix", "after", "label", "handler"])
@pytest.mark.parametrize("hostile", ["a\x00b", "\ud800", "x" * 3000])
async def test_what_no_job_can_have_is_refused_by_name(rota_kit: RotaKit, field: str, hostile: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        await listed(rota_kit, **{field: hostile})
    assert refusal.value.field == field


async def test_a_label_without_a_name_is_refused(rota_kit: RotaKit) -> None:
    with pytest.raises(InvalidInput, match="names no label"):
        await listed(rota_kit, label="=billing")


async def test_an_id_that_no_job_can_have_is_not_found(rota_kit: RotaKit) -> None:
    for hostile in ("", "a\x00b", "\ud800", "x" * 100_000):
        with pytest.raises(NotFound):
            await rota_kit.definitions.get(hostile, tenant_id="default")
        with pytest.raises(NotFound):
            await rota_kit.definitions.delete(hostile, tenant_id="default")


async def test_an_id_whose_number_is_another_tenants_leads_to_nothing_of_theirs(rota_kit: RotaKit) -> None:
    """The number is 62 bits of a digest: with a million jobs to hit, whoever searches finds a collision."""
    await rota_kit.put(every("1h", "theirs", tenant_id="acme"))
    mine = every("1h", "mine")
    await execute(
        rota_kit,
        "WITH s AS (UPDATE rota.schedule SET shard = $1, job_uid = $2)"
        " UPDATE rota.job SET shard = $1, job_uid = $2",
        job_uid(*mine.name) % 64, job_uid(*mine.name),
    )  # fmt: skip
    calls = rota_kit.definitions
    with pytest.raises(NotFound):
        await calls.get("mine", tenant_id="default")
    with pytest.raises(NotFound):
        await calls.pause("mine", tenant_id="default", reason="")
    with pytest.raises(NotFound):
        await calls.resume("mine", tenant_id="default")
    with pytest.raises(NotFound):
        await calls.delete("mine", tenant_id="default")
    with pytest.raises(Conflict, match="choose another id"):
        await calls.put([mine])
    [standing] = await calls.page(tenant_id="acme")
    assert (standing.job_id, standing.version, standing.state) == ("theirs", 1, "active")


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("misfire_grace_ms", "9223372036854775807"), ("jitter_ms", "86400001"), ("start_deadline_ms", "9e17"),
        ("pause_after", "1001"), ("payload", "'[]'"),
        ("labels", "'\"a\"'"), ("limits", "'[]'"),
    ],
)  # fmt: skip
async def test_sql_cannot_write_what_the_program_refuses(rota_kit: RotaKit, column: str, value: str) -> None:
    await rota_kit.put(Job(job_id="job", handler="h"))
    with pytest.raises(asyncpg.CheckViolationError):
        await execute(rota_kit, f"UPDATE rota.job SET {column} = {value}")  # noqa: S608 - two words of this test
