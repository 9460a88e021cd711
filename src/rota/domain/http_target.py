"""HTTP targets: handlers that are URLs. What such a URL may be, whom it may lead to, and what an answer asks for."""

import re
import unicodedata
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from ipaddress import IPv6Address
from typing import Final
from urllib.parse import quote

from rota.domain.addresses import NOTHING_ALLOWED, Address, Allowed, Ban, ban, host_of
from rota.errors import InvalidInput

HTTP: Final = "http"
"""The one key under which workers know every HTTP target; no job and no function is called so."""

URL_LIMIT: Final = 2000
"""The most characters of a target's URL."""

RETRY_AFTER_LIMIT: Final = timedelta(days=1)
"""The longest wait that a target can ask for."""

_TARGET: Final = re.compile(r"https?://")
_LIKE_A_URL: Final = re.compile(r"https?:|[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_URL: Final = re.compile(r"(https?)://([^/?]*)(.*)")
_PLACE: Final = re.compile(r"(?:\[([^\[\]]*)\]|([^\[\]:]*))(?::([0-9]*))?")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9\-._~:/?\[\]@!$&'()*+,;=%]")
_DOTS: Final = str.maketrans("。．｡", "...")
"""The full stops that a domain name may have instead of its dots."""
_VISIBLE: Final = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a URL leads. `host` is an address, or a name in lower case; `path_and_query` is as it was written."""

    scheme: str
    host: Address | str
    port: int | None
    path_and_query: str

    @property
    def url(self) -> str:
        """The URL with its host in the one form that cannot be read in two ways."""
        host = f"[{self.host}]" if isinstance(self.host, IPv6Address) else f"{self.host}"
        port = "" if self.port is None else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.path_and_query}"


def is_target(handler: str) -> bool:
    """Tell whether a handler is a URL that is called, and not the name of a function."""
    return _TARGET.match(handler) is not None


def looks_like_a_url(handler: str) -> bool:
    """Tell whether a handler was meant as a URL, of whatever kind: such a text is nobody's name."""
    return _LIKE_A_URL.match(handler) is not None


def handler_key(handler: str) -> str:
    """Return what a worker must know to run a handler; `rota.handler_key` says the same in SQL."""
    return HTTP if is_target(handler) else handler


def parse_target(url: str, *, field: str = "handler") -> Target:
    """Read a target's URL. Raises InvalidInput, naming the field, for one that is malformed or ambiguous."""
    if len(url) > URL_LIMIT:
        raise InvalidInput(field, f"has {len(url)} characters", hint=f"a URL has at most {URL_LIMIT}")
    if not is_target(url):
        raise InvalidInput(field, "is no http:// or https:// URL", hint="write the scheme in lower case")
    if "\\" in url or any(_is_blank_or_control(character) for character in url):
        raise InvalidInput(field, "holds a blank, a control character or a backslash", hint="percent-encode it")
    if "#" in url:
        raise InvalidInput(field, "has a fragment, which is never sent", hint="leave out the # and what follows")
    parts = _URL.fullmatch(url)
    assert parts is not None, "what begins like a target and has no line breaks has a place and a rest"
    scheme, place, rest = parts.groups()
    if "@" in place:
        # Not repeated here: the text would carry the password on.
        raise InvalidInput(field, "holds a user name or a password", hint="calls are signed: see /v1/signing-secret")
    if unsafe := _UNSAFE.search(rest):
        raise InvalidInput(field, f"holds {unsafe[0]!r}", hint="percent-encode it")
    host, port = _place(place, field=field)
    path_and_query = rest if rest.startswith("/") else f"/{rest}"
    return Target(scheme=scheme, host=host, port=port, path_and_query=path_and_query)


def check_target(url: str, allowed: Allowed = NOTHING_ALLOWED) -> Target:
    """Return where a URL leads, for a caller that may reach the public internet and what is allowed.

    Raises InvalidInput for an address that may not be called. A name is judged when it is called, by what it leads to.
    """
    target = parse_target(url)
    host = target.host
    if isinstance(host, str):
        if (host == "localhost" or host.endswith(".localhost")) and host not in allowed.names:
            raise refusal(host, Ban.LOOPBACK)
    elif (reason := ban(host)) is not None and not allowed.permits(host):
        raise refusal(host, reason)
    return target


def refusal(host: Address | str, reason: Ban) -> InvalidInput:
    """Return the error of a host that may not be called. It does not say which address a name leads to."""
    article = "an" if reason is Ban.UNSPECIFIED else "a"
    verb = "leads to" if isinstance(host, str) else "is"
    return InvalidInput(
        "handler",
        f"{host} {verb} {article} {reason} address, which is not called",
        hint="an operator can allow it: ROTA_HTTP_ALLOW",
    )


def header_text(value: str) -> str:
    """Return a text as a header can carry it: blanks, `%` and what is not ASCII are percent-encoded, in UTF-8."""
    return quote(value, safe=_VISIBLE)


def retry_after(value: str | None, *, now: datetime) -> timedelta | None:
    """Read a Retry-After header, seconds or an HTTP date: from 0 to RETRY_AFTER_LIMIT; None for what is neither."""
    if value is None or not (text := value.strip()).isascii():
        return None
    if text.isdigit():
        return min(timedelta(seconds=int(text[:10])), RETRY_AFTER_LIMIT)
    try:
        instant = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    return min(max(timedelta(0), instant - now), RETRY_AFTER_LIMIT)


def _is_blank_or_control(character: str) -> bool:
    return character.isspace() or unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp", "Zs", "Cs")


def _place(place: str, *, field: str) -> tuple[Address | str, int | None]:
    """Return the host of a URL as what it means, also where it is written with odd digits and dots, and the port."""
    match = _PLACE.fullmatch(place)
    if match is None:
        raise InvalidInput(field, f"has {place!r} in the place of a host and a port")
    address, name, port = match.groups()
    if port is not None and not (len(port) <= 5 and 1 <= int(port or "0") <= 65535):
        raise InvalidInput(field, "has no usable port", hint="use 1 to 65535, or leave the port out")
    text = address if address is not None else unicodedata.normalize("NFKC", name.translate(_DOTS))
    if not text:
        raise InvalidInput(field, "has no host")
    try:
        if (address is None) != (":" not in text):
            raise ValueError("an IPv6 address, and nothing else, stands in brackets")
        return host_of(text), None if port is None else int(port)
    except ValueError as error:
        hint = None if text.isascii() else "write the name as the DNS has it: xn--..."
        raise InvalidInput(field, f"has the host {text!r}: {error}", hint=hint) from None
