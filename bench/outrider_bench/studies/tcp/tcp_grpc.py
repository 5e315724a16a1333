"""The same exchanges over gRPC: a bidirectional stream of raw bytes with the product's channel options."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any, Self

import grpc

from outrider_bench.studies.tcp.tcp_exchange import HEADER, TIMEOUT_S, ExchangeShape, ExchangeTiming
from outrider_client.connection.grpc_transport import CHANNEL_OPTIONS
from outrider_proto.errors import LinkError
from outrider_server.rpc.server import SERVER_OPTIONS

MESSAGE_BYTES = 256 * 1024  # about a frame of features
Options = Sequence[tuple[str, int]]
_METHOD = "Session"
_SERVICE = "outrider.bench.Exchange"


class GrpcReplier:
    """A server on loopback that sends what it is asked for; `options` win over the product's own."""

    def __init__(self, options: Options = ()) -> None:
        self._server = grpc.aio.server(options=[*SERVER_OPTIONS, *options])
        # Any: a handler of bytes
        handler: Any = grpc.stream_stream_rpc_method_handler(_replies)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler}),))
        self.port = self._server.add_insecure_port("127.0.0.1:0")

    async def __aenter__(self) -> Self:
        await self._server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._server.stop(None)


class GrpcExchanger:
    """One stream on a channel of its own; `options` win over the product's own."""

    def __init__(self, address: str, options: Options = ()) -> None:
        self._address = address
        self._options = options

    async def __aenter__(self) -> Self:
        self._channel = grpc.aio.insecure_channel(self._address, options=[*CHANNEL_OPTIONS, *self._options])
        await asyncio.wait_for(self._channel.channel_ready(), TIMEOUT_S)
        # Any: without (de)serialisers messages are bytes, which the stubs cannot say
        self._call: Any = self._channel.stream_stream(f"/{_SERVICE}/{_METHOD}")()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._call.cancel()
        await self._channel.close()

    async def exchange(self, shape: ExchangeShape) -> ExchangeTiming:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await self._timed(shape)
        # InvalidStateError: the stream had ended before.
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise LinkError(f"{self._address}: the stream broke ({error})") from error

    async def _timed(self, shape: ExchangeShape) -> ExchangeTiming:
        started = time.perf_counter()
        await self._call.write(shape.header().ljust(shape.request, b"\0"))
        missing = shape.reply - await self._arrived_bytes()
        first = time.perf_counter()
        while missing:
            missing -= await self._arrived_bytes()
        return ExchangeTiming((first - started) * 1e3, (time.perf_counter() - started) * 1e3)

    async def _arrived_bytes(self) -> int:
        message = await self._call.read()
        if not isinstance(message, bytes):
            raise LinkError(f"{self._address}: the server closed the stream")
        return len(message)


# Any: the stubs have no type for a context of bytes
async def _replies(requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        shape = ExchangeShape.of(request[: HEADER.size])
        for size in _messages(shape):
            yield bytes(size)


def _messages(shape: ExchangeShape) -> list[int]:
    """Return the sizes of the messages for the first part and the rest."""
    rest = shape.reply - shape.first
    whole, left = divmod(rest, MESSAGE_BYTES)
    return [size for size in (shape.first, *[MESSAGE_BYTES] * whole, left) if size]
