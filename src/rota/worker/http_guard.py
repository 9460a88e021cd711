"""The guard of HTTP targets' calls: sees every address before a socket is connected to it."""

import socket
from ipaddress import ip_address
from typing import Any

from aiohttp import DefaultResolver
from aiohttp.abc import AbstractResolver, ResolveResult

from rota.domain.addresses import Address, Allowed, Ban, ban


class AddressRefused(OSError):
    """An address that may not be called. An OSError, since that is what a connector hands on."""

    def __init__(self, address: Address) -> None:
        super().__init__("the address may not be called")
        self.address = address
        self.reason = ban(address) or Ban.RESERVED


class Guard(AbstractResolver):
    """Lets through the public internet and what is allowed; `by_name`: for hosts that are allowed by their names.

    As a resolver it leaves out what may not be called, so that a name with a public and a private address can be. As
    the maker of sockets it has the last word: it sees the very address that is connected to, also one that was written
    into the URL, and nothing can change in between.
    """

    def __init__(self, allowed: Allowed, *, by_name: bool, resolver: AbstractResolver | None = None) -> None:
        self._allowed = allowed
        self._by_name = by_name
        self._resolver = resolver or DefaultResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of a name that may be called. Raises AddressRefused when it has no other, OSError."""
        found = await self._resolver.resolve(host, port, family)
        permitted = [result for result in found if self._permits(ip_address(result["host"]))]
        if found and not permitted:
            raise AddressRefused(ip_address(found[0]["host"]))
        return permitted

    async def close(self) -> None:
        await self._resolver.close()

    def socket(self, info: tuple[Any, ...]) -> socket.socket:
        """Make the socket for an address, as getaddrinfo describes it. Raises AddressRefused."""
        family, kind, protocol, _, place = info
        address = ip_address(place[0])
        if not self._permits(address):
            raise AddressRefused(address)
        return socket.socket(family, kind, protocol)

    def _permits(self, address: Address) -> bool:
        return self._allowed.permits(address, by_name=self._by_name)
