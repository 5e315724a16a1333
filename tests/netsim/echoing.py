"""The two ends of most engine tests: an echo server, and a connection through the engine under test."""

import asyncio
import contextlib


async def echo(reader, writer):
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    writer.close()


@contextlib.asynccontextmanager
async def connected(address):
    """Open a connection to `host:port` and always close it."""
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
