"""The audit log: who changed what, how it stood before and after, and nothing where nothing changed."""

from datetime import timedelta
from typing import Any

import pytest

import rota
from rota.domain.job import Job
from rota.errors import InvalidInput, VersionConflict
from rota.services.access import Access, AuditView
from rota.testing import RotaKit
from tests.services.stories import HOUR, MINUTE, START, every, execute, fetch


@pytest.fixture
def access(rota_kit: RotaKit) -> Access:
    return Access(rota_kit.database, rota_kit.clock)


async def log(access: Access, *, subject: str = "", tenant_id: str = "default") -> list[AuditView]:
    """Return a tenant's entries, oldest first."""
    return (await access.changes(tenant_id, subject=subject, before=None, limit=1000))[::-1]


def pauses(entry: AuditView) -> tuple[Any, Any]:
    return entry.before, entry.after


async def test_a_jobs_life_stands_in_the_log_with_its_authors(rota_kit: RotaKit, access: Access) -> None:
    calls = rota_kit.definitions
    job = every("1h", payload={"n": 10**30, "deep": [{"x": None}], "half": 0.5, "text": "é\n"})
    edited = job.edited(schedule=rota.cron("0 2 * * *", tz="Europe/Berlin"), start_deadline=HOUR)
    await calls.put([job], actor="token:a")
    rota_kit.clock.advance(1)
    await calls.put([edited], actor="token:b")
    rota_kit.clock.advance(1)
    await calls.pause("tick", tenant_id="default", reason="a look", resume_at=START + HOUR, actor="token:c")
    rota_kit.clock.advance(1)
    await calls.resume("tick", tenant_id="default", missed="drop", actor="token:d")
    rota_kit.clock.advance(1)
    await calls.delete("tick", tenant_id="default", actor="token:e")
    rota_kit.clock.advance(1)
    await calls.put([job], actor="token:f")
    created, changed, paused, resumed, deleted, again = await log(access, subject="tick")
    assert [(entry.action, entry.actor) for entry in (created, changed, paused, resumed, deleted, again)] == [
        ("job.created", "token:a"), ("job.changed", "token:b"), ("job.paused", "token:c"), ("job.resumed", "token:d"),
        ("job.deleted", "token:e"), ("job.created", "token:f"),
    ]  # fmt: skip
    assert (created.before, created.after) == (None, job.to_json())
    assert (changed.before, changed.after) == (job.to_json(), edited.to_json())
    assert Job.from_json(changed.after) == edited
    pause = {"paused": True, "reason": "a look", "resume_at": "2026-01-01T01:00:00Z"}
    assert pauses(paused) == ({"paused": False}, pause)
    assert pauses(resumed) == (pause, {"paused": False, "missed": "drop", "runs": 0})
    assert (deleted.before, deleted.after) == (edited.to_json(), None)
    assert (again.before, again.after, again.at) == (None, job.to_json(), START + timedelta(seconds=5))


async def test_what_changes_nothing_leaves_no_entry(rota_kit: RotaKit, access: Access) -> None:
    calls = rota_kit.definitions
    for _ in range(3):
        await rota_kit.put(every("1h"), every("1h", "other"))
    await calls.resume("other", tenant_id="default")
    for _ in range(3):
        await calls.pause("tick", tenant_id="default", reason="a look")
    for _ in range(3):
        await access.put_tenant(
            "default", max_jobs=5, max_payload_bytes=None, calls_per_second=None, actor="system"
        )  # fmt: skip
    with pytest.raises(VersionConflict):
        await calls.put([every("2h")], if_version=9)
    assert sorted((entry.action, entry.subject) for entry in await log(access)) == [
        ("job.created", "other"), ("job.created", "tick"), ("job.paused", "tick"), ("tenant.created", "default"),
    ]  # fmt: skip


async def test_a_pause_that_is_changed_says_what_it_was(rota_kit: RotaKit, access: Access) -> None:
    await rota_kit.put(every("1h"))
    await rota_kit.definitions.pause("tick", tenant_id="default", reason="a look")
    rota_kit.clock.advance(1)
    await rota_kit.definitions.pause("tick", tenant_id="default", reason="a longer look")
    assert pauses((await log(access))[-1]) == (
        {"paused": True, "reason": "a look", "resume_at": None},
        {"paused": True, "reason": "a longer look", "resume_at": None},
    )


