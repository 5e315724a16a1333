"""One replica: a verifier, and its services' methods under the names by which Ray calls them.

The methods get Ray's context in place of gRPC's. Ray drops trailing metadata when a method raises, and with it the
reason of a refusal. So nothing is raised: code, text and metadata are set on Ray's context, and one empty message
carries them to the proxy, which drops that message (ingress.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
from grpc_health.v1 import health_pb2

from outrider_server.config.config import ServerConfig
from outrider_server.rpc.server import Server
from outrider_server.telemetry.logs import start_logging

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from ray.serve.grpc_util import RayServegRPCContext

_END = None


class SerializedMessage:
    """A serialized message that looks like protobuf's to Ray."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def SerializeToString(self) -> bytes:  # protobuf's name
        return self._data


class _Aborted(Exception):
    """Ends a method after abort(), as gRPC's own exception would."""


class RayServicerContext:
    """The part of grpc.aio.ServicerContext that services use, for one call through Ray."""

    def __init__(self, context: RayServegRPCContext) -> None:
        self._context = context
        self.invocation_metadata = context.invocation_metadata
        self.auth_context, self.peer = context.auth_context, context.peer
        self._written: asyncio.Queue[Any] = asyncio.Queue()  # Any: messages of any method

    async def write(self, message: bytes | Message) -> None:
        """Queue a message. Ray takes everything at once: the client's pace cannot be seen here."""
        self._written.put_nowait(_serialized(message))

    async def abort(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing_metadata: Iterable[tuple[str, Any]] = (),  # Any: text or bytes
    ) -> NoReturn:
        self._context.set_code(code)
        self._context.set_details(details)
        self._context.set_trailing_metadata(list(trailing_metadata))
        raise _Aborted

    async def unary(self, method: Awaitable[Message]) -> SerializedMessage:
        """Return what `method` answers to this call; an empty message when it was aborted."""
        try:
            return _serialized(await method)
        except _Aborted:
            return SerializedMessage(b"")

    async def streamed(self, method: Awaitable[None]) -> AsyncGenerator[SerializedMessage]:
        """Yield what `method` writes, and an empty message when it was aborted.

        Cancels it when the consumer is gone.
        """
        task = asyncio.ensure_future(method)
        task.add_done_callback(lambda _: self._written.put_nowait(_END))
        try:
            while (message := await self._written.get()) is not _END:
                yield message
            # Raises what the method raised; its messages have all been yielded by now.
            await task
        except _Aborted:
            yield SerializedMessage(b"")
        finally:
            task.cancel()
            await asyncio.wait([task])


def _serialized(message: bytes | Message) -> SerializedMessage:
    return SerializedMessage(message if isinstance(message, bytes) else message.SerializeToString())


class Replica:
    """A deployment of launch.py. Ray calls each gRPC method by its short name, with its context as `grpc_context`."""

    async def __init__(self, config: ServerConfig) -> None:  # type: ignore[misc] # Ray awaits it, on its event loop
        # A process of its own: what `deploy` was told of logs is set here again.
        start_logging(config.telemetry.log_format, config.telemetry.log_level)
        self._server = Server.build(config)
        self._verifier, self._bundles = self._server.services()
        await self._server.start_verifier()

    async def Session(
        self, requests: AsyncIterator[bytes], grpc_context: RayServegRPCContext
    ) -> AsyncGenerator[SerializedMessage]:
        call: Any = RayServicerContext(grpc_context)  # Any: gRPC's own context, to the service
        async with aclosing(call.streamed(self._verifier.session(requests, call))) as messages:
            async for message in messages:
                yield message

    async def Describe(self, request: bytes, grpc_context: RayServegRPCContext) -> SerializedMessage:
        call: Any = RayServicerContext(grpc_context)  # Any: as above, and below
        return await call.unary(self._verifier.describe(request, call))  # type: ignore[no-any-return]

    async def Manifest(self, request: bytes, grpc_context: RayServegRPCContext) -> SerializedMessage:
        call: Any = RayServicerContext(grpc_context)
        return await call.unary(self._bundles.manifest(request, call))  # type: ignore[no-any-return]

    async def Fetch(self, request: bytes, grpc_context: RayServegRPCContext) -> AsyncGenerator[SerializedMessage]:
        call: Any = RayServicerContext(grpc_context)
        async with aclosing(call.streamed(self._bundles.fetch(request, call))) as messages:
            async for message in messages:
                yield message

    async def Check(self, request: bytes) -> SerializedMessage:
        """Answer grpc.health.v1: a replica that answers serves."""
        serving = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)
        return SerializedMessage(serving.SerializeToString())

    async def check_health(self) -> None:
        """Raise when the replica must be replaced; Ray asks from time to time."""
        if not self._server.verifier.alive:
            raise RuntimeError("the target can run no more passes")
