"""The documentation says what is so: its blocks run, its links lead somewhere, its tables are those of the code."""

import asyncio
import doctest
import importlib
import inspect
import json
import os
import pkgutil
import shlex
import shutil
import signal
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from prometheus_client.metrics import MetricWrapperBase

import rota
from rota.api.app import create_app
from rota.cli.root import app
from rota.domain.attempt import Outcome
from rota.domain.run import MOVES, Gate
from rota.errors import RotaError
from rota.settings import Settings
from rota.testing import RotaKit, TestCluster
from rota.worker.metrics import WorkerMetrics
from tests.cli.running import run
from tests.docs.pages import ROOT, Block, Page, agrees, exchanges, page, pages

PAGES = pages()
WITH_PYTHON = [p for p in PAGES if any(b.language in ("python", "pycon") and b.is_tested for b in p.blocks)]
WITH_COMMANDS = [p for p in PAGES if any(b.language == "console" and b.is_tested for b in p.blocks)]
WITH_HTTP = [p for p in PAGES if any(b.is_over_http for b in p.blocks)]
BIN = Path(sys.executable).parent
OPTIONS_OF_ALL = {"--database-url", "--data-dir", "--url", "--token", "--tenant", "--log-level", "--json", "--help"}


def named(one: Page) -> str:
    return one.name


def run_blocks(one: Page) -> dict[str, Any]:
    """Run a page's Python; returns the namespace that it leaves. Blocks with titles can be imported by those below."""
    namespace: dict[str, Any] = {"__name__": f"page_{one.path.stem.replace('-', '_')}"}
    titled: list[str] = []
    try:
        for block in one.blocks:
            _run_block(block, namespace, one)
            if block.language == "python" and block.title is not None and block.is_tested:
                titled.append(block.title.removesuffix(".py"))
                assert titled[-1] not in sys.modules, "a block's title hides a module"
                sys.modules[titled[-1]] = types.ModuleType(titled[-1])
                vars(sys.modules[titled[-1]]).update(namespace)
    finally:
        for name in titled:
            sys.modules.pop(name, None)
    return namespace


def _run_block(block: Block, namespace: dict[str, Any], one: Page) -> None:
    if block.language == "python" and block.is_tested:
        # Padded, so that a traceback names the page's own lines.
        code = compile("\n" * (block.line - 1) + block.text, one.name, "exec", dont_inherit=True)
        exec(code, namespace)  # noqa: S102 - running the page is the test
    if block.language == "pycon" and block.is_tested:
        run_session(block.text, namespace, one.name, block.line)


@pytest.mark.parametrize("name", ["docs/tutorial/first-job.md", "docs/how-to/test-your-handlers.md"])
def test_where_tests_are_shown_stands_what_pytest_needs(name: str) -> None:
    text = page(name).text
    assert 'pytest_plugins = ["rota.testing.plugin"]' in text
    assert 'asyncio_mode = "auto"' in text


def test_the_test_of_the_tutorial_is_a_file_of_its_own() -> None:
    [block] = [block for block in page("docs/tutorial/first-job.md").blocks if block.title == "test_jobs.py"]
    assert "from jobs import app" in block.text


def run_session(text: str, namespace: dict[str, Any], name: str, line: int) -> None:
    # globs are not copied here, so what a session defines stays for the blocks below it.
    examples = doctest.DocTestParser().get_examples(text, name)
    test = doctest.DocTest(examples, {}, name, name, line - 1, None)
    test.globs = namespace
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(test, out=said.append, clear_globs=False)
    assert runner.failures == 0, "".join(said)


@pytest.mark.parametrize("one", WITH_PYTHON, ids=named)
async def test_the_python_of_a_page_runs(one: Page, rota_cluster: TestCluster) -> None:
    """Its blocks run, its jobs can be put, and what it calls `test_...` passes, each with a cluster of its own."""
    namespace = run_blocks(one)
    if isinstance(app := namespace.get("app"), rota.App):
        async with rota_cluster.kit() as kit:
            await kit.put(app)
    for name, value in namespace.items():
        if name.startswith("test_") and inspect.iscoroutinefunction(value):
            async with rota_cluster.kit() as kit:
                await run_blocks(one)[name](kit)
                await kit.check()


