"""A line to the server that can be cut so that neither side notices: what a proxy that forgets a connection does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit


def socket_of(dsn: str) -> tuple[Path, str]:
    """Return the folder of a server's socket, and its port."""
    asked = parse_qs(urlsplit(dsn).query)
    return Path(asked["host"][0]), asked.get("port", ["5432"])[0]


def at(dsn: str, *, host: str, port: str | int) -> str:
    """Return the address of the same database behind another host and port."""
    parts = urlsplit(dsn)
    kept = {name: values[0] for name, values in parse_qs(parts.query).items()} | {"host": host, "port": str(port)}
    return urlunsplit(parts._replace(query=urlencode(kept)))


class Relay:
    """Passes on what both sides say, on all connections made before a cut until then."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._cuts = 0

    def cut(self) -> None:
        """Pass nothing on any more over the connections of now; they stay open, and new ones work."""
        self._cuts += 1

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        before = self._cuts
        while data := await reader.read(65536):
            if self._cuts == before:
                writer.write(data)
                await writer.drain()


@asynccontextmanager
async def relayed(dsn: str, folder: Path) -> AsyncIterator[Relay]:
    """Yield a relay to the server of an address, in a folder of its own."""
    behind, port = socket_of(dsn)
    relay = Relay(at(dsn, host=str(folder), port=port))
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(str(behind / f".s.PGSQL.{port}"))
        both = [
            asyncio.create_task(relay.pass_on(reader, far_writer)),
            asyncio.create_task(relay.pass_on(far_reader, writer)),
        ]
        tasks.update(both)
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            for end in (writer, far_writer):
                end.close()
                with suppress(Exception):
                    await end.wait_closed()

    server = await asyncio.start_unix_server(serve, str(folder / f".s.PGSQL.{port}"))
    try:
        yield relay
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
