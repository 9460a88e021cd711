"""One call to the server, with its tries: what is sent, and when it may be sent again.

Only what is safe to repeat is repeated: a call that did not reach the server, or one that does the same when it comes
twice. Redirects are not followed and cookies are not kept, so the token goes to the one address that was given.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from io import BytesIO
from typing import Final

import aiohttp
from yarl import URL

from rota.client.address import Address
from rota.client.problems import problem_of
from rota.clock import Clock, DatabaseClock
from rota.domain.job import check_name
from rota.errors import CommitUnknown, InvalidInput, RotaError, ServerUnavailable, SetupFailed, Shed
from rota.version import VERSION

TRIES: Final = 12
"""The most times that one call is sent: within the usual 30 s an API that starts anew is waited for."""

CONNECT_TIME: Final = 5.0
"""Seconds for one connection. A host that drops packets must not use up a call's whole time."""

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
"""Seconds between two tries, before and after doubling. A server that names its own wait gets it."""

PIECE: Final = 64 * 1024
"""Bytes that are sent in one go."""

RETRIED: Final = frozenset({429, 502, 503, 504})
"""Answers that pass by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call. `path` is encoded. `wait` is how many seconds the server itself may take: a long poll."""

    method: str
    path: str
    is_repeatable: bool
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    wait: float = 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the server, read to its end."""

    status: int
    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Failure:
    """A try that did not succeed."""

    error: RotaError
    may_repeat: bool
    retry_after: float = 0.0


class Transport:
    """Connections to one server. `timeout` is the seconds for one call with all its tries."""

    def __init__(
        self, address: Address, token: str | None, *, tenant: str | None, timeout: float, clock: Clock
    ) -> None:
        self._address = address
        self._timeout = timeout
        self._clock = clock
        self._headers = {"Accept": "application/json", "User-Agent": f"rota/{VERSION}"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {_plain(token)}"
        if tenant is not None:
            check_name("tenant", tenant)
            self._headers["Rota-Tenant"] = tenant
        self._session: aiohttp.ClientSession | None = None
        self.server_clock = DatabaseClock()

    async def call(self, request: Request) -> Answer:
        """Send a request until it is answered. Raises the error that the answer stands for, or ServerUnavailable.

        What cannot be repeated raises CommitUnknown when its answer was lost.
        """
        deadline = self._clock.monotonic() + self._timeout + request.wait
        tries = 0
        while True:
            tries += 1
            outcome = await self._try(request, timeout=max(0.001, deadline - self._clock.monotonic()))
            if isinstance(outcome, Answer):
                return outcome
            pause = outcome.retry_after + _backoff(tries)
            if not outcome.may_repeat or tries == TRIES or self._clock.monotonic() + pause >= deadline:
                raise outcome.error
            await self._clock.sleep(pause)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def _try(self, request: Request, *, timeout: float) -> Answer | _Failure:
        """Send a request once."""
        try:
            answer = await self._send(request, timeout=timeout)
        except aiohttp.ClientSSLError as error:
            return _Failure(SetupFailed(f"no secure connection to {self._address.base}: {error}"), False)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            return _Failure(self._unavailable(error), True)
        except (aiohttp.ClientError, OSError) as error:
            if request.is_repeatable:
                return _Failure(self._unavailable(error), True)
            unknown = CommitUnknown(
                "the connection ended before the answer came: it may have been carried out",
                hint="look before you ask again",
            )
            return _Failure(unknown, False)
        if 200 <= answer.status < 300:
            return answer
        problem = problem_of(answer.status, answer.body, answer.headers)
        # Who is shed adds to what is too deep already: it is his program's to decide what is worth asking for again.
        may_repeat = request.is_repeatable and answer.status in RETRIED and not isinstance(problem.error, Shed)
        return _Failure(problem.error, may_repeat, problem.retry_after or 0.0)

    async def _send(self, request: Request, *, timeout: float) -> Answer:
        if self._session is None:
            self._session = aiohttp.ClientSession(headers=self._headers, cookie_jar=aiohttp.DummyCookieJar())
        sent = self.server_clock.monotonic()
        async with self._session.request(
            request.method,
            # Encoded already: yarl would make a slash of %2F again.
            URL(self._address.base + request.path, encoded=True),
            data=_stream(request.body),
            headers=request.headers,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=timeout, sock_connect=CONNECT_TIME),
        ) as response:
            # Before the body, which may be long: the instant stands at its head.
            received = self.server_clock.monotonic()
            body = await response.read()
        self._measure(response.headers.get("Rota-Now"), sent=sent, received=received)
        return Answer(response.status, body, response.headers)

    def _measure(self, text: str | None, *, sent: float, received: float) -> None:
        """Take the server's instant for a measurement of its clock."""
        try:
            instant = datetime.fromisoformat(text or "")
        except ValueError:
            return
        if instant.tzinfo is not None:
            self.server_clock.observe(sent=sent, received=received, database=instant)

    def _unavailable(self, error: Exception) -> ServerUnavailable:
        return ServerUnavailable(f"{self._address.base} does not answer: {error or type(error).__name__}")


def _backoff(tries: int) -> float:
    """Return how long to wait after that many tries, with jitter so that a fleet does not return in step."""
    longest: float = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (tries - 1))
    return longest * random.uniform(0.5, 1.0)


def _stream(body: bytes | None) -> bytes | BytesIO | None:
    """Return a body as it is sent: a long one piece by piece, so that other calls of this loop go on."""
    return body if body is None or len(body) <= PIECE else BytesIO(body)


def _plain(token: str) -> str:
    """Refuse a token that cannot stand in a header."""
    if not token or not token.isascii() or not token.isprintable() or token != token.strip():
        raise InvalidInput("token", "holds characters that no token has")
    return token
