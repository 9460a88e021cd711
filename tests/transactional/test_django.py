"""Django's connection, in a process of its own since its settings are the process's."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from urllib.parse import parse_qs, urlsplit

from rota.domain.job import Job
from rota.testing import RotaKit
from tests.services.stories import execute, fetch, states
from tests.transactional.callers import TABLE

PROGRAM = """
import sys
from dataclasses import dataclass
from uuid import UUID

import django
from django.conf import settings

user, name, host, port, run_id, token = sys.argv[1:]
settings.configure(DATABASES={"default": {
    "ENGINE": "django.db.backends.postgresql", "NAME": name, "USER": user, "HOST": host, "PORT": port}})
django.setup()

from django.db import connection, transaction

from rota.errors import InvalidInput, LeaseLost, NotFound
from rota.transactional import complete_in_sync, trigger_in_sync, trigger_many_in_sync


@dataclass(frozen=True)
class InHand:
    run_id: UUID
    lease_token: UUID


def effect():
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO public.effect VALUES (%s)", [run_id])


def refused(kind, ask):
    try:
        with transaction.atomic():
            effect()
            ask()
    except kind as error:
        return str(error)
    raise AssertionError(f"{kind.__name__} was expected")


run = InHand(UUID(run_id), UUID(token))
try:
    trigger_in_sync(connection, "tick")
except InvalidInput as error:
    assert "no transaction" in str(error)
else:
    raise AssertionError("Django commits by itself outside of atomic()")
assert "'tock'" in refused(NotFound, lambda: trigger_in_sync(connection, "tock"))
with transaction.atomic():
    effect()
    made = trigger_in_sync(connection, "tick", payload={"by": "django"})
    many = trigger_many_in_sync(connection, "tick", [{"by": "%s"}, None])
    complete_in_sync(connection, run, result=[1])
assert run_id in refused(LeaseLost, lambda: complete_in_sync(connection, run))
connection.close()
print(made, *many)
"""


async def test_django_makes_and_finishes_runs_in_its_own_transactions(rota_kit: RotaKit) -> None:
    await rota_kit.put(Job(job_id="tick", handler="h"))
    await execute(rota_kit, TABLE)
    await rota_kit.on_demand.trigger("tick", tenant_id="default")
    work = await rota_kit.worker("w", handlers=["h"]).claim_one()
    address = urlsplit(rota_kit.dsn)
    [host], [port] = (parse_qs(address.query)[name] for name in ("host", "port"))
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-c", PROGRAM, address.username or "", address.path[1:], host, port,
        str(work.claim.run_id), str(work.claim.key.token), stdout=PIPE, stderr=PIPE,
    )  # fmt: skip
    async with asyncio.timeout(60):
        said, trouble = await program.communicate()
    assert program.returncode == 0, trouble.decode()
    claimed = await rota_kit.worker("w", handlers=["h"]).claim(limit=10)
    told = {str(work.claim.run_id): work.claim.payload for work in claimed}
    assert [told[run] for run in said.decode().split()] == [{"by": "django"}, {"by": "%s"}, {}]
    assert sorted(await states(rota_kit)) == ["running", "running", "running", "succeeded"]
    [row] = await fetch(rota_kit, "SELECT count(*) AS n FROM public.effect")
    assert row["n"] == 1
