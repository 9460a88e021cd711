"""HTTP targets as runs, on workers that allow them: one signed POST, and what its answer means for the run."""

import asyncio
import json
import os
import ssl
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

import structlog
from aiohttp import (
    ClientConnectorDNSError,
    ClientConnectorError,
    ClientError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
)
from aiohttp.abc import AbstractResolver
from standardwebhooks import Webhook
from yarl import URL

from rota.clock import Clock
from rota.domain.addresses import NOTHING_ALLOWED, Allowed
from rota.domain.attempt import RESULT_LIMIT, Claim, Outcome, check_result
from rota.domain.http_target import HTTP, Target, check_target, header_text, parse_target, refusal, retry_after
from rota.errors import DatabaseUnavailable, InvalidInput, RetryLater
from rota.version import VERSION
from rota.worker.context import RunContext
from rota.worker.ending import Ending, error_text, failed
from rota.worker.handlers import Handler
from rota.worker.http_answers import Connector
from rota.worker.http_guard import AddressRefused, Guard

CONNECT_TIME: Final = 10.0
"""Seconds to find a target's address, connect to it, and agree on TLS."""

BODY_TIME: Final = 5.0
"""Seconds to read of an answer's body what is kept: its status stands already."""

KEPT_BODY: Final = 8 * 1024
"""Bytes of an answer's body that are kept as an error's text."""

SECRET_TIME: Final = 60.0
"""Seconds for which a tenant's signing secret is remembered."""

AWAY_TIME: Final = timedelta(seconds=5)
"""How long a run waits whose signing secret could not be read: that is no fault of its target."""

_RETRIED: Final = frozenset({408, 425, 429})
_LOCATION_LIMIT: Final = 200
_REASON_LIMIT: Final = 100

Signers: TypeAlias = tuple[Webhook, ...]

_log = structlog.get_logger(__name__)


class HttpHandler:
    """Calls targets, each on a connection of its own. Open in the worker's event loop from the first call to `close`.

    `secrets` returns a tenant's signing secrets (`whsec_...`), all of which sign its calls. With `public_url`, where
    Rota's API can be reached from targets, a target may answer 202 and end the run later, by the callback that it is
    told.
    """

    def __init__(
        self,
        *,
        secrets: Callable[[str], Awaitable[Sequence[str]]],
        clock: Clock,
        allowed: Allowed = NOTHING_ALLOWED,
        public_url: str | None = None,
        resolver: AbstractResolver | None = None,
    ) -> None:
        if public_url is not None:
            public_url = parse_target(public_url.rstrip("/"), field="public_url").url.rstrip("/")
        self._secrets = secrets
        self._clock = clock
        self._allowed = allowed
        self._public_url = public_url
        self._resolver = resolver
        self._sessions: dict[bool, ClientSession] = {}
        self._signers: dict[str, tuple[Signers, float]] = {}

    async def __call__(self, claim: Claim, run: RunContext) -> Ending:
        """Call the claim's target and return how the attempt ended. Raises RetryLater without a signing secret."""
        try:
            target = check_target(claim.handler, self._allowed)
        except InvalidInput as refused:
            return _gave_up(str(refused))
        body = json.dumps(claim.payload, separators=(",", ":"), ensure_ascii=False)
        headers = self._headers(claim, body, signers=await self._signers_of(claim.tenant_id))
        try:
            async with self._session(target).post(
                URL(target.url, encoded=True), data=body.encode(), headers=headers, allow_redirects=False
            ) as response:
                try:
                    ending = await self._answered(response)
                finally:
                    response.close()  # what is left of the body is not read
        except ClientConnectorError as error:
            return self._unconnected(target, error)
        except TimeoutError:
            return failed(f"no connection to {target.host} within {CONNECT_TIME:g} s")
        except (ClientError, OSError) as error:
            return failed(f"no answer from {target.host}: {type(error).__name__}: {error}")
        return ending or await _until_stopped(run)

    def as_handler(self) -> Handler:
        """Return the handler that a worker with HTTP targets knows, and no other: elsewhere these runs wait."""
        return Handler(name=HTTP, function=self, isolation="async", takes_run=True, takes_claim=True)

    async def close(self) -> None:
        """Close what is open; no call is under way any more."""
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()

    def _session(self, target: Target) -> ClientSession:
        """Return the session whose guard knows whether the target's host is allowed by its name."""
        by_name = target.host in self._allowed.names
        if by_name not in self._sessions:
            guard = Guard(self._allowed, by_name=by_name, resolver=self._resolver)
            connector = Connector(
                resolver=guard,
                socket_factory=guard.socket,
                use_dns_cache=False,
                limit=0,  # the worker's slots are the limit
            )
            self._sessions[by_name] = ClientSession(
                connector=connector,
                cookie_jar=DummyCookieJar(),
                trust_env=False,
                auto_decompress=False,  # a small answer must not become a large one
                # The worker ends the attempt at its timeout, whatever it is doing then.
                timeout=ClientTimeout(total=None, connect=CONNECT_TIME, sock_connect=CONNECT_TIME),
            )
        return self._sessions[by_name]

    async def _signers_of(self, tenant_id: str) -> Signers:
        known, until = self._signers.get(tenant_id, (None, 0.0))
        now = self._clock.monotonic()
        if known is not None and now < until:
            return known
        try:
            signers = tuple(map(Webhook, await self._secrets(tenant_id)))
        except (DatabaseUnavailable, OSError) as error:
            raise RetryLater(AWAY_TIME, f"the signing secret could not be read: {error}") from error
        self._signers[tenant_id] = (signers, now + SECRET_TIME)
        return signers

    def _headers(self, claim: Claim, body: str, *, signers: Signers) -> dict[str, str]:
        run_id, now = str(claim.run_id), self._clock.now()
        headers = {
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            "User-Agent": f"rota/{VERSION}",
            "Idempotency-Key": run_id,
            "Rota-Attempt": str(claim.attempt),
            "Rota-Job-Id": header_text(claim.job_id),
            "Rota-Run-Id": run_id,
            "Rota-Scheduled-For": claim.key.scheduled_for.isoformat(),
            "webhook-id": run_id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": " ".join(signer.sign(run_id, now, body) for signer in signers),
        }
        if self._public_url is not None:
            headers["Rota-Callback"] = f"{self._public_url}/v1/callbacks/{run_id}"
            headers["Rota-Lease-Token"] = str(claim.key.token)
        return headers

    async def _answered(self, response: ClientResponse) -> Ending | None:
        """Return what an answer means; None: the target ends the run later, by its callback."""
        status = response.status
        if status == 202 and self._public_url is not None:
            return None
        if 200 <= status < 300:
            return Ending(outcome=Outcome.SUCCEEDED, result=await _result(response))
        if 300 <= status < 400:
            return failed(f"{_said(response)}{_elsewhere(response)}: redirects are not followed")
        kept, _ = await _read(response, KEPT_BODY)
        text = kept.decode("utf-8", "replace").strip()
        told = f"{_said(response)}: {text}" if text else _said(response)
        if 400 <= status < 500 and status not in _RETRIED:
            return _gave_up(told)
        wait = _wait(response, now=self._clock.now()) if status in _RETRIED or status >= 500 else None
        return failed(told, retry_after=wait)

    def _unconnected(self, target: Target, error: ClientConnectorError) -> Ending:
        cause = error.__cause__  # for a certificate that does not hold, aiohttp has no `os_error`
        if not isinstance(cause, AddressRefused):
            return failed(f"no connection to {target.host}: {_unreached(error)}")
        # Only the log says which address it was: a tenant is not told what stands in the network of the workers.
        _log.warning("target.refused", host=str(target.host), address=str(cause.address), reason=cause.reason)
        return _gave_up(str(refusal(target.host, cause.reason)))


