"""Promises that no single service keeps: what identities are made of, what is shown to whom, what many do at once."""

import asyncio
import json
import uuid
from dataclasses import replace
from datetime import timedelta

import pytest

import rota
from rota.domain.attempt import Outcome, Report
from rota.domain.ids import job_uid, run_id
from rota.domain.job import PAYLOAD_LIMIT, Job
from rota.errors import InvalidInput, SlotTaken
from rota.services.hints import CHANNEL
from rota.testing import RotaKit
from tests.services.stories import START, TEN_SECONDS, every, fetch


async def test_fifty_that_ask_for_the_same_slot_at_once_get_one_run(rota_kit: RotaKit) -> None:
    """B90: the slot is the key; one request makes the run, the others are told that it stands."""
    await rota_kit.put(Job(job_id="tick", handler="h"))
    slot = START + TEN_SECONDS

    async def ask() -> bool:
        try:
            await rota_kit.on_demand.trigger("tick", tenant_id="default", scheduled_for=slot)
        except SlotTaken:
            return False
        return True

    assert sum(await asyncio.gather(*(ask() for _ in range(50)))) == 1
    assert len(await rota_kit.runs("tick")) == 1


async def test_no_identity_comes_from_a_counter_that_could_run_out(rota_kit: RotaKit) -> None:
    """B94: there is no sequence, and every part of a key is wide enough for ever."""
    assert await fetch(rota_kit, "SELECT * FROM information_schema.sequences WHERE sequence_schema = 'rota'") == []
    narrow = await fetch(
        rota_kit,
        """SELECT c.table_name, c.column_name, c.data_type FROM information_schema.key_column_usage k
             JOIN information_schema.columns c USING (table_schema, table_name, column_name)
            WHERE table_schema = 'rota' AND c.data_type IN ('integer', 'smallint')
                  -- A permit's slot is its place among those of its limit, at most 100,000.
                  AND c.column_name NOT IN ('shard', 'slot')
              AND c.table_name <> 'migration'""",
    )
    assert narrow == []


async def test_only_far_slots_lie_in_the_shared_partition(rota_kit: RotaKit) -> None:
    """B96: a slot of these months lies in its month; what is far off moves there when its month is made."""
    rows = await fetch(
        rota_kit, "SELECT c.relname::text AS shared FROM pg_partitioned_table p JOIN pg_class c ON c.oid = p.partdefid"
    )
    assert sorted(row["shared"] for row in rows) == ["attempt_far", "run_far"]
    await rota_kit.put(every("10s"))
    await rota_kit.advance(60)
    assert await fetch(rota_kit, "SELECT FROM rota.run LIMIT 1")
    assert await fetch(rota_kit, "SELECT FROM rota.run_far") == []


@pytest.mark.parametrize("size", [9_000, PAYLOAD_LIMIT])
async def test_a_large_payload_travels_whole_and_no_hint_carries_it(rota_kit: RotaKit, size: int) -> None:
    """B59: hints carry topics, whatever the run carries."""
    payload = {"k": "x" * (size - len('{"k":""}'))}
    heard: list[str] = []
    told = asyncio.Event()

    def hear(topic: str) -> None:
        heard.append(topic)
        told.set()

    async with rota_kit.database.listening(CHANNEL, hear):
        await rota_kit.put(Job(job_id="tick", handler="h"))
        await rota_kit.on_demand.trigger("tick", tenant_id="default", payload=payload)
        await rota_kit.rota.hints._send()
        async with asyncio.timeout(20):
            await told.wait()
    assert max(map(len, heard)) < 100
    assert (await rota_kit.worker("w-1", handlers=["h"]).claim_one()).claim.payload == payload
    with pytest.raises(InvalidInput) as refusal:
        await rota_kit.on_demand.trigger("tick", tenant_id="default", payload={"k": "x" * PAYLOAD_LIMIT})
    assert refusal.value.field == "payload"


async def test_a_stranger_ends_and_renews_nothing(rota_kit: RotaKit) -> None:
    """B107: another run's token, a made-up one, none at all: refused, and nothing changes."""
    await rota_kit.put(every("10s", "one"), every("10s", "other"))
    await rota_kit.advance(10)
    one, other = await rota_kit.worker("w-1", handlers=["h"]).claim(limit=2)
    before = await rota_kit.runs(one.claim.job_id)
    for token in (other.claim.key.token, uuid.uuid4(), uuid.UUID(int=0)):
        key = replace(one.claim.key, token=token)
        assert (await one.desk.renew([key])).renewed == {}
        assert await one.desk.report([Report(key=key, outcome=Outcome.SUCCEEDED)]) == frozenset()
    assert await rota_kit.runs(one.claim.job_id) == before
    assert one.claim.key.token.version == 4, "random, so that nobody can guess it"
    await one.succeed()
    await other.succeed()


async def test_tokens_are_shown_to_nobody_but_their_claimer(
    rota_kit: RotaKit, capsys: pytest.CaptureFixture[str]
) -> None:
    """B107: not in runs, attempts, dead letters or what is logged."""
    await rota_kit.put(every("10s", max_attempts=1))
    await rota_kit.advance(10)
    work = await rota_kit.worker("w-1", handlers=["h"]).claim_one()
    shown = [str(await rota_kit.runs("tick"))]
    await work.fail()
    [run] = await rota_kit.runs("tick")
    shown += [
        str(await rota_kit.history.run(run.run_id)),
        str(await rota_kit.history.dead_letters(tenant_id="default")),
    ]
    shown += [str(await rota_kit.rota.doctor.examine()), capsys.readouterr().out]
    for text in shown:
        assert str(work.claim.key.token) not in text
        assert work.claim.key.token.hex not in text
    columns = await fetch(
        rota_kit,
        "SELECT table_name FROM information_schema.columns WHERE table_schema = 'rota' AND column_name = 'token'",
    )
    assert not {row["table_name"] for row in columns} & {"job_run", "run_attempt"}


async def test_a_job_whose_worker_dies_twenty_times_is_never_blocked_by_its_own_past(rota_kit: RotaKit) -> None:
    """B62: whether a run lives is read from its rows, so a kill leaves nothing behind that counts."""
    await rota_kit.put(every("10s", overlap="skip", max_losses=1, lease_duration=timedelta(seconds=5)))
    for killed in range(1, 21):
        rota_kit.clock.advance(TEN_SECONDS)
        await rota_kit.tick()
        work = await rota_kit.worker(f"w-{killed}", handlers=["h"]).claim_one()
        assert work.claim.run_id == run_id(work.claim.key.job_uid, START + killed * TEN_SECONDS)
    assert await rota_kit.history.skipped("tick", tenant_id="default") == []


async def test_the_same_uid_and_run_id_are_computed_by_the_database(rota_kit: RotaKit) -> None:
    await rota_kit.put(every("10s", misfire=rota.catch_up(3)))
    await rota_kit.advance(30)
    for run in await rota_kit.runs("tick"):
        assert run.run_id == run_id(job_uid(*Job(job_id="tick", handler="h").name), run.scheduled_for)
    [row] = await fetch(rota_kit, "SELECT payload FROM rota.job")
    assert json.loads(row["payload"]) == {}
