"""`rota migrate` and `rota doctor`."""

from tests.cli.conftest import Cli


def test_migrate_says_that_there_is_nothing_to_do(rota: Cli) -> None:
    document = rota.json("migrate")
    assert document["before"] == document["after"]
    assert document["applied"] == []
    assert "nothing to do" in rota("migrate", "--lock-timeout", "1").out
    assert rota("migrate", "--lock-timeout", "0").code == 2


def test_doctor_finds_that_nobody_schedules_and_says_so_by_its_exit_code(rota: Cli) -> None:
    said = rota("doctor", "--json")
    assert said.code == 1
    checks = {check["name"]: check for check in said.document["checks"]}
    assert said.document["ok"] is False
    assert checks["conservation"]["ok"]
    assert any("have no scheduler" in finding for finding in checks["fleet"]["findings"])
    text = rota("doctor", "--all")
    assert text.code == 1
    assert "conservation" in text.out
