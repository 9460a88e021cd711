"""The address of an API: what may stand in one, and where a token may be sent."""

from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import quote, urlsplit

from rota.errors import InvalidInput

_EXAMPLE = "give one such as https://rota.example.com"


@dataclass(frozen=True, slots=True)
class Address:
    """Where an API is: `base` has no slash at its end, and all paths are put behind it."""

    base: str

    @classmethod
    def of(cls, url: str, *, has_token: bool, insecure: bool) -> "Address":
        """Read an address. Raises InvalidInput; also for a token that would travel in the clear."""
        try:
            parts = urlsplit(url.strip())
            host, _ = parts.hostname, parts.port
        except ValueError as error:
            raise InvalidInput("url", f"is not an address: {error}", hint=_EXAMPLE) from None
        if parts.scheme not in ("http", "https") or not host:
            raise InvalidInput("url", "is not the address of an API", hint=_EXAMPLE)
        if parts.username is not None or parts.password is not None:
            raise InvalidInput("url", "holds a name or a password", hint="give the token by itself")
        if parts.query or parts.fragment:
            raise InvalidInput("url", "holds a query or a fragment", hint=_EXAMPLE)
        if has_token and parts.scheme == "http" and not insecure and not is_loopback(host):
            raise InvalidInput(
                "url", "would send the token in the clear", hint="use https://; a Client can allow it: insecure=True"
            )
        return cls(f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}")


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine: localhost, or a loopback address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.rstrip(".") == "localhost"


def segment(name: str, value: str) -> str:
    """Return a value as one segment of a path, whatever it holds. Raises InvalidInput for what is not text.

    A segment of dots alone would be taken for a way up by what lies between, so dots are escaped too.
    """
    try:
        text = quote(value, safe="")
    except UnicodeEncodeError:
        raise InvalidInput(name, "holds half of a surrogate pair, which is not text") from None
    if not text:
        raise InvalidInput(name, "is empty")
    return text.replace(".", "%2E") if not text.strip(".") else text
