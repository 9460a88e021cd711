"""What `why` says of waiting runs is what the next claims do: a run that is held is in nobody's answer, and one that is
next is the very next. Over random jobs, limits, deadlines, tenants and workers."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from rota.domain.job import Job
from rota.domain.limit import Limit
from rota.domain.why import Cause, Hold, Reason
from rota.errors import SlotTaken
from rota.testing import Kits, RotaKit, TestCluster
from rota.testing.kit import KitWorker
from tests.services.stories import SECOND, fetch

Drawn = dict[str, Any]

TENANTS = ["default", "acme"]
HANDLERS = ["g", "h"]
FIRST_WORKER = {"pool": "blue", "handlers": ["h"], "tenant_id": None, "drains": False}
ROUNDS = 3

jobs = st.fixed_dictionaries(
    {
        "tenant_id": st.sampled_from(TENANTS),
        "pool": st.sampled_from(["blue", "blue", "blue", "green"]),
        "handler": st.sampled_from(HANDLERS),
        "priority": st.integers(0, 9),
        "overlap": st.sampled_from(["allow", "allow", "queue"]),
        "max_concurrency": st.sampled_from([None, None, 1, 2]),
        "concurrency_key": st.sampled_from([None, "payload.customer"]),
        "limits": st.sampled_from(
            [{}, {}, {"crm": 1}, {"crm": 3}, {"mail": 1}, {"mail": 2}, {"mail": 1, "crm": 1}, {"closed": 1}]
        ),
        "start_deadline": st.sampled_from([None, None, 6 * SECOND]),
    }
)
runs = st.tuples(st.integers(0, 3), st.sampled_from([0, 0, 0, 0, 0, 1, 30]), st.sampled_from([None, 1, 2]))
numbers: st.SearchStrategy[Drawn] = st.fixed_dictionaries(
    {
        "crm": st.builds(dict, permits=st.integers(1, 4)),
        "mail": st.builds(dict, rate=st.sampled_from([0.1, 0.5]), burst=st.integers(1, 2)),
    }
)
workers = st.fixed_dictionaries(
    {
        "pool": st.sampled_from(["blue", "green"]),
        "handlers": st.sampled_from([["h"], ["g", "h"], ["*"]]),
        "tenant_id": st.sampled_from([None, None, "default"]),
        "drains": st.booleans(),
    }
)
worlds = st.fixed_dictionaries(
    {
        "jobs": st.lists(jobs, min_size=1, max_size=4),
        "runs": st.lists(runs, min_size=3, max_size=10),
        "limits": numbers,
        "tenant_limit": st.sampled_from([None, 1, 3]),
        "workers": st.lists(workers, max_size=2).map(lambda more: [FIRST_WORKER, *more]),
        "busy": st.integers(0, 4),
        "passing": st.sampled_from([0, 2, 7]),
    }
)


@pytest.fixture
def playing(rota_cluster: TestCluster) -> Iterator[tuple[asyncio.Runner, Kits]]:
    """One loop for all examples, and kits in it."""
    with asyncio.Runner() as runner:
        kits = Kits(rota_cluster)
        yield runner, kits
        runner.run(kits.close())


@settings(
    max_examples=12, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)  # fmt: skip
@given(worlds)
def test_why_agrees_with_what_the_claim_then_does(playing: tuple[asyncio.Runner, Kits], world: Drawn) -> None:
    async def play(kits: Kits) -> None:
        async with kits.kit() as kit:
            await _play(kit, world)

    runner, kits = playing
    runner.run(play(kits))


async def _play(kit: RotaKit, world: Drawn) -> None:
    await _build(kit, world)
    crew = [
        kit.worker(f"w-{n}", **{name: drawn[name] for name in ("pool", "handlers", "tenant_id")})
        for n, drawn in enumerate(world["workers"])
    ]
    await _announce(kit, crew, world["workers"])
    active = [worker for worker, drawn in zip(crew, world["workers"], strict=True) if not drawn["drains"]]
    for worker in active:
        await worker.claim(limit=world["busy"])
    kit.clock.advance(world["passing"])
    for turn in range(ROUNDS):
        await _announce(kit, crew, world["workers"])
        if turn:
            await kit.tick()  # what was parked for a permit or a worker may be let back in
        waits = await _reasons(kit)
        await _next_ones_are_taken(kit, waits)
        waits = await _reasons(kit)
        held = {run for run, (reason, _) in waits.items() if reason.gate != Hold.OPEN}
        for worker in active:
            taken = {work.claim.run_id for work in await worker.claim(limit=1000 if turn else 1)}
            assert not taken & held, [waits[run] for run in taken & held]
        kit.clock.advance(SECOND)


async def _build(kit: RotaKit, world: Drawn) -> None:
    for name, drawn in {**world["limits"], "closed": {"permits": 0}}.items():
        await kit.rota.limits.put(Limit(name=name, tenant_id="*", **drawn), actor="test")
    if world["tenant_limit"] is not None:
        limit = Limit(name="all", tenant_id="acme", kind="tenant", permits=world["tenant_limit"])
        await kit.rota.limits.put(limit, actor="test")
    put = [Job(job_id=f"j-{n}", **parts) for n, parts in enumerate(world["jobs"])]
    await kit.put(*put)
    for number, delay, customer in world["runs"]:
        job = put[number % len(put)]
        at = kit.clock.now() + timedelta(seconds=delay) if delay else None
        payload = None if customer is None else {"customer": customer}
        with suppress(SlotTaken):  # drawn twice
            await kit.on_demand.trigger(job.job_id, tenant_id=job.tenant_id, scheduled_for=at, payload=payload)
        kit.clock.advance(timedelta(milliseconds=7))


async def _announce(kit: RotaKit, crew: list[KitWorker], drawn: list[Drawn]) -> None:
    for worker, its in zip(crew, drawn, strict=True):
        await worker.announce()
        if its["drains"]:
            await kit.rota.fleet.drain(worker.worker_id, tenant_id=None)


async def _reasons(kit: RotaKit) -> dict[UUID, tuple[Reason, Any]]:
    """Ask of every waiting run."""
    rows = await fetch(kit, "SELECT rota.run_id(job_uid, scheduled_for) AS run_id, * FROM rota.pending")
    return {row["run_id"]: (await kit.rota.why.run(row["run_id"], tenant_id=row["tenant_id"]), row) for row in rows}


async def _next_ones_are_taken(kit: RotaKit, waits: dict[UUID, tuple[Reason, Any]]) -> None:
    """Whoever would take only such runs as the one that is next gets that one, or one of the very same rank."""
    for run, (reason, row) in waits.items():
        if reason.cause == Cause.NEXT:
            taker = kit.worker("t", pool=row["pool"], handlers=[row["handler"]], tenant_id=row["tenant_id"])
            [work] = await taker.claim(limit=1)
            taken = waits[work.claim.run_id]
            assert taken[0].cause == Cause.NEXT, (reason, taken)
            assert taken[1]["rank"] == row["rank"], (run, work.claim.run_id)
            await work.release()
            await kit.tick()
            return
