"""Internet addresses that HTTP targets may be called at: what an address is, and which of them a setting allows."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, Self

from rota.errors import InvalidInput

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class Ban(StrEnum):
    """What a banned address is, in the word that an error says."""

    METADATA = "metadata"
    UNSPECIFIED = "unspecified"
    LOOPBACK = "loopback"
    LINK_LOCAL = "link-local"
    MULTICAST = "multicast"
    RESERVED = "reserved"
    PRIVATE = "private"
    SHARED = "shared"


_BY_NAME: Final = frozenset({Ban.LOOPBACK, Ban.PRIVATE, Ban.SHARED})
"""What an allowed host name may lead to. The rest must be allowed as a network: no service has such an address."""

_METADATA: Final = frozenset(
    map(
        ip_address,
        (
            "169.254.169.254",
            "169.254.170.2",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "fd00:ec2::254",
            "fd20:ce::254",
        ),
    )
)
"""Where clouds tell a machine its credentials."""
_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
_FURTHER_RESERVED: Final[tuple[Network, ...]] = (
    IPv4Network("192.0.0.0/24"),
    IPv4Network("192.88.99.0/24"),
    IPv6Network("3fff::/20"),
)
"""Protocols' own, a relay that is no more, and documentation: what `ipaddress` of some Pythons takes for public."""
_TRANSLATED: Final = IPv6Network("64:ff9b::/96")
"""RFC 6052: a gateway calls the IPv4 address in the last 32 bits."""

_NUMBER: Final = re.compile(r"0x[0-9a-f]*|[0-9]+")
_NAME: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*")
_NAME_LIMIT: Final = 253


def ban(address: Address) -> Ban | None:
    """Return why an address may not be called; None for a public one."""
    if (carried := _carried(address)) is not None:
        return ban(carried)
    if address in _METADATA:
        return Ban.METADATA
    for kind, holds in (
        (Ban.UNSPECIFIED, address.is_unspecified),
        (Ban.LOOPBACK, address.is_loopback),
        (Ban.LINK_LOCAL, address.is_link_local),
        (Ban.MULTICAST, address.is_multicast),
        (Ban.RESERVED, address.is_reserved or any(address in network for network in _FURTHER_RESERVED)),
        (Ban.PRIVATE, address.is_private),
        (Ban.SHARED, isinstance(address, IPv4Address) and not address.is_global),
        (Ban.RESERVED, isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST),
    ):
        if holds:
            return kind
    return None


def is_public(address: Address) -> bool:
    """Tell whether an address belongs to the public internet, and what it carries does too."""
    return ban(address) is None


def host_of(text: str) -> Address | str:
    """Return a host as the address that it means, or as a name in lower case.

    `127.1`, `0x7f.0.0.1`, `0177.0.0.1` and `2130706433` are the address that a libc reads there. Raises ValueError
    for what is neither an address nor a name.
    """
    if ":" in text:
        address = IPv6Address(text)
        if address.scope_id is not None:
            raise ValueError("an address with a zone leads somewhere else on every host")
        return address
    name = text.lower().removesuffix(".")
    if not _NAME.fullmatch(name) or len(name) > _NAME_LIMIT:
        raise ValueError("neither an address nor a name as it stands in the DNS")
    parts = name.split(".")
    # As browsers have it: what ends in a number is an address or nothing.
    return _legacy_address(parts) if _NUMBER.fullmatch(parts[-1]) else name


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """Internal targets that may be called: host names, and networks."""

    names: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `billing.internal, 10.1.0.0/16, ::1`. Raises InvalidInput for an entry that is no host or network."""
        return cls.of(entry.strip() for entry in text.split(",") if entry.strip())

    @classmethod
    def of(cls, entries: Iterable[str]) -> Self:
        """Read a list of host names, addresses and networks. Raises InvalidInput."""
        names, networks = set(), []
        for entry in entries:
            try:
                networks.append(ip_network(entry))
            except ValueError as error:
                if "/" in entry:
                    raise InvalidInput("http_allow", f"{entry!r} is no network: {error}") from None
                names.add(_entry_name(entry))
        return cls(names=frozenset(names), networks=tuple(networks))

    def permits(self, address: Address, *, by_name: bool = False) -> bool:
        """Tell whether an address may be called. `by_name`: it was found under one of `names`.

        A name lifts the ban on loopback, private and shared addresses alone; a network lifts it whatever the address.
        """
        reason = ban(address)
        if reason is None or (by_name and reason in _BY_NAME):
            return True
        meant = (address, _carried(address))
        return any(one in network for network in self.networks for one in meant if one is not None)


NOTHING_ALLOWED: Final = Allowed()


def _entry_name(entry: str) -> str:
    try:
        host = host_of(entry)
    except ValueError as error:
        raise InvalidInput("http_allow", f"{entry!r} is no host: {error}") from None
    if not isinstance(host, str):
        raise InvalidInput("http_allow", f"{entry!r} is an odd form of an address", hint=f"write {host}")
    return host


def _carried(address: Address) -> IPv4Address | None:
    """Return the IPv4 address that an IPv6 address leads to, if it is of such a kind."""
    if isinstance(address, IPv4Address):
        return None
    if address in _TRANSLATED:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour


def _legacy_address(parts: list[str]) -> IPv4Address:
    """Read `a`, `a.b`, `a.b.c` or `a.b.c.d`, each decimal, octal or hexadecimal; the last fills the remaining bytes."""
    if len(parts) > 4 or not all(map(_NUMBER.fullmatch, parts)):
        raise ValueError("ends in a number and is no address")
    *heads, last = map(_whole, parts)
    room = 8 * (4 - len(heads))
    if any(head > 255 for head in heads) or last >= 1 << room:
        raise ValueError("has a number that is too large for an address")
    value = last
    for place, head in enumerate(heads):
        value |= head << (24 - 8 * place)
    return IPv4Address(value)


def _whole(digits: str) -> int:
    if digits.startswith("0x"):
        return int(digits[2:] or "0", 16)
    # A leading zero means octal, and 08 means nothing: int() raises the ValueError.
    return int(digits, 8 if digits.startswith("0") else 10)