async def _until_stopped(run: RunContext) -> Ending:
    """Keep the lease until the target's callback has ended the run, or something else stops the attempt."""
    await run.lease_lost.wait_async()
    return failed("stopped while its target was at work")


async def _result(response: ClientResponse) -> Any:
    """Return a JSON body as the run's result; None for one that is something else, too large, or slow."""
    kind = response.content_type
    if kind != "application/json" and not kind.endswith("+json"):
        return None
    body, is_whole = await _read(response, RESULT_LIMIT)
    if not is_whole:
        return None
    try:
        result = json.loads(body)
        check_result(result)
    except (ValueError, RecursionError, InvalidInput):
        return None
    return result


async def _read(response: ClientResponse, limit: int) -> tuple[bytes, bool]:
    """Return the first `limit` bytes of a body, and whether they are all of it."""
    kept = bytearray()
    try:
        async with asyncio.timeout(BODY_TIME):
            while len(kept) <= limit:
                chunk = await response.content.readany()
                if not chunk:
                    return bytes(kept), True
                kept += chunk
    except (ClientError, OSError):  # a TimeoutError too
        pass
    return bytes(kept[:limit]), False


def _wait(response: ClientResponse, *, now: datetime) -> timedelta | None:
    return retry_after(response.headers.get("Retry-After"), now=now)


def _said(response: ClientResponse) -> str:
    reason = (response.reason or "").strip()[:_REASON_LIMIT]
    return f"answered {response.status} {reason}".rstrip()


def _elsewhere(response: ClientResponse) -> str:
    location = response.headers.get("Location", "")[:_LOCATION_LIMIT]
    return f", to {location}" if location else ""


def _unreached(error: ClientConnectorError) -> str:
    """Return why a host cannot be reached, without the address that its name leads to: that is its network's matter."""
    reason = error.__cause__ or error
    if isinstance(error, ClientConnectorDNSError) or not isinstance(reason, OSError) or reason.errno is None:
        return str(reason)
    if isinstance(reason, ssl.SSLError):
        return str(reason)
    return os.strerror(reason.errno)


def _gave_up(text: str) -> Ending:
    return Ending(outcome=Outcome.GAVE_UP, error=error_text(text))
