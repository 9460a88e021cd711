"""What people read of runs, and what a filter sends back: pages that stay put, and no look across tenants."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

import rota
from rota.domain.job import Job
from rota.domain.run_filter import RunFilter
from rota.errors import InvalidCursor, InvalidInput, NotFound
from rota.store import runs
from rota.store.runs import RunView
from rota.testing import RotaKit
from tests.services.stories import HOUR, MINUTE, SECOND, START, execute, fetch

DEAD = RunFilter(state="dead")


async def find(kit: RotaKit, limit: int = 50, before: Any = None, tenant: str = "default", **where: Any) -> list[UUID]:
    found = await kit.history.find(RunFilter(**where), tenant_id=tenant, before=before, limit=limit)
    return [run.run_id for run in found]


async def bury(kit: RotaKit, job_id: str, *, error: str = "no", **changes: Any) -> UUID:
    """Return a run of a new or known job that failed for good."""
    await kit.put(Job(**{"job_id": job_id, "handler": f"h-{job_id}", "max_attempts": 1, **changes}))
    tenant_id = changes.get("tenant_id", "default")
    run = await kit.on_demand.trigger(job_id, tenant_id=tenant_id)
    work = await kit.worker("w", handlers=[changes.get("handler", f"h-{job_id}")]).claim_one()
    await work.fail(error)
    return run


async def test_a_run_that_ended_says_when_its_last_attempt_began_how_long_it_took_and_why_it_failed(
    rota_kit: RotaKit,
) -> None:
    await rota_kit.put(Job(job_id="a", handler="h", max_attempts=2))
    await rota_kit.on_demand.trigger("a", tenant_id="default")
    for error in ("the first", "the last"):
        work = await rota_kit.worker("w", handlers=["h"]).claim_one()
        began = rota_kit.clock.now()
        rota_kit.clock.advance(2.5)
        await work.fail(f"{error}\n" + "x" * 1000)
        if error == "the first":
            [waits] = await rota_kit.history.find(RunFilter(), tenant_id="default")
            assert (waits.state, waits.started_at, waits.duration_seconds) == ("pending", None, None)
            assert waits.error is not None
            assert waits.error.startswith("the first\n")
            await rota_kit.advance(60)
    for where in (RunFilter(), RunFilter(job_id="a"), RunFilter(state="dead")):
        [run] = await rota_kit.history.find(where, tenant_id="default")
        assert (run.state, run.started_at, run.duration_seconds) == ("dead", began, 2.5)
        assert run.error == ("the last\n" + "x" * 1000)[:500], "a list cuts it"
    shown, _ = await rota_kit.history.run(run.run_id)
    assert (shown.started_at, shown.duration_seconds) == (began, 2.5)
    assert shown.error == "the last\n" + "x" * 1000


async def test_a_run_that_was_cancelled_before_it_began_has_neither_start_nor_duration(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="a", handler="h"))
    run_id = await rota_kit.on_demand.trigger("a", tenant_id="default")
    await rota_kit.on_demand.cancel(run_id, tenant_id="default")
    [run] = await rota_kit.history.find(RunFilter(), tenant_id="default")
    assert (run.state, run.started_at, run.duration_seconds, run.error) == ("cancelled", None, None, None)


# lists ------------------------------------------------------------------------------------------------------------


async def test_pages_go_on_where_the_last_one_ended_whatever_comes_meanwhile(rota_kit: RotaKit) -> None:
    """Slots of several jobs at one instant are told apart by their ids, and new runs do not move old ones."""
    names = [f"job-{n}" for n in range(5)]
    await rota_kit.put(*(Job(job_id=name, handler="h") for name in names))
    for name in names:
        for slot in (START, START + MINUTE):
            await rota_kit.on_demand.trigger(name, tenant_id="default", scheduled_for=slot)
    everything = await find(rota_kit)
    assert everything == sorted(everything, reverse=True)
    seen: list[UUID] = []
    before: Any = None
    while page := await rota_kit.history.find(RunFilter(), tenant_id="default", before=before, limit=3):
        seen += [run.run_id for run in page]
        before = (page[-1].scheduled_for, page[-1].run_id)
        await rota_kit.on_demand.trigger("job-0", tenant_id="default", scheduled_for=START + HOUR + len(seen) * SECOND)
    assert seen == everything


@pytest.mark.parametrize("where", [{"job_id": "job"}, {"state": "dead"}, {}])
async def test_every_kind_of_list_is_read_in_pages(rota_kit: RotaKit, where: dict[str, Any]) -> None:
    runs = []
    for _ in range(5):
        runs.append(await bury(rota_kit, "job"))
        rota_kit.clock.advance(1)
    seen: list[UUID] = []
    before: Any = None
    while page := await rota_kit.history.find(RunFilter(**where), tenant_id="default", before=before, limit=2):
        seen += [run.run_id for run in page]
        before = (page[-1].scheduled_for, page[-1].run_id)
    assert seen == runs[::-1]


async def test_a_cursor_of_another_job_is_a_place_all_the_same(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="a", handler="h"), Job(job_id="b", handler="h"))
    runs = sorted(
        [await rota_kit.on_demand.trigger(name, tenant_id="default", scheduled_for=START) for name in ("a", "b")]
    )
    jobs = {run.run_id: run.job_id for run in await rota_kit.history.find(RunFilter(), tenant_id="default")}
    lower, upper = runs
    assert await find(rota_kit, job_id=jobs[lower], before=(START, upper)) == [lower]
    assert await find(rota_kit, job_id=jobs[upper], before=(START, lower)) == []


async def test_a_list_is_filtered_by_what_its_runs_and_jobs_are(rota_kit: RotaKit) -> None:
    await rota_kit.put(
        Job(job_id="a", handler="h-a", labels={"team": "billing", "eu": ""}),
        Job(job_id="b", handler="h-b", labels={"team": "search"}),
        Job(job_id="c", handler="h-c"),
    )
    a, b, c = [await rota_kit.on_demand.trigger(name, tenant_id="default") for name in "abc"]
    await (await rota_kit.worker("w", handlers=["h-b"]).claim_one()).fail("Upstream 100% DOWN_")
    assert await find(rota_kit, job_id="a") == [a]
    assert await find(rota_kit, handler="h-c") == [c]
    assert await find(rota_kit, label="team=billing") == [a]
    assert set(await find(rota_kit, label="team")) == {a, b}
    assert await find(rota_kit, label="eu=") == [a]
    assert await find(rota_kit, label="team=") == []
    assert await find(rota_kit, job_id="b", label="team=billing") == []
    assert await find(rota_kit, job_id="b", label="team=search", handler="h-b") == [b]
    assert await find(rota_kit, error="100% down_") == [b]
    assert await find(rota_kit, job_id="b", error="upstream") == [b]
    for pattern in ("%", "_"):
        assert await find(rota_kit, error=pattern) == [b], "a wildcard is a character like others"
    assert await find(rota_kit, error="1%D") == []
    assert await find(rota_kit, state="running") == []
    assert len(await find(rota_kit, state="pending")) == 3


async def test_without_a_beginning_a_list_goes_back_a_day_and_that_of_a_job_for_ever(rota_kit: RotaKit) -> None:
    dead = await bury(rota_kit, "dead")
    await rota_kit.put(Job(job_id="job", handler="h"))
    old = await rota_kit.on_demand.trigger("job", tenant_id="default")
    rota_kit.clock.advance(timedelta(days=2))
    new = await rota_kit.on_demand.trigger("job", tenant_id="default")
    assert await find(rota_kit) == [new]
    assert await find(rota_kit, job_id="job") == [new, old]
    assert await find(rota_kit, state="dead") == [dead]
    assert set(await find(rota_kit, since=START)) == {new, old, dead}
    assert set(await find(rota_kit, until=START + HOUR)) == {old, dead}
    assert await find(rota_kit, job_id="job", since=START + HOUR) == [new]
    assert await find(rota_kit, state="dead", since=START + HOUR) == []


async def test_no_list_shows_another_tenants_runs(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="job", handler="h", tenant_id="other"))
    run = await rota_kit.on_demand.trigger("job", tenant_id="other")
    await bury(rota_kit, "dead", tenant_id="other")
    for where in ({}, {"job_id": "job"}, {"state": "dead"}, {"since": START}):
        assert await find(rota_kit, **where) == []
    assert await find(rota_kit, job_id="job", tenant="other") == [run]
    assert (await rota_kit.history.run(run, tenant_id="other"))[0].run_id == run
    with pytest.raises(NotFound):
        await rota_kit.history.run(run, tenant_id="default")


async def test_a_run_shows_its_last_error_and_when_it_died(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="job", handler="h", max_attempts=2, retry=rota.retry(initial=1, jitter=0)))
    run = await rota_kit.on_demand.trigger("job", tenant_id="default")
    for error in ("first", "second"):
        await (await rota_kit.worker("w", handlers=["h"]).claim_one()).fail(error)
        await rota_kit.advance(1)
    [listed] = await rota_kit.history.find(DEAD, tenant_id="default", whole=True)
    shown, attempts = await rota_kit.history.run(run)
    assert listed == shown
    assert (shown.error, shown.died_at) == ("second", START + SECOND)
    assert [attempt.error for attempt in attempts] == ["first", "second"]
    [plain] = await rota_kit.history.find(RunFilter(job_id="job"), tenant_id="default")
    assert plain.error == "second"


async def test_a_list_of_dead_letters_shows_the_beginning_of_a_long_error(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="job", handler="h", max_attempts=1, payload={"a": 1}))
    await rota_kit.on_demand.trigger("job", tenant_id="default")
    await (await rota_kit.worker("w", handlers=["h"]).claim_one()).fail("x" * 10_000)
    [listed] = await rota_kit.history.find(DEAD, tenant_id="default")
    assert (listed.error, listed.payload) == ("x" * 500, None)


async def test_a_run_with_very_many_attempts_shows_the_last_ones(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="job", handler="h", max_attempts=1000, retry=rota.retry(initial=1, jitter=0)))
    run = await rota_kit.on_demand.trigger("job", tenant_id="default")
    await execute(
        rota_kit,
        """INSERT INTO rota.attempt (shard, job_uid, scheduled_for, token, claimed_at, ended_at, attempt, outcome,
                                     worker_id, error)
           SELECT shard, job_uid, scheduled_for, gen_random_uuid(), created_at + n * interval '1 s',
                  created_at + n * interval '1 s', n, 'failed', 'w', n::text
             FROM rota.run, generate_series(1, 150) n""",
    )
    shown, attempts = await rota_kit.history.run(run)
    assert [attempt.attempt for attempt in attempts] == list(range(51, 151))
    assert shown.error == "150"


async def test_a_place_that_is_no_runs_is_refused(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="job", handler="h"))
    run = await rota_kit.on_demand.trigger("job", tenant_id="default")
    for before in ((START, UUID(int=7)), (START + SECOND, run), (START, UUID(int=2**128 - 1))):
        with pytest.raises(InvalidCursor):
            await find(rota_kit, before=before)


@pytest.mark.parametrize(
    ("field", "where"),
    [
        ("state", {"state": "asleep"}),
        ("job_id", {"job_id": "x" * 201}),
        ("job_id", {"job_id": "a\x00"}),
        ("handler", {"handler": "\ud800"}),
        ("label", {"label": "=value"}),
        ("label", {"label": " team"}),
        ("label", {"label": "team=" + "x" * 201}),
        ("error", {"error": "x" * 1001}),
        ("error", {"error": "\x00"}),
        ("since", {"since": datetime(2026, 1, 1)}),
        ("since", {"since": START + HOUR, "until": START}),
        ("until", {"until": datetime.fromisoformat("9999-12-31T23:59:59-05:00")}),
    ],
)
def test_a_filter_that_means_nothing_is_refused_by_name(field: str, where: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as refusal:
        RunFilter(**where)
    assert refusal.value.field == field


# the way back -----------------------------------------------------------------------------------------------------


async def rows(kit: RotaKit) -> list[tuple[str, datetime, str]]:
    found = await fetch(
        kit,
        "SELECT j.job_id, p.available_at, p.gate FROM rota.pending p JOIN rota.job j USING (shard, job_uid)"
        " ORDER BY p.available_at, j.job_id",
    )
    return [tuple(row) for row in found]


async def test_matching_dead_letters_go_back_the_longest_dead_first_at_a_rate(rota_kit: RotaKit) -> None:
    for name in ("a", "b", "c", "d"):
        await bury(rota_kit, name, error="Upstream 500")
        rota_kit.clock.advance(10)
    await bury(rota_kit, "other", error="no such customer")
    now = rota_kit.clock.now()
    done = await rota_kit.on_demand.replay_matching(
        RunFilter(error="upstream"), tenant_id="default", rate=2, limit=3, actor="token:abc"
    )
    half = SECOND / 2
    assert (done.replayed, done.more, done.last_at) == (3, True, now + SECOND)
    assert await rows(rota_kit) == [("a", now, "open"), ("b", now + half, "time"), ("c", now + SECOND, "time")]
    worker = rota_kit.worker("w", handlers=["h-a", "h-b", "h-c", "h-d"])
    assert [work.claim.job_id for work in await worker.claim(limit=9)] == ["a"]
    await rota_kit.advance(SECOND)
    later = await worker.claim(limit=9)
    assert [(work.claim.job_id, work.claim.attempt) for work in later] == [("b", 2), ("c", 2)]
    done = await rota_kit.on_demand.replay_matching(RunFilter(error="upstream"), tenant_id="default")
    assert (done.replayed, done.more, done.last_at) == (1, False, rota_kit.clock.now())
    assert len(await rota_kit.history.dead_letters(tenant_id="default")) == 1
    entries = await fetch(rota_kit, "SELECT actor FROM rota.audit WHERE action = 'run.replayed' ORDER BY actor")
    assert [row["actor"] for row in entries] == ["system", "token:abc", "token:abc", "token:abc"]


async def test_a_filter_sends_back_what_it_means_and_no_more(rota_kit: RotaKit) -> None:
    await bury(rota_kit, "a", labels={"team": "x"})
    rota_kit.clock.advance(HOUR)
    await bury(rota_kit, "b", handler="special")
    await bury(rota_kit, "c")
    await bury(rota_kit, "gone")
    await bury(rota_kit, "foreign", tenant_id="other")
    await rota_kit.definitions.delete("gone", tenant_id="default")
    since = rota_kit.clock.now()
    for where, expected in (
        (RunFilter(job_id="nobody"), 0),
        (RunFilter(state="dead", error="%"), 0),
        (RunFilter(label="team=x", since=since), 0),
        (RunFilter(label="team=x"), 1),
        (RunFilter(handler="special"), 1),
        (RunFilter(job_id="gone"), 0),
        (RunFilter(since=since), 1),
        (RunFilter(), 0),
    ):
        done = await rota_kit.on_demand.replay_matching(where, tenant_id="default")
        assert (done.replayed, done.more) == (expected, False), where
    assert [letter.job_id for letter in await rota_kit.history.dead_letters(tenant_id="other")] == ["foreign"]


async def test_many_that_replay_the_same_send_nothing_back_twice(rota_kit: RotaKit) -> None:
    for _ in range(10):
        await bury(rota_kit, "job")
        rota_kit.clock.advance(1)
    answers = await asyncio.gather(
        *(rota_kit.on_demand.replay_matching(RunFilter(), tenant_id="default", limit=7) for _ in range(8))
    )
    left = len(await rota_kit.history.dead_letters(tenant_id="default"))
    assert sum(answer.replayed for answer in answers) + left == 10
    assert len(await rows(rota_kit)) == 10 - left


async def test_a_dead_letter_of_another_tenant_is_none(rota_kit: RotaKit) -> None:
    run = await bury(rota_kit, "job", tenant_id="other")
    assert await rota_kit.on_demand.replay([run], tenant_id="default") == frozenset()
    assert await rota_kit.on_demand.replay([run, run], tenant_id="other") == {run}
    view: RunView = (await rota_kit.history.run(run))[0]
    assert (view.state, view.died_at, view.error) == ("pending", None, "no")


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf"), 1e-9, True, "2", 10**400])
async def test_a_rate_that_is_none_is_refused(rota_kit: RotaKit, rate: Any) -> None:
    with pytest.raises(InvalidInput) as refusal:
        await rota_kit.on_demand.replay_matching(RunFilter(), tenant_id="default", rate=rate)
    assert refusal.value.field == "rate"


async def test_only_dead_letters_are_sent_back_and_not_too_many(rota_kit: RotaKit) -> None:
    for field, asked in (("state", {"where": RunFilter(state="running")}), ("limit", {"where": DEAD, "limit": 10_001})):
        with pytest.raises(InvalidInput) as refusal:
            await rota_kit.on_demand.replay_matching(tenant_id="default", **asked)
        assert refusal.value.field == field


def test_a_window_is_kept_in_utc() -> None:
    given = datetime.fromisoformat("2026-01-01T02:00:00+02:00")
    assert RunFilter(since=given).since == START
    assert getattr(RunFilter(since=given).since, "tzinfo", None) is UTC


# turns ------------------------------------------------------------------------------------------------------------


async def test_the_wide_reads_of_one_tenant_keep_nobody_else_waiting(
    rota_kit: RotaKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading: list[str] = []
    enough = asyncio.Event()

    async def slow(*_: object, tenant_id: str, **__: object) -> list[RunView]:
        reading.append(tenant_id)
        await enough.wait()
        return []

    monkeypatch.setattr(runs, "recent", slow)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        for tenant in ("acme", "acme", "acme", "default"):
            group.create_task(find(rota_kit, tenant=tenant))
        while len(reading) < 3:
            await asyncio.get_running_loop().run_in_executor(None, lambda: None)
        assert reading == ["acme", "acme", "default"]
        enough.set()
    assert reading == ["acme", "acme", "default", "acme"]
