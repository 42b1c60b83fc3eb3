"""A proxy on loopback that cuts every connection after so many bytes of an answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit


@asynccontextmanager
async def cutting(url: str, after_bytes: int) -> AsyncIterator[str]:
    """Serve what a server answers, up to there."""
    origin = urlsplit(url)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(origin.hostname, origin.port)

        async def ask() -> None:
            while data := await reader.read(65_536):
                up_writer.write(data)

        asking = asyncio.ensure_future(ask())
        left = after_bytes
        with suppress(ConnectionError, asyncio.CancelledError):
            while left > 0 and (data := await up_reader.read(min(left, 1_024))):
                left -= len(data)
                writer.write(data)
                await writer.drain()
        asking.cancel()
        for end in (writer, up_writer):
            end.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
