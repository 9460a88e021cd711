"""Why is it not running? The first gate that holds a run or a job, told in one sentence and in fields."""

import json
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

import rota
from rota.domain.attempt import Outcome
from rota.domain.ids import run_id
from rota.domain.job import Job
from rota.domain.run_filter import RunFilter
from rota.domain.why import Reason
from rota.errors import NotFound
from rota.services import why as service
from rota.testing import RotaKit
from rota.testing.kit import KitWork
from tests.services.stories import SECOND, START, TEN_SECONDS, every, execute, fetch

CRM = "downstream/default/crm"


async def why(kit: RotaKit, run: UUID, tenant_id: str = "default") -> Reason:
    return await kit.rota.why.run(run, tenant_id=tenant_id)


async def why_job(kit: RotaKit, job_id: str = "tick") -> Reason:
    return await kit.rota.why.job(job_id, tenant_id="default")


async def waiting(kit: RotaKit, job_id: str = "tick", *, tenant_id: str = "default", **changes: Any) -> UUID:
    """Make a run of an on-demand job, which is put if need be."""
    await kit.put(Job(job_id=job_id, handler="h", tenant_id=tenant_id, **changes))
    return await kit.on_demand.trigger(job_id, tenant_id=tenant_id)


async def known(kit: RotaKit, worker_id: str = "w", **changes: Any) -> None:
    """Let a worker that knows h say that it lives."""
    await kit.worker(worker_id, **{"handlers": ["h"], **changes}).announce()


async def put_limit(kit: RotaKit, name: str = "crm", *, tenant_id: str = "default", **numbers: Any) -> None:
    told = {"kind": "downstream", "rate": None, "burst": None, "permits": None, **numbers}
    await execute(
        kit,
        "INSERT INTO rota.limits (tenant_id, name, kind, rate, burst, permits, version, created_at, updated_at)"
        " VALUES ($1, $2, $3, $4, $5, $6, 1, 'epoch', 'epoch')",
        tenant_id, name, *told.values(),
    )  # fmt: skip


async def use_limits(kit: RotaKit, job_id: str, **columns: Any) -> None:
    """Let a job be under limits now, so that what runs already holds just what `hold` says."""
    await execute(
        kit,
        "UPDATE rota.job j SET (limits, max_concurrency, overlap, concurrency_key, payload) ="
        " (SELECT r.limits, r.max_concurrency, r.overlap, r.concurrency_key, r.payload"
        "    FROM jsonb_populate_record(j, $2::jsonb) r) WHERE job_id = $1",
        job_id, json.dumps(columns),
    )  # fmt: skip


async def hold(kit: RotaKit, work: KitWork, key: str, *, permits: int = 1) -> None:
    """Let a run hold the next permits of a limit."""
    token = work.claim.key.token
    await execute(
        kit,
        "INSERT INTO rota.permit (limit_key, slot, token) SELECT $1, n + coalesce((SELECT max(slot) FROM rota.permit"
        " WHERE limit_key = $1), 0), $2 FROM generate_series(1, $3::integer) n",
        key, token, permits,
    )  # fmt: skip
    await execute(
        kit,
        "UPDATE rota.lease l SET permit_keys = array_agg.keys, permit_slots = array_agg.slots FROM"
        " (SELECT array_agg(limit_key) AS keys, array_agg(slot) AS slots FROM rota.permit WHERE token = $1) array_agg"
        " WHERE l.token = $1",
        token,
    )


async def park(kit: RotaKit, job_id: str, key: str = CRM) -> None:
    await execute(
        kit,
        "UPDATE rota.pending p SET gate = 'limit', limit_key = $2 FROM rota.job j"
        " WHERE j.shard = p.shard AND j.job_uid = p.job_uid AND j.job_id = $1",
        job_id, key,
    )  # fmt: skip


async def running(kit: RotaKit, job_id: str, *, tenant_id: str = "default") -> KitWork:
    await waiting(kit, job_id, tenant_id=tenant_id)
    return await kit.worker("w-9", handlers=["h"], tenant_id=tenant_id).claim_one()


# what does not wait


async def test_a_run_that_runs_or_has_ended_says_so(rota_kit: RotaKit) -> None:
    run = await waiting(rota_kit)
    work = await rota_kit.worker("w-1", handlers=["h"]).claim_one()
    said = await why(rota_kit, run)
    assert (said.gate, said.worker_id, said.since, said.at) == ("running", "w-1", START, START + timedelta(minutes=1))
    await rota_kit.on_demand.cancel(run, tenant_id="default")
    assert "since 2026-01-01T00:00:00Z it is asked to stop" in (await why(rota_kit, run)).text
    await work.succeed()
    said = await why(rota_kit, run)
    assert (said.gate, said.cause, said.text) == (
        "finished",
        "succeeded",
        "It is succeeded since 2026-01-01T00:00:00Z.",
    )


