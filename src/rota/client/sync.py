"""The synchronous face of the client, for programs without an event loop. Made from `Client`'s own methods.

The calls are carried out by an event loop in a thread of their own. Threads may share one client. A forked process has
no such thread: make the client after the fork.
"""

import asyncio
import ctypes
import functools
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from rota.client.caller import TIMEOUT
from rota.client.client import Client
from rota.errors import SetupFailed

P = ParamSpec("P")
T = TypeVar("T")


class _Carried(Generic[T]):
    """A coroutine that may be abandoned before, while, and after it runs. Used in the loop's thread only."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._task: asyncio.Task[Any] | None = None
        self._is_abandoned = False

    async def out(self) -> T:
        if self._is_abandoned:
            self._work.close()
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        return await self._work

    def abandon(self) -> None:
        self._is_abandoned = True
        if self._task is not None:
            self._task.cancel()


class _LoopThread:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        # A program that forgets to close its client ends all the same.
        self._thread = threading.Thread(target=self._loop.run_forever, name="rota-client", daemon=True)
        self._thread.start()

    @property
    def is_anothers(self) -> bool:
        """Whether this is a forked copy, whose thread runs in another process."""
        return os.getpid() != self._pid

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Carry out a coroutine and return its result. An interrupt of the waiting thread cancels it."""
        if self.is_anothers or not self._thread.is_alive():
            work.close()
            raise SetupFailed(
                "this client is closed, or was made by another process", hint="make a client after a fork"
            )
        carried = _Carried(work)
        try:
            return asyncio.run_coroutine_threadsafe(carried.out(), self._loop).result()
        except BaseException:
            # An interrupt may be raised before the future has a name here, so the work itself is told.
            self._loop.call_soon_threadsafe(carried.abandon)
            raise

    def end(self, work: Coroutine[Any, Any, None]) -> None:
        """Carry out the last coroutine and end the thread."""
        try:
            self.call(work)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


def blocking(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, T]],
) -> "Callable[Concatenate[SyncClient, P], T]":
    """Return a method of `Client` as one that waits for its answer: the same arguments, result, errors and words."""

    @functools.wraps(method)
    def call(self: "SyncClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.call(method(self._client, *args, **kwargs))

    return call


class SyncClient:
    """`rota.Client` without `await`.

        with rota.SyncClient("https://rota.example.com", token) as client:
            client.trigger("nightly-billing")

    May be used by several threads at once, and not across a fork.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        tenant: str | None = None,
        timeout: float = TIMEOUT,
        insecure: bool = False,
    ) -> None:
        self._client = Client(url, token, tenant=tenant, timeout=timeout, insecure=insecure)
        self._thread = _LoopThread()
        # Also called at the program's end, for a client that nobody closed.
        self._end = weakref.finalize(self, _end, self._thread, self._client)

    @property
    def url(self) -> str:
        return self._client.url

    def close(self) -> None:
        """Close the connections and end the thread."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    me = blocking(Client.me)

    put_job = blocking(Client.put_job)
    put_jobs = blocking(Client.put_jobs)
    put_jobs_in_parts = blocking(Client.put_jobs_in_parts)
    patch_job = blocking(Client.patch_job)
    reset_job = blocking(Client.reset_job)
    declare_jobs = blocking(Client.declare_jobs)
    get_job = blocking(Client.get_job)
    list_jobs = blocking(Client.list_jobs)
    pause_job = blocking(Client.pause_job)
    resume_job = blocking(Client.resume_job)
    delete_job = blocking(Client.delete_job)
    next_slots = blocking(Client.next_slots)
    preview = blocking(Client.preview)

    trigger = blocking(Client.trigger)
    trigger_many = blocking(Client.trigger_many)
    trigger_runs = blocking(Client.trigger_runs)
    job_runs = blocking(Client.job_runs)
    list_runs = blocking(Client.list_runs)
    get_run = blocking(Client.get_run)
    skipped = blocking(Client.skipped)
    skipped_slots = blocking(Client.skipped_slots)
    replay_run = blocking(Client.replay_run)
    replay_runs = blocking(Client.replay_runs)
    cancel_run = blocking(Client.cancel_run)
    set_priority = blocking(Client.set_priority)
    why_run = blocking(Client.why_run)
    why_job = blocking(Client.why_job)

    pause_jobs = blocking(Client.pause_jobs)
    resume_jobs = blocking(Client.resume_jobs)
    delete_jobs = blocking(Client.delete_jobs)
    trigger_jobs = blocking(Client.trigger_jobs)
    cancel_runs = blocking(Client.cancel_runs)

    freeze = blocking(Client.freeze)
    unfreeze = blocking(Client.unfreeze)
    freezes = blocking(Client.freezes)

    workers = blocking(Client.workers)
    drain_worker = blocking(Client.drain_worker)
    shards = blocking(Client.shards)
    stats = blocking(Client.stats)

    put_limit = blocking(Client.put_limit)
    limits = blocking(Client.limits)
    get_limit = blocking(Client.get_limit)
    delete_limit = blocking(Client.delete_limit)
    pools = blocking(Client.pools)
    put_pool = blocking(Client.put_pool)

    create_token = blocking(Client.create_token)
    tokens = blocking(Client.tokens)
    revoke_token = blocking(Client.revoke_token)
    audit = blocking(Client.audit)
    tenants = blocking(Client.tenants)
    put_tenant = blocking(Client.put_tenant)

    announce = blocking(Client.announce)
    retire = blocking(Client.retire)
    claim = blocking(Client.claim)
    renew = blocking(Client.renew)
    heartbeat = blocking(Client.heartbeat)
    complete = blocking(Client.complete)
    complete_many = blocking(Client.complete_many)
    signing_secret = blocking(Client.signing_secret)
    rotate_signing_secret = blocking(Client.rotate_signing_secret)


def _end(thread: _LoopThread, client: Client) -> None:
    if thread.is_anothers:
        # The copy shares its connections with the original, and its selector too: were it ever taken apart, it would
        # close the former, and take them out of the latter. One reference too many keeps it whole.
        for part in (thread, client):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(part))
        return
    thread.end(client.close())
