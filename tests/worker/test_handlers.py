"""What can be a handler, and where the user's app is found."""

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rota.errors import InvalidInput, NotFound, SetupFailed
from rota.worker.context import RunContext, StopFlag
from rota.worker.ending import mask_secrets
from rota.worker.handlers import HandlerRegistry
from rota.worker.loading import load_app

HEAD = """from rota.worker.handlers import HandlerRegistry
class App:
    def __init__(self): self.handlers = HandlerRegistry()
"""


async def coroutine(run: RunContext) -> None: ...


def plain(run: RunContext) -> None: ...


def bare() -> None: ...


def with_default(run: RunContext, limit: int = 3) -> None: ...


def two(run: RunContext, other: int) -> None: ...


def keyword(run: RunContext, *, limit: int) -> None: ...


def generator(run: RunContext) -> Iterator[int]:
    yield 1


async def async_generator(run: RunContext) -> AsyncIterator[int]:
    yield 1


class AClass:
    async def method(self, run: RunContext) -> None: ...

    async def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("function", "isolation", "takes_run"),
    [
        (coroutine, "async", True),
        (plain, "thread", True),
        (bare, "thread", False),
        (with_default, "thread", True),
        (AClass().method, "async", True),
        (AClass(), "async", False),
        (functools.partial(two, other=1), "thread", True),
        (lambda: None, "thread", False),
    ],
)
def test_a_function_tells_where_it_runs_and_what_it_takes(
    registry: HandlerRegistry, function: Callable[..., Any], isolation: str, takes_run: bool
) -> None:
    handler = registry.register("it", function)
    assert (handler.isolation, handler.takes_run) == (isolation, takes_run)
    assert registry.resolve("it") is handler


@pytest.mark.parametrize(
    ("function", "options", "field", "reason"),
    [
        (two, {}, "handler", "wants the parameters run, other"),
        (keyword, {}, "handler", "wants the parameters run, limit"),
        (generator, {}, "handler", "is a generator"),
        (async_generator, {}, "handler", "is a generator"),
        (AClass, {}, "handler", "is a class"),
        ("text", {}, "handler", "cannot be called"),
        (coroutine, {"isolation": "thread"}, "isolation", "is a coroutine function"),
        (plain, {"isolation": "async"}, "isolation", "would block the loop"),
        (plain, {"isolation": "container"}, "isolation", "is none of async, thread, process"),
        (plain, {"name": "shell"}, "handler", "is reserved"),
        (plain, {"name": "shell:x"}, "handler", "is reserved"),
        (plain, {"name": ""}, "handler", "must be a name of 1 to 200 characters"),
        (plain, {"name": "a\nb"}, "handler", "has control characters"),
        (plain, {"name": "taken"}, "handler", "is registered already"),
    ],
)
def test_what_cannot_be_a_handler_is_refused(
    registry: HandlerRegistry, function: Any, options: dict[str, Any], field: str, reason: str
) -> None:
    registry.register("taken", bare)
    with pytest.raises(InvalidInput) as refusal:
        registry.register(options.pop("name", "it"), function, **options)
    assert refusal.value.field == field
    assert reason in refusal.value.reason
    assert registry.names == {"taken"}