async def test_other_tenants_runs_and_jobs_are_not_there(rota_kit: RotaKit) -> None:
    for run, tenant_id in ((await waiting(rota_kit), "other"), (run_id(1, START), "default")):
        with pytest.raises(NotFound):
            await why(rota_kit, run, tenant_id)
    for job_id in ("other", "half \udc80"):
        with pytest.raises(NotFound):
            await why_job(rota_kit, job_id)


# time


async def test_a_run_waits_for_its_slot_and_then_for_a_scheduler(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    run = await rota_kit.on_demand.trigger("tick", tenant_id="default", scheduled_for=START + TEN_SECONDS)
    said = await why(rota_kit, run)
    assert (said.gate, said.cause, said.at) == ("time", "slot", START + TEN_SECONDS)
    rota_kit.clock.advance(TEN_SECONDS)
    said = await why(rota_kit, run)
    assert (said.cause, said.at) == ("scheduler", None)
    assert "no scheduler is live" in said.text
    await rota_kit.process.keeper.tick()
    assert "at its next tick" in (await why(rota_kit, run)).text
    await rota_kit.tick()
    assert (await why(rota_kit, run)).gate != "time"


async def test_a_run_that_jitter_moves_says_its_slot(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s", jitter=timedelta(seconds=9)))
    rota_kit.clock.advance(TEN_SECONDS)
    await rota_kit.tick()
    [view] = await rota_kit.runs("tick")
    said = await why(rota_kit, view.run_id)
    assert (said.gate, said.cause, said.at) == ("time", "jitter", view.available_at)
    assert "its slot is 2026-01-01T00:00:10Z" in said.text


@pytest.mark.parametrize(
    ("outcome", "cause", "words"),
    [
        (Outcome.FAILED, "backoff", "it backs off after attempt 1, which ended as failed"),
        (Outcome.SNOOZED, "snooze", "RetryLater"),
    ],
)
async def test_a_run_that_comes_back_says_what_it_comes_back_from(
    rota_kit: RotaKit, outcome: Outcome, cause: str, words: str
) -> None:
    run = await waiting(rota_kit)
    work = await rota_kit.worker("w", handlers=["h"]).claim_one()
    await work.report(outcome, error="no", retry_after=TEN_SECONDS)
    said = await why(rota_kit, run)
    assert (said.gate, said.cause) == ("time", cause)
    assert words in said.text
    assert said.at is not None
    assert said.at >= START + TEN_SECONDS


async def test_a_dead_letter_says_what_it_died_of(rota_kit: RotaKit) -> None:
    run = await waiting(rota_kit, max_attempts=1)
    await (await rota_kit.worker("w-1", handlers=["h"]).claim_one()).fail("ValueError: no\nTraceback of many lines")
    said = await why(rota_kit, run)
    assert (said.cause, said.text) == ("dead", "It is dead since 2026-01-01T00:00:00Z: ValueError: no.")


async def test_a_dead_letter_that_is_sent_back_at_a_rate_waits_for_its_turn(rota_kit: RotaKit) -> None:
    runs = []
    for job_id in ("a", "b"):
        runs.append(await waiting(rota_kit, job_id, max_attempts=1))
        await (await rota_kit.worker("w", handlers=["h"]).claim_one()).fail()
    await rota_kit.on_demand.replay_matching(RunFilter(), tenant_id="default", rate=0.1)
    causes = [(await why(rota_kit, run)).cause for run in runs]
    assert sorted(str(cause) for cause in causes) == ["no_worker", "replay"]


async def test_a_run_past_its_start_deadline_is_skipped(rota_kit: RotaKit) -> None:
    run = await waiting(rota_kit, start_deadline=TEN_SECONDS)
    rota_kit.clock.advance(TEN_SECONDS - SECOND)
    assert (await why(rota_kit, run)).gate == "handler"
    rota_kit.clock.advance(SECOND)
    said = await why(rota_kit, run)
    assert (said.gate, said.at) == ("deadline", START + TEN_SECONDS)


async def test_a_run_waits_for_what_it_depends_on(rota_kit: RotaKit) -> None:
    run = await waiting(rota_kit)
    await execute(rota_kit, "UPDATE rota.pending SET gate = 'upstream'")
    assert (await why(rota_kit, run)).gate == "upstream"


# limits


async def test_a_full_limit_names_the_tenants_own_holders_and_counts_others(rota_kit: RotaKit) -> None:
    await put_limit(rota_kit, tenant_id="*", permits=3)
    key = "downstream/*/crm"
    mine, theirs = await running(rota_kit, "a"), await running(rota_kit, "x", tenant_id="acme")
    await hold(rota_kit, mine, key, permits=2)
    await hold(rota_kit, theirs, key)
    run, better = await waiting(rota_kit, "b"), await waiting(rota_kit, "c", priority=9)
    for job_id in ("b", "c"):
        await use_limits(rota_kit, job_id, limits={"crm": 1})
        await park(rota_kit, job_id, key)
    said = await why(rota_kit, run)
    assert (said.gate, said.cause, said.limit, said.in_use, said.permits) == ("limit", "permits", "crm", 3, 3)
    assert [(holder.run_id, holder.worker_id, holder.since) for holder in said.held_by] == [
        (mine.claim.run_id, "w-9", START)
    ]
    assert (said.held_by_others, said.ahead) == (1, 1)
    assert said.text == (
        f"Limit crm is full: 3 of 3 permits are in use, by run {mine.claim.run_id} and 1 of other tenants;"
        " 1 run of better rank waits for it too."
    )
    assert str(theirs.claim.run_id) not in str(said)
    assert (await why(rota_kit, better)).ahead == 0


async def test_a_run_that_costs_more_waits_while_a_cheaper_one_does_not(rota_kit: RotaKit) -> None:
    await put_limit(rota_kit, permits=3)
    await hold(rota_kit, await running(rota_kit, "a"), CRM)
    await known(rota_kit)
    dear, cheap = await waiting(rota_kit, "dear"), await waiting(rota_kit, "cheap")
    await use_limits(rota_kit, "dear", limits={"crm": 1000})  # all of it
    await use_limits(rota_kit, "cheap", limits={"crm": 2, "unheard-of": 1})
    said = await why(rota_kit, dear)
    assert (said.gate, said.limit) == ("limit", "crm")
    assert "1 of 3 permits, of which it takes 3, are in use" in said.text
    assert (await why(rota_kit, cheap)).gate == "open"


async def test_a_number_of_permits_that_is_lowered_or_raised_holds_at_once(rota_kit: RotaKit) -> None:
    await put_limit(rota_kit, permits=2)
    await hold(rota_kit, await running(rota_kit, "a"), CRM, permits=2)
    run = await waiting(rota_kit, "b")
    await use_limits(rota_kit, "b", limits={"crm": 1})
    await park(rota_kit, "b")
    await execute(rota_kit, "UPDATE rota.limits SET permits = 1")
    said = await why(rota_kit, run)
    assert (said.cause, said.in_use, said.permits) == ("permits", 2, 1)
    await execute(rota_kit, "UPDATE rota.limits SET permits = 0")
    said = await why(rota_kit, run)
    assert (said.cause, said.text) == ("closed", "Limit crm is closed: it has 0 permits.")
    await execute(rota_kit, "UPDATE rota.limits SET permits = 3")
    said = await why(rota_kit, run)
    assert (said.gate, said.cause) == ("limit", "returning")
    assert said.text == "Limit crm has room again: it is let back in, best rank first."
    await execute(rota_kit, "DELETE FROM rota.limits")
    assert (await why(rota_kit, run)).cause == "returning"


async def test_an_empty_bucket_says_when_it_has_enough(rota_kit: RotaKit) -> None:
    await put_limit(rota_kit, rate=0.5, burst=2)
    run = await waiting(rota_kit, "a")
    await known(rota_kit)
    await use_limits(rota_kit, "a", limits={"crm": 5})  # costs the whole burst
    assert (await why(rota_kit, run)).gate == "open"  # nobody took of it yet
    await execute(rota_kit, "INSERT INTO rota.bucket VALUES ($1, 0.25, $2)", CRM, START - SECOND)
    said = await why(rota_kit, run)
    # 0.25 + 1 s * 0.5 of 2 tokens: 1.25 are missing.
    assert (said.gate, said.cause, said.at) == ("limit", "tokens", START + timedelta(seconds=2.5))
    rota_kit.clock.advance(2.5)
    assert (await why(rota_kit, run)).gate == "open"


@pytest.mark.parametrize(
    ("columns", "key", "name", "words"),
    [
        ({"max_concurrency": 1}, "job/{uid}", "job", "The limit of its job's own runs is full"),
        ({"overlap": "queue"}, "job/{uid}", "job", "The limit of its job's own runs is full"),
        (
            {"concurrency_key": "payload.customer", "payload": {"customer": 7}}, "key/{uid}/{md5}", "key",
            "The limit of runs with its key is full",
        ),
    ],
)  # fmt: skip
async def test_a_jobs_own_limits_hold_its_runs(
    rota_kit: RotaKit, columns: dict[str, Any], key: str, name: str, words: str
) -> None:
    work = await running(rota_kit, "a")
    run = await rota_kit.on_demand.trigger("a", tenant_id="default")
    await use_limits(rota_kit, "a", **columns)
    md5 = (await fetch(rota_kit, "SELECT md5('7')"))[0][0]
    await hold(rota_kit, work, key.format(uid=work.claim.key.job_uid, md5=md5))
    said = await why(rota_kit, run)
    assert (said.gate, said.limit, said.permits) == ("limit", name, 1)
    assert said.text.startswith(words)
    assert [holder.run_id for holder in said.held_by] == [work.claim.run_id]


# workers


async def test_a_run_says_who_is_missing(rota_kit: RotaKit) -> None:
    run = await waiting(rota_kit)
    said = await why(rota_kit, run)
    assert (said.gate, said.cause, said.text) == ("handler", "no_worker", "No worker of pool default is live.")
    await known(rota_kit, "stranger", tenant_id="acme")
    assert (await why(rota_kit, run)).cause == "no_worker"
    await known(rota_kit, "w-1", handlers=["g", "shell"])
    said = await why(rota_kit, run)
    assert (said.cause, said.text) == ("unknown", "No live worker of pool default knows handler h.")
    await known(rota_kit, "w-2", pool="blue", handlers=["*"])
    said = await why(rota_kit, run)
    assert (said.pools, said.handler, said.pool) == (("blue",), "h", "default")
    assert said.text.endswith("; workers of pool blue know it.")
    await rota_kit.tick()
    assert (await fetch(rota_kit, "SELECT gate FROM rota.pending"))[0][0] == "handler"
    await known(rota_kit, "w-3")
    assert (await why(rota_kit, run)).cause == "returning"
    await rota_kit.rota.fleet.drain("w-3", tenant_id=None)
    said = await why(rota_kit, run)
    assert said.cause == "draining"
    assert "claims no more" in said.text


# the queue


async def test_a_run_counts_those_before_it_and_the_tenants_that_take_turns(
    rota_kit: RotaKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    await known(rota_kit)
    first = await waiting(rota_kit, "a", priority=9)
    said = await why(rota_kit, first)
    assert (said.gate, said.cause, said.ahead, said.tenants, said.seconds) == ("open", "next", 0, 0, None)
    last = await waiting(rota_kit, "b", priority=0)
    await waiting(rota_kit, "c", priority=5)
    for tenant_id in ("acme", "beta"):
        await waiting(rota_kit, "x", tenant_id=tenant_id)
    said = await why(rota_kit, last)
    assert (said.cause, said.ahead, said.tenants, said.seconds) == ("queue", 2, 2, None)
    await execute(rota_kit, "UPDATE rota.worker SET claim_rate = 0.5")
    said = await why(rota_kit, last)
    # The third of its tenant, which has a third of a run every two seconds.
    assert said.seconds == pytest.approx(18.0)
    assert said.text == (
        "2 runs of its tenant go before it in pool default, and 2 other tenants take turns with its own:"
        " about 18s at the present rate."
    )
    assert "in turn with 2 other tenants" in (await why(rota_kit, first)).text
    monkeypatch.setattr(service, "AHEAD_LIMIT", 2)
    said = await why(rota_kit, last)
    assert (said.ahead, said.ahead_is_more) == (2, True)
    assert said.text.startswith("More than 2 runs")


# jobs


async def test_a_job_says_why_it_makes_no_run(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s", jitter=SECOND))
    said = await why_job(rota_kit)
    assert (said.gate, said.cause, said.at) == ("time", "slot", START + TEN_SECONDS)
    assert said.text == "Its next slot is 2026-01-01T00:00:10Z, and jitter moves its start by up to 1s."
    rota_kit.clock.advance(TEN_SECONDS)
    assert (
        await why_job(rota_kit)
    ).text == "Its slot 2026-01-01T00:00:10Z has come, and no scheduler is live to make its run."
    await rota_kit.tick()
    said = await why_job(rota_kit)
    [view] = await rota_kit.runs("tick")
    assert (said.gate, said.run_id) == ("time", view.run_id)
    end = START + timedelta(hours=1)
    await rota_kit.definitions.pause("tick", tenant_id="default", reason="the CRM moves", resume_at=end)
    said = await why_job(rota_kit)
    assert (said.gate, said.since, said.at) == ("paused", START + TEN_SECONDS, end)
    assert said.text == "It is paused since 2026-01-01T00:00:10Z, until 2026-01-01T01:00:00Z: the CRM moves."


async def test_a_job_without_further_slots_says_so(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    assert (await why_job(rota_kit)).gate == "on_demand"
    await rota_kit.put(Job(job_id="once", handler="h", schedule=rota.once(START - SECOND)))
    assert (await why_job(rota_kit, "once")).text == "Its schedule names no further slot."
    await execute(rota_kit, "UPDATE rota.job SET quarantined = 'bad rule' WHERE job_id = 'once'")
    assert (await why_job(rota_kit, "once")).text == "It is quarantined: bad rule."
