"""The two ends of most engine tests: a server that echoes, and a connection through whatever is tested."""

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
    """A connection to `host:port`, closed at the end however it ended."""
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