def test_an_unknown_handler_is_said_to_be_unknown(registry: HandlerRegistry) -> None:
    with pytest.raises(NotFound, match="no handler is called 'it'"):
        registry.resolve("it")


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("postgresql://rota:s3cret@db:5432/rota?x=1", "postgresql://rota:***@db:5432/rota?x=1"),
        ("redis://:s3cret@cache", "redis://:***@cache"),
        ("a https://u:p@ss@h/x and https://u2:p2@h2", "a https://u:***@h/x and https://u2:***@h2"),
        ("to postgresql://rota:my s3cret@db/rota failed", "to postgresql://rota:***@db/rota failed"),
        ("mysql+pymysql://u:a b c@h, redis://:x@h", "mysql+pymysql://u:***@h, redis://:***@h"),
        ("at https://h:80 mail me@there", "at https://h:80 mail me@there"),
        ("http://host:8080/a@b", "http://host:8080/a@b"),
        ("http://user@host and mail me@there", "http://user@host and mail me@there"),
        ("postgresql://db/rota?user=rota&password=s3cret&x=1", "postgresql://db/rota?user=rota&password=***&x=1"),
        ("postgresql://db/rota?sslpassword=s3cret!", "postgresql://db/rota?sslpassword=***"),
        ("postgresql://rota:s3cret@db?password=s3cret", "postgresql://rota:***@db?password=***"),
        ("host=db password=s3cret dbname=rota", "host=db password=*** dbname=rota"),
        (r"password = 's3\' cret' sslpassword=s3\ cret user=rota", "password = *** sslpassword=*** user=rota"),
        ("PGPASSWORD=s3cret psql", "PGPASSWORD=*** psql"),
        ("if password == given:", "if password == given:"),
        ("connect(host, password=PASSWORD, port=5432)", "connect(host, password=***, port=5432)"),
        ("pool(dsn, password=secrets['db'])", "pool(dsn, password=***])"),
        ("password=" + ")" * 100_000, "password=***" + ")" * 100_000),
        ("://" * 100_000, "://" * 100_000),
        ("password=" + "\\" * 100_000, "password=***"),
        ("://" + "a" * 1_000_000, "://" + "a" * 1_000_000),
        ("postgres" * 100_000, "postgres" * 100_000),
        ("redis://u:" * 10_000 + " ", "redis://u:" * 10_000 + " "),
    ],
)
def test_passwords_in_addresses_are_masked(text: str, masked: str) -> None:
    assert mask_secrets(text) == masked


def test_a_flag_that_is_set_answers_every_way_of_asking() -> None:
    flag = StopFlag()
    assert (flag.is_set(), bool(flag), flag.wait(0)) == (False, False, False)
    flag.set()
    assert (flag.is_set(), bool(flag), flag.wait()) == (True, True, True)


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """Writes a module with a name that no other test uses, into the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = "jobs_" + "".join(c if c.isalnum() else "_" for c in request.node.name)

    def write(body: str) -> Path:
        path = tmp_path / f"{name}.py"
        path.write_text(HEAD + body)
        return path

    return write


@pytest.mark.parametrize("form", ["{stem}:app", "{stem}", "{path}", "{path}:app", "{name}"])
def test_an_app_is_found_by_every_form_of_its_name(jobs: Callable[[str], Path], form: str) -> None:
    path = jobs("app = App()\n")
    target = form.format(stem=path.stem, path=path, name=path.name)
    assert isinstance(load_app(target).handlers, HandlerRegistry)
    assert load_app(target) is load_app(target)


@pytest.mark.parametrize(
    ("body", "target", "said"),
    [
        ("app = App()\n", "no_such_module", "there is no module 'no_such_module'"),
        ("app = App()\n", "no/such/file.py", "is not a file"),
        ("app = App()\n", "{stem}:other", "has no 'other' (write {stem}:app)"),
        ("app = App()\n", "{stem}:App", "'App' in {stem} is not an app"),
        ("x = 1\n", "{stem}", "has no app"),
        ("a = App()\nb = App()\n", "{stem}", "has several apps (write {stem}:a or {stem}:b)"),
        ("1 / 0\n", "{stem}", "raised while it was imported: ZeroDivisionError: division by zero (line 4 of"),
        ("import nowhere\n", "{path}", "raised while it was imported: ModuleNotFoundError"),
        ("import nowhere\n", "{stem}", "raised while it was imported: ModuleNotFoundError"),
        ("raise SystemExit(3)\n", "{stem}", "raised while it was imported: SystemExit: 3"),
        ("def\n", "{path}", "raised while it was imported: SyntaxError"),
        ("app = App()\n", "not a module", "is neither a module nor a file"),
    ],
)
def test_an_app_that_cannot_be_found_is_explained(
    jobs: Callable[[str], Path], body: str, target: str, said: str
) -> None:
    path = jobs(body)
    with pytest.raises(SetupFailed) as refusal:
        load_app(target.format(stem=path.stem, path=path))
    assert said.format(stem=path.stem) in str(refusal.value)


def test_one_app_under_two_names_is_one_app(jobs: Callable[[str], Path]) -> None:
    assert load_app(jobs("app = App()\nalso = app\n").stem).handlers.names == frozenset()
