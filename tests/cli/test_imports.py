"""`rota import crontab`: good lines go in, bad ones are refused one by one, and again changes nothing."""

from pathlib import Path

import pytest

from tests.cli.conftest import Cli

CRONTAB = """\
MAILTO=ops@example.org
*/5 * * * * /opt/app/sync --all
@reboot /opt/app/start
0 25 * * * /opt/app/never
0 3 * * 1 /opt/app/weekly
"""
SUSPENDED = """\
apiVersion: batch/v1
kind: CronJob
metadata: {name: backup}
spec:
  schedule: "0 2 * * *"
  timeZone: UTC
  suspend: true
  jobTemplate: {spec: {template: {spec: {containers: [{name: main, image: backup}]}}}}
"""


@pytest.fixture
def crontab(tmp_path: Path) -> str:
    file = tmp_path / "app.crontab"
    file.write_text(CRONTAB)
    return str(file)


def test_a_dry_run_needs_no_database_and_tells_all(bare: Cli, crontab: str) -> None:
    said = bare("import", "crontab", crontab, "--dry-run", "--json", "--tz", "Europe/Berlin", "--pool", "cron")
    assert (said.code, said.err) == (1, "")
    document = said.document
    assert set(document) == {"jobs", "refused", "warnings"}
    assert [job["payload"]["command"] for job in document["jobs"]] == ["/opt/app/sync --all", "/opt/app/weekly"]
    assert {(job["pool"], job["schedule"]["tz"], job["handler"]) for job in document["jobs"]} == {
        ("cron", "Europe/Berlin", "shell")
    }
    assert [(refused["file"], refused["line"]) for refused in document["refused"]] == [(crontab, 3), (crontab, 4)]
    assert "@reboot has no meaning" in document["refused"][0]["reason"]
    assert document["warnings"][0]["line"] == 1


def test_people_read_where_each_refusal_stands(bare: Cli, crontab: str) -> None:
    said = bare("import", "crontab", crontab, "--dry-run")
    assert "2 jobs would be imported" in said.out
    assert "2 jobs would be imported" in said.out
    assert f"{crontab}:3: refused: " in said.err
    assert f"{crontab}:1: warning: MAILTO" in said.err


def test_the_good_lines_go_in_and_again_change_nothing(rota: Cli, crontab: str) -> None:
    first = rota("import", "crontab", crontab, "--json")
    assert first.code == 1
    assert (first.document["created"], first.document["changed"], first.document["unchanged"]) == (2, 0, 0)
    assert len(first.document["refused"]) == 2
    again = rota("import", "crontab", crontab, "--json").document
    assert (again["created"], again["changed"], again["unchanged"]) == (0, 0, 2)
    assert {job["job_id"] for job in rota.json("job", "list")["jobs"]} == {job["job_id"] for job in again["jobs"]}


def test_a_job_that_two_files_define_is_refused_in_the_second(bare: Cli, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "crontab").write_text("0 3 * * * echo hello\n")
    files = [str(tmp_path / folder / "crontab") for folder in ("one", "two")]
    document = bare("import", "crontab", *files, "--dry-run", "--json").document
    assert len(document["jobs"]) == 1
    [refused] = document["refused"]
    assert (refused["file"], refused["line"]) == (files[1], 1)
    assert files[0] in refused["reason"]


def test_a_file_that_cannot_be_read_keeps_the_others_in(bare: Cli, crontab: str, tmp_path: Path) -> None:
    said = bare("import", "crontab", str(tmp_path / "away"), crontab, "--dry-run", "--json")
    assert said.code == 1
    assert [refused["line"] for refused in said.document["refused"]] == [0, 3, 4]
    assert len(said.document["jobs"]) == 2


def test_standard_input_is_read_too(bare: Cli) -> None:
    document = bare.json("import", "crontab", "-", "--dry-run", "--user", typed="0 3 * * * echo hello\n")
    assert document["jobs"][0]["source"] == {"file": "stdin", "line": 1}


def test_what_was_suspended_is_paused_after_its_first_import_only(rota: Cli, tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(SUSPENDED)
    assert rota.json("import", "crontab", str(file), "--tenant", "blue")["paused"] == 1
    shown = rota.json("job", "show", "backup", "--tenant", "blue")
    assert (shown["state"], shown["pause_reason"]) == ("paused", f"suspended in {file}, line 1")
    rota.json("job", "resume", "backup", "--tenant", "blue")
    assert rota.json("import", "crontab", str(file), "--tenant", "blue")["paused"] == 0
    assert rota.json("job", "show", "backup", "--tenant", "blue")["state"] == "active"


def test_a_zone_or_a_pool_that_cannot_be_is_refused_before_anything(bare: Cli, crontab: str) -> None:
    assert bare("import", "crontab", crontab, "--tz", "Nowhere").err.startswith("error: tz: ")
    assert bare("import", "crontab", crontab, "--pool", " x").err.startswith("error: pool: ")


def test_a_folder_gives_its_files_and_those_that_cron_passes_over_are_named(bare: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "cron.d"
    folder.mkdir()
    for name in ("app", "app.dpkg-old", "app~", ".placeholder", "app.sh"):
        (folder / name).write_text("0 3 * * * root /opt/app/sync\n")
    for given in ([str(folder)], [str(path) for path in folder.iterdir()]):
        document = bare("import", "crontab", *given, "--dry-run", "--json").document
        assert [job["payload"]["user"] for job in document["jobs"]] == ["root"]
        passed = {Path(warning["file"]).name for warning in document["warnings"] if "passed over" in warning["text"]}
        assert passed == {"app.dpkg-old", "app~", ".placeholder", "app.sh"}


def test_another_zone_and_an_earlier_versions_ids_leave_one_job_an_entry(rota: Cli, tmp_path: Path) -> None:
    file = tmp_path / "crontab"
    file.write_text("0 3 * * * /opt/a\n")
    former = "crontab-a-b242a09270"  # what version 0.1 called it in Asia/Tokyo
    rota.json("job", "put", former, "--handler", "shell", "--label", "imported-from=crontab")
    first = rota("import", "crontab", str(file), "--tz", "Asia/Tokyo", "--json").document
    assert first["replaced"] == [former]
    again = rota("import", "crontab", str(file), "--tz", "Europe/Berlin", "--json").document
    assert (again["created"], again["changed"]) == (0, 1)
    [job] = rota.json("job", "list")["jobs"]
    assert job["job"]["schedule"]["tz"] == "Europe/Berlin"


def test_shell_jobs_that_no_worker_would_run_are_warned_of(rota: Cli, crontab: str) -> None:
    said = rota("import", "crontab", crontab)
    assert (
        "no live worker of the pool 'default' runs shell jobs: start one with `rota worker --allow-shell default`"
        in said.err
    )