async def test_a_job_that_comes_paused_has_both_entries(rota_kit: RotaKit, access: Access) -> None:
    [put] = await rota_kit.definitions.put([every("1h")], pause_new={"tick": "suspended there"}, actor="cli:ada")
    created, paused = await log(access)
    assert (created.action, created.after) == ("job.created", every("1h").to_json())
    pause = {"paused": True, "reason": "suspended there", "resume_at": None}
    assert (paused.action, paused.after) == ("job.paused", pause)
    assert (created.actor, paused.actor) == ("cli:ada", "cli:ada")
    standing = await rota_kit.definitions.get("tick", tenant_id="default")
    assert (put.version, put.next_run_at, put.next_slot) == (standing.version, None, standing.next_slot)


async def test_what_rota_does_by_itself_has_rota_as_its_author(rota_kit: RotaKit, access: Access) -> None:
    await rota_kit.definitions.put([every("1m")], actor="cli:ada")
    await rota_kit.definitions.pause("tick", tenant_id="default", reason="", resume_at=START + MINUTE, actor="cli:ada")
    rota_kit.clock.advance(2 * MINUTE)
    await rota_kit.definitions.resume_due()
    last = (await log(access))[-1]
    assert (last.action, last.actor) == ("job.resumed", "system")


async def test_a_definition_that_cannot_be_read_does_not_stand_in_the_way(rota_kit: RotaKit, access: Access) -> None:
    await rota_kit.put(every("1h"))
    await execute(rota_kit, 'UPDATE rota.job SET schedule = \'{"kind": "unheard-of"}\'')
    rota_kit.clock.advance(1)
    await rota_kit.put(every("1h"))
    last = (await log(access))[-1]
    assert last.action == "job.changed"
    assert list(last.before) == ["problem"]
    assert last.after == every("1h").to_json()


async def test_tokens_and_tenants_stand_in_the_log_of_the_tenant_that_they_are_of(
    rota_kit: RotaKit, access: Access
) -> None:
    token, _ = await access.create_token(
        tenant_id="acme", scopes=["read"], name="n", expires_at=START + HOUR, actor="cli:ada"
    )
    rota_kit.clock.advance(1)
    await access.revoke(token.token_id, tenant_id="acme", actor="token:b")
    await access.revoke(token.token_id, tenant_id="acme", actor="token:c")
    rota_kit.clock.advance(1)
    await access.signing_keys("acme")
    await access.put_tenant("acme", max_jobs=5, max_payload_bytes=None, calls_per_second=None, actor="cli:ada")
    created, revoked, changed = await log(access, tenant_id="acme")
    facts = {"name": "n", "scopes": ["read"], "expires_at": "2026-01-01T01:00:00Z"}
    assert (created.action, created.actor, created.subject) == ("token.created", "cli:ada", token.token_id)
    assert (created.before, created.after) == (None, facts)
    assert (revoked.action, revoked.actor, revoked.subject) == ("token.revoked", "token:b", token.token_id)
    assert (revoked.before, revoked.after) == (facts, None)
    none = {"max_jobs": None, "max_payload_bytes": None, "calls_per_second": None, "weight": 1}
    assert (changed.action, changed.before, changed.after) == ("tenant.changed", none, none | {"max_jobs": 5})
    assert await log(access) == []


async def test_a_batch_is_entered_by_one_statement(rota_kit: RotaKit, access: Access) -> None:
    jobs = [every("1h", f"job-{number}") for number in range(1000)]
    await rota_kit.put(*jobs)
    await rota_kit.put(*(job.edited(priority=9) for job in jobs))
    [counted] = await fetch(rota_kit, "SELECT count(*) AS n, count(DISTINCT xmin::text) AS writes FROM rota.audit")
    assert (counted["n"], counted["writes"]) == (2000, 2)
    assert len(await log(access, subject="job-999")) == 2


async def test_pages_of_the_log_walk_through_it_once_latest_first(rota_kit: RotaKit, access: Access) -> None:
    for start in range(0, 30, 10):
        await rota_kit.put(*(every("1h", f"job-{number}") for number in range(start, start + 10)))
        rota_kit.clock.advance(1)
    walked: list[AuditView] = []
    while part := await access.changes(
        "default", subject="", before=(walked[-1].at, walked[-1].audit_id) if walked else None, limit=7
    ):
        walked += part
    assert len({entry.audit_id for entry in walked}) == len(walked) == 30
    assert [entry.at for entry in walked] == sorted((entry.at for entry in walked), reverse=True)
    assert await access.changes("default", subject="job-1", before=None, limit=7) == [
        entry for entry in walked if entry.subject == "job-1"
    ]
    assert await access.changes("other", subject="", before=None, limit=7) == []


async def test_a_subject_that_nothing_can_be_is_refused(access: Access) -> None:
    with pytest.raises(InvalidInput):
        await access.changes("default", subject="a\x00b", before=None, limit=1)
