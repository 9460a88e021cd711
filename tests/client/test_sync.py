"""The synchronous face: the same methods, for threads, and for programs that forget to close."""

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import rota
from rota.client import Client, SyncClient
from rota.client.sync import blocking
from rota.errors import NotFound, SetupFailed
from rota.wire.control import Control
from tests.client.stub import Stub, answer, problem, stub_server


@pytest.fixture
def served() -> Iterator[Stub]:
    """A stub whose loop runs in a thread, since these tests block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    context = stub_server()
    try:
        yield asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result()
    finally:
        asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_every_method_of_the_client_has_its_blocking_twin_with_the_same_signature() -> None:
    asynchronous = {name for name, _ in inspect.getmembers(Client, inspect.iscoroutinefunction) if name[0] != "_"}
    assert {name for name in dir(Control) if name[0] != "_"} <= asynchronous
    for name in asynchronous - {"close"}:
        twin = getattr(SyncClient, name)
        assert inspect.signature(twin) == inspect.signature(getattr(Client, name))
        assert twin.__doc__ == getattr(Client, name).__doc__
    own = {name for name in vars(SyncClient) if name[0] != "_"}
    assert own == asynchronous | {"url"}
    assert rota.SyncClient is SyncClient
    assert rota.Client is Client


def test_answers_and_errors_are_those_of_the_client(served: Stub) -> None:
    served.say(answer({"tokens": []}), problem(404, "not-found", "there is no job 'j'"))
    with SyncClient(served.url) as client:
        assert client.tokens().tokens == ()
        with pytest.raises(NotFound, match="there is no job 'j'"):
            client.get_job("j")


def test_threads_share_a_client(served: Stub) -> None:
    served.say(answer({"tokens": []}))
    with SyncClient(served.url) as client, ThreadPoolExecutor(8) as pool:
        assert len([answered.result() for answered in [pool.submit(client.tokens) for _ in range(64)]]) == 64
    assert len(served.asked) == 64


def test_a_closed_client_says_so_and_may_be_closed_again(served: Stub) -> None:
    client = SyncClient(served.url)
    client.close()
    client.close()
    with pytest.raises(SetupFailed, match="is closed"):
        client.tokens()


def test_an_interrupted_caller_cancels_its_call(served: Stub) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    async def endless(self: Client) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    class Interrupted(SyncClient):
        wait = blocking(endless)

    def interrupt() -> None:
        begun.wait()
        os.kill(os.getpid(), 2)

    # Whoever starts the tests in the background may have let them ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with Interrupted(served.url) as client:
            threading.Thread(target=interrupt).start()
            with pytest.raises(KeyboardInterrupt):
                client.wait()
            assert cancelled.wait(10)
    finally:
        signal.signal(signal.SIGINT, before)


SCRIPT = """
import os, sys
import rota
client = rota.SyncClient(sys.argv[1])
client.tokens()
pid = os.fork()
if pid == 0:
    try:
        client.tokens()
    except rota.RotaError:
        sys.exit(7)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
client.tokens()
sys.exit(code)
"""


def test_a_forked_copy_refuses_and_an_unclosed_client_ends_silently(served: Stub) -> None:
    served.say(answer({"tokens": []}))
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, served.url], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (7, "")
    assert len(served.asked) == 2
