"""The same stories of the control protocol, told to the services and to the client over HTTP: the same answers, and
errors of the same class that name the same field."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, get_args
from uuid import UUID, uuid4

import pytest

import rota
from rota.client import Client
from rota.control.local import LocalControl
from rota.control.principal import Principal
from rota.domain.attempt import Outcome
from rota.domain.job import Job
from rota.errors import (
    Conflict,
    Forbidden,
    InvalidCursor,
    InvalidInput,
    InvalidSchedule,
    KeyReused,
    NotDead,
    NotFound,
    QuotaExceeded,
    RotaError,
    RunFinished,
    Shed,
    SlotTaken,
    VersionConflict,
)
from rota.testing import RotaKit
from rota.wire.access import Scope
from rota.wire.control import Control
from rota.wire.jobs import JobFilterQuestion
from rota.wire.runs import RunFilterQuestion, RunItem, RunOfJobItem
from tests.client.served import lossy, served

FAR = datetime(2035, 1, 1, tzinfo=UTC)
ALL: tuple[Scope, ...] = get_args(Scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class Controls:
    """One who may do everything in the tenant default, one who may only look, another tenant's own master, and the
    operator, who speaks for himself."""

    master: Control
    reader: Control
    stranger: Control
    operator: Control


@pytest.fixture(params=["local", "http"])
async def controls(request: pytest.FixtureRequest, rota_kit: RotaKit) -> AsyncIterator[Controls]:
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(served(rota_kit)) if request.param == "http" else None

        async def control(tenant_id: str, *scopes: Scope) -> Control:
            view, token = await rota_kit.rota.access.create_token(
                tenant_id=tenant_id, scopes=scopes, name="conformance", expires_at=None, actor="test"
            )
            if url is not None:
                return await stack.enter_async_context(Client(url, token, tenant="*" if tenant_id == "*" else None))
            principal = Principal(
                tenant_id=tenant_id, scopes=frozenset[str](scopes), actor=f"token:{view.token_id}",
                is_operator=tenant_id == "*",
            )  # fmt: skip
            return LocalControl(rota_kit.rota, principal)

        yield Controls(
            master=await control("default", *ALL),
            reader=await control("default", "read"),
            stranger=await control("acme", *ALL),
            operator=await control("*", *ALL),
        )


@pytest.fixture
def control(controls: Controls) -> Control:
    return controls.master


async def refused(kind: type[RotaError], call: Awaitable[object], *, field: str | None = None) -> RotaError:
    """Await what must be refused with an error of exactly this kind, for this field."""
    with pytest.raises(kind) as caught:
        await call
    assert type(caught.value) is kind
    assert getattr(caught.value, "field", None) == field
    return caught.value


async def bury(kit: RotaKit, control: Control, job_id: str, *, error: str = "upstream 500") -> UUID:
    """Make a dead letter of a job."""
    await control.put_job(Job(job_id=job_id, handler="h", max_attempts=1))
    made = await control.trigger(job_id)
    work = await kit.worker("w-1", handlers=["h"]).claim_one()
    await work.report(Outcome.FAILED, error=error)
    return made.run_id


async def test_a_job_is_put_read_replaced_under_its_version_and_deleted(control: Control) -> None:
    job = Job(
        job_id="nightly", handler="h", schedule=rota.cron("0 2 * * *", tz="Europe/Berlin"), payload={"n": 10**30},
        labels={"team": "billing"}, start_deadline=timedelta(hours=1), description="é\n",
    )  # fmt: skip
    put = await control.put_job(job, if_version=0)
    assert (put.version, put.changed, put.created) == (1, True, True)
    assert not (await control.put_job(job)).changed
    shown = await control.get_job("nightly")
    assert Job.from_json(shown.job) == job
    assert (shown.state, shown.next_slot, shown.version) == ("active", put.next_slot, 1)
    assert (await control.put_job(job.edited(priority=9), if_version=1)).version == 2
    for version in (0, 1, 7):
        await refused(VersionConflict, control.put_job(job, if_version=version))
    assert (await control.get_job("nightly")).version == 2
    await control.trigger("nightly", scheduled_for=FAR)
    assert (await control.delete_job("nightly")).cancelled == 1
    for call in (control.get_job("nightly"), control.delete_job("nightly"), control.trigger("nightly")):
        await refused(NotFound, call)


async def test_a_patch_changes_what_it_names_and_the_log_shows_both(control: Control) -> None:
    schedule = rota.cron("0 2 * * *", tz="Europe/Berlin")
    job = Job(job_id="j", handler="h", schedule=schedule, payload={"n": 1, "to": "a"}, description="d", max_attempts=9)
    await control.put_job(job)
    changes = {"schedule": {"expression": "0 3 * * *"}, "payload": {"n": None}, "max_attempts": None}
    done = await control.patch_job("j", changes)
    assert (done.version, done.changed, done.fields) == (2, True, ("schedule", "payload", "max_attempts"))
    later = rota.cron("0 3 * * *", tz="Europe/Berlin")
    shown = await control.get_job("j")
    assert Job.from_json(shown.job) == job.edited(schedule=later, payload={"to": "a"}, max_attempts=3)
    assert not (await control.patch_job("j", changes)).changed
    await control.patch_job("j", {"schedule": {"kind": "interval", "every": "20s"}}, if_version=2)
    entries = (await control.audit(subject="j")).entries
    [entry] = [entry for entry in entries if entry.after["schedule"]["kind"] == "interval"]
    assert entry.before["schedule"]["kind"] == "cron"
    await refused(VersionConflict, control.patch_job("j", {"pool": "p"}, if_version=2))
    await refused(NotFound, control.patch_job("nobody", {"pool": "p"}))
    await refused(InvalidInput, control.patch_job("j", {"colour": "red"}), field="colour")
    await refused(InvalidInput, control.patch_job("j", {"job_id": "k"}), field="job_id")
    await refused(InvalidSchedule, control.patch_job("j", {"schedule": {"every": "0s"}}), field="schedule.every")
    await refused(Conflict, control.reset_job("j"))
    assert (await control.get_job("j")).version == 3


async def test_code_declares_jobs_and_an_operators_change_stays(controls: Controls) -> None:
    control = controls.master
    nightly = Job(job_id="nightly", handler="h", schedule=rota.cron("0 2 * * *"), description="bills")
    first = await control.declare_jobs([nightly, Job(job_id="old", handler="h")], source="app")
    assert [(put.created, put.differs) for put in first.jobs] == [(True, ()), (True, ())]
    await control.patch_job("nightly", {"schedule": {"expression": "0 3 * * *"}})
    shown = await control.get_job("nightly")
    assert (shown.owner, shown.source, shown.overrides) == ("code", "app", ("schedule",))
    again = await control.declare_jobs([nightly.edited(description="all bills")], source="app")
    [put] = again.jobs
    assert [(part.field, part.fate) for part in put.differs] == [("schedule", "kept"), ("description", "changed")]
    assert ((await control.get_job("nightly")).job or {})["schedule"]["expression"] == "0 3 * * *"
    assert again.orphaned == ("old",)
    assert [job.job_id for job in (await control.list_jobs(orphaned=True)).jobs] == ["old"]
    assert [job.job_id for job in (await control.list_jobs(owner="code", source="app", orphaned=False)).jobs] == [
        "nightly"
    ]
    assert (await control.reset_job("nightly")).fields == ("schedule",)
    assert (await control.get_job("nightly")).overrides == ()
    # What another tenant declares under the same name touches nothing here.
    await controls.stranger.declare_jobs([], source="app")
    assert [job.job_id for job in (await control.list_jobs(orphaned=True)).jobs] == ["old"]
    await refused(Forbidden, controls.reader.declare_jobs([nightly], source="app"))
    await refused(InvalidInput, control.declare_jobs([nightly], source=""), field="source")
    await refused(InvalidInput, control.list_jobs(owner="me"), field="owner")


async def test_many_jobs_and_runs_are_counted_first_and_then_changed(controls: Controls) -> None:
    control = controls.master
    jobs = [Job(job_id=f"b/{n}", handler="h", labels={"team": "billing"}) for n in range(3)]
    await control.put_jobs([*jobs, Job(job_id="other", handler="h")])
    await controls.stranger.put_job(Job(job_id="b/0", handler="h", tenant_id="acme", labels={"team": "billing"}))
    billing = JobFilterQuestion(label="team=billing")
    assert (await control.pause_jobs(billing, dry_run=True)).matched == 3
    first = await control.pause_jobs(billing, reason="incident", limit=2)
    assert (first.done, first.more) == (2, True)
    assert (await control.pause_jobs(billing, reason="incident", limit=2, cursor=first.next_cursor)).done == 1
    assert [job.state for job in (await control.list_jobs()).jobs] == ["paused", "paused", "paused", "active"]
    assert (await controls.stranger.get_job("b/0")).state == "active"
    assert (await control.resume_jobs(billing, pause_reason="another")).done == 0
    assert (await control.resume_jobs(billing, pause_reason="incident")).done == 3
    assert (await control.trigger_jobs(billing)).done == 3
    await controls.stranger.trigger("b/0")
    waiting = RunFilterQuestion(label="team=billing")
    assert (await control.cancel_runs(waiting, dry_run=True)).matched == 3
    done = await control.cancel_runs(waiting)
    assert (done.cancelled, done.asked, done.more) == (3, 0, False)
    assert [run.state for run in (await controls.stranger.list_runs()).runs] == ["pending"]
    assert (await control.delete_jobs(JobFilterQuestion(prefix="b/"))).done == 3
    assert [job.job_id for job in (await control.list_jobs()).jobs] == ["other"]
    await refused(InvalidInput, control.delete_jobs(JobFilterQuestion()), field="filter")
    await refused(InvalidInput, control.cancel_runs(RunFilterQuestion()), field="filter")
    await refused(InvalidInput, control.cancel_runs(RunFilterQuestion(state="dead")), field="state")
    await refused(InvalidCursor, control.delete_jobs(billing, cursor=first.next_cursor), field="cursor")
    assert (await control.delete_jobs(JobFilterQuestion(), everything=True)).done == 1
    for call in (controls.reader.pause_jobs(billing), controls.reader.cancel_runs(waiting)):
        await refused(Forbidden, call)


async def test_skipped_slots_of_all_jobs_have_pages(controls: Controls, rota_kit: RotaKit) -> None:
    control = controls.master
    await control.put_jobs([Job(job_id=f"j{n}", handler="h", schedule=rota.every("1m")) for n in range(3)])
    await rota_kit.tick()
    rota_kit.clock.advance(301)
    await rota_kit.advance(2)
    first = await control.skipped_slots(limit=2, reason="misfire")
    rest = await control.skipped_slots(limit=2, reason="misfire", cursor=first.next_cursor)
    assert sorted(part.job_id for part in (*first.skipped, *rest.skipped)) == ["j0", "j1", "j2"]
    assert rest.next_cursor is None
    assert (await control.skipped_slots(since=FAR)).skipped == ()
    assert (await controls.stranger.skipped_slots()).skipped == ()
    await refused(InvalidInput, control.skipped_slots(reason="boredom"), field="reason")
    await refused(InvalidCursor, control.skipped_slots(cursor=first.next_cursor), field="cursor")


async def test_a_tenant_is_frozen_by_itself_and_everything_by_an_operator(
    controls: Controls, rota_kit: RotaKit
) -> None:
    control = controls.master
    await control.put_job(Job(job_id="j", handler="h"))
    made = await control.trigger("j")
    assert (await control.freeze(reason="incident")).tenant_id == "default"
    await controls.operator.freeze(reason="move")
    assert [(one.tenant_id, one.reason) for one in (await control.freezes()).freezes] == [
        ("*", "move"), ("default", "incident"),
    ]  # fmt: skip
    assert [one.tenant_id for one in (await controls.stranger.freezes()).freezes] == ["*"]
    assert (await control.why_run(made.run_id)).gate == "frozen"
    await controls.operator.unfreeze()
    assert await rota_kit.worker("w-1", handlers=["h"]).claim() == []
    assert (await control.unfreeze()).reason == "incident"
    assert len(await rota_kit.worker("w-1", handlers=["h"]).claim()) == 1
    await refused(NotFound, control.unfreeze())
    await refused(Forbidden, controls.reader.freeze())


@pytest.mark.parametrize("job_id", ["a/b", ".", "..", "null", "ä ö", "a%2Fb", "ẞ" * 200, "?a=b#c", "a:b", "\\", "-"])
async def test_every_id_leads_to_its_job(control: Control, job_id: str) -> None:
    await control.put_jobs([Job(job_id=job_id, handler="h", schedule=rota.every("1h"))])
    await control.put_job(Job(job_id=job_id, handler="h", schedule=rota.every("2h")))
    assert (await control.get_job(job_id)).job_id == job_id
    assert len((await control.next_slots(job_id, count=3)).slots) == 3
    made = await control.trigger(job_id)
    assert [run.run_id for run in (await control.job_runs(job_id)).runs] == [made.run_id]
    assert (await control.get_run(made.run_id)).job_id == job_id
    assert (await control.pause_job(job_id)).state == "paused"
    assert (await control.resume_job(job_id)).state == "active"
    assert [one.job_id for one in (await control.list_jobs(prefix=job_id)).jobs] == [job_id]
    assert await control.skipped(job_id) == []
    assert (await control.audit(subject=job_id)).entries
    assert (await control.delete_job(job_id)).cancelled == 1


async def test_many_jobs_are_put_at_once_and_listed_page_by_page(control: Control) -> None:
    jobs = [Job(job_id=f"j{number:04}", handler="h", payload={"a": "x" * 2000}) for number in range(1000)]
    put = await control.put_jobs(jobs)
    assert ([one.job_id for one in put[:2]], len(put)) == (["j0000", "j0001"], 1000)
    first = await control.list_jobs(limit=1000)
    assert 300 < len(first.jobs) < 1000, "a page ends where it has its bytes"
    assert len(first.model_dump_json()) < 310_000
    seen, cursor = list(first.jobs), first.next_cursor
    while cursor is not None:
        page = await control.list_jobs(limit=1000, cursor=cursor)
        seen, cursor = [*seen, *page.jobs], page.next_cursor
    assert [one.job_id for one in seen] == [job.job_id for job in jobs]
    assert seen[0].job is not None
    assert seen[0].job["payload"] is None
    with pytest.raises(InvalidInput, match="payload"):
        Job.from_json({**seen[0].job, "tenant_id": "default"})
    for cursor in ("rubbish", "ä", first.next_cursor and first.next_cursor[:-1]):
        await refused(InvalidCursor, control.list_jobs(cursor=cursor), field="cursor")
    await refused(InvalidCursor, control.list_jobs(prefix="j", cursor=first.next_cursor), field="cursor")


async def test_lists_of_runs_leave_out_what_may_be_large(control: Control) -> None:
    await control.put_job(Job(job_id="a", handler="h", payload={"a": "x" * 200_000}))
    made = [await control.trigger("a") for _ in range(3)]
    page = await control.list_runs(RunFilterQuestion(job_id="a"))
    assert len(page.runs) == 3
    assert all(run.payload is None and run.result is None for run in page.runs)
    assert (await control.get_run(made[0].run_id)).payload == {"a": "x" * 200_000}


async def test_jobs_are_found_by_label_handler_prefix_and_whether_they_run(control: Control) -> None:
    await control.put_jobs(
        [Job(job_id="a", handler="h", labels={"team": "a&b=c"}), Job(job_id="b", handler="https://t.example/x?y=1")]
    )
    await control.pause_job("b", reason="rest")

    async def listed(**chosen: Any) -> list[str]:
        return [one.job_id for one in (await control.list_jobs(**chosen)).jobs]

    assert await listed() == ["a", "b"]
    assert (await listed(label="team"), await listed(label="team=a&b=c")) == (["a"], ["a"])
    assert await listed(handler="https://t.example/x?y=1") == ["b"]
    assert (await listed(enabled=True), await listed(enabled=False)) == (["a"], ["b"])


async def test_a_pause_ends_at_its_instant_or_by_a_resumption(control: Control, rota_kit: RotaKit) -> None:
    await control.put_job(Job(job_id="tick", handler="h", schedule=rota.every("1h")))
    paused = await control.pause_job("tick", reason="ruhig", resume_at=FAR)
    assert (paused.state, paused.pause_reason, paused.resume_at) == ("paused", "ruhig", FAR)
    rota_kit.clock.advance(timedelta(hours=3))
    assert (await control.resume_job("tick", missed="drop")).state == "active"
    [part] = await control.skipped("tick")
    assert (part.slots, part.reason) == (3, "paused")
    chosen = await control.pause_job("tick", resume_at=FAR, missed="drop")
    assert (chosen.resume_at, chosen.resume_missed) == (FAR, "drop")
    await control.resume_job("tick")
    await control.pause_jobs(JobFilterQuestion(prefix="tick"), resume_at=FAR, missed="once")
    assert (await control.get_job("tick")).resume_missed == "once"
    await refused(InvalidInput, control.pause_job("tick", missed="drop"), field="missed")
    await refused(InvalidInput, control.pause_job("tick", resume_at=datetime(2026, 1, 1)), field="resume_at")
    await refused(NotFound, control.pause_job("unknown"))
    await refused(NotFound, control.resume_job("unknown"))


async def test_a_preview_shows_the_slots_and_refuses_what_is_no_schedule(control: Control) -> None:
    schedule = {"kind": "cron", "expression": "30 2 * * *", "tz": "America/New_York"}
    after = datetime(2026, 3, 7, 12, tzinfo=UTC)
    answer = await control.preview(schedule, job_id="nightly", jitter=60.0, after=after, count=2)
    assert [(slot.rule, slot.local) for slot in answer.slots] == [
        ("gap", "2026-03-08T03:00:00-04:00"),
        ("named", "2026-03-09T02:30:00-04:00"),
    ]
    await refused(
        InvalidSchedule, control.preview({"kind": "cron", "expression": "61 * * * *"}), field="schedule.expression"
    )
    await refused(InvalidInput, control.preview(schedule, count=0), field="count")


async def test_a_trigger_is_made_once_under_its_key(control: Control, rota_kit: RotaKit) -> None:
    await control.put_job(Job(job_id="j", handler="h"))
    made = await control.trigger("j", payload={"a": [1, None, "é"]}, idempotency_key="k-1")
    assert (made.created, made.state, made.job_id) == (True, "pending", "j")
    work = await rota_kit.worker("w-1", handlers=["h"]).claim_one()
    assert work.claim.payload == {"a": [1, None, "é"]}
    again = await control.trigger("j", payload={"a": [1, None, "é"]}, idempotency_key="k-1")
    assert (again.run_id, again.created, again.state) == (made.run_id, False, "pending")
    await refused(KeyReused, control.trigger("j", payload={"a": 2}, idempotency_key="k-1"))
    taken = await control.trigger("j", scheduled_for=FAR)
    error = await refused(SlotTaken, control.trigger("j", scheduled_for=FAR, idempotency_key="k-2"))
    assert str(taken.run_id) in str(error)
    await refused(InvalidInput, control.trigger("j", payload={"a": "\x00"}), field="payload")
    await refused(InvalidInput, control.trigger("j", scheduled_for=datetime(2026, 1, 1)), field="scheduled_for")
    await work.succeed()


async def test_many_runs_say_what_each_came_to(controls: Controls, rota_kit: RotaKit) -> None:
    control = controls.master
    await control.put_job(Job(job_id="j", handler="h", payload={"own": 1}))
    await control.put_job(Job(job_id="k/ü", handler="h"))
    alone = await control.trigger("j", scheduled_for=FAR)
    items: list[dict[str, Any]] = [
        {"payload": {"n": 10**30, "t": "é"}, "idempotency_key": "a"}, {}, {"scheduled_for": FAR},
        {"idempotency_key": "a"}, {"payload": {"n": 10**30, "t": "é"}, "idempotency_key": "a"},
    ]  # fmt: skip
    made = await control.trigger_many("j", items)
    assert [one.outcome for one in made] == ["created", "created", "taken", "reused", "repeated"]
    assert (made[2].run_id, made[3].run_id, made[4].run_id) == (alone.run_id, made[0].run_id, made[0].run_id)
    mixed = await control.trigger_runs([{"job_id": "k/ü"}, RunOfJobItem(job_id="j", scheduled_for=FAR)])
    assert [(one.job_id, one.outcome) for one in mixed] == [("k/ü", "created"), ("j", "taken")]
    assert [one.outcome for one in await control.trigger_many("k/ü", [RunItem()] * 2500)] == ["created"] * 2500
    claimed = {
        work.claim.run_id: work.claim.payload for work in await rota_kit.worker("w", handlers=["h"]).claim(limit=3)
    }
    assert [claimed[one.run_id] for one in (made[0], made[1], mixed[0])] == [{"n": 10**30, "t": "é"}, {"own": 1}, {}]
    await refused(Forbidden, controls.reader.trigger_many("j", [{}]))
    await refused(NotFound, controls.stranger.trigger_many("j", [{}]))


async def test_what_is_wrong_with_one_of_many_runs_is_named_by_its_place(control: Control) -> None:
    await control.put_job(Job(job_id="j", handler="h"))

    async def named(item: dict[str, Any], field: str, *, at: int = 1) -> None:
        items: list[dict[str, Any]] = [{} for _ in range(at)]
        await refused(InvalidInput, control.trigger_many("j", [*items, item]), field=field)
        runs = [{"job_id": "j", **one} for one in (*items, item)]
        await refused(InvalidInput, control.trigger_runs(runs), field=field)

    await named({"payload": {"a": "\x00"}}, "items[1].payload")
    await named({"payload": [1]}, "items[1].payload")
    await named({"colour": "red"}, "items[1].colour")
    await named({"scheduled_for": datetime(2026, 1, 1)}, "items[1].scheduled_for")
    await named({"scheduled_for": datetime(2099, 1, 1, tzinfo=UTC)}, "items[1].scheduled_for")
    await named({"idempotency_key": ""}, "items[1].idempotency_key")
    assert (await control.job_runs("j")).runs == ()
    await refused(InvalidInput, control.trigger_many("j", []), field="items")
    await refused(InvalidInput, control.trigger_runs([{}]), field="items[0].job_id")
    error = await refused(NotFound, control.trigger_runs([{"job_id": "j"}, {"job_id": "unknown"}]))
    assert "items[1]: there is no job 'unknown'" in str(error)
    assert (await control.job_runs("j")).runs == ()


async def test_fifty_triggers_at_once_with_one_key_make_one_run(control: Control) -> None:
    await control.put_job(Job(job_id="j", handler="h"))
    made = await asyncio.gather(*(control.trigger("j", idempotency_key="k") for _ in range(50)))
    assert len({one.run_id for one in made}) == 1
    assert sum(one.created for one in made) == 1
    assert len((await control.job_runs("j")).runs) == 1


async def test_runs_are_listed_newest_first_and_stay_in_place_under_inserts(control: Control) -> None:
    await control.put_job(Job(job_id="j", handler="h"))
    slots = [FAR + timedelta(days=number) for number in range(4)]
    made = [(await control.trigger("j", scheduled_for=slot)).run_id for slot in slots]
    first = await control.job_runs("j", limit=3)
    assert [run.run_id for run in first.runs] == made[:0:-1]
    await control.trigger("j", scheduled_for=FAR + timedelta(days=9))
    second = await control.job_runs("j", limit=3, cursor=first.next_cursor)
    assert ([run.run_id for run in second.runs], second.next_cursor) == ([made[0]], None)
    where = RunFilterQuestion(job_id="j", since=slots[1], until=slots[2])
    assert {run.scheduled_for for run in (await control.list_runs(where)).runs} <= set(slots)
    await refused(NotFound, control.job_runs("unknown"))
    await refused(InvalidInput, control.job_runs("j", state="asleep"), field="state")
    await refused(InvalidInput, control.list_runs(limit=1001), field="limit")


async def test_dead_letters_are_found_by_their_error_and_sent_back_once(control: Control, rota_kit: RotaKit) -> None:
    first = await bury(rota_kit, control, "a", error="upstream 500 & more")
    second = await bury(rota_kit, control, "b", error="no such file")
    [letter] = (await control.list_runs(RunFilterQuestion(state="dead", error="UPSTREAM 500 &"))).runs
    assert (letter.run_id, letter.error, letter.died_at) == (first, "upstream 500 & more", rota_kit.clock.now())
    run = await control.get_run(first)
    assert [(one.outcome, one.error, one.worker_id) for one in run.attempts] == [
        ("failed", "upstream 500 & more", "w-1")
    ]
    assert (await control.replay_run(first)).state == "pending"
    await refused(NotDead, control.replay_run(first))
    assert (await control.replay_runs(RunFilterQuestion())).replayed == 1
    assert (await control.get_run(second)).state == "pending"
    await refused(InvalidInput, control.replay_runs(RunFilterQuestion(), rate=0.0), field="rate")
    await refused(InvalidInput, control.get_run(uuid4()), field="run_id")


async def test_a_waiting_run_is_cancelled_and_a_running_one_is_asked(control: Control, rota_kit: RotaKit) -> None:
    await control.put_job(Job(job_id="j", handler="h"))
    waiting = await control.trigger("j", scheduled_for=FAR)
    done = await control.cancel_run(waiting.run_id)
    assert (done.state, done.cancel_requested) == ("cancelled", False)
    await refused(RunFinished, control.cancel_run(waiting.run_id))
    running = await control.trigger("j")
    work = await rota_kit.worker("w-1", handlers=["h"]).claim_one()
    asked = await control.cancel_run(running.run_id)
    assert (asked.state, asked.cancel_requested) == ("running", True)
    renewal = await work.desk.renew([work.claim.key])
    assert renewal.cancelled == {work.claim.key.token}
    await work.report(Outcome.CANCELLED)
    assert (await control.get_run(running.run_id)).state == "cancelled"


async def test_a_run_and_a_job_say_what_they_wait_for(control: Control, rota_kit: RotaKit) -> None:
    await control.put_job(Job(job_id="j", handler="h"))
    assert (await control.why_job("j")).gate == "on_demand"
    run = await control.trigger("j", scheduled_for=FAR)
    said = await control.why_run(run.run_id)
    assert (said.gate, said.cause, said.at, said.run_id) == ("time", "slot", FAR, run.run_id)
    assert said.text == f"It waits until {FAR:%Y-%m-%dT%H:%M:%SZ}: that is its slot."
    assert await control.why_job("j") == said


async def test_a_run_that_waits_gets_another_priority(control: Control, rota_kit: RotaKit) -> None:
    await control.put_job(Job(job_id="j", handler="h"))
    run = (await control.trigger("j")).run_id
    assert (await control.set_priority(run, 9)).priority == 9
    assert (await control.set_priority(run, 9)).priority == 9
    await refused(InvalidInput, control.set_priority(run, 10), field="priority")
    work = await rota_kit.worker("w-1", handlers=["h"]).claim_one()
    await refused(Conflict, control.set_priority(run, 1))
    await work.succeed()
    await refused(RunFinished, control.set_priority(run, 1))


async def test_workers_are_seen_and_drained_by_their_tenant(controls: Controls, rota_kit: RotaKit) -> None:
    worker = rota_kit.worker("w-1", handlers=["h"])
    await worker.desk.announce(replace(worker.info, tenant_id="default"))
    [seen] = (await controls.master.workers()).workers
    assert (seen.worker_id, seen.tenant_id, seen.handlers) == ("w-1", "default", ("h",))
    assert (await controls.stranger.workers()).workers == ()
    await refused(NotFound, controls.stranger.drain_worker("w-1"))
    await refused(Forbidden, controls.reader.drain_worker("w-1"))
    [drained] = (await controls.master.drain_worker("w-1")).workers
    assert drained.draining_at == rota_kit.clock.now()
    stats = await controls.reader.stats()
    assert (stats.jobs, stats.running, stats.workers) == (0, 0, 1)
    await refused(Forbidden, controls.master.shards())


async def test_a_limit_is_put_read_edited_under_its_version_and_deleted(control: Control) -> None:
    made = await control.put_limit("crm", rate=50, permits=20, if_version=0)
    assert (made.name, made.tenant_id, made.kind, made.version) == ("crm", "default", "downstream", 1)
    assert (made.rate, made.burst, made.permits, made.in_use, made.waiting, made.tokens) == (50.0, 10, 20, 0, 0, 10.0)
    assert await control.get_limit("crm") == made
    assert await control.put_limit("crm", rate=50, burst=10, permits=20) == made
    for version in (0, 7):
        await refused(VersionConflict, control.put_limit("crm", permits=1, if_version=version))
    edited = await control.put_limit("crm", permits=0, if_version=1)
    assert (edited.version, edited.rate, edited.tokens, edited.permits) == (2, None, None, 0)
    assert (await control.limits()).limits == (edited,)
    for field, given in (("rate", {}), ("rate", {"rate": 0}), ("permits", {"permits": -1}), ("burst", {"burst": 1})):
        wrong: dict[str, Any] = {"permits": 1, **given} if field == "burst" else dict(given)
        await refused(InvalidInput, control.put_limit("crm", **wrong), field=field)
    await refused(InvalidInput, control.put_limit("a b", permits=1), field="name")
    await control.delete_limit("crm")
    for call in (control.get_limit("crm"), control.delete_limit("crm")):
        await refused(NotFound, call)
    told = [entry.action for entry in (await control.audit(subject="crm")).entries]
    assert sorted(told) == ["limit.deleted", "limit.put", "limit.put"]


async def test_the_operators_limits_are_seen_by_all_and_not_theirs_to_change(controls: Controls) -> None:
    shared = await controls.operator.put_limit("crm", permits=5)
    every = await controls.operator.put_limit("all", kind="tenant", permits=9)
    assert (shared.tenant_id, every.tenant_id, every.kind) == ("*", "*", "tenant")
    assert [limit.name for limit in (await controls.operator.limits()).limits] == ["all", "crm"]
    for control in (controls.master, controls.stranger, controls.reader):
        assert [limit.tenant_id for limit in (await control.limits()).limits] == ["*", "*"]
        assert (await control.get_limit("crm")).permits == 5
    await refused(NotFound, controls.master.delete_limit("crm"))
    await refused(Forbidden, controls.master.put_limit("mine", kind="tenant", permits=1000))
    await controls.master.put_limit("crm", permits=2, if_version=0)
    assert (await controls.reader.get_limit("crm")).permits == 2
    assert (await controls.stranger.get_limit("crm")).permits == 5
    await controls.master.delete_limit("crm")
    assert (await controls.reader.get_limit("crm")).permits == 5
    await controls.operator.delete_limit("crm")
    await refused(NotFound, controls.stranger.get_limit("crm"))


async def test_a_pools_settings_are_the_operators(controls: Controls) -> None:
    put = await controls.operator.put_pool("mail", ageing=90.5, shed_above=100)
    assert (put.pool, put.ageing, put.shed_above) == ("mail", 90.5, 100)
    assert (await controls.reader.pools()).pools == (put,)
    again = await controls.operator.put_pool("mail")
    assert (again.ageing, again.shed_above) == (60.0, None)
    await refused(Forbidden, controls.master.put_pool("mail", shed_above=1))
    await refused(InvalidInput, controls.operator.put_pool("mail", ageing=-1.0), field="ageing")
    await refused(InvalidInput, controls.operator.put_pool("mail", shed_above=-1), field="shed_above")


async def test_a_request_that_is_one_too_many_is_refused_and_a_repeated_one_is_answered(
    controls: Controls, rota_kit: RotaKit
) -> None:
    await controls.master.put_job(Job(job_id="j", handler="h"))
    made = await controls.master.trigger("j", idempotency_key="k")
    await controls.operator.put_pool("default", shed_above=0)
    rota_kit.clock.advance(1)
    error = await refused(Shed, controls.master.trigger("j"))
    assert getattr(error, "retry_after", None) == 5.0
    assert error.hint
    assert (await controls.master.trigger("j", idempotency_key="k")).run_id == made.run_id
    await controls.stranger.put_job(Job(job_id="j", handler="h", tenant_id="acme"))
    await controls.stranger.trigger("j")


async def test_tokens_are_made_listed_and_revoked(control: Control, rota_kit: RotaKit) -> None:
    made = await control.create_token(scopes=["read", "worker"], name="ci", expires_at=FAR)
    assert (made.tenant_id, set(made.scopes), made.expires_at) == ("default", {"read", "worker"}, FAR)
    assert (await rota_kit.rota.access.authenticate(made.token)).token_id == made.token_id
    listed = {token.token_id: token for token in (await control.tokens()).tokens}
    assert listed[made.token_id].name == "ci"
    await control.revoke_token(made.token_id)
    listed = {token.token_id: token for token in (await control.tokens()).tokens}
    assert listed[made.token_id].revoked_at == rota_kit.clock.now()
    await refused(NotFound, control.revoke_token("unknown"))
    await refused(InvalidInput, control.create_token(scopes=[]), field="scopes")


async def test_what_is_done_stands_in_the_log_under_its_author(control: Control) -> None:
    token = next(one for one in (await control.tokens()).tokens if one.tenant_id == "default" and len(one.scopes) > 1)
    await control.put_job(Job(job_id="j", handler="h"))
    await control.pause_job("j", reason="rest")
    first = await control.audit(subject="j", limit=1)
    second = await control.audit(subject="j", limit=1, cursor=first.next_cursor)
    told = [*first.entries, *second.entries]
    assert {entry.actor for entry in told} == {f"token:{token.token_id}"}
    assert len({entry.action for entry in told}) == 2
    await refused(InvalidCursor, control.audit(cursor="rubbish"), field="cursor")


async def test_who_may_only_look_is_refused_by_scope_and_nothing_changes(controls: Controls) -> None:
    await controls.master.put_job(Job(job_id="j", handler="h"))
    made = await controls.master.trigger("j", scheduled_for=FAR)
    reader = controls.reader
    assert (await reader.get_job("j")).job_id == "j"
    for call in (
        reader.put_job(Job(job_id="k", handler="h")),
        reader.put_jobs([Job(job_id="k", handler="h")]),
        reader.pause_job("j"),
        reader.delete_job("j"),
        reader.trigger("j"),
        reader.cancel_run(made.run_id),
        reader.set_priority(made.run_id, 9),
        reader.replay_runs(RunFilterQuestion()),
        reader.create_token(scopes=["admin"]),
        reader.tokens(),
        reader.audit(),
        reader.signing_secret(),
        reader.tenants(),
        reader.put_tenant("default", max_jobs=1),
        reader.put_limit("crm", permits=1),
        reader.delete_limit("crm"),
        reader.put_pool("default", shed_above=1),
    ):
        error = await refused(Forbidden, call)
        assert error.hint
    assert [job.job_id for job in (await reader.list_jobs()).jobs] == ["j"]


async def test_what_is_another_tenants_is_as_what_is_not_there(controls: Controls) -> None:
    await controls.master.put_job(Job(job_id="secret", handler="h"))
    made = await controls.master.trigger("secret", scheduled_for=FAR)
    stranger = controls.stranger
    for call in (
        stranger.get_job("secret"),
        stranger.pause_job("secret"),
        stranger.delete_job("secret"),
        stranger.trigger("secret"),
        stranger.job_runs("secret"),
        stranger.next_slots("secret"),
        stranger.get_run(made.run_id),
        stranger.cancel_run(made.run_id),
        stranger.set_priority(made.run_id, 9),
        stranger.why_run(made.run_id),
        stranger.why_job("secret"),
        stranger.replay_run(made.run_id),
    ):
        await refused(NotFound, call)
    assert (await stranger.list_jobs()).jobs == ()
    assert (await stranger.list_runs(RunFilterQuestion(job_id="secret"))).runs == ()
    assert (await stranger.signing_secret()).secret != (await controls.master.signing_secret()).secret
    await refused(InvalidInput, stranger.put_job(Job(job_id="x", handler="h", tenant_id="other")), field="tenant_id")


async def test_a_quota_is_the_tenants_own(controls: Controls, rota_kit: RotaKit) -> None:
    await rota_kit.rota.access.put_tenant(
        "default", max_jobs=1, max_payload_bytes=None, calls_per_second=None, actor="t"
    )
    await controls.master.put_job(Job(job_id="a", handler="h"))
    await refused(QuotaExceeded, controls.master.put_job(Job(job_id="b", handler="h")))


async def test_a_trigger_whose_answer_is_lost_makes_one_run(rota_kit: RotaKit) -> None:
    """Over HTTP alone: there is no way between the services and who calls them."""
    _, token = await rota_kit.rota.access.create_token(
        tenant_id="default", scopes=["read", "jobs:write", "runs:operate"], name="", expires_at=None, actor="test"
    )
    async with served(rota_kit) as url, lossy(url) as line, Client(line.url, token) as client:
        await client.put_job(Job(job_id="j", handler="h"))
        line.losses = 2
        made = await client.trigger("j")
        assert not made.created
        assert line.passed.count("/v1/jobs/j/runs") == 3
        assert [run.run_id for run in (await client.job_runs("j")).runs] == [made.run_id]
