"""The control protocol over the services: scopes, tenants, pages and documents, each method by its story."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from rota.control.local import LocalControl
from rota.control.principal import Principal, operator
from rota.domain.attempt import Outcome
from rota.domain.job import Job
from rota.domain.schedule import cron, every
from rota.errors import (
    Forbidden,
    InvalidCursor,
    InvalidInput,
    KeyReused,
    NotDead,
    NotFound,
    RunFinished,
    SlotTaken,
    VersionConflict,
)
from rota.testing import RotaKit
from rota.wire.access import OPERATOR, Scope
from rota.wire.control import Control
from rota.wire.jobs import JobFilterQuestion
from rota.wire.runs import RunFilterQuestion
from tests.control.conftest import Controls
from tests.control.test_cursors import HOSTILE

FAR = datetime(2035, 1, 1, tzinfo=UTC)
DEAD = RunFilterQuestion(state="dead")


def job(job_id: str = "nightly", **parts: Any) -> Job:
    return Job(**{"job_id": job_id, "handler": "h", "max_attempts": 1, **parts})


async def bury(kit: RotaKit, control: LocalControl, job_id: str, *, error: str = "upstream 500") -> UUID:
    """Make a dead letter of a job."""
    await control.put_job(job(job_id, tenant_id=control._principal.tenant_id))
    made = await control.trigger(job_id)
    work = await kit.worker("w-1", handlers=["h"]).claim_one()
    await work.report(Outcome.FAILED, error=error)
    return made.run_id


def test_it_speaks_the_whole_protocol(admin: LocalControl) -> None:
    spoken: Control = admin
    for name, method in inspect.getmembers(Control, inspect.isfunction):
        if not name.startswith("_"):
            told = inspect.signature(method).parameters
            assert list(inspect.signature(getattr(spoken, name)).parameters) == list(told)[1:]


# define


async def test_a_job_goes_in_is_read_and_again_changes_nothing(admin: LocalControl) -> None:
    put = await admin.put_job(job(schedule=cron("0 2 * * *")))
    assert (put.version, put.changed, put.created) == (1, True, True)
    assert not (await admin.put_job(job(schedule=cron("0 2 * * *")))).changed
    shown = await admin.get_job("nightly")
    assert shown.job == job(schedule=cron("0 2 * * *")).to_json()
    assert (shown.state, shown.next_slot) == ("active", put.next_slot)
    with pytest.raises(VersionConflict):
        await admin.put_job(job(), if_version=7)
    assert (await admin.delete_job("nightly")).cancelled == 0
    with pytest.raises(NotFound):
        await admin.get_job("nightly")


async def test_a_job_of_another_tenant_is_not_put_and_nothing_beside_it(admin: LocalControl) -> None:
    for attempt in (admin.put_job(job(tenant_id="acme")), admin.put_jobs([job("a"), job("b", tenant_id="acme")])):
        with pytest.raises(InvalidInput, match="tenant_id"):
            await attempt
    assert (await admin.list_jobs()).jobs == ()


async def test_jobs_are_listed_page_by_page_and_stay_in_place_under_inserts(admin: LocalControl) -> None:
    await admin.put_jobs([job(f"j{n}") for n in range(4)])
    first = await admin.list_jobs(limit=2)
    assert ([one.job_id for one in first.jobs], first.next_cursor is not None) == (["j0", "j1"], True)
    await admin.put_job(job("a-new-one"))
    second = await admin.list_jobs(limit=2, cursor=first.next_cursor)
    assert ([one.job_id for one in second.jobs], second.next_cursor) == (["j2", "j3"], None)


async def test_jobs_are_listed_by_label_handler_and_whether_they_run(admin: LocalControl) -> None:
    await admin.put_jobs([job("a", labels={"team": "billing"}), job("b", labels={"team": "web"}, handler="g")])
    await admin.pause_job("b", reason="rest")

    async def listed(**chosen: Any) -> list[str]:
        return [one.job_id for one in (await admin.list_jobs(**chosen)).jobs]

    assert await listed(label="team") == ["a", "b"]
    assert await listed(label="team=web") == ["b"]
    assert await listed(handler="h") == ["a"]
    assert (await listed(enabled=True), await listed(enabled=False)) == (["a"], ["b"])
    assert await listed(prefix="b") == ["b"]


@pytest.mark.parametrize("limit", [0, -1, 1001, True, 10**30])
async def test_a_page_has_from_one_to_a_thousand_entries(admin: LocalControl, limit: int) -> None:
    await admin.put_job(job())
    asks = (
        admin.list_jobs(limit=limit),
        admin.list_runs(limit=limit),
        admin.job_runs("nightly", limit=limit),
        admin.skipped("nightly", limit=limit),
        admin.audit(limit=limit),
        admin.replay_runs(DEAD, limit=limit),
    )
    for ask in asks:
        with pytest.raises(InvalidInput, match="limit"):
            await ask


@pytest.mark.parametrize("cursor", HOSTILE, ids=lambda text: ascii(text)[:20])
async def test_a_hostile_cursor_is_refused_by_every_list(admin: LocalControl, cursor: str) -> None:
    await admin.put_job(job())
    for ask in (
        admin.list_jobs(cursor=cursor),
        admin.list_runs(cursor=cursor),
        admin.job_runs("nightly", cursor=cursor),
        admin.audit(cursor=cursor),
    ):
        with pytest.raises(InvalidCursor):
            await ask


async def test_a_cursor_belongs_to_its_list_filter_and_tenant(admin: LocalControl, tenant: Controls) -> None:
    await admin.put_jobs([job("a"), job("b")])
    cursor = (await admin.list_jobs(limit=1)).next_cursor
    for ask in (admin.list_jobs(prefix="b", cursor=cursor), admin.audit(cursor=cursor), admin.list_runs(cursor=cursor)):
        with pytest.raises(InvalidCursor):
            await ask
    with pytest.raises(InvalidCursor):
        await tenant("acme").list_jobs(cursor=cursor)
    assert [one.job_id for one in (await tenant().list_jobs(cursor=cursor)).jobs] == ["b"]


async def test_a_job_is_paused_until_an_instant_and_resumed(admin: LocalControl) -> None:
    await admin.put_job(job(schedule=every("1h")))
    paused = await admin.pause_job("nightly", reason="rest", resume_at=FAR)
    assert (paused.state, paused.pause_reason, paused.resume_at) == ("paused", "rest", FAR)
    assert (await admin.next_slots("nightly")).state == "paused"
    resumed = await admin.resume_job("nightly", missed="drop")
    assert (resumed.state, resumed.resume_at) == ("active", None)


async def test_next_slots_tell_the_rule_and_the_jitter(rota_kit: RotaKit, admin: LocalControl) -> None:
    await admin.put_job(job(schedule=cron("30 2 * * *", tz="Europe/Berlin"), jitter=timedelta(minutes=5)))
    answer = await admin.next_slots("nightly", count=400)
    assert {slot.rule for slot in answer.slots} == {"named", "gap", "fold"}
    assert len(answer.slots) == 400
    assert answer.slots[0].slot > rota_kit.clock.now()
    assert all(timedelta(0) <= slot.starts_at - slot.slot <= timedelta(minutes=5) for slot in answer.slots)
    assert len({slot.starts_at - slot.slot for slot in answer.slots}) > 100
    assert (answer.words, answer.state) == ("at 02:30 every day, Europe/Berlin time", "active")
    for count in (0, 1001, -5):
        with pytest.raises(InvalidInput, match="count"):
            await admin.next_slots("nightly", count=count)
    await admin.put_job(job("by-hand"))
    assert (await admin.next_slots("by-hand")).slots == ()


async def test_a_preview_is_what_the_job_would_do(admin: LocalControl) -> None:
    schedule = {"kind": "cron", "expression": "30 2 * * *", "tz": "America/New_York"}
    after = datetime(2026, 3, 7, 12, tzinfo=UTC)
    answer = await admin.preview(schedule, job_id="nightly", jitter=60.0, after=after, count=2)
    assert [(slot.rule, slot.local) for slot in answer.slots] == [
        ("gap", "2026-03-08T03:00:00-04:00"),
        ("named", "2026-03-09T02:30:00-04:00"),
    ]
    await admin.put_job(job(schedule=cron("30 2 * * *", tz="America/New_York"), jitter=timedelta(seconds=60)))
    [real] = (await admin.next_slots("nightly", count=1)).slots
    [told] = (await admin.preview(schedule, job_id="nightly", jitter=60.0, count=1)).slots
    assert told == real
    ended = await admin.preview({"kind": "once", "at": "2020-01-01T00:00:00Z"})
    assert (ended.slots, len(ended.warnings)) == ((), 1)


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        ({"schedule": {}}, "schedule.kind"),
        ({"schedule": {"kind": "cron", "expression": "61 * * * *"}}, "schedule.expression"),
        ({"schedule": {"kind": "cron", "expression": "@daily", "tz": "Mars"}}, "schedule.tz"),
        ({"jitter": -1.0}, "jitter"),
        ({"jitter": float("nan")}, "jitter"),
        ({"jitter": 1e300}, "jitter"),
        ({"job_id": ""}, "job_id"),
        ({"job_id": "a\x00"}, "job_id"),
        ({"count": 0}, "count"),
        ({"count": 1001}, "count"),
        ({"after": datetime(1900, 1, 1, tzinfo=UTC)}, "after"),
        ({"after": datetime(2026, 1, 1)}, "after"),
    ],
)
async def test_a_preview_refuses_by_field(admin: LocalControl, parts: dict[str, Any], field: str) -> None:
    schedule = parts.pop("schedule", {"kind": "cron", "expression": "@daily"})
    with pytest.raises(InvalidInput) as refused:
        await admin.preview(schedule, **parts)
    assert refused.value.field == field


async def test_the_end_of_the_calendar_is_no_fault(admin: LocalControl) -> None:
    schedule = {"kind": "cron", "expression": "* * * * *", "tz": "Asia/Tokyo"}
    after = datetime(9999, 12, 31, 23, 50, tzinfo=UTC)
    assert len((await admin.preview(schedule, jitter=86_400.0, after=after, count=1000)).slots) < 20


# run


async def test_a_trigger_makes_one_run_and_the_same_key_finds_it(admin: LocalControl, rota_kit: RotaKit) -> None:
    await admin.put_job(job())
    made = await admin.trigger("nightly", payload={"a": 1}, idempotency_key="k-1")
    assert (made.created, made.state, made.job_id) == (True, "pending", "nightly")
    again = await admin.trigger("nightly", payload={"a": 1}, idempotency_key="k-1")
    assert (again.run_id, again.created) == (made.run_id, False)
    with pytest.raises(KeyReused):
        await admin.trigger("nightly", payload={"a": 2}, idempotency_key="k-1")
    work = await rota_kit.worker("w-1", handlers=["h"]).claim_one()
    assert (await admin.trigger("nightly", payload={"a": 1}, idempotency_key="k-1")) == again
    await work.report(Outcome.SUCCEEDED)
    at = await admin.trigger("nightly", scheduled_for=FAR)
    with pytest.raises(SlotTaken, match=str(at.run_id)):
        await admin.trigger("nightly", scheduled_for=FAR)
    with pytest.raises(NotFound):
        await admin.trigger("unknown")


async def test_runs_are_listed_newest_slot_first_and_stay_in_place_under_inserts(admin: LocalControl) -> None:
    await admin.put_jobs([job("a"), job("b")])
    slots = [FAR + timedelta(days=n) for n in range(4)]
    made = [(await admin.trigger("a", scheduled_for=slot)).run_id for slot in slots]
    first = await admin.job_runs("a", limit=3)
    assert [run.run_id for run in first.runs] == made[:0:-1]
    await admin.trigger("a", scheduled_for=FAR + timedelta(days=9))
    second = await admin.job_runs("a", limit=3, cursor=first.next_cursor)
    assert ([run.run_id for run in second.runs], second.next_cursor) == ([made[0]], None)
    assert (await admin.job_runs("b")).runs == ()
    with pytest.raises(NotFound):
        await admin.job_runs("unknown")
    with pytest.raises(InvalidInput, match="state"):
        await admin.job_runs("a", state="asleep")


async def test_two_jobs_with_the_same_slot_are_both_listed_once(admin: LocalControl) -> None:
    await admin.put_jobs([job(f"j{n}") for n in range(5)])
    made = {(await admin.trigger(f"j{n}", scheduled_for=FAR)).run_id for n in range(5)}
    listed: list[UUID] = []
    cursor = None
    while True:
        page = await admin.list_runs(limit=2, cursor=cursor)
        listed += [run.run_id for run in page.runs]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert len(listed) == 5
    assert set(listed) == made


async def test_a_run_is_read_with_its_attempts_and_last_error(admin: LocalControl, rota_kit: RotaKit) -> None:
    run_id = await bury(rota_kit, admin, "a", error="ValueError: no")
    run = await admin.get_run(run_id)
    assert (run.state, run.error, run.job_id) == ("dead", "ValueError: no", "a")
    assert [(attempt.outcome, attempt.error) for attempt in run.attempts] == [("failed", "ValueError: no")]
    with pytest.raises(InvalidInput, match="run_id"):
        await admin.get_run(uuid4())


async def test_dead_letters_are_found_by_their_error_and_sent_back_once(admin: LocalControl, rota_kit: RotaKit) -> None:
    first = await bury(rota_kit, admin, "a", error="upstream 500")
    second = await bury(rota_kit, admin, "b", error="no such file")
    [letter] = (await admin.list_runs(RunFilterQuestion(state="dead", error="UPSTREAM"))).runs
    assert (letter.run_id, letter.error) == (first, "upstream 500")
    assert (await admin.replay_run(first)).state == "pending"
    with pytest.raises(NotDead):
        await admin.replay_run(first)
    done = await admin.replay_runs(RunFilterQuestion())
    assert (done.replayed, done.more) == (1, False)
    assert (await admin.get_run(second)).state == "pending"
    assert (await admin.replay_runs(DEAD)).replayed == 0
    with pytest.raises(InvalidInput, match="state"):
        await admin.replay_runs(RunFilterQuestion(state="succeeded"))


async def test_replays_at_a_rate_are_spread(admin: LocalControl, rota_kit: RotaKit) -> None:
    for name in ("a", "b", "c"):
        await bury(rota_kit, admin, name)
    done = await admin.replay_runs(DEAD, rate=0.5, limit=2)
    assert (done.replayed, done.more) == (2, True)
    assert done.last_at is not None
    assert done.last_at >= rota_kit.clock.now() + timedelta(seconds=2)
    for rate in (0.0, -1.0, float("nan")):
        with pytest.raises(InvalidInput, match="rate"):
            await admin.replay_runs(DEAD, rate=rate)


async def test_a_waiting_run_is_cancelled_at_once_and_a_running_one_is_asked(
    admin: LocalControl, rota_kit: RotaKit
) -> None:
    await admin.put_job(job())
    waiting = await admin.trigger("nightly", scheduled_for=FAR)
    done = await admin.cancel_run(waiting.run_id)
    assert (done.state, done.cancel_requested) == ("cancelled", False)
    with pytest.raises(RunFinished):
        await admin.cancel_run(waiting.run_id)
    running = await admin.trigger("nightly")
    await rota_kit.worker("w-1", handlers=["h"]).claim_one()
    asked = await admin.cancel_run(running.run_id)
    assert (asked.state, asked.cancel_requested) == ("running", True)
    assert (await admin.get_run(running.run_id)).cancel_requested_at == rota_kit.clock.now()


async def test_the_slot_ledger_is_a_job_s_own(admin: LocalControl, rota_kit: RotaKit) -> None:
    await admin.put_job(job(schedule=every("1h")))
    await admin.pause_job("nightly")
    rota_kit.clock.advance(timedelta(hours=3))
    await admin.resume_job("nightly", missed="drop")
    [part] = await admin.skipped("nightly")
    assert (part.slots, part.reason) == (3, "paused")
    with pytest.raises(NotFound):
        await admin.skipped("unknown")


# tenants


async def test_no_tenant_sees_another_s_rows(admin: LocalControl, tenant: Controls, rota_kit: RotaKit) -> None:
    """What is another tenant's is answered as what is nobody's: word for word but for the id that was asked for."""
    dead = await bury(rota_kit, admin, "secret")
    await admin.trigger("secret", scheduled_for=FAR)
    token = await admin.create_token(scopes=["read"])
    acme = tenant("acme")
    asks: list[Callable[[], Awaitable[Any]]] = [
        lambda: acme.get_job("secret"),
        lambda: acme.pause_job("secret"),
        lambda: acme.resume_job("secret"),
        lambda: acme.delete_job("secret"),
        lambda: acme.next_slots("secret"),
        lambda: acme.trigger("secret"),
        lambda: acme.job_runs("secret"),
        lambda: acme.skipped("secret"),
        lambda: acme.get_run(dead),
        lambda: acme.replay_run(dead),
        lambda: acme.cancel_run(dead),
        lambda: acme.drain_worker("w-1"),
        lambda: acme.revoke_token(token.token_id),
    ]
    for ask in asks:
        with pytest.raises(NotFound):
            await ask()
    assert (await acme.list_jobs()).jobs == ()
    assert (await acme.list_runs()).runs == ()
    assert (await acme.list_runs(RunFilterQuestion(job_id="secret"))).runs == ()
    assert (await acme.list_runs(DEAD)).runs == ()
    assert (await acme.replay_runs(DEAD)).replayed == 0
    assert (await acme.workers()).workers == ()
    assert (await acme.tokens()).tokens == ()
    assert (await acme.audit()).entries == ()
    stats = await acme.stats()
    assert (stats.jobs, stats.waiting, stats.running, stats.dead) == (0, (), 0, 0)
    assert (await admin.get_run(dead)).state == "dead"
    assert (await admin.signing_secret()).secret != (await acme.signing_secret()).secret


async def test_two_tenants_have_jobs_of_the_same_name(admin: LocalControl, tenant: Controls) -> None:
    acme = tenant("acme")
    await admin.put_job(job("same", description="ours"))
    await acme.put_job(job("same", tenant_id="acme", description="theirs"))
    made = await acme.trigger("same", idempotency_key="k", scheduled_for=FAR)
    ours = await admin.trigger("same", idempotency_key="k", scheduled_for=FAR)
    assert (ours.created, ours.run_id != made.run_id) == (True, True)
    await acme.delete_job("same")
    assert (await admin.get_job("same")).state == "active"


async def test_what_belongs_to_no_tenant_is_the_operator_s(tenant: Controls, admin: LocalControl) -> None:
    for ask in (tenant().shards(), tenant().tenants(), tenant().put_tenant("default", max_jobs=10**6)):
        with pytest.raises(Forbidden, match="operator"):
            await ask
    assert len((await admin.shards()).shards) == 64
    quota = await admin.put_tenant("acme", max_jobs=1)
    assert [one.tenant_id for one in (await admin.tenants()).tenants if one.max_jobs == 1] == [quota.tenant_id]


async def test_the_operator_s_own_tenant_has_tokens_and_no_jobs(rota_kit: RotaKit, tenant: Controls) -> None:
    everywhere = rota_kit.rota.control(operator("cli:somebody", OPERATOR))
    made = await everywhere.create_token(scopes=["admin"], name="ops")
    assert (made.tenant_id, made.token.startswith("rota_")) == (OPERATOR, True)
    assert [one.token_id for one in (await everywhere.tokens()).tokens] == [made.token_id]
    for ask in (everywhere.list_jobs(), everywhere.put_job(job(tenant_id=OPERATOR)), everywhere.list_runs()):
        with pytest.raises(InvalidInput, match="tenant"):
            await ask
    with pytest.raises(Forbidden):
        await tenant(OPERATOR).tokens()


# people


async def test_a_token_is_made_listed_without_its_secret_and_revoked(admin: LocalControl, rota_kit: RotaKit) -> None:
    made = await admin.create_token(scopes=["read", "jobs:write"], name="ci", expires_at=FAR)
    assert (await rota_kit.rota.access.authenticate(made.token)).token_id == made.token_id
    [listed] = (await admin.tokens()).tokens
    assert (listed.name, set(listed.scopes), listed.created_by) == ("ci", {"read", "jobs:write"}, "cli:somebody")
    assert "token" not in listed.model_dump()
    await admin.revoke_token(made.token_id)
    assert (await admin.tokens()).tokens[0].revoked_at is not None
    for unknown in ("unknown", "", "*", "a\x00", made.token):
        with pytest.raises((NotFound, InvalidInput)):
            await admin.revoke_token(unknown)


async def test_every_change_is_in_the_audit_log_page_by_page(
    admin: LocalControl, tenant: Controls, rota_kit: RotaKit
) -> None:
    for change in (
        lambda: admin.put_job(job()),
        lambda: tenant().pause_job("nightly", reason="rest"),
        lambda: admin.resume_job("nightly"),
    ):
        await change()
        rota_kit.clock.advance(timedelta(seconds=1))
    first = await admin.audit(subject="nightly", limit=2)
    second = await admin.audit(subject="nightly", limit=2, cursor=first.next_cursor)
    told = [*first.entries, *second.entries]
    assert [entry.actor for entry in told] == ["cli:somebody", "token:abc", "cli:somebody"]
    assert second.next_cursor is None
    assert (await admin.audit(subject="other")).entries == ()


# scopes

EVERY_A = JobFilterQuestion(prefix="a")
NEEDS: dict[Scope, list[Callable[[LocalControl], Awaitable[Any]]]] = {
    "read": [
        lambda c: c.freezes(),
        lambda c: c.skipped_slots(),
        lambda c: c.get_job("a"),
        lambda c: c.list_jobs(),
        lambda c: c.next_slots("a"),
        lambda c: c.preview({"kind": "cron", "expression": "@daily"}),
        lambda c: c.job_runs("a"),
        lambda c: c.list_runs(),
        lambda c: c.get_run(uuid4()),
        lambda c: c.skipped("a"),
        lambda c: c.workers(),
        lambda c: c.shards(),
        lambda c: c.stats(),
        lambda c: c.why_run(uuid4()),
        lambda c: c.why_job("a"),
        lambda c: c.limits(),
        lambda c: c.get_limit("crm"),
        lambda c: c.pools(),
    ],
    "jobs:write": [
        lambda c: c.freeze(),
        lambda c: c.unfreeze(),
        lambda c: c.put_job(job()),
        lambda c: c.put_jobs([job()]),
        lambda c: c.pause_job("a"),
        lambda c: c.resume_job("a"),
        lambda c: c.delete_job("a"),
        lambda c: c.patch_job("a", {"priority": 1}),
        lambda c: c.reset_job("a"),
        lambda c: c.declare_jobs([job()], source="jobs:app"),
        lambda c: c.pause_jobs(EVERY_A),
        lambda c: c.resume_jobs(EVERY_A),
        lambda c: c.delete_jobs(EVERY_A),
    ],
    "runs:operate": [
        lambda c: c.trigger("a"),
        lambda c: c.replay_run(uuid4()),
        lambda c: c.replay_runs(DEAD),
        lambda c: c.cancel_run(uuid4()),
        lambda c: c.set_priority(uuid4(), 9),
        lambda c: c.trigger_jobs(EVERY_A),
        lambda c: c.trigger_many("a", [{}]),
        lambda c: c.trigger_runs([{"job_id": "a"}]),
        lambda c: c.cancel_runs(RunFilterQuestion(job_id="a")),
    ],
    "worker": [lambda c: c.signing_secret()],
    "admin": [
        lambda c: c.drain_worker("w"),
        lambda c: c.create_token(scopes=["read"]),
        lambda c: c.tokens(),
        lambda c: c.revoke_token("x"),
        lambda c: c.audit(),
        lambda c: c.rotate_signing_secret(),
        lambda c: c.tenants(),
        lambda c: c.put_tenant("t"),
        lambda c: c.put_limit("crm", permits=1),
        lambda c: c.delete_limit("crm"),
        lambda c: c.put_pool("default"),
    ],
}


@pytest.mark.parametrize("scope", NEEDS)
async def test_what_needs_a_scope_is_refused_without_it_by_its_name(tenant: Controls, scope: Scope) -> None:
    others = tenant(scopes=frozenset(NEEDS) - {scope, "admin"})
    for ask in NEEDS[scope]:
        with pytest.raises(Forbidden, match=f"needs the scope {scope} "):
            await ask(others)


def test_every_method_needs_a_scope() -> None:
    asks = sum(len(asks) for asks in NEEDS.values())
    methods = [name for name, _ in inspect.getmembers(Control, inspect.isfunction) if not name.startswith("_")]
    assert asks == len(set(methods) - {"close"})


def test_admin_implies_every_scope_and_a_principal_without_any_may_nothing() -> None:
    chief = Principal(tenant_id="default", scopes=frozenset({"admin"}), actor="token:abc")
    nobody = Principal(tenant_id="default", scopes=frozenset(), actor="token:abc")
    assert all(chief.allows(scope) for scope in NEEDS)
    assert not any(nobody.allows(scope) for scope in NEEDS)
    assert not chief.is_operator


async def test_what_is_asked_at_once_is_answered(admin: LocalControl) -> None:
    await admin.put_job(job())
    made = await asyncio.gather(*(admin.trigger("nightly", idempotency_key="one") for _ in range(8)))
    assert (len({one.run_id for one in made}), sum(one.created for one in made)) == (1, 1)
    await admin.close()
