"""The two ends of most engine tests: an echo server, and a connection through the engine under test."""

import asyncio
import contextlib

from outrider_netsim.core.addresses import Address
from outrider_netsim.core.async_resource import close_server


async def echo(reader, writer):
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    writer.close()


@contextlib.asynccontextmanager
async def serving(handler=echo):
    """Serve `handler` on a free port and give its address. No connection outlives the block.

    A handler that the end of the event loop cancels would leave its socket to the garbage collector, whose warning
    fails a later test.
    """
    handlers = {}

    async def handle(reader, writer):
        handlers[asyncio.current_task()] = writer
        # Not to be seen as cancelled: asyncio would report it as an exception in its own callback.
        with contextlib.suppress(asyncio.CancelledError):
            await handler(reader, writer)

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield Address(*server.sockets[0].getsockname())
    finally:
        await close_server(server, ())
        await asyncio.sleep(0)  # for the first step of a handler
        for task, writer in handlers.items():
            task.cancel()
            with contextlib.suppress(AttributeError):  # asyncio's own, of one that is closed by now
                writer.transport.abort()
        await asyncio.gather(*handlers)
        await asyncio.sleep(0)  # abort() closes the socket in the loop's next iteration


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
