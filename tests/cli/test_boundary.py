"""Every way in which a command can end has its exit code and one clear message."""

import socket
import sys
from pathlib import Path
from types import ModuleType

import pytest
import typer
from typer.testing import CliRunner

from rota.cli.addresses import check_address
from rota.cli.boundary import Boundary, error_to_json, exit_code_of
from rota.cli.main import main
from rota.errors import (
    CommitUnknown,
    DatabaseUnavailable,
    InvalidInput,
    NotFound,
    RotaError,
    SchemaMismatch,
    SetupFailed,
    SlotTaken,
)
from rota.version import VERSION
from tests.cli.conftest import Cli


def command_that_raises(error: BaseException) -> typer.Typer:
    app = typer.Typer(cls=Boundary, pretty_exceptions_enable=False)

    @app.command()
    def fail(json: bool = False) -> None:
        raise error

    app.callback()(lambda: None)
    return app


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidInput("payload", "is not JSON"), 2),
        (NotFound("there is no job 'x'"), 3),
        (SlotTaken("taken"), 4),
        (DatabaseUnavailable("away"), 5),
        (CommitUnknown("in doubt"), 5),
        (SchemaMismatch("newer"), 5),
        (SetupFailed("no folder"), 5),
        (ExceptionGroup("together", [ExceptionGroup("inner", [NotFound("gone")])]), 3),
        (RuntimeError("a bug"), 70),
        (KeyboardInterrupt(), 130),
    ],
)
def test_each_kind_of_error_has_its_exit_code(error: BaseException, code: int) -> None:
    result = CliRunner().invoke(command_that_raises(error), ["fail"])
    assert result.exit_code == code
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1


def test_an_error_says_what_happened_and_what_to_do() -> None:
    error = NotFound("there is no job 'x'", hint="look at the list")
    result = CliRunner().invoke(command_that_raises(error), ["fail"])
    assert result.stderr == "error: there is no job 'x' (look at the list)\n"
    assert error_to_json(error) == {
        "code": "not-found", "field": None, "reason": "there is no job 'x'", "hint": "look at the list",
    }  # fmt: skip


def test_the_traceback_is_there_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTA_DEBUG", "1")
    result = CliRunner().invoke(command_that_raises(NotFound("gone")), ["fail"])
    assert isinstance(result.exception, NotFound)


def test_an_unknown_kind_of_error_is_the_set_ups() -> None:
    assert exit_code_of(RotaError("something else")) == 5


def test_wrong_usage_is_explained_as_text_and_as_json(bare: Cli) -> None:
    said = bare("jobs")
    assert said.code == 2
    assert said.err == "error: No such command 'jobs'. Did you mean 'job'? (see `rota --help`)\n"
    said = bare("job", "show", "--json")
    assert (said.code, said.err) == (2, "")
    assert said.document["error"]["code"] == "usage"


def test_help_is_shown_where_a_command_is_missing(bare: Cli) -> None:
    assert bare("job").code == 2
    assert "recompute" in bare("job").out
    assert bare("--version").out == f"rota {VERSION}\n"


def test_a_database_that_is_not_there_is_named(bare: Cli) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound and never listening: nobody can answer there
        url = f"postgresql://nobody:secret@127.0.0.1:{held.getsockname()[1]}/rota"
        said = bare("job", "list", "--database-url", url)
    assert said.code == 5
    assert said.err.startswith("error: the database postgresql://nobody:***@127.0.0.1:")
    assert "cannot be reached: nothing listens there (is it running? " in said.err
    for words in (["worker", "--allow-shell", "default"], ["scheduler"], ["migrate"], ["dev"], ["demo"]):
        said = bare(*words, "--json", "--database-url", url)
        assert (said.code, said.document["error"]["code"]) == (5, "database-unavailable"), words


@pytest.mark.parametrize(
    "url",
    [
        "mysql://x:secret@h/x",
        "postgresql://u:secret@127.0.0.1:99999/x",
        "postgresql://u:secret@127.0.0.1:abc/x",
        "postgresql://u:secret@h:1,g:2:3/x",
        "postgresql://u:sec/secret@h/x",
        "postgresql://u:secret@[::1/x",
        "postgresql://u:secret@h/x?port=abc",
        "postgresql://u:secret@h/x?nothing",
        "postgresql://u:secret@h/x?sslmode=perhaps",
        "postgresql://u:secret@a..b/x",
    ],
)
def test_an_address_that_is_none_is_refused_and_its_password_not_shown(bare: Cli, url: str) -> None:
    for words in (["job", "list"], ["demo"], ["migrate"]):
        said = bare(*words, "--database-url", url)
        assert (said.code, said.err.startswith("error: database_url: ")) == (2, True), said
        assert "secret" not in said.err


def test_several_hosts_and_a_socket_are_addresses() -> None:
    check_address("postgresql://u@a:5432,b:5433/x?target_session_attrs=primary")
    check_address("postgresql://rota@/rota?host=%2Ftmp%2Fsocket&port=5432")


def test_a_file_in_the_clusters_place_is_the_set_ups_fault(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "postgres").write_text("mine")
    said = Cli()("job", "list", "--data-dir", str(tmp_path))
    assert (said.code, said.err.startswith(f"error: {tmp_path}/postgres is not ")) == (5, True), said


def test_a_server_that_is_too_old_is_named_before_its_schema(rota: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rota.store.migrate.MINIMUM_SERVER", 990000)
    for words in (["job", "list"], ["doctor"], ["worker", "--allow-shell", "default"], ["migrate"]):
        said = rota(*words)
        assert (said.code, "is too old" in said.err) == (5, True), said


def test_ctrl_c_while_it_is_still_importing_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "rota.cli.root", Interrupted("rota.cli.root"))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "ended by Ctrl-C\n"


def test_a_setting_that_cannot_be_is_named(bare: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTA_CONCURRENCY", "many")
    said = bare("job", "list")
    assert (said.code, said.err.startswith("error: concurrency: ")) == (2, True)
    monkeypatch.delenv("ROTA_CONCURRENCY")
    assert bare("job", "list", "--log-level", "loud").err.startswith("error: log_level: ")


def test_shared_options_count_before_and_after_the_command(rota: Cli) -> None:
    rota.json("job", "put", "mine", "--handler", "h", "--tenant", "blue")
    for words in (("--tenant", "blue", "--json", "job", "list"), ("job", "list", "--tenant", "blue", "--json")):
        assert [job["job_id"] for job in rota(*words).document["jobs"]] == ["mine"]
    assert rota.json("job", "list")["jobs"] == []