@pytest.mark.parametrize("name", ["README.md", "docs/tutorial/first-job.md"])
async def test_the_jobs_of_the_first_pages_run_to_success(name: str, rota_kit: RotaKit) -> None:
    app = run_blocks(page(name))["app"]
    await rota_kit.put(app)
    for job in app.jobs.values():
        if job.schedule is None:
            await rota_kit.on_demand.trigger(job.job_id, tenant_id=job.tenant_id)
    rota_kit.clock.advance(86_400)
    await rota_kit.tick()
    reports = await rota_kit.run_due(app)
    assert {report.outcome for report in reports} == {Outcome.SUCCEEDED}
    for job_id in app.jobs:
        assert [run.state for run in await rota_kit.runs(job_id)][-1] == "succeeded"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which a page's commands run, with nothing from outside."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROTA_LOG_LEVEL", "error")
    return tmp_path


@pytest.fixture
def database_url(rota_cluster: TestCluster) -> Iterator[str]:
    """A fresh, migrated database for the commands of one page."""
    with asyncio.Runner() as runner:
        context = rota_cluster.database()
        dsn = runner.run(context.__aenter__())
        yield dsn
        runner.run(context.__aexit__(None, None, None))


@pytest.mark.parametrize("one", WITH_COMMANDS, ids=named)
def test_the_commands_of_a_page_say_what_is_shown(
    one: Page, folder: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROTA_DATABASE_URL", database_url)
    for block in one.blocks:
        if block.title is not None:
            (folder / block.title).write_text(block.text, encoding="utf-8")
        if block.language != "console" or not block.is_tested or block.is_over_http:
            continue
        for exchange in exchanges(block):
            program, *words = shlex.split(exchange.command)
            assert program == "rota", f"{one.name}, line {block.line}: only rota runs here, mark the block notest"
            said = run(words)
            where = f"{one.name}, line {block.line}: {exchange.command}"
            assert said.code == exchange.code, f"{where}\n{said.both}"
            assert agrees(exchange.shown, said.both), f"{where} says\n{said.both}"


@pytest.mark.skipif(shutil.which("curl") is None, reason="the pages' own commands need curl")
@pytest.mark.parametrize("one", WITH_HTTP, ids=named)
def test_the_calls_of_a_page_are_answered_as_shown(one: Page, folder: Path, database_url: str) -> None:
    for block in one.blocks:
        if block.title is not None:
            (folder / block.title).write_text(block.text, encoding="utf-8")
    environment = {**os.environ, "ROTA_DATABASE_URL": database_url, "PATH": f"{BIN}:{os.environ['PATH']}"}
    command = [str(BIN / "rota"), "dev", "jobs.py", "--port", "0", "--json"]
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as dev:
        assert dev.stdout is not None
        try:
            address = next(event["url"] for event in map(json.loads, dev.stdout) if event["event"] == "serving")
            del environment["ROTA_DATABASE_URL"]
            for block in one.blocks:
                for exchange in exchanges(block) if block.is_over_http else ():
                    asked = exchange.command.replace("http://127.0.0.1:8470", address)
                    done = subprocess.run(
                        ["sh", "-c", asked], cwd=folder, env=environment, capture_output=True, text=True, timeout=30
                    )
                    assert done.returncode == exchange.code, f"{exchange.command}\n{done.stdout}{done.stderr}"
                    assert agrees(exchange.shown, done.stdout), f"{exchange.command} says\n{done.stdout}"
        finally:
            dev.send_signal(signal.SIGINT)
            dev.communicate(timeout=30)


def test_every_call_is_listed_with_its_scope(rota_kit: RotaKit) -> None:
    operations = create_app(rota_kit.rota).openapi()["paths"]
    known = {
        f"{method.upper()} {path}": operation.get("x-rota-scope", "nothing")
        for path, methods in operations.items()
        for method, operation in methods.items()
    }
    rows = page("docs/reference/http.md").rows()
    assert {row[0]: row[1] for row in rows if " /" in row[0]} == known


@pytest.mark.parametrize("one", PAGES, ids=named)
def test_links_lead_somewhere(one: Page) -> None:
    for link in one.links:
        place, _, anchor = link.partition("#")
        if place.startswith(("https:", "http:")):
            continue
        target = (one.path.parent / place).resolve() if place else one.path
        assert target.exists(), f"{one.name} links to {link}"
        if anchor:
            found = page(target.relative_to(ROOT).as_posix()).anchors
            assert anchor in found, f"{one.name} links to {link}; there are {sorted(found)}"


def test_every_page_is_reached_from_the_index() -> None:
    reached, ahead = set[Path](), [ROOT / "docs/index.md"]
    while ahead:
        path = ahead.pop()
        if path not in reached and path.is_relative_to(ROOT / "docs") and path.is_file():
            reached.add(path)
            one = page(path.relative_to(ROOT).as_posix())
            ahead += [(path.parent / link.partition("#")[0]).resolve() for link in one.links if "://" not in link]
    assert {p.path for p in PAGES if p.name.startswith("docs/")} - reached == set()


def test_the_table_of_moves_is_the_code_s() -> None:
    rows = page("docs/reference/run-states.md").rows()
    told = {
        row[0]: {word for word in row[1].split(", ") if word != "–"}
        for row in rows
        if row[0] in MOVES and len(row) == 2
    }
    assert told == {state.value: {target.value for target in targets} for state, targets in MOVES.items()}


def test_gates_and_outcomes_are_explained() -> None:
    text = page("docs/reference/run-states.md").text
    assert [word for word in [*Gate, *Outcome] if f"`{word}`" not in text] == []


def all_errors(kind: type[RotaError] = RotaError) -> set[type[RotaError]]:
    return {kind}.union(*(all_errors(child) for child in kind.__subclasses__()))


def test_every_error_has_its_entry_and_no_entry_is_without_an_error() -> None:
    for module in pkgutil.walk_packages(rota.__path__, "rota."):
        if not module.name.endswith(("__main__", "plugin")):
            importlib.import_module(module.name)
    codes = {kind.code for kind in all_errors() if kind.__module__.startswith("rota.")}
    headings = page("docs/reference/errors.md").headings
    assert {heading for heading in headings if heading == heading.lower()} == codes


def test_every_setting_is_listed_with_its_default() -> None:
    rows = {row[0]: row[1] for row in page("docs/reference/settings.md").rows() if row[0].startswith("ROTA_")}
    fixed = dict(Settings.model_fields)
    settings = {f"ROTA_{name.upper()}" for name in fixed}
    assert settings <= rows.keys()
    for name, field in fixed.items():
        if field.default_factory is None and field.default is not None:
            assert rows[f"ROTA_{name.upper()}"] == f"{field.default}".removesuffix(".0")


async def test_every_metric_is_listed_with_its_kind_and_labels(rota_kit: RotaKit) -> None:
    known, helps = set(), []
    for metrics in (create_app(rota_kit.rota).state.api.metrics, WorkerMetrics(pool="default")):
        for metric in vars(metrics).values():
            if isinstance(metric, MetricWrapperBase):
                [family] = metric.describe()
                name = family.name + "_total" * (family.type == "counter")
                known.add((name, family.type, ", ".join(metric._labelnames)))
                helps.append(family.documentation)
    assert {(row[0], row[1], row[2]) for row in page("docs/reference/metrics.md").rows()} == known
    assert len(helps) == len(set(helps)), "no two metrics say that they are the same"


def commands(group: Any, path: str = "rota") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def test_every_command_is_listed_with_its_options() -> None:
    one = page("docs/reference/cli.md")
    known = dict(commands(typer.main.get_command(app)))
    assert {heading for heading in one.headings if heading.startswith("rota ")} == known.keys()
    for path, command in known.items():
        section = one.section(path)
        options = {name for parameter in command.params for name in parameter.opts if name.startswith("--")}
        assert [name for name in sorted(options - OPTIONS_OF_ALL) if f"`{name}" not in section] == [], path


def test_every_method_of_the_client_is_named() -> None:
    text = page("docs/reference/python.md").section("The client")
    assert [name for name in dir(rota.Client) if not name.startswith("_") and f"`{name}`" not in text] == []


async def test_every_table_is_listed(rota_kit: RotaKit) -> None:
    async with rota_kit.database.transaction() as tx:
        rows = await tx._raw.fetch(  # the catalogue is the tests' own question, so no statement of Rota asks it
            "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = 'rota' AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition"
        )
    told = {row[0] for row in page("docs/reference/schema.md").rows()}
    assert told == {row["relname"] for row in rows}
